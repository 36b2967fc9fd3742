"""Several whole nodes on one fabric, rented and removed together (contract §2.6)."""

from __future__ import annotations

from lium_plan.sim import lifecycle, market, renting
from lium_plan.sim.accounts import Caller
from lium_plan.sim.bodies import ClusterBody, RentOptions
from lium_plan.sim.refusal import Refusal, conflict, not_found
from lium_plan.sim.rows import Json, Pod, PodStatus
from lium_plan.sim.twist import Twist
from lium_plan.sim.world import World

IMAGE = "daturaai/lium-cluster"


def rent(world: World, caller: Caller, body: ClusterBody, twist: Twist) -> tuple[Pod, ...]:
    """Every node is checked before the first is rented, so that a refusal leaves nothing."""
    options = RentOptions(
        pod_name=body.pod_name,
        template_id=body.template_id,
        user_public_key=body.user_public_key,
        initial_port_count=body.initial_port_count,
        enable_volume_encryption=body.enable_volume_encryption,
        enable_backups=body.enable_backups,
    )
    template = renting.check_options(world, caller, options)
    if template is None or not template.docker_image.startswith(IMAGE):
        raise Refusal(400, "template_invalid", f"A cluster needs an image that starts with {IMAGE}")
    nodes = [renting.find_node(world, str(node_id)) for node_id in body.executor_uuids]
    if len({node.fabric for node in nodes}) != 1 or nodes[0].fabric is None:
        raise Refusal(400, None, "All nodes of a cluster must be on one fabric")
    for node in nodes:
        market.check_node(world, node, node.gpu_count)
        renting.check_ports(world, node, template, options)
    cluster_id = world.new_id()
    return tuple(
        renting.rent(
            world,
            caller,
            node,
            options,
            gpu_count=node.gpu_count,
            twist=twist,
            seat=renting.ClusterSeat(cluster_id, index),
        )
        for index, node in enumerate(nodes)
    )


def remove(world: World, caller: Caller, cluster_id: str) -> list[Json]:
    """One row per member. Raises Refusal 404, or 409 while a member is being created."""
    pods = [pod for pod in world.pods.where("cluster", cluster_id) if caller.sees(pod)]
    if not pods:
        raise not_found("Cluster")
    for pod in pods:
        caller.may_change(pod)
    if any(pod.status is PodStatus.PENDING for pod in pods):
        raise conflict("A node of this cluster is still being created")
    for pod in pods:
        lifecycle.request_removal(world, pod, reason="user_initiated", key_id=caller.key.id)
    return [
        {
            "pod_id": pod.id,
            "pod_name": pod.name,
            "cluster_node_index": pod.cluster_node_index,
            "success": True,
            "message": "Pod is being deleted",
        }
        for pod in pods
    ]
