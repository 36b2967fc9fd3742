"""Membership: which members each fleet has now, as names; what a count means is decided here and nowhere else.

A list of names is what it says. A count is a number of *living* members: those keep their numbers, whoever is
missing is made up for under the lowest free numbers, and when there are too many the least useful go first. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from lium_plan.addresses import Address, matches_any, parse, parse_pattern
from lium_plan.kinds.desired import Desired, Fleet, Removal
from lium_plan.kinds.digests import content_digest
from lium_plan.kinds.protocol import Record, Resource
from lium_plan.kinds.registry import kind
from lium_plan.planning.decisions import comparison_with
from lium_plan.planning.importing import pending_imports
from lium_plan.planning.moving import relocate
from lium_plan.planning.observed import Observed
from lium_plan.planning.rents import Health, created_at, fleet_it_ends, health, moment, still_does
from lium_plan.planning.situation import Situation, situation
from lium_plan.requests import PlanRequest
from lium_plan.state.model import State

RENTING = ("rent", "create")
"""Effects that, while open, may have made a member."""

TOGETHER = timedelta(seconds=5)
"""Members that were rented with no longer pause between them are equally old."""

_FIRST_TO_GO = (Health.UNREACHABLE, Health.UNFINISHED, Health.WELL)


def membership(
    fleets: Mapping[str, Fleet],
    state: State | None,
    observed: Observed,
    *,
    fill: bool = False,
    completed_fleets: Iterable[str] = (),
    removed: Iterable[Removal] = (),
    imports: Iterable[Address] = (),
) -> Mapping[str, tuple[str, ...]]:
    """The member names of each fleet, in member order.

    `fill`: a fleet of MIN..MAX that is between them tries for MAX again. `completed_fleets`: those whose task has
    ended and was to take them with it; they have no members. `removed`: members that are named there are none any
    more. `imports`: members that are about to be taken over count like living ones.
    """
    ended = frozenset(completed_fleets)
    known = _known_members(state, observed, frozenset(entry.source for entry in removed))
    for address in imports:
        if address.kind == "pod" and address.member is not None:
            known.setdefault(address.name, {}).setdefault(address.member, _Member(Health.WELL))
    return {name: _members(fleet, known.get(name, {}), fill, name in ended) for name, fleet in fleets.items()}


def members_now(
    outline: Desired, state: State | None, observed: Observed, request: PlanRequest, *, completed: Iterable[str] = ()
) -> Mapping[str, tuple[str, ...]]:
    """The members of each fleet for one plan. `outline`: what is desired, resources or not (`manifest.outline`)."""
    moved = relocate(outline.moved, state, observed)
    records = moved.state.records if moved.state is not None else {}
    return membership(
        outline.fleets,
        moved.state,
        moved.observed,
        fill=request.fill,
        completed_fleets=completed,
        removed=outline.removed,
        imports=(entry.address for entry in pending_imports(outline.imports, records)),
    )


def completions_by_records(
    desired: Desired, state: State, observed: Observed, *, salt: bytes, now: datetime
) -> Mapping[str, tuple[str, datetime]]:
    """Of tasks that have completed, are as they were, and are to take their fleet with them by now, by address: the
    hash of what was run, and when it ended.

    They ended before that was asked for, so the state remembers nothing of them beyond their pods. `desired` as
    expanded with the members that there are.
    """
    found: dict[str, tuple[str, datetime]] = {}
    context: Situation | None = None
    for resource in desired.resources.values():
        record = state.records.get(str(resource.address))
        if record is None or record.status != "completed" or fleet_it_ends(resource) is None:
            continue
        context = context or situation(desired, state, observed, PlanRequest(), salt=salt, now=now)
        change = kind(resource.kind).compare(resource, record, None, comparison_with(context, {}))
        if change.verb is None:
            found[record.key] = content_digest(resource, salt), moment(record.attributes.get("ended_at")) or now
    return found


Expand = Callable[[Mapping[str, tuple[str, ...]]], Desired]
"""What is desired, with these members of fleets that are counted rather than named."""


def completed_fleets(
    expand: Expand,
    fleets: Mapping[str, Fleet],
    state: State | None,
    members: Mapping[str, tuple[str, ...]],
    *,
    salt: bytes,
    replacing: Iterable[str] = (),
) -> frozenset[str]:
    """The fleets whose task has completed, unchanged since, and was to take them with it.

    On every member that lives, and on as many as the fleet must have: their numbers may be others than a fresh fleet's.
    `members`: as `members_now` has them, completed or not. `replacing`: patterns of `--replace`, with which a task runs
    again. Raises `AddressError` for one that is no pattern.
    """
    if state is None or not state.completions:
        return frozenset()
    least = {name: fleet.names or _lowest_free({}, max(fleet.minimum, 1)) for name, fleet in fleets.items()}
    fresh = _fleet_enders(expand(least))
    if not fresh:
        return frozenset()
    again = tuple(parse_pattern(text) for text in replacing)
    now = _fleet_enders(expand({**least, **members}))
    then = _fleet_enders(expand({**least, **_completed_members(fresh, state)}))
    ended: set[str] = set()
    for name, resources in fresh.items():
        known = [*resources, *now.get(name, ()), *then.get(name, ())]
        done = {resource.address for resource in known if _has_completed(resource, state, salt)}
        living = {resource.address for resource in now.get(name, ()) if str(resource.spec.pod) in state.records}
        runs_again = any(matches_any(again, resource.address) for resource in known)
        if len(done) >= len(resources) and living <= done and not runs_again:
            ended.add(resources[0].spec.pod.name)
    return frozenset(ended)


def _fleet_enders(desired: Desired) -> Mapping[str, list[Resource]]:
    """The tasks that are to take their fleets with them, by name, with a resource for each member."""
    found: dict[str, list[Resource]] = {}
    for resource in desired.resources.values():
        if fleet_it_ends(resource) is not None:
            found.setdefault(resource.address.name, []).append(resource)
    return found


def _completed_members(enders: Mapping[str, Sequence[Resource]], state: State) -> Mapping[str, tuple[str, ...]]:
    """On which members of each fleet such a task has completed."""
    found: dict[str, set[str]] = {}
    for address in map(parse, state.completions):
        if address.name in enders and address.member is not None:
            found.setdefault(enders[address.name][0].spec.pod.name, set()).add(address.member)
    return {fleet: sort_members(members) for fleet, members in found.items()}


def _has_completed(resource: Resource, state: State, salt: bytes) -> bool:
    completion = state.completions.get(str(resource.address))
    return completion is not None and completion.content == content_digest(resource, salt)


def sort_members(names: Iterable[str]) -> tuple[str, ...]:
    """Member order: numbers as numbers, then names."""
    names = tuple(names)
    if len(names) < 2:
        return names
    return tuple(sorted(names, key=lambda name: Address.of("fleet", "x", name).sort_key))


def _known_members(state: State | None, observed: Observed, removed: frozenset[str]) -> dict[str, dict[str, _Member]]:
    found: dict[str, dict[str, _Member]] = {}
    if state is None:
        return found
    for key, record in state.records.items():
        address = record.address
        if address.member is None or address.kind != "pod" or record.deposed or key in removed:
            continue
        how = health(record, observed.of(record), observed.at, setup=state.records.get(f"{key}.bootstrap"))
        since = created_at(record) or moment(record.attributes.get("rented_at"))
        found.setdefault(address.name, {})[address.member] = _Member(how, record, since)
    for effect in state.open.values():
        address = effect.address
        if address.member is not None and address.kind == "pod" and effect.op in RENTING:
            # It may exist; renting another one under a second number would be the worse mistake.
            found.setdefault(address.name, {})[address.member] = _Member(Health.WELL, since=effect.at)
    for record in _left_standing(state, observed):
        if str(record.address) in removed:
            continue
        members = found.setdefault(record.address.name, {})
        member = members.get(str(record.address.member))
        if member is None or not member.health.living:
            members[str(record.address.member)] = _Member(Health.WELL, record, created_at(record))
    return found


def _left_standing(state: State, observed: Observed) -> Iterator[Record]:
    """Pods that were to be replaced, and still do their work: they stand again where nothing has taken their place."""
    for record in state.records.values():
        if record.deposed and record.kind == "pod" and still_does(record, observed.of(record), observed.at):
            yield record


class _Member(NamedTuple):
    health: Health
    record: Record | None = None
    since: datetime | None = None
    """When it was rented, as far as is known."""


def _members(fleet: Fleet, known: Mapping[str, _Member], fill: bool, ended: bool) -> tuple[str, ...]:
    if ended:
        return ()
    if fleet.names is not None:
        return fleet.names
    living = {name: member for name, member in known.items() if member.health.living}
    wanted = fleet.maximum
    if not fill and living and fleet.minimum <= len(living):
        wanted = min(wanted, len(living)) if fleet.minimum < fleet.maximum else wanted
    if len(living) > wanted:
        numbered = reversed(sort_members(living))  # among equals the highest number goes
        batches = _batches(living)
        leaving = sorted(numbered, key=lambda name: _usefulness(living[name], batches[name], fleet.scale_down))
        return sort_members(leaving[len(living) - wanted :])
    return sort_members((*living, *_lowest_free(living, wanted - len(living))))


def _lowest_free(taken: Mapping[str, _Member], count: int) -> tuple[str, ...]:
    found: list[str] = []
    number = 0
    while len(found) < count:
        if str(number) not in taken:
            found.append(str(number))
        number += 1
    return tuple(found)


def _batches(living: Mapping[str, _Member]) -> dict[str, int]:
    """Which members were rented together: the same number, higher for younger ones; highest where that is not known.

    Their times come from several answers of the server, some to the second and some finer, and members of one run
    follow each other: an order within those seconds would say nothing about them.
    """
    times = {name: member.since for name, member in living.items() if member.since is not None}
    batches: dict[str, int] = {}
    number, before = 0, None
    for name in sorted(times, key=times.__getitem__):
        number += before is not None and times[name] - before > TOGETHER
        batches[name], before = number, times[name]
    return {name: batches.get(name, number + 1) for name in living}


def _usefulness(member: _Member, batch: int, policy: str) -> tuple[int, Decimal, int]:
    """Sorts those that leave first to the front."""
    record, how = member.record, _FIRST_TO_GO.index(member.health)
    price = kind(record.kind).price_per_hour_usd(record) if record is not None else Decimal(0)
    match policy:
        case "oldest":
            return how, Decimal(0), batch
        case "most-expensive":
            return how, -price, -batch
        case _:
            return how, Decimal(0), -batch
