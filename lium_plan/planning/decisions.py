"""Decisions: for each address, what is to be done and why, before anything is ordered, chosen or priced.

The kinds judge what a difference means; this module says when they are asked, and decides what needs no judgement:
what is missing is created, what nobody wants is destroyed, what can't be reached is left alone. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from lium_plan.addresses import Address, matches_any
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error, warning
from lium_plan.kinds.differ import field_changes
from lium_plan.kinds.pod.deposing import was_set_up
from lium_plan.kinds.protocol import (
    NOTHING,
    Change,
    Comparison,
    FieldChange,
    Json,
    Observation,
    Presence,
    Record,
    Resource,
    Verb,
)
from lium_plan.kinds.registry import kind
from lium_plan.money import rate
from lium_plan.planning.importing import READY
from lium_plan.planning.order import Cycle, toposort
from lium_plan.planning.plan import UNREACHABLE, Drift
from lium_plan.planning.refreshing import REASON, differences, is_known, refreshed, told_times
from lium_plan.planning.rents import EXCLUSIVE, Health, expired_since, health, host_of, is_being_extended, precedence
from lium_plan.planning.situation import Situation, listing_key

RECLAIMED = "RECLAIMED"
"""What an observation of a pod that is gone says where the account's events tell that its provider took it back."""
PROTECTION = "lifecycle.prevent_destroy"
"""The field that alone makes an update of bookkeeping, without a call: protection is kept in state."""
RENEWING = frozenset({Verb.CREATE, Verb.REPLACE, Verb.REBOOT, Verb.ADOPT, Verb.RUN})
"""Until these are done nothing is ready at an address."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing to do. Its id is unique in a plan: the address, with the remote id for a deposed resource."""

    address: Address
    verb: Verb
    reason: str = ""
    resource: Resource | None = None
    record: Record | None = None
    changes: tuple[FieldChange, ...] = ()
    counted: bool = True
    deposed_id: str | None = None
    second_half: bool = False
    """The deletion that ends a replacement whose new half comes first."""
    awaits_successor: bool = False
    """The deletion of what an earlier run left in use: what takes its place is made by this plan, and comes first."""
    releases: bool = False
    """It is forgotten here and stays on the account."""
    source: str | None = None
    """The id of what is taken into the state as it is: that changes nothing else."""

    @property
    def id(self) -> str:
        return str(self.address) if self.deposed_id is None else f"{self.address}#{self.deposed_id}"

    @property
    def hosted(self) -> bool:
        return kind(self.address.kind).hosted

    @property
    def creates_first(self) -> bool:
        """Whether this replacement makes the new one before the old one goes."""
        wanted = self.resource is not None and self.resource.lifecycle.create_before_destroy
        return self.verb is Verb.REPLACE and not self.hosted and (kind(self.address.kind).create_first or wanted)


@dataclass(slots=True)
class Decisions:
    """What was decided so far; grows while the resources are gone through in order of dependency."""

    made: dict[str, Decision] = field(default_factory=dict)
    drift: list[Drift] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    verbs: dict[Address, Verb] = field(default_factory=dict)
    """What is done to each address, deposed ones left out."""
    unreachable: dict[Address, Record] = field(default_factory=dict)

    def add(self, decision: Decision) -> None:
        self.made[decision.id] = decision
        if decision.deposed_id is None:
            self.verbs[decision.address] = decision.verb


def decide(situation: Situation) -> Decisions:
    """Raises `Failure` (1) when resources depend on each other in a circle."""
    decisions = Decisions()
    comparison = comparison_with(situation, decisions.verbs)
    for resource in _in_order_of_dependency(situation.resources):
        _decide_desired(situation, resource, comparison, decisions)
    leftovers = [record for record in situation.records.values() if _unwanted(situation, record)]
    hosted_last = sorted(leftovers, key=lambda record: (kind(record.kind).hosted, listing_key(record.address)))
    renewed = {address.host or address for address, verb in decisions.verbs.items() if verb in RENEWING}
    for record in hosted_last:
        _decide_unwanted(situation, record, renewed, decisions)
    return decisions


def comparison_with(situation: Situation, verbs: Mapping[Address, Verb]) -> Comparison:
    """What the kinds may look at, given what is done to everything else."""
    return Comparison(
        now=situation.now,
        salt=situation.salt,
        resolve=lambda reference: situation.value(reference, verbs),
        verbs=verbs,
        records=situation.records,
    )


def _in_order_of_dependency(resources: Mapping[Address, Resource]) -> list[Resource]:
    listed = sorted(resources, key=listing_key)
    try:
        order = toposort(listed, {address: resource.depends_on for address, resource in resources.items()})
    except Cycle as found:
        message = f"these wait for each other, so none can be first: {found}"
        raise Failure(ExitCode.ERROR, [error("dependency-cycle", message, address=str(found.nodes[0]))]) from found
    return [resources[address] for address in order]


def _unwanted(situation: Situation, record: Record) -> bool:
    return record.deposed or record.address not in situation.resources


# --- what is desired -----------------------------------------------------------------------------------------


def _decide_desired(situation: Situation, resource: Resource, comparison: Comparison, decisions: Decisions) -> None:
    record = situation.records.get(str(resource.address))
    if record is None:
        verb = Verb.RUN if kind(resource.kind).hosted else Verb.CREATE
        if not _host_is_unreachable(resource, decisions) and not situation.request.refresh_only:
            decisions.add(Decision(resource.address, verb, resource=resource))
        return
    seen = situation.observation(record)
    if seen is not None and seen.presence is Presence.UNREACHABLE:
        _keep_unreachable(record, seen, decisions)
        return
    if seen is not None and seen.presence is Presence.ABSENT:
        _replace_gone(situation, resource, record, seen, decisions)
        return
    if _host_is_unreachable(resource, decisions):
        return
    host = host_of(resource)
    if situation.request.refresh_only and host is not None and decisions.verbs.get(host) is Verb.FORGET:
        decisions.add(Decision(record.address, Verb.FORGET, "its pod is gone", record=record))
        return
    change = _as_asked(situation, resource, kind(resource.kind).compare(resource, record, seen, comparison))
    if is_being_extended(record, change.drift, situation.open):
        change = NOTHING
    decisions.diagnostics.extend(change.diagnostics)
    if situation.request.refresh_only:
        _refresh(record, seen, change.drift, decisions)
        return
    if change.drift is not None and (change.verb is Verb.REPLACE or not is_known(record, seen)):
        decisions.drift.append(Drift(record.address, change.drift, _attribute_changes(record, seen)))
    change = _with_protection(resource, record, change)
    if change.verb is None:
        return
    decision = Decision(
        resource.address, change.verb, change.reason, resource, record, change.fields, counted=change.counted
    )
    decisions.add(decision)
    if decision.creates_first:
        decisions.add(
            Decision(
                resource.address,
                Verb.DESTROY,
                "the new one takes its place",
                record=record,
                deposed_id=record.id or "old",
                second_half=True,
            )
        )


def _refresh(record: Record, seen: Observation | None, status: str | None, decisions: Decisions) -> None:
    """What differs from the record is taken into it."""
    fresh = refreshed(record, seen)
    if fresh is None:
        return
    changes = differences(record, fresh)
    decisions.drift.append(Drift(record.address, status or "changed", changes))
    decisions.add(Decision(record.address, Verb.ADOPT, REASON, record=record, changes=changes, source=record.id))


def _host_is_unreachable(resource: Resource, decisions: Decisions) -> bool:
    return host_of(resource) in decisions.unreachable


def _as_asked(situation: Situation, resource: Resource, change: Change) -> Change:
    """`--replace` goes beyond what the comparison found."""
    if not matches_any(situation.replacing, resource.address) or change.verb in (Verb.REPLACE, Verb.CREATE):
        return change
    if resource.kind in EXCLUSIVE:
        message = "--replace leaves it as it is: its content would be lost"
        hint = f"to lose it: lium-plan destroy --target {resource.address}, and apply again"
        found = warning("not-replaced", message, address=str(resource.address), hint=hint)
        return replace(change, diagnostics=(*change.diagnostics, found))
    verb = Verb.RUN if kind(resource.kind).hosted else Verb.REPLACE
    return replace(change, verb=verb, reason="asked for with --replace", counted=True)


def _with_protection(resource: Resource, record: Record, change: Change) -> Change:
    """`prevent_destroy` outlives its block, so a change of it is written down even if nothing else happens."""
    wanted = resource.lifecycle.prevent_destroy
    if change.verb is not None or wanted == record.protected:
        return change
    return replace(change, verb=Verb.UPDATE, fields=(FieldChange(PROTECTION, record.protected, wanted),))


def _replace_gone(
    situation: Situation, resource: Resource, record: Record, seen: Observation, decisions: Decisions
) -> None:
    status, reason = _why_gone(situation, record, seen)
    decisions.drift.append(Drift(record.address, status))
    if situation.request.refresh_only:
        decisions.add(Decision(record.address, Verb.FORGET, reason, record=record))
        return
    verb = Verb.RUN if kind(resource.kind).hosted else Verb.CREATE
    decisions.add(Decision(resource.address, verb, reason, resource, record))


def _why_gone(situation: Situation, record: Record, seen: Observation) -> tuple[str, str]:
    """The drift status, and what to tell people."""
    since = expired_since(record, situation.now)
    if since is not None:
        return "expired", f"TTL ended {ago(since)}"
    if seen.status == RECLAIMED:
        return "reclaimed", "reclaimed by its provider"
    return "gone", f"gone: {seen.reason}" if seen.reason else "gone"


def ago(span: timedelta) -> str:
    """`2 h ago`."""
    minutes = int(span.total_seconds()) // 60
    if minutes < 1:
        return "just now"
    hours = minutes // 60
    return f"{minutes} min ago" if hours < 1 else f"{hours} h ago" if hours < 48 else f"{hours // 24} days ago"


def _keep_unreachable(record: Record, seen: Observation, decisions: Decisions) -> None:
    if not record.deposed:
        decisions.unreachable[record.address] = record
    decisions.drift.append(Drift(record.address, UNREACHABLE))
    price = kind(record.kind).price_per_hour_usd(record)
    cost = f" It may cost {rate(price)}." if price else ""
    decisions.diagnostics.append(
        error(
            UNREACHABLE,
            f"it can't be told whether {record.id} is there or gone"
            + (f" ({seen.reason})" if seen.reason else "")
            + f", so it is kept and not replaced.{cost}",
            address=str(record.address),
            hint=f"look at it in the web console; if it is gone: lium-plan state rm '{record.key}'",
        )
    )


def _attribute_changes(record: Record, seen: Observation | None) -> tuple[FieldChange, ...]:
    if seen is None:
        return ()
    known = {**record.inputs, **record.attributes}
    shared: dict[str, Json] = {name: known[name] for name in seen.attributes if name in known}
    return field_changes(told_times(shared), told_times({name: seen.attributes[name] for name in shared}))


# --- what nobody wants ---------------------------------------------------------------------------------------


def _decide_unwanted(situation: Situation, record: Record, renewed: Collection[Address], decisions: Decisions) -> None:
    deposed_id = record.id if record.deposed else None
    seen = situation.observation(record)
    gone = seen is not None and seen.presence is Presence.ABSENT
    wanted = record.address in situation.resources
    if record.deposed and wanted and record.address in decisions.unreachable and _is_of_use(situation, record):
        return  # nobody can say whether its successor is there
    if kind(record.kind).hosted:
        _decide_hosted(situation, record, decisions)
    elif record.key in situation.released and not gone:
        if not situation.request.refresh_only:
            reason = _why_released(situation, record)
            decisions.add(Decision(record.address, Verb.FORGET, reason, record=record, releases=True))
    elif seen is not None and seen.presence is Presence.UNREACHABLE:
        _keep_unreachable(record, seen, decisions)
    elif seen is not None and seen.presence is Presence.ABSENT:
        status, reason = _why_gone(situation, record, seen)
        decisions.drift.append(Drift(record.address, status))
        decisions.add(_forgotten(situation, record, reason, deposed_id=deposed_id))
    elif situation.request.refresh_only:
        _refresh(record, seen, None, decisions)
    else:
        decisions.add(
            Decision(
                record.address,
                Verb.DESTROY,
                _why_unwanted(situation, record),
                record=record,
                deposed_id=deposed_id,
                awaits_successor=record.address in renewed and _is_of_use(situation, record),
            )
        )


def _is_of_use(situation: Situation, record: Record) -> bool:
    """Whether a left-over still does what its successor is made for. What holds something that only one can have goes
    first."""
    if not (was_set_up(record) and _does_its_work(situation, record)):
        return False
    before = (other for other in situation.deposed.get(record.address, ()) if precedence(other) > precedence(record))
    return not any(_does_its_work(situation, other) for other in before)


def _does_its_work(situation: Situation, record: Record) -> bool:
    setup = situation.records.get(f"{record.address}.bootstrap")
    well = health(record, situation.observation(record), situation.now, setup=setup) in (
        Health.WELL,
        Health.UNREACHABLE,
    )
    held = any(address.kind in EXCLUSIVE for address in record.depends_on)
    return record.status == READY and well and not held


def _forgotten(situation: Situation, record: Record, reason: str, *, deposed_id: str | None = None) -> Decision:
    """What is gone and wanted by nobody is as it should be: a change only where changes of the state are asked for."""
    counted = situation.request.refresh_only or situation.request.destroying
    return Decision(record.address, Verb.FORGET, reason, record=record, deposed_id=deposed_id, counted=counted)


def _why_released(situation: Situation, record: Record) -> str:
    price = kind(record.kind).price_per_hour_usd(situation.refreshed(record))
    cost = f", and costs {rate(price)}" if price else ""
    user = situation.released[record.key]
    return f"released: {record.id} stays{cost}" if user == record.key else f"released with {user}, which uses it"


def _why_unwanted(situation: Situation, record: Record) -> str:
    if record.deposed:
        return "another one has its place"
    if situation.request.destroying:
        return ""
    fleets = situation.desired.fleets if situation.desired is not None else {}
    if record.address.head == "fleet" and record.address.name in fleets:
        ended = ended_by_its_task(situation, record.address.name)
        return "its task has completed, and takes it with it" if ended else "the fleet has fewer members now"
    return "no longer declared"


def ended_by_its_task(situation: Situation, fleet: str) -> bool:
    """Whether a declared fleet has no members because `on_completion: destroy-fleet` took them."""
    declared = situation.desired.fleets.get(fleet) if situation.desired is not None else None
    return declared is not None and declared.minimum > 0 and fleet not in situation.members


def _decide_hosted(situation: Situation, record: Record, decisions: Decisions) -> None:
    """Goes with its pod, without a call; on a pod that stays, what still runs is stopped."""
    host = situation.host_record(record)
    if host is not None and host.address in decisions.unreachable:
        return
    fate = decisions.verbs.get(host.address) if host is not None else None
    if host is None:
        decisions.add(_forgotten(situation, record, "its pod is gone"))
    elif situation.request.refresh_only:
        if fate is Verb.FORGET:
            decisions.add(Decision(record.address, Verb.FORGET, "its pod is gone", record=record))
    elif fate in (Verb.DESTROY, Verb.FORGET, Verb.REPLACE, Verb.CREATE, Verb.REBOOT):
        counted = decisions.made[str(host.address)].counted
        reason = f"it goes with {host.address}"
        decisions.add(Decision(record.address, Verb.FORGET, reason, record=record, counted=counted))
    elif situation.still_runs(record):
        decisions.add(Decision(record.address, Verb.DESTROY, "it is running and no longer declared", record=record))
    else:
        decisions.add(Decision(record.address, Verb.FORGET, "no longer declared", record=record))
