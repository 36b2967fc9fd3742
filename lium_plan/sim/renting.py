"""Renting: everything that is checked between a request and a PENDING pod, in the server's order (contract §2.4, §9.2).

Authentication, scope, budget, balance and the idempotency look-up come before what is here, see `api.rent`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal

from pydantic import TypeAdapter, ValidationError

from lium_plan.sim import containers, images, lifecycle, livelihood, market, money
from lium_plan.sim.accounts import Caller
from lium_plan.sim.bodies import RentOptions
from lium_plan.sim.events import record_pod
from lium_plan.sim.listing import until
from lium_plan.sim.objects import volume_holder
from lium_plan.sim.refusal import Refusal, invalid, not_found
from lium_plan.sim.rows import Node, Pod, PodStatus, Template
from lium_plan.sim.templates import template_for_dockerfile, visible_template
from lium_plan.sim.twist import PLAIN, Twist
from lium_plan.sim.world import World

TTL_HOURS = range(1, 721)
_COUNT = TypeAdapter(int | None)
"""As the body's model reads it later: `"2"` is 2."""


@dataclass(frozen=True, slots=True)
class ClusterSeat:
    cluster_id: str
    index: int


def quoted_price(world: World, node_id: str, gpu_count: object) -> Decimal:
    """What a rent body would cost per hour, as far as it makes sense; 0 when it doesn't."""
    node = world.nodes.get(node_id)
    if node is None:
        return Decimal(0)
    try:
        count = _COUNT.validate_python(gpu_count)
    except ValidationError:
        count = None
    if count is None or count < 1:
        count = market.available(world, node)
    return market.price_for(node, min(count, node.gpu_count))


def find_node(world: World, node_id: str) -> Node:
    node = world.nodes.get(node_id)
    if node is None:
        raise Refusal(404, "node_not_found", "Node not found")
    return node


def rent(
    world: World,
    caller: Caller,
    node: Node,
    options: RentOptions,
    *,
    gpu_count: int | None,
    twist: Twist = PLAIN,
    seat: ClusterSeat | None = None,
) -> Pod:
    """Rent `gpu_count` GPUs of the node (None: all that are free). Raises Refusal; then nothing has changed."""
    template = check_options(world, caller, options)
    check_volume(world, caller, options)
    count = market.available(world, node) if gpu_count is None else gpu_count
    market.check_node(world, node, count)
    check_ports(world, node, template, options)
    if template is None:
        template = template_for_dockerfile(world, caller, options)
    return _create(world, caller, node, options, template=template, gpu_count=count, twist=twist, seat=seat)


def check_options(world: World, caller: Caller, options: RentOptions) -> Template | None:
    """The template to rent with, None for a Dockerfile. Raises Refusal 400, 404 or 422."""
    if (options.backup_log_id is None) != (options.restore_path is None):
        raise invalid("restore_path", "backup_log_id and restore_path must be given together")
    hours = options.termination_hours
    if hours is not None and hours != 0 and hours not in TTL_HOURS:
        raise Refusal(400, "ttl_invalid", "termination_hours must be between 1 and 720")
    if options.dockerfile_content is not None:
        if options.template_id is not None:
            raise invalid("template_id", "template_id and dockerfile_content exclude each other")
        images.check_dockerfile(options.dockerfile_content)
        images.from_dockerfile(options.dockerfile_content)
        return None
    if options.template_id is None:
        raise Refusal(400, "template_invalid", "template_id or dockerfile_content is required")
    template = visible_template(world, caller, str(options.template_id))
    if template is None:
        raise Refusal(404, "template_not_found", "Template not found")
    if template.status == "VERIFY_FAILED":
        raise Refusal(400, "template_invalid", "Template verification failed")
    return template


def check_volume(world: World, caller: Caller, options: RentOptions) -> None:
    """Raises Refusal 404 for an unknown volume, 409 for one that any pod row holds (contract §2.10, §9.2.14)."""
    if options.volume_id is not None:
        check_attachable(world, caller, str(options.volume_id))
    if options.backup_log_id is not None:
        backup = world.transfers.get(str(options.backup_log_id))
        if backup is None or backup.account_id != caller.account.id or backup.status != "COMPLETED":
            raise not_found("Backup")


def check_attachable(world: World, caller: Caller, volume_id: str, *, but_pod: str | None = None) -> None:
    volume = world.volumes.get(volume_id)
    if volume is None or volume.account_id != caller.account.id or volume.deleted_at is not None:
        raise not_found("Volume")
    holder = volume_holder(world, volume_id)
    if holder is not None and holder.id != but_pod:
        raise Refusal(409, None, f"Volume is already attached to pod {holder.id}")


def check_ports(world: World, node: Node, template: Template | None, options: RentOptions) -> None:
    inner = len((template.internal_ports if template else ()) or containers.DEFAULT_PORTS)
    if inner + (options.initial_port_count or 0) > market.free_ports(world, node):
        raise Refusal(409, None, "Not enough available ports on this node")


def _create(
    world: World,
    caller: Caller,
    node: Node,
    options: RentOptions,
    *,
    template: Template,
    gpu_count: int,
    twist: Twist,
    seat: ClusterSeat | None,
) -> Pod:
    twist = livelihood.temper(world, node, twist)
    pod = _pending(world, caller, node, options, template_id=template.id, gpu_count=gpu_count, twist=twist, seat=seat)
    world.pods.put(pod)
    if world.settings.rent_lock_seconds:
        locked = world.now + world.took(world.settings.rent_lock_seconds)
        world.nodes.put(replace(node, rent_locked_until=locked))
    money.charge_pod(world, pod, pod.price_per_hour)
    record_pod(
        world,
        pod,
        "pod-rent.requested",
        key_id=caller.key.id,
        to_status=PodStatus.PENDING.value,
        reason="user_initiated",
    )
    hours = options.termination_hours
    if hours:
        pod = lifecycle.schedule_removal(world, pod, world.now + timedelta(hours=hours), follows_boot=True)
    return lifecycle.begin_creation(world, pod, twist)


def _pending(
    world: World,
    caller: Caller,
    node: Node,
    options: RentOptions,
    *,
    template_id: str,
    gpu_count: int,
    twist: Twist,
    seat: ClusterSeat | None,
) -> Pod:
    """The row of a pod that was just rented."""
    return Pod(
        id=world.new_id(),
        account_id=caller.account.id,
        key_id=caller.key.id,
        serial=world.next_serial(),
        name=options.pod_name,
        node_id=node.id,
        gpu_count=gpu_count if twist.gpu_count is None else twist.gpu_count,
        price_per_hour=(market.price_for(node, gpu_count) * Decimal(str(twist.price_factor or 1))).quantize(
            market.CENT_FRACTION
        ),
        status=PodStatus.PENDING,
        created_at=world.now,
        updated_at=world.now,
        template_id=template_id,
        volume_id=None if options.volume_id is None else str(options.volume_id),
        public_keys=options.public_keys,
        extra_ports=options.initial_port_count or 0,
        termination_hours=options.termination_hours,
        removal_scheduled_at=None,
        removal_follows_boot=False,
        enable_jupyter=options.enable_jupyter,
        enable_backups=options.enable_backups,
        enable_volume_encryption=bool(options.enable_volume_encryption),
        skip_add_agent_ssh_key=options.skip_add_agent_ssh_key,
        ssh_delay_s=twist.ssh_delay_seconds or 0.0,
        ssh_mode=twist.ssh or "none",
        volume_mount_fails=bool(twist.volume_mount_fails),
        stuck_delete=bool(twist.stuck_delete),
        conflict_on_delete=bool(twist.conflict),
        detail_404=bool(twist.detail_404),
        visible_gpus=twist.visible_gpus,
        dockerfile=options.dockerfile_content,
        cluster_id=seat.cluster_id if seat else None,
        cluster_node_index=seat.index if seat else None,
        hidden_until=until(world, twist.hide_seconds),
    )
