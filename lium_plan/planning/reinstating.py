"""Healthy pods that were to be replaced, and whose successors were never made: they stand at their addresses again.

Owns the state as a plan sees it with them back. Otherwise a replacement that found nothing would condemn the pod that
it was to replace: the next plan would rent another one beside it, whatever the manifest says by then. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from lium_plan.addresses import Address
from lium_plan.kinds.protocol import Record, Verb
from lium_plan.kinds.registry import kind
from lium_plan.planning.observed import Observed
from lium_plan.planning.plan import Action
from lium_plan.planning.rents import health
from lium_plan.state.model import State


def reinstated(
    state: State | None, observed: Observed, wanted: Collection[Address]
) -> tuple[State | None, Observed, tuple[Action, ...]]:
    """The same with these pods at their addresses, and the actions that put them there."""
    back = _without_successor(state, observed, wanted) if state is not None else {}
    if state is None or not back:
        return state, observed, ()
    records = {key: record for key, record in state.records.items() if key not in back}
    records |= {record.key: record for record in back.values()}
    seen = dict(observed.observations)
    for key, record in back.items():
        if key in seen:
            seen[record.key] = seen.pop(key)
    actions = tuple(_action(key, record) for key, record in back.items())
    return replace(state, records=records), replace(observed, observations=seen), actions


def _without_successor(state: State, observed: Observed, wanted: Collection[Address]) -> dict[str, Record]:
    """As they are to be, by the keys that they have; of several for one address the newest."""
    taken = {record.address for record in state.records.values() if not record.deposed}
    taken |= {effect.address for effect in state.open.values()}
    found: dict[Address, Record] = {}
    left = (record for record in state.records.values() if record.deposed and record.kind == "pod")
    for record in sorted(left, key=lambda record: str(record.attributes.get("rented_at"))):
        well = record.status == "ready" and health(record, observed.of(record), observed.at).living
        if well and record.address in wanted and record.address not in taken:
            found[record.address] = record
    return {record.key: replace(record, deposed=False) for record in found.values()}


def _action(key: str, record: Record) -> Action:
    return Action(
        address=record.address,
        verb=Verb.ADOPT,
        title=kind(record.kind).title(None, record),
        reason="it was to be replaced, and no successor was made",
        price_per_hour_usd=kind(record.kind).price_per_hour_usd(record) or None,
        source=key,
    )
