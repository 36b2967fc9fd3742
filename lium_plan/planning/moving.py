"""Moving: what was declared under one address is now declared under another (`moved`).

Owns the meaning of the entries: which records go where, what follows them (bootstraps, the login of a template, tasks
of a renamed member), and the state as it is once all have gone. A move changes the state alone and costs nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from lium_plan.addresses import Address, parse
from lium_plan.kinds.desired import Move
from lium_plan.kinds.protocol import Json, Record
from lium_plan.kinds.registry import kind
from lium_plan.planning.observed import Observed
from lium_plan.state.model import State

Target = Callable[[Address], Address]
"""The address that something at an address has now; the same where nothing moved."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One record, or what is left of a completed task, that changes its address."""

    source: Address
    target: Address


@dataclass(frozen=True, slots=True)
class Relocated:
    """State and observations as they are once everything has moved."""

    state: State | None
    observed: Observed
    moves: tuple[Moved, ...] = ()
    conflicts: tuple[Moved, ...] = ()
    """Moves onto an address that something else has; they are not made."""


def targets(moved: Iterable[Move]) -> Target:
    """The entries as one function. Follows chains: a history of several renames may stay in a manifest."""
    entries = {entry.source: entry.target for entry in moved}

    def step(address: Address) -> Address:
        if address.host is not None:
            host = step(address.host)
            return Address.of(host.head, host.name, host.member, address.part)
        exact = entries.get(str(address))
        if exact is not None:
            return parse(exact)
        whole = entries.get(f"{address.head}.{address.name}")
        if whole is not None:
            return Address.of(address.head, whole.partition(".")[2], address.member)
        if address.head == "credential":
            template = step(Address.of("template", address.name))
            return Address.of("credential", template.name)
        return address

    def target(address: Address) -> Address:
        for _ in range(len(entries)):
            following = step(address)
            if following == address:
                break
            address = following
        return address

    return target


def relocate(
    moved: tuple[Move, ...], state: State | None, observed: Observed, *, wanted: Iterable[Address] = ()
) -> Relocated:
    """`wanted`: what is desired; a task follows its pod to another member's name only where it is wanted there."""
    if not moved or state is None:
        return Relocated(state, observed)
    target = targets(moved)
    places = _places(state, target, frozenset(wanted))
    conflicts = _conflicts(state, places)
    for move in conflicts:
        del places[move.source]
    moves = [Moved(source, place) for source, place in places.items()]
    # What is open follows the entries alone: a rent that nobody knows the end of has no record that could move.
    state = replace(
        state, open={number: replace(item, address=target(item.address)) for number, item in state.open.items()}
    )
    if not moves:
        return Relocated(state, observed, conflicts=conflicts)

    def now_at(address: Address) -> Address:
        return places.get(address, address)

    records = [_moved(record, now_at, target) for record in state.records.values()]
    old_keys = list(state.records)
    return Relocated(
        replace(
            state,
            records={record.key: record for record in records},
            completions={str(now_at(parse(key))): item for key, item in state.completions.items()},
        ),
        replace(
            observed,
            observations={
                record.key: observed.observations[key]
                for key, record in zip(old_keys, records, strict=True)
                if key in observed.observations
            },
        ),
        tuple(sorted(moves, key=lambda move: move.target.sort_key)),
        conflicts,
    )


def relinked(record: Record, now_at: Target) -> Record:
    """The record with the addresses in its inputs as they are now; the same object where nothing changes."""
    inputs = record.inputs
    for path in kind(record.kind).links:
        inputs = _with_link(inputs, path, now_at)
    return record if inputs is record.inputs else replace(record, inputs=inputs)


def _with_link(inputs: Mapping[str, Json], path: tuple[str, ...], now_at: Target) -> Mapping[str, Json]:
    first, *rest = path
    value = inputs.get(first)
    if isinstance(value, Mapping) and rest:
        inner = _with_link(value, tuple(rest), now_at)
        return inputs if inner is value else {**inputs, first: inner}
    if rest or not isinstance(value, str) or "." not in value:
        return inputs  # nothing there, or the id of something that is not ours
    address = parse(value)
    following = now_at(address)
    return inputs if following == address else {**inputs, first: str(following)}


def _moved(record: Record, now_at: Target, target: Target) -> Record:
    """Inputs follow the entries even where the record they name has gone before: a killed apply may have moved it."""
    record = relinked(record, target)
    depends_on = tuple(now_at(address) for address in record.depends_on)
    left_over = record.deposed and record.kind != "pod"  # a pod may have to stand there again
    address = record.address if left_over else now_at(record.address)
    if (address, depends_on) == (record.address, record.depends_on):
        return record
    return replace(record, address=address, depends_on=depends_on)


def _places(state: State, target: Target, wanted: frozenset[Address]) -> dict[Address, Address]:
    """Where everything that moves goes."""
    places: dict[Address, Address] = {}
    living = [record for record in state.records.values() if not record.deposed]
    for address in (*(record.address for record in living), *map(parse, state.completions)):
        place = target(address)
        if place != address:
            places[address] = place
    for record in state.records.values():  # pods that were to be replaced, and whose successors were never made
        if not record.deposed or record.kind != "pod" or str(record.address) in state.records:
            continue
        place = target(record.address)
        if place != record.address and str(place) not in state.records:
            places[record.address] = place
    for record in living:
        follower = _follower(record, places, target)
        if follower is not None and follower in wanted and str(follower) not in state.records:
            places[record.address] = follower
    return places


def _follower(record: Record, places: Mapping[Address, Address], target: Target) -> Address | None:
    """Where a task goes whose pod got another member's name."""
    if record.address.head != "task":
        return None
    pod = next((address for address in record.depends_on if address.kind == "pod"), None)
    place = places.get(pod) if pod is not None else None
    own = target(record.address)
    if pod is None or place is None or place.member == pod.member or own.member != record.address.member:
        return None
    return Address.of(own.head, own.name, place.member)


def _conflicts(state: State, places: Mapping[Address, Address]) -> tuple[Moved, ...]:
    staying = {record.address for record in state.records.values() if not record.deposed} - set(places)
    taken: set[Address] = set()
    found = []
    for source, place in places.items():
        if place in staying or place in taken:
            found.append(Moved(source, place))
        taken.add(place)
    return tuple(found)
