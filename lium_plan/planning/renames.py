"""Renames: one address disappears, another with the same spec appears, and the pods are running.

Owns that suspicion. A `moved` entry costs nothing and keeps the pods; without one the plan would pay twice. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from lium_plan.addresses import Address, matches_any
from lium_plan.diagnostics import Diagnostic, error
from lium_plan.kinds.protocol import Json, Verb
from lium_plan.kinds.registry import kind
from lium_plan.planning.decisions import Decision, comparison_with
from lium_plan.planning.guards import Guarded, allowance
from lium_plan.planning.rents import health


def guard_renames(guarded: Guarded) -> Iterator[Diagnostic]:
    situation = guarded.situation
    allowed = allowance(situation)
    if situation.request.destroying or allowed.everything:
        return
    going = [decision for decision in guarded.kept if _leaves_running(guarded, decision)]
    coming = [decision for decision in guarded.kept if _is_new(decision)]
    pairs = tuple(_pairs(guarded, going, coming))
    pairs = tuple(pair for pair in pairs if not matches_any(allowed.patterns, pair[0]))
    if not pairs or allowed.count >= len(pairs):
        return
    entries = _entries(guarded, pairs)
    yield error(
        "missing-moved",
        f"{', '.join(str(old) for old, _ in pairs)} would be destroyed while running, and the same would be rented "
        f"as {', '.join(str(new) for _, new in pairs)}: that looks like a rename",
        address=str(pairs[0][0]),
        hint=f"add  moved: [{', '.join(entries)}]  to keep what runs, or --allow-destroy {len(pairs)} to replace it",
    )


def _leaves_running(guarded: Guarded, decision: Decision) -> bool:
    record = decision.record
    if decision.verb is not Verb.DESTROY or record is None or decision.deposed_id is not None or decision.hosted:
        return False
    observation = guarded.situation.observation(record)
    return record.address.head == "fleet" and health(record, observation, guarded.situation.now).living


def _is_new(decision: Decision) -> bool:
    fresh = decision.verb is Verb.CREATE and decision.record is None
    return fresh and decision.resource is not None and decision.address.head == "fleet"


def _pairs(
    guarded: Guarded, going: Sequence[Decision], coming: Sequence[Decision]
) -> Iterator[tuple[Address, Address]]:
    """Each new address beside the first old one with its spec, the same member's where there is one."""
    if not going or not coming:
        return
    comparison = comparison_with(guarded.situation, {})
    waiting: dict[str, dict[Address, None]] = {}
    for decision in going:
        if decision.record is not None:
            waiting.setdefault(_key(decision.record.inputs), {})[decision.address] = None
    same_member = {(spec, old.member): old for spec, alike in waiting.items() for old in reversed(alike)}
    unpaired: list[tuple[str, Address]] = []
    for decision in coming:
        if decision.resource is None:
            continue
        spec = _key(kind(decision.resource.kind).inputs(decision.resource.spec, comparison))
        match = same_member.pop((spec, decision.address.member), None)
        if match is None:
            unpaired.append((spec, decision.address))
        else:
            del waiting[spec][match]
            yield match, decision.address
    for spec, address in unpaired:
        old = next(iter(waiting.get(spec, {})), None)
        if old is not None:
            del waiting[spec][old]
            yield old, address


def _key(inputs: Mapping[str, Json]) -> str:
    return json.dumps(inputs, sort_keys=True, default=list)


def _entries(guarded: Guarded, pairs: Sequence[tuple[Address, Address]]) -> list[str]:
    """One entry for a whole fleet where all its members keep their names, else one for each member."""
    desired = {address.name for address in guarded.situation.resources if address.head == "fleet"}
    entries: dict[str, None] = {}
    for old, new in pairs:
        whole = old.member == new.member and old.name not in desired
        source, target = (f"fleet.{old.name}", f"fleet.{new.name}") if whole else (f'"{old}"', f'"{new}"')
        entries[f"{{from: {source}, to: {target}}}"] = None
    return list(entries)
