"""What was to go, did not, and is wanted: it stands at its address again, as what it was.

Healthy pods that were to be replaced, and whose successors were never made, or are not what the manifest asks for by
now: otherwise a replacement that found nothing, or that somebody thought better of, would condemn the pod that it was
to replace. And volumes, templates and logins whose deletion was refused. Owns the state as a plan sees it with them
back. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lium_plan.addresses import Address
from lium_plan.kinds.pod.deposing import deposed
from lium_plan.kinds.protocol import Observation, Presence, Record, Resource, Verb
from lium_plan.kinds.registry import kind
from lium_plan.planning.observed import Observed
from lium_plan.planning.plan import Action
from lium_plan.planning.rents import fits, precedence, still_does
from lium_plan.state.model import State

UNREPLACED = "it was to be replaced, and no successor was made"
UNFIT_SUCCESSOR = "it was to be replaced, and what was made for that is not what is asked for"
UNDELETED = "it was to be deleted, is still there, and is wanted"


@dataclass(frozen=True, slots=True)
class _Back:
    key: str
    """What it is known by in the state."""
    record: Record
    """As it is to be."""
    why: str
    instead_of: Record | None = None
    """What stands there now, and goes."""


def reinstated(
    state: State | None, observed: Observed, wanted: Mapping[Address, Resource]
) -> tuple[State | None, Observed, tuple[Action, ...]]:
    """The same with these at their addresses, and the actions that put them there."""
    back = (*_unreplaced(state, observed, wanted), *_undeleted(state, observed, wanted)) if state is not None else ()
    if state is None or not back:
        return state, observed, ()
    records, seen = dict(state.records), dict(observed.observations)
    for item in back:
        if item.instead_of is not None:
            successor, setup = item.instead_of, records.get(f"{item.instead_of.address}.bootstrap")
            protected = successor.protected and wanted[successor.address].lifecycle.prevent_destroy
            _rekey(successor.key, deposed(successor, setup, protected=protected), records, seen)
        _rekey(item.key, item.record, records, seen)
    actions = tuple(_action(item) for item in back)
    return replace(state, records=records), replace(observed, observations=seen), actions


def _rekey(key: str, record: Record, records: dict[str, Record], seen: dict[str, Observation]) -> None:
    del records[key]
    records[record.key] = record
    if key in seen:
        seen[record.key] = seen.pop(key)


def _unreplaced(state: State, observed: Observed, wanted: Mapping[Address, Resource]) -> Iterator[_Back]:
    """Of several for one address one that fits before one that does not. Where nothing stands, also one that nobody
    wants: it goes like whatever else stands there, under the same guards.
    """
    unsettled = _unsettled(state)
    left: dict[Address, list[Record]] = {}
    for record in state.records.values():
        if record.deposed and record.kind == "pod" and record.address not in unsettled and _is_well(record, observed):
            left.setdefault(record.address, []).append(record)
    for address, records in left.items():
        resource = wanted.get(address)
        best = max(records, key=lambda record: (_fits(record, observed, resource), precedence(record)))
        successor = state.records.get(str(address))
        if successor is None:
            yield _Back(best.key, replace(best, deposed=False), UNREPLACED)
        elif resource is not None and _is_worse(successor, best, observed, resource):
            yield _Back(best.key, replace(best, deposed=False), UNFIT_SUCCESSOR, successor)


def _is_worse(successor: Record, old: Record, observed: Observed, resource: Resource) -> bool:
    """Whether a successor must go in any case, and the old one need not, or at least does its work."""
    seen = observed.of(successor)
    unknown = successor.id is None or (seen is not None and seen.presence is Presence.UNREACHABLE)
    if unknown or _fits(successor, observed, resource):
        return False
    return _fits(old, observed, resource) or not _is_well(successor, observed)


def _is_well(record: Record, observed: Observed) -> bool:
    return still_does(record, observed.of(record), observed.at)


def _fits(record: Record, observed: Observed, resource: Resource | None) -> bool:
    seen = observed.of(record)
    is_there = seen is None or seen.presence is Presence.PRESENT
    return is_there and resource is not None and fits(record, seen, resource)


def _undeleted(state: State, observed: Observed, wanted: Mapping[Address, Resource]) -> Iterator[_Back]:
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
