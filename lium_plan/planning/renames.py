"""Renames: one address disappears, another with the same spec appears, and something would be lost over it.

Owns that suspicion: running pods would be destroyed and rented again, a volume would go with its content, pods would
reboot for a template that is the same, a running task would be stopped. A `moved` entry costs nothing and keeps it all.
`removed: [{from: …, destroy: true}]` says that it is no rename. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lium_plan.addresses import Address, matches_any
from lium_plan.diagnostics import Diagnostic, error
from lium_plan.kinds.protocol import Comparison, Json, Record, Resource, Verb
from lium_plan.kinds.registry import kind
from lium_plan.planning.decisions import Decision, comparison_with
from lium_plan.planning.guards import Guarded, allowance
from lium_plan.planning.rents import health
from lium_plan.planning.situation import Situation

Pair = tuple[Address, Address]


@dataclass(frozen=True, slots=True)
class _Suspect:
    """What a kind's renaming would lose, and whether a record of it has that to lose."""

    kind: str
    words: str
    loses: Callable[[Situation, Record], bool]


def _runs(situation: Situation, record: Record) -> bool:
    return health(record, situation.observation(record), situation.now).living


def _is_used(situation: Situation, record: Record) -> bool:
    users = situation.dependents.get(record.address, ())
    return any(user.kind == "pod" and not user.deposed and _runs(situation, user) for user in users)


_SUSPECTS = (
    _Suspect("volume", "destroyed with its content, and an empty one made as", lambda _situation, _record: True),
    _Suspect("template", "made anew, and the pods that use it rebooted, as", _is_used),
    _Suspect("pod", "destroyed while running, and the same would be rented as", _runs),
    _Suspect("task", "stopped while running, and started again as", lambda _, record: record.status == "running"),
)


def guard_renames(guarded: Guarded) -> Iterator[Diagnostic]:
    situation = guarded.situation
    allowed = allowance(situation)
    if situation.request.destroying or allowed.everything:
        return
    meant = {entry.source for entry in situation.desired.removed} if situation.desired is not None else set()
    for suspect in _SUSPECTS:
        pairs = tuple(
            pair
            for pair in _pairs(guarded, suspect)
            if not matches_any(allowed.patterns, pair[0]) and meant.isdisjoint(_names(pair[0]))
        )
        if pairs and allowed.count < len(pairs):
            yield _refusal(guarded, suspect, pairs)


def _names(address: Address) -> tuple[str, str]:
    return str(address), f"{address.head}.{address.name}"


def _refusal(guarded: Guarded, suspect: _Suspect, pairs: Sequence[Pair]) -> Diagnostic:
    entries = ", ".join(_entries(guarded, pairs))
    return error(
        "missing-moved",
        f"{_listed(old for old, _ in pairs)} would be {suspect.words} {_listed(new for _, new in pairs)}: that looks "
        "like a rename",
        address=str(pairs[0][0]),
        hint=f"add  moved: [{entries}]  to keep what there is, or --allow-destroy {len(pairs)} if it is meant",
    )


def _listed(addresses: Iterable[Address]) -> str:
    found = [str(address) for address in addresses]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(found[:5]) + more


def _pairs(guarded: Guarded, suspect: _Suspect) -> Iterator[Pair]:
    """Each new address beside the first old one with its spec, the same member's where there is one."""
    situation = guarded.situation
    going = [record for decision in guarded.kept if (record := _goes(situation, decision, suspect)) is not None]
    coming = [decision.resource for decision in guarded.kept if _is_new(decision, suspect)] if going else []
    if not coming:
        return
    comparison = comparison_with(situation, {})
    waiting: dict[str, dict[Address, None]] = {}
    for record in going:
        waiting.setdefault(_key(record.address, record.inputs), {})[record.address] = None
    same_member = {(spec, old.member): old for spec, alike in waiting.items() for old in reversed(alike)}
    unpaired: list[tuple[str, Address]] = []
    for resource in coming:
        assert resource is not None
        spec = _spec_key(resource, comparison)
        match = same_member.pop((spec, resource.address.member), None)
        if match is None or match not in waiting[spec]:
            unpaired.append((spec, resource.address))
        else:
            del waiting[spec][match]
            yield match, resource.address
    for spec, address in unpaired:
        old = next(iter(waiting.get(spec, {})), None)
        if old is not None:
            del waiting[spec][old]
            yield old, address


def _goes(situation: Situation, decision: Decision, suspect: _Suspect) -> Record | None:
    """The record that this decision ends, if that would lose something."""
    record = decision.record
    if decision.verb is not Verb.DESTROY or record is None or decision.deposed_id is not None:
        return None
    return record if record.kind == suspect.kind and suspect.loses(situation, record) else None


def _is_new(decision: Decision, suspect: _Suspect) -> bool:
    made = decision.verb in (Verb.CREATE, Verb.RUN) and decision.record is None
    return made and decision.resource is not None and decision.address.kind == suspect.kind


def _spec_key(resource: Resource, comparison: Comparison) -> str:
    return _key(resource.address, kind(resource.kind).inputs(resource.spec, comparison))


def _key(address: Address, inputs: Mapping[str, Json]) -> str:
    """Equal for equal specs. A volume that is called like its key, and is so by default, has no name of its own."""
    by_default = {"name": None} if address.kind == "volume" and inputs.get("name") == address.name else {}
    return json.dumps({**inputs, **by_default}, sort_keys=True, default=list)


def _entries(guarded: Guarded, pairs: Sequence[Pair]) -> list[str]:
    """One entry for a whole group where all its members keep their names, else one for each member."""
    desired = {_names(address)[1] for address in guarded.situation.resources}
    entries: dict[str, None] = {}
    for old, new in pairs:
        whole = old.member == new.member and _names(old)[1] not in desired
        source, target = (_names(old)[1], _names(new)[1]) if whole else (f'"{old}"', f'"{new}"')
        entries[f"{{from: {source}, to: {target}}}"] = None
    return list(entries)
