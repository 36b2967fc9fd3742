"""Renames: one address disappears, another with the same spec appears, and something would be lost over it.

Owns that suspicion: running pods would be destroyed and rented again, a volume would go with its content, pods would
reboot for a template that is the same, a running task would be stopped. A `moved` entry costs nothing and keeps it all.
`removed: [{from: …, destroy: true}]` says that it is no rename.

Things are compared by what they are made of, not by what that is called: when a template and the fleets that use it
get other names together, all of them are told at once, and nothing that allows one of them to go speaks for another.
Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lium_plan.addresses import Address, matches_any, parse
from lium_plan.diagnostics import Diagnostic, error
from lium_plan.kinds.protocol import Json, Record, Resource, Verb
from lium_plan.kinds.registry import kind
from lium_plan.planning.decisions import Decision, comparison_with
from lium_plan.planning.guards import Guarded, allowance
from lium_plan.planning.rents import health, host_of
from lium_plan.planning.situation import Situation

Pairs = Mapping[Address, Address]
"""New addresses, each with the old one that it seems to be."""


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
_KINDS = tuple(suspect.kind for suspect in _SUSPECTS)
_SHOWN = 5
_ROUNDS = 8
"""So often it is looked for more: each kind of thing may refer to the one before it."""


def guard_renames(guarded: Guarded) -> Iterator[Diagnostic]:
    situation = guarded.situation
    allowed = allowance(situation)
    if situation.request.destroying or allowed.everything:
        return
    meant = {entry.source for entry in situation.desired.removed} if situation.desired is not None else set()
    pairs = {
        new: old
        for new, old in sorted(_pairs(guarded).items(), key=lambda pair: (_KINDS.index(pair[1].kind), pair[1]))
        if not matches_any(allowed.patterns, old) and meant.isdisjoint(_names(old))
    }
    if allowed.count < len(pairs):
        yield _refusal(situation, pairs)


def _names(address: Address) -> tuple[str, str]:
    return str(address), f"{address.head}.{address.name}"


def _refusal(situation: Situation, pairs: Pairs) -> Diagnostic:
    entries = ", ".join(_entries(situation, pairs))
    known = situation.desired is not None and bool(situation.desired.moved)
    add = f"add to `moved`:  {entries}" if known else f"add  moved: [{entries}]"
    return error(
        "missing-moved",
        "; ".join(_losses(pairs)) + f": {'that looks' if len(pairs) == 1 else 'these look'} like a rename",
        address=str(next(iter(pairs.values()))),
        hint=f"{add}  to keep what there is, or --allow-destroy {len(pairs)} if all of it is meant",
    )


def _losses(pairs: Pairs) -> Iterator[str]:
    """`X and Y would be destroyed …, and … as Z`, for each kind."""
    for suspect in _SUSPECTS:
        found = [(old, new) for new, old in pairs.items() if old.kind == suspect.kind]
        if found:
            old, new = (_listed(addresses) for addresses in zip(*found, strict=True))
            yield f"{old} would be {suspect.words} {new}"


def _listed(addresses: Iterable[Address]) -> str:
    found = [str(address) for address in addresses]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


# --- who seems to be whom --------------------------------------------------------------------------------------------


def _pairs(guarded: Guarded) -> Pairs:
    """One rename may be what makes another one visible, so it is looked until no more are found."""
    going = {suspect.kind: tuple(_going(guarded, suspect)) for suspect in _SUSPECTS}
    coming = {suspect.kind: tuple(_coming(guarded, suspect)) for suspect in _SUSPECTS}
    both = [suspect.kind for suspect in _SUSPECTS if going[suspect.kind] and coming[suspect.kind]]
    found: dict[Address, Address] = {}
    for _ in range(_ROUNDS if both else 0):
        specs = _Specs(guarded.situation, found)
        again: dict[Address, Address] = {}
        for name in both:
            ends = (record for record in going[name] if _is_ended(guarded.situation, record, again))
            again.update(_matched(ends, coming[name], specs, _as_used(specs, found, name)))
        if again == found:
            break
        found = again
    return found


def _going(guarded: Guarded, suspect: _Suspect) -> Iterator[Record]:
    """What this plan ends and would thereby lose something."""
    for decision in guarded.kept:
        record = decision.record
        if decision.verb not in (Verb.DESTROY, Verb.FORGET) or record is None or decision.deposed_id is not None:
            continue
        forgets = decision.verb is Verb.FORGET and not decision.hosted
        if record.kind == suspect.kind and not forgets and suspect.loses(guarded.situation, record):
            yield record


def _is_ended(situation: Situation, record: Record, pairs: Pairs) -> bool:
    """What goes with its pod is ended by a rename only where the pod is."""
    host = situation.host_record(record) if kind(record.kind).hosted else None
    return host is None or host.address in situation.resources or host.address in pairs.values()


def _coming(guarded: Guarded, suspect: _Suspect) -> Iterator[Resource]:
    for decision in guarded.kept:
        if _is_new(decision) and decision.resource is not None and decision.address.kind == suspect.kind:
            yield decision.resource


def _is_new(decision: Decision) -> bool:
    return decision.verb in (Verb.CREATE, Verb.RUN) and decision.record is None


def _matched(
    going: Iterable[Record], coming: Iterable[Resource], specs: _Specs, as_used: Pairs
) -> Iterator[tuple[Address, Address]]:
    """Each new address beside an old one with its spec: what its users used, else the same member's, else the first."""
    waiting: dict[str, dict[Address, None]] = {}
    for record in going:
        waiting.setdefault(specs.of_record(record), {})[record.address] = None
    wanted = {resource.address: specs.of_resource(resource) for resource in coming}

    def pair(wish: Callable[[Address, Mapping[Address, None]], Address | None]) -> Iterator[tuple[Address, Address]]:
        for address, spec in tuple(wanted.items()):
            alike = waiting.get(spec, {})
            match = wish(address, alike)
            if match is not None and match in alike:
                del alike[match], wanted[address]
                yield address, match

    members = {(spec, old.member): old for spec, alike in waiting.items() for old in reversed(alike)}
    yield from pair(lambda address, _: as_used.get(address))
    yield from pair(lambda address, _: members.pop((wanted[address], address.member), None))
    yield from pair(lambda _, alike: next(iter(alike), None))


def _as_used(specs: _Specs, found: Pairs, name: str) -> Pairs:
    """What new pods use of this kind, of which each uses one at most, beside what the old ones used."""
    pairs: dict[Address, Address] = {}
    for new, old in found.items():
        record, resource = specs.situation.records.get(str(old)), specs.situation.resources.get(new)
        if record is not None and resource is not None and record.kind == "pod":
            used = {address.kind: address for address in record.depends_on}
            for address in resource.depends_on:
                if address.kind == name and name in used:
                    pairs.setdefault(address, used[name])
    return pairs


class _Specs:
    """What things are made of, as texts that are equal for equal things. `pairs`: renames that are suspected already,
    so that a reference to the new name has the value of the old one."""

    def __init__(self, situation: Situation, pairs: Pairs) -> None:
        self.situation = situation
        self._pairs = pairs
        renamed = {
            str(new): replace(record, address=new)
            for new, old in pairs.items()
            if (record := situation.records.get(str(old))) is not None
        }
        seen = {
            str(new): situation.observed.observations[str(old)]
            for new, old in pairs.items()
            if str(old) in situation.observed.observations
        }
        observed = replace(situation.observed, observations={**situation.observed.observations, **seen})
        known = replace(situation, records={**situation.records, **renamed}, observed=observed, _fresh={})
        self._comparison = comparison_with(known, {})
        self._known: dict[tuple[Address, bool], str] = {}

    def of_record(self, record: Record) -> str:
        host = self.situation.host_record(record) if kind(record.kind).hosted else None
        return self._text(record.address, record.inputs, old=True, host=None if host is None else host.address)

    def of_resource(self, resource: Resource) -> str:
        """A task on another pod than the old one's is another task: nothing that runs could be kept."""
        inputs = kind(resource.kind).inputs(resource.spec, self._comparison)
        host = host_of(resource)
        return self._text(resource.address, inputs, old=False, host=self._pairs.get(host, host) if host else None)

    def _text(self, address: Address, inputs: Mapping[str, Json], *, old: bool, host: Address | None) -> str:
        known = self._known.get((address, old))
        if known is None:
            if address.kind == "volume" and inputs.get("name") == address.name:
                inputs = {**inputs, "name": None}  # called like its key, as it is by default
            for path in kind(address.kind).links:
                inputs = _with_link(inputs, path, lambda text: self._used(parse(text), old=old))
            known = self._known[address, old] = json.dumps([str(host), inputs], sort_keys=True, default=list)
        return known

    def _used(self, address: Address, *, old: bool) -> str:
        """What stays, or was there, is known by its address; what goes or comes by what it is made of."""
        if address.kind == "credential":
            return "its own"  # a template has no other, and its user name stands beside it
        record, resource = self.situation.records.get(str(address)), self.situation.resources.get(address)
        if old and resource is None and record is not None:
            return self.of_record(record)
        if not old and record is None and resource is not None:
            return self.of_resource(resource)
        return str(address)


def _with_link(inputs: Mapping[str, Json], path: Sequence[str], used: Callable[[str], str]) -> Mapping[str, Json]:
    first, *rest = path
    value = inputs.get(first)
    if rest:
        return {**inputs, first: _with_link(value, rest, used)} if isinstance(value, Mapping) else inputs
    # Without a point it is the id of something that is not ours.
    return {**inputs, first: used(value)} if isinstance(value, str) and "." in value else inputs


# --- the entries that keep them --------------------------------------------------------------------------------------


def _entries(situation: Situation, pairs: Pairs) -> list[str]:
    """One entry for a whole group where all its members keep their names, else one for each member."""
    desired = {_names(address)[1] for address in situation.resources}
    leads_to: dict[str, set[str]] = {}
    for new, old in pairs.items():
        if old.member == new.member:
            leads_to.setdefault(_names(old)[1], set()).add(_names(new)[1])
    entries: dict[str, None] = {}
    for new, old in pairs.items():
        group = _names(old)[1]
        whole = old.member == new.member and group not in desired and len(leads_to[group]) == 1
        source, target = (group, _names(new)[1]) if whole else (f'"{old}"', f'"{new}"')
        entries[f"{{from: {source}, to: {target}}}"] = None
    return list(entries)
