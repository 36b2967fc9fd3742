"""Pods: members of fleets, rented by the second (contract §2.4, §2.7). What is asked of the market, and when a
living pod no longer satisfies it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING

from lium_plan.addresses import Address
from lium_plan.diagnostics import NEW_RENTS_ONLY, Diagnostic, warning
from lium_plan.expressions import PlainFloat
from lium_plan.kinds.differ import field_changes
from lium_plan.kinds.lifecycles import ignores, lifecycle_of
from lium_plan.kinds.pod.lifetimes import (
    TTL_CHANGED,
    TTL_TOLERANCE,
    deadline,
    extension,
    moment,
    shown_duration,
    shown_moment,
    ttl_end,
)
from lium_plan.kinds.pod.offers import ANY, Bounds, Offer, Requirement, Tier
from lium_plan.kinds.pod.satisfying import LASTING, Violations, as_offer, violations
from lium_plan.kinds.protocol import (
    Change,
    Comparison,
    FieldChange,
    Json,
    Observation,
    OpenEffect,
    Record,
    Resource,
    Scope,
    Verb,
)
from lium_plan.kinds.template.spec import implied_by_image

if TYPE_CHECKING:
    from lium_plan.kinds.fields import Range
    from lium_plan.kinds.pod.block import FleetBlock

DEAD_STATUSES = ("BROKEN", "FAILED", "CREATION_FAILED", "REBOOT_FAILED", "STOPPED", "STOP_PENDING")
"""Statuses that no pod comes back from; its row still holds the node, and REBOOT_FAILED even bills (contract §4.1)."""

_WHY_DEAD = {
    "BROKEN": "its provider has closed it",
    "FAILED": "its container has ended",
    "CREATION_FAILED": "it never started",
    "REBOOT_FAILED": "it did not come up again, and still costs money",
    "STOPPED": "nothing starts it again",
    "STOP_PENDING": "nothing starts it again",
    "DELETING": "somebody deleted it, or it was reclaimed",
}

NOT_READY_YET = "rented, not ready yet"
READY_AT = "ready_at"
"""The attribute that says when a pod's container was last found ready: it stands for that very container."""
TOUCHED_AT = "touched_at"
"""The attribute that says when we last changed the pod's row."""
REBOOTED_AT = "rebooted_at"
"""What is observed of a pod that somebody has rebooted since it was found ready."""

_PLACE = (REBOOTED_AT, "connect_command", "ports", "ssh_port", "host")

_TIERS = {"on-demand": (Tier.SECURE,), "spot": (Tier.SPOT,), "auto": (Tier.SECURE, Tier.SPOT)}


@dataclass(frozen=True, slots=True)
class PodSpec:
    fleet: str
    member: str
    requirement: Requirement
    template: Address | None
    template_id: str | None
    """A template that is somebody else's; exactly one of the two is set."""
    volume: Address | None
    volume_id: str | None
    ssh_key: str | None
    """Path of the private key as written; None: as the official client finds it."""
    ttl_s: int | None
    ttl_renew: bool
    backups: bool
    placement: str
    bootstrapped: bool
    """A bootstrap follows; the pod is ready when that is."""
    retry_s: int = 0
    """How long a refused rent is tried again after there was no capacity."""
    interruption_retry_s: int = 0
    """How long a pod that was taken away in the middle of work is rented again; 0: not at all."""
    fleet_size: int = 1
    minimum: int = 1
    update_parallel: int = 1


def expand(name: str, block: FleetBlock, scope: Scope) -> Iterable[Resource]:
    template, template_id = None, None
    if block.image is not None:
        implied = implied_by_image(block.image, scope)
        template = implied.address
        yield replace(implied, position=scope.position("fleets", name, "image"))
    elif block.template is not None:
        written = scope.block("templates", block.template)
        template_id = None if written is None else written.id
        template = Address.of("template", block.template) if template_id is None else None
    volume, volume_id = None, None
    if block.volume is not None:
        attached = scope.block("volumes", block.volume)
        volume_id = None if attached is None else attached.id
        volume = Address.of("volume", block.volume) if volume_id is None else None
    members = scope.members(name)
    requirement, lifecycle = requirement_of(block), lifecycle_of(block.lifecycle)
    depends_on = tuple(address for address in (template, volume) if address is not None)
    position = scope.position("fleets", name)
    for member in members:
        yield Resource(
            Address.of("fleet", name, member),
            PodSpec(
                fleet=name,
                member=member,
                requirement=requirement,
                template=template,
                template_id=template_id,
                volume=volume,
                volume_id=volume_id,
                ssh_key=block.ssh_key,
                ttl_s=block.ttl,
                ttl_renew=block.ttl_renew,
                backups=block.backups,
                placement=str(block.placement),
                bootstrapped=block.bootstrap is not None,
                retry_s=block.retry.duration if block.retry and "no-capacity" in block.retry.on_events else 0,
                interruption_retry_s=(
                    block.retry.duration if block.retry and "interruption" in block.retry.on_events else 0
                ),
                fleet_size=len(members),
                minimum=block.nodes.minimum,
                update_parallel=block.update.parallel if block.update else 1,
            ),
            depends_on=depends_on,
            lifecycle=lifecycle,
            position=position,
        )


USUALLY_READY_S = 40.0
"""From the rent to a machine that can be worked on, about (contract §4.3)."""


def requirement_of(block: FleetBlock) -> Requirement:
    resources = block.resources
    return Requirement(
        gpus=tuple(sorted(name.lower() for name in resources.gpu.names)),
        gpu_count=resources.gpu.count,
        gpu_memory=_bounds(resources.gpu.memory),
        cpu=_bounds(resources.cpu),
        memory=_bounds(resources.memory),
        disk=_bounds(resources.disk),
        regions=tuple(region.lower() for region in block.regions),
        tiers=_TIERS[str(block.spot_policy)],
        max_price_usd=block.max_price,
        node_ids=tuple(block.node_ids),
        exclude_nodes=tuple(block.exclude_nodes),
        min_download_mbps=block.min_download,
        nvlink=bool(block.nvlink),
        reliable=bool(block.reliable),
        min_cuda=block.min_cuda,
    )


@lru_cache(maxsize=256)
def _bounds(written: Range | None) -> Bounds:
    return ANY if written is None else Bounds(written.minimum, written.maximum)


class Pods:
    name = "pod"
    hosted = False
    create_first = False
    incidental = False
    links: tuple[tuple[str, ...], ...] = (("template",), ("volume",))

    def inputs(self, spec: PodSpec, comparison: Comparison) -> Mapping[str, Json]:
        want = spec.requirement
        return {
            "resources": {
                "gpu": ",".join(want.gpus) or "any",
                "gpu_memory": str(want.gpu_memory),
                "gpu_count": want.gpu_count,
                "cpu": str(want.cpu),
                "memory": str(want.memory),
                "disk": str(want.disk),
            },
            "regions": list(want.regions),
            "spot_policy": ",".join(want.tiers),
            "template": str(spec.template or spec.template_id),
            "volume": _volume_of(spec),
            "ttl_s": spec.ttl_s,
            "backups": spec.backups,
            "bootstrapped": spec.bootstrapped,
        }

    def compare(
        self, resource: Resource, record: Record, observation: Observation | None, comparison: Comparison
    ) -> Change:
        """In the order of what loses most: a dead pod, a wrong one, another template, another end; then notes."""
        unmet = violations(record, resource.spec.requirement, resource.lifecycle)
        return (
            _must_go(resource, record, observation, unmet)
            or self._in_place(resource, record, observation, comparison)
            or self._as_it_is(resource, record, observation, unmet)
        )

    def _in_place(
        self, resource: Resource, record: Record, observation: Observation | None, comparison: Comparison
    ) -> Change | None:
        rebooted = self._template_change(resource, record, observation, comparison) or _if_rebooted(record, observation)
        ttl = self._ttl_change(resource, record, observation, comparison)
        if rebooted is not None:
            # The wait for the rebooted pod sets the time to live too.
            return replace(rebooted, fields=(*rebooted.fields, *(ttl.fields if ttl is not None else ())))
        if ttl is not None and _is_not_ready_yet(record):
            return replace(ttl, verb=Verb.ADOPT, reason=NOT_READY_YET)  # judged first: it may not be what was ordered
        return ttl

    def _as_it_is(
        self, resource: Resource, record: Record, observation: Observation | None, unmet: Violations
    ) -> Change:
        notes = tuple(self._notes(resource, record, observation, unmet))
        if _is_not_ready_yet(record):
            return Change(Verb.ADOPT, NOT_READY_YET, diagnostics=notes)
        return Change(None, diagnostics=notes)

    def _template_change(
        self, resource: Resource, record: Record, observation: Observation | None, comparison: Comparison
    ) -> Change | None:
        """A pod changes template by a reboot: node and price stay, the container's file system is lost."""
        spec: PodSpec = resource.spec
        before, after = record.inputs.get("template"), str(spec.template or spec.template_id)
        if ignores(resource.lifecycle, "template") or ignores(resource.lifecycle, "image"):
            return None
        if before != after:
            changes = _forcing(field_changes({"template": before}, {"template": after}), "reboot")
            return Change(Verb.REBOOT, "another template", changes)
        if spec.template is not None and comparison.verbs.get(spec.template) in (Verb.REPLACE, Verb.CREATE):
            return Change(Verb.REBOOT, f"{spec.template} is new")
        shown = observation.attributes.get("template_id") if observation is not None else None
        current = comparison.records.get(str(spec.template)) if spec.template is not None else None
        wanted_id = current.id if current is not None else spec.template_id
        if shown is not None and wanted_id is not None and shown != wanted_id:
            return Change(Verb.REBOOT, "its template was switched by hand", drift="template-switched")
        return None

    def _ttl_change(
        self, resource: Resource, record: Record, observation: Observation | None, comparison: Comparison
    ) -> Change | None:
        spec: PodSpec = resource.spec
        before, after = record.inputs.get("ttl_s"), spec.ttl_s
        if ignores(resource.lifecycle, "ttl"):
            return None
        if before != after:
            change = FieldChange("ttl", shown_duration(before), shown_duration(after))
            return Change(Verb.UPDATE, fields=(change,))
        due = deadline(record, spec, comparison.now)
        if observation is None or due is None or record.status == "pending":
            return None
        shown = moment(observation.attributes.get("removal_at"))
        if shown is None:
            return Change(Verb.UPDATE, "the server has lost its time to live", drift="ttl-lost")
        if abs(shown - due) <= TTL_TOLERANCE:
            return None
        if spec.ttl_renew:
            return Change(Verb.RUN, f"ttl_renew: {shown_duration(after)} from now on", counted=False)
        if due <= comparison.now:
            return None  # told in a note: to set it would end the pod at once
        moved = FieldChange("removal_at", shown_moment(shown), shown_moment(due))
        return Change(Verb.UPDATE, "its time to live was changed by hand", (moved,), drift=TTL_CHANGED)

    def _notes(
        self, resource: Resource, record: Record, observation: Observation | None, unmet: Violations
    ) -> Iterator[Diagnostic]:
        """What is worth a look and changes nothing about this living pod."""
        address = str(record.address)
        for name, change in unmet:
            yield warning(
                NEW_RENTS_ONLY,
                f"{name}: {_words(change.before)} -> {_words(change.after)}, which binds new rents only: it stays",
                address=address,
            )
        spec: PodSpec = resource.spec
        extended = extension(record, spec)
        shown = moment(observation.attributes.get("removal_at")) if observation is not None else None
        due = None if spec.ttl_s is None else ttl_end(record, spec.ttl_s)
        if ignores(resource.lifecycle, "ttl") or due is None:
            return
        if extended is not None:
            message = f"extended to {shown_moment(extended)}, which holds until the manifest's ttl changes"
            yield warning("extended", message, address=address)
        elif shown is not None and observation is not None and shown - due > TTL_TOLERANCE and not spec.ttl_renew:
            message = f"it lives beyond its ttl, until {shown_moment(shown)}: somebody gave it more time"
            yield warning("outlives-ttl", message, address=address, hint="write a longer `ttl`, or destroy it")

    def title(self, resource: Resource | None, record: Record | None) -> str:
        rented = as_offer(record) if record is not None else None
        if rented is not None:
            return offer_title(rented)
        if resource is not None:
            want = resource.spec.requirement
            return f"{want.gpu_count}×{','.join(name.upper() for name in want.gpus) or 'any GPU'}"
        return str(record.attributes.get("pod_name", "")) if record is not None else ""

    def will(self, effect: OpenEffect, *, destroying: bool) -> str:
        match effect.op:
            case "rent" if destroying:
                return f"look for pod {effect.data.get('pod_name')}, and delete it if it exists"
            case "rent":
                name, or_else = effect.data.get("pod_name"), "replace it if it is not what is asked for"
                return f"look for pod {name}: adopt it, {or_else}, or settle that it was never rented"
            case "delete":
                return "look whether it is gone"
            case "extend":
                return "look whether it has the end that was asked for"
            case _:
                return "read it again"

    def takes_s(self, spec: PodSpec) -> float:
        return USUALLY_READY_S

    def requirement(self, spec: PodSpec) -> Requirement | None:
        return spec.requirement

    def price_per_hour_usd(self, record: Record) -> Decimal:
        return Decimal(str(record.attributes.get("price_per_hour_usd") or 0))

    def exported(self, record: Record, path: Sequence[str]) -> Json | None:
        match tuple(path):
            case ("pod_id",):
                return record.id
            case ("price",):
                price = record.attributes.get("price_per_hour_usd")
                return None if price is None else PlainFloat(str(price))
            case ("host" | "ip" | "ssh_port",):
                return record.attributes.get(path[0])
            case ("ports", port):
                ports = record.attributes.get("ports")
                return ports.get(port) if isinstance(ports, Mapping) else None
        raise KeyError(".".join(path))


def offer_title(offer: Offer) -> str:
    """`1×H100 80GB · 24 cpu · 249 GB · us-ms · secure`."""
    parts = (
        f"{offer.gpu_count}×{offer.gpu} {offer.gpu_memory_gib}GB",
        f"{offer.cpu} cpu",
        f"{offer.memory_gib} GB",
        offer.location,
        str(offer.tier),
    )
    return " · ".join(parts)


def _volume_of(spec: PodSpec) -> str | None:
    return str(spec.volume or spec.volume_id) if spec.volume or spec.volume_id else None


def status_after(status: str) -> str | None:
    """What a record says of a pod of which the server says this; None: it lives."""
    if status == "BROKEN":
        return "broken"
    if status in DEAD_STATUSES:
        return "failed"
    return "deleting" if status == "DELETING" else None


def _is_not_ready_yet(record: Record) -> bool:
    return record.status == "pending" and record.id is not None


def if_dead(record: Record, observation: Observation | None) -> Change | None:
    """That it must be replaced, and why; None: it lives, as far as was seen."""
    status = (observation.status or "") if observation is not None else ""
    if status in DEAD_STATUSES:
        return Change(Verb.REPLACE, f"the server says {status}: {_WHY_DEAD[status]}", drift=_slug(status))
    if status == "DELETING" and record.status != "deleting":
        return Change(Verb.REPLACE, f"it is being deleted: {_WHY_DEAD[status]}", drift="deleting")
    if record.status in ("failed", "broken", "deleting"):
        return Change(Verb.REPLACE, _why_dead(record), drift=record.status)
    return None


def is_as_asked(resource: Resource, record: Record, observation: Observation | None) -> bool:
    """Whether it can stay, changed in place at most."""
    unmet = violations(record, resource.spec.requirement, resource.lifecycle)
    return _must_go(resource, record, observation, unmet) is None


def _must_go(resource: Resource, record: Record, observation: Observation | None, unmet: Violations) -> Change | None:
    return if_dead(record, observation) or _if_wrong(resource, record, observation, unmet)


def _if_wrong(resource: Resource, record: Record, observation: Observation | None, unmet: Violations) -> Change | None:
    """That a living one must be replaced, and why; None: it is what is asked for, as far as it can't be changed."""
    shown = observation.attributes.get("gpu_count") if observation is not None else None
    rented = record.attributes.get("gpu_count")
    if shown is not None and rented is not None and str(shown) != str(rented):
        wrong = FieldChange("gpu_count", shown, rented, forces="replace")
        return Change(Verb.REPLACE, f"it has {shown} GPUs, {rented} were rented", (wrong,), drift="gpu-count")
    violated = tuple(change for name, change in unmet if name in LASTING)
    if violated:
        return Change(Verb.REPLACE, _reason(violated), violated)
    before, after = record.inputs.get("volume"), _volume_of(resource.spec)
    if before != after and not ignores(resource.lifecycle, "volume"):
        changes = field_changes({"volume": before}, {"volume": after})
        return Change(Verb.REPLACE, "a volume is attached when renting", _forcing(changes, "replace"))
    return None


def _if_rebooted(record: Record, observation: Observation | None) -> Change | None:
    """By somebody else: the container is another one, though node, price and id stay."""
    shown = observation.attributes if observation is not None else {}
    if record.status != "ready" or not (shown.get(REBOOTED_AT) or record.attributes.get(REBOOTED_AT)):
        return None
    known = record.attributes
    news = known.get(REBOOTED_AT) is None or any(name in shown and shown[name] != known.get(name) for name in _PLACE)
    what = "its new place and host key are" if news else "its new host key is"  # a refresh takes in all but the key
    return Change(Verb.ADOPT, f"it was rebooted: {what} taken in", drift="rebooted")


def _slug(status: str) -> str:
    return status.lower().replace("_", "-")


def _why_dead(record: Record) -> str:
    return {"deleting": "its deletion did not finish", "broken": "it is broken"}.get(record.status, "it failed")


def _words(value: Json) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list | tuple) else str(value)


def _reason(changes: tuple[FieldChange, ...]) -> str:
    return ", ".join(change.path for change in changes) + " no longer satisfied"


def _forcing(changes: tuple[FieldChange, ...], what: str) -> tuple[FieldChange, ...]:
    return tuple(replace(change, forces=what) for change in changes)
