"""Late pods: rented after all, though their rents were settled as not done; or known by a wrong id. They are ours, and
cost money.

Owns the state as a plan sees it with them: from there on they are adopted where they are wanted, and given back where
they are not. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from lium_plan.kinds.desired import Move
from lium_plan.kinds.protocol import Verb
from lium_plan.planning.decisions import Decision
from lium_plan.planning.moving import targets
from lium_plan.planning.observed import Late, Observed
from lium_plan.planning.plan import Open
from lium_plan.state.model import State


def at_their_places(late: tuple[Late, ...], state: State, moved: tuple[Move, ...]) -> tuple[Late, ...]:
    """The same at the addresses that they have by now; deposed where something else has theirs."""
    target = targets(moved)
    taken = {target(record.address) for record in state.records.values() if not record.deposed}
    found: list[Late] = []
    for item in late:
        record = item.record
        if not record.deposed and record.key not in state.records:
            place = target(record.address)
            record = replace(record, address=place, deposed=place in taken)
            taken.add(place)
        found.append(replace(item, record=record))
    return tuple(found)


def with_late(state: State | None, observed: Observed) -> tuple[State | None, Observed]:
    """State and observations as they are once the late pods are taken in."""
    if state is None or not observed.late:
        return state, observed
    records = {late.record.key: late.record for late in observed.late}
    seen = {late.record.key: late.observation for late in observed.late} if observed.refreshed else {}
    return (
        replace(state, records={**state.records, **records}),
        replace(observed, observations={**observed.observations, **seen}),
    )


def late_rows(observed: Observed, made: Mapping[str, Decision], kept: Container[str]) -> Iterator[Open]:
    """What apply will do about each of them. `kept`: the ids of what is not left out of the plan."""
    for late in observed.late:
        decision = made.get(late.record.key)
        ends = decision is not None and decision.verb in (Verb.DESTROY, Verb.REPLACE)
        left_out = decision is not None and decision.id not in kept
        what = "leave" if left_out else "give back" if ends else "adopt"
        yield Open(late.record.address, late.since, f"{what} pod {late.name}, {late.why}")
