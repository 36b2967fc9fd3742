"""Situation: everything that a plan is made from, indexed once. Read-only for all of planning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from lium_plan.addresses import Address, AddressError, Pattern, parse_pattern, suggestion
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error
from lium_plan.expressions import Reference
from lium_plan.kinds.desired import Desired, Policy
from lium_plan.kinds.protocol import Json, Observation, OpenEffect, Presence, Record, Resource, Verb
from lium_plan.kinds.registry import KINDS, kind
from lium_plan.planning.observed import Observed
from lium_plan.planning.rents import HOST_ID
from lium_plan.requests import PlanRequest
from lium_plan.state.model import State

UNSETTLED = frozenset({Verb.CREATE, Verb.REPLACE, Verb.REBOOT})
"""What makes a resource's exported values known only after apply."""

_RANKS = {name: rank for rank, name in enumerate(KINDS)}


def listing_key(address: Address) -> tuple[int, tuple[str, str, int, int, str, str]]:
    """Plans list addresses by kind, a bootstrap right after its pod."""
    return _RANKS[(address.host or address).kind], address.sort_key


@dataclass(frozen=True, slots=True)
class Situation:
    desired: Desired | None
    """None when only the state matters: a destroy without a manifest."""
    state: State | None
    observed: Observed
    request: PlanRequest
    salt: bytes
    now: datetime
    targets: tuple[Pattern, ...] = ()
    excludes: tuple[Pattern, ...] = ()
    replacing: tuple[Pattern, ...] = ()
    resources: Mapping[Address, Resource] = field(default_factory=dict)
    """What is desired; nothing when destroying."""
    records: Mapping[str, Record] = field(default_factory=dict)
    """Every record, deposed ones too, by key."""
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The desired members of each fleet."""
    dependents: Mapping[Address, tuple[Record, ...]] = field(default_factory=dict)
    """Records that say they depend on an address."""
    by_id: Mapping[str, Record] = field(default_factory=dict)
    """Living records by remote id, hosted ones left out."""
    deposed: Mapping[Address, tuple[Record, ...]] = field(default_factory=dict)
    """What was to be replaced and is still there, by address."""
    released: Mapping[str, str] = field(default_factory=dict)
    """Keys of records that `removed` gives up, with the key of the one that this is for."""
    _fresh: dict[str, Record] = field(default_factory=dict)
    """What `refreshed` has answered."""

    @property
    def policy(self) -> Policy:
        return self.desired.policy if self.desired is not None else Policy()

    @property
    def open(self) -> tuple[OpenEffect, ...]:
        return tuple(self.state.open.values()) if self.state is not None else ()

    def observation(self, record: Record) -> Observation | None:
        return self.observed.of(record)

    def presence(self, record: Record) -> Presence | None:
        seen = self.observed.of(record)
        return seen.presence if seen is not None else None

    def refreshed(self, record: Record) -> Record:
        """The record with the values that the API showed just now."""
        known = self._fresh.get(record.key)
        if known is None:
            seen = self.observed.of(record)
            same = seen is None or seen.attributes.items() <= record.attributes.items()
            known = (
                record if same or seen is None else replace(record, attributes={**record.attributes, **seen.attributes})
            )
            self._fresh[record.key] = known
        return known

    def host_record(self, record: Record) -> Record | None:
        """The pod that a hosted record ran on, while it is in state."""
        identity = record.attributes.get(HOST_ID)
        if isinstance(identity, str):
            return self.by_id.get(identity)
        host = record.address.host or next(iter(record.depends_on), None)
        return self.records.get(str(host)) if host is not None else None

    def still_runs(self, record: Record) -> bool:
        """Of what runs on a pod; where the pod was not asked, or could not tell, as recorded."""
        seen = self.observed.observations.get(record.key)
        return record.status == "running" and (seen is None or seen.status in (None, "running"))

    def value(self, reference: Reference, verbs: Mapping[Address, Verb]) -> Json | None:
        """What `${{ reference }}` is, as far as state and the API know; None: known after apply."""
        values = [
            self._exported(address, reference.path, verbs)
            for address in reference.addresses(lambda fleet: self.members.get(fleet, ()))
        ]
        if reference.is_list:
            return None if None in values else values
        return values[0] if values else None

    def _exported(self, address: Address, path: tuple[str, ...], verbs: Mapping[Address, Verb]) -> Json | None:
        record = self.records.get(str(address))
        if record is None or verbs.get(address) in UNSETTLED:
            return None
        try:
            return kind(record.kind).exported(self.refreshed(record), path)
        except KeyError:
            return None  # names that nothing has are reported by validate


def situation(
    desired: Desired | None,
    state: State | None,
    observed: Observed,
    request: PlanRequest,
    *,
    salt: bytes,
    now: datetime,
) -> Situation:
    """Raises `Failure` (64) for a pattern that is no pattern, and (1) for one that matches nothing."""
    resources = dict(desired.resources) if desired is not None and not request.destroying else {}
    records = _sorted(state.records) if state is not None else {}
    known = _known(desired, state)
    return Situation(
        desired=desired,
        state=state,
        observed=observed,
        request=request,
        salt=salt,
        now=now,
        targets=_patterns("--target", request.targets, known),
        excludes=_patterns("--exclude", request.excludes, None),
        replacing=_patterns("--replace", request.replace, known),
        resources=resources,
        records=records,
        members=_members(resources),
        dependents=_dependents(records),
        by_id={
            record.id: record
            for record in records.values()
            if record.id is not None and not record.deposed and not kind(record.kind).hosted
        },
        deposed=_deposed(records),
        released=_released(desired, request, resources, records),
    )


def _deposed(records: Mapping[str, Record]) -> Mapping[Address, tuple[Record, ...]]:
    found: dict[Address, list[Record]] = {}
    for record in records.values():
        if record.deposed:
            found.setdefault(record.address, []).append(record)
    return {address: tuple(left) for address, left in found.items()}


def _released(
    desired: Desired | None,
    request: PlanRequest,
    resources: Mapping[Address, Resource],
    records: Mapping[str, Record],
) -> Mapping[str, str]:
    """What is named, and what only that uses and nobody declares: the server would not let it go from under it."""
    named = {entry.source for entry in desired.removed if not entry.destroy} if desired is not None else set()
    if not named or request.destroying:
        return {}
    found: dict[str, str] = {}
    waiting = [
        (record, record.key)
        for record in records.values()
        if not record.deposed and not kind(record.kind).hosted and not named.isdisjoint(_names(record.address))
    ]
    while waiting:
        record, user = waiting.pop()
        if record.address in resources or record.key in found:
            continue
        found[record.key] = user
        needed = (records.get(str(address)) for address in record.depends_on)
        waiting.extend((item, record.key) for item in needed if item is not None)
    return found


def _names(address: Address) -> tuple[str, str]:
    """What an entry may call it: itself, or the group that it is in."""
    return str(address), f"{address.head}.{address.name}"


def _sorted(records: Mapping[str, Record]) -> Mapping[str, Record]:
    """In the order of plans, so that a plan does not depend on how the state came to be."""
    return dict(sorted(records.items(), key=lambda item: (listing_key(item[1].address), item[0])))


def check_allowances(desired: Desired | None, state: State | None, request: PlanRequest) -> None:
    """Raises `Failure` (1) for an `--allow-destroy ADDR` that matches nothing.

    Of the plan that is shown only: what was allowed and is done is no longer there for the plans that follow.
    """
    written = (text for text in request.allow_destroy if text != "all" and not text.isdigit())
    _patterns("--allow-destroy", written, _known(desired, state))


def _known(desired: Desired | None, state: State | None) -> list[Address]:
    """Every address that is declared, in the state, or of an effect without an outcome."""
    declared = desired.resources if desired is not None else {}
    held = state.records.values() if state is not None else ()
    unsettled = state.open.values() if state is not None else ()
    return [*declared, *(record.address for record in held), *(effect.address for effect in unsettled)]


def _patterns(flag: str, texts: Iterable[str], known: Iterable[Address] | None) -> tuple[Pattern, ...]:
    found: list[Pattern] = []
    for text in texts:
        try:
            pattern = parse_pattern(text)
        except AddressError as wrong:
            raise Failure(ExitCode.USAGE, [error("bad-address", f"{flag} {text}: {wrong}")]) from wrong
        if known is not None and not any(pattern.matches(address) for address in known):
            raise Failure(ExitCode.ERROR, [_nothing_matches(flag, text, known)])
        found.append(pattern)
    return tuple(found)


def _nothing_matches(flag: str, text: str, known: Iterable[Address]) -> Diagnostic:
    return error(
        "no-such-address",
        f"{flag} {text} matches nothing that is declared or in the state",
        hint=suggestion(text, known) or "nothing is declared, and the state holds nothing",
    )


def _members(resources: Mapping[Address, Resource]) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for address in resources:
        if address.kind == "pod" and address.member is not None:
            found.setdefault(address.name, []).append(address.member)
    return {name: tuple(members) for name, members in found.items()}


def _dependents(records: Mapping[str, Record]) -> Mapping[Address, tuple[Record, ...]]:
    found: dict[Address, list[Record]] = {}
    for record in records.values():
        for dependency in record.depends_on:
            found.setdefault(dependency, []).append(record)
    return {address: tuple(dependents) for address, dependents in found.items()}
