"""What was to go, did not, and is wanted: it stands at its address again, as what it was.

Healthy pods that were to be replaced, and whose successors were never made: otherwise a replacement that found nothing
would condemn the pod that it was to replace, whatever the manifest says by then. And volumes, templates and logins
whose deletion was refused. Owns the state as a plan sees it with them back. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from lium_plan.addresses import Address
from lium_plan.kinds.protocol import Presence, Record, Verb
from lium_plan.kinds.registry import kind
from lium_plan.planning.observed import Observed
from lium_plan.planning.plan import Action
from lium_plan.planning.rents import health
from lium_plan.state.model import State

UNREPLACED = "it was to be replaced, and no successor was made"
UNDELETED = "it was to be deleted, is still there, and is wanted"


@dataclass(frozen=True, slots=True)
class _Back:
    key: str
    """What it is known by in the state."""
    record: Record
    """As it is to be."""
    why: str


def reinstated(
    state: State | None, observed: Observed, wanted: Collection[Address]
) -> tuple[State | None, Observed, tuple[Action, ...]]:
    """The same with these at their addresses, and the actions that put them there."""
    back = (*_unreplaced(state, observed, wanted), *_undeleted(state, observed, wanted)) if state is not None else ()
    if state is None or not back:
        return state, observed, ()
    records, seen = dict(state.records), dict(observed.observations)
    for item in back:
        del records[item.key]
        records[item.record.key] = item.record
        if item.key in seen:
            seen[item.record.key] = seen.pop(item.key)
    actions = tuple(_action(item) for item in back)
    return replace(state, records=records), replace(observed, observations=seen), actions


def _unreplaced(state: State, observed: Observed, wanted: Collection[Address]) -> Iterator[_Back]:
    """Of several for one address the newest."""
    taken = {record.address for record in state.records.values() if not record.deposed} | _unsettled(state)
    found: dict[Address, Record] = {}
    left = (record for record in state.records.values() if record.deposed and record.kind == "pod")
    for record in sorted(left, key=lambda record: str(record.attributes.get("rented_at"))):
        well = record.status == "ready" and health(record, observed.of(record), observed.at).living
        if well and record.address in wanted and record.address not in taken:
            found[record.address] = record
    for record in found.values():
        yield _Back(record.key, replace(record, deposed=False), UNREPLACED)


def _undeleted(state: State, observed: Observed, wanted: Collection[Address]) -> Iterator[_Back]:
    unsettled = _unsettled(state)
    for record in state.records.values():
        if record.status != "deleting" or record.deposed or record.kind not in ("volume", "template", "credential"):
            continue
        seen = observed.of(record)
        there = seen is not None and seen.presence is Presence.PRESENT
        if there and record.address in wanted and record.address not in unsettled:
            yield _Back(record.key, replace(record, status="ready"), UNDELETED)


def _unsettled(state: State) -> set[Address]:
    return {effect.address for effect in state.open.values()}


def _action(item: _Back) -> Action:
    record = item.record
    return Action(
        address=record.address,
        verb=Verb.ADOPT,
        title=kind(record.kind).title(None, record),
        reason=item.why,
        price_per_hour_usd=kind(record.kind).price_per_hour_usd(record) or None,
        source=item.key,
    )
