"""Sequence: what each decision waits for.

Owns the edges among the things to be done:
- what is made comes after what it depends on;
- what is destroyed comes after whatever used it was dealt with;
- the old half of a create-first replacement comes after its users moved to the new one, whichever run began it;
- a record of what ran on a pod is forgotten after the pod went;
- a pod is given up after what goes to another pod was stopped on it: later nobody knows the way to it.
Nothing that costs money waits for something that only runs on a pod before it may be destroyed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error, warning
from lium_plan.kinds.protocol import Json, Record, Verb
from lium_plan.kinds.registry import kind
from lium_plan.planning.decisions import Decision, Decisions
from lium_plan.planning.order import Cycle, Graph
from lium_plan.planning.rents import EXCLUSIVE, HOST_ID
from lium_plan.planning.situation import Situation, listing_key

MAKING = frozenset({Verb.CREATE, Verb.UPDATE, Verb.REBOOT, Verb.REPLACE, Verb.RUN, Verb.ADOPT})
LETTING_GO = frozenset({Verb.REBOOT, Verb.REPLACE, Verb.CREATE, Verb.DESTROY, Verb.FORGET})
"""After one of these a record no longer uses what it used."""


def sequence(situation: Situation, decisions: Decisions) -> Graph[str]:
    """The graph of decision ids, listed as plans list them. Raises `Failure` (1) for a circle."""
    made = decisions.made
    leavers = _leavers_by_dependency(made)
    parts = _parts_by_host(made)
    stopped = _stopped_by_pod(made)
    edges = {
        identity: tuple(_after_making(decision, made, leavers))
        if decision.verb in MAKING
        else tuple(_after_ending(situation, decision, made, parts, stopped))
        for identity, decision in made.items()
    }
    try:
        return Graph(sorted(made, key=lambda identity: _listing(made[identity])), edges)
    except Cycle as found:
        message = f"these wait for each other, so none can be first: {found}"
        raise Failure(ExitCode.ERROR, [error("dependency-cycle", message)]) from found


def drop_what_is_still_used(situation: Situation, decisions: Decisions) -> list[Diagnostic]:
    """Takes back the end of what something that stays goes on using, and says so. What that uses in turn stays, too."""
    found: list[Diagnostic] = []
    while kept := list(_still_used(situation, decisions.made)):
        for decision, user in kept:
            del decisions.made[decision.id]
            found.append(
                warning("still-used", f"kept, because {user.key} still uses it", address=str(decision.address))
            )
    return found


def _still_used(situation: Situation, made: Mapping[str, Decision]) -> Iterator[tuple[Decision, Record]]:
    for decision in made.values():
        if decision.verb is Verb.DESTROY and not decision.hosted:
            user = next((record for record in _users(situation, decision) if not _lets_go(record, made)), None)
            if user is not None:
                yield decision, user


def _users(situation: Situation, decision: Decision) -> Iterator[Record]:
    """The records of what uses the thing that this decision ends."""
    for record in situation.dependents.get(decision.address, ()):
        if kind(record.kind).hosted:
            continue
        # What depends on the address of a left-over may well use its successor: only its id tells.
        left_over = decision.deposed_id is not None and not decision.second_half
        used = record.attributes.get(f"{decision.address.kind}_id")
        if not left_over or used is None or decision.deposed_id in record.attributes.values():
            yield record


def _lets_go(record: Record, made: Mapping[str, Decision]) -> bool:
    decision = made.get(record.key)
    if decision is None or decision.verb not in LETTING_GO:
        return False
    return not decision.creates_first or f"{decision.address}#{record.id or 'old'}" in made


def _listing(decision: Decision) -> tuple[bool, tuple[int, tuple[str, str, int, int, str, str]], str]:
    """What earlier runs left to be deleted comes first of all."""
    left_over = decision.deposed_id is not None and not decision.second_half
    return not left_over, listing_key(decision.address), decision.id


def _after_making(
    decision: Decision, made: Mapping[str, Decision], leavers: Mapping[Address, tuple[str, ...]]
) -> Iterator[str]:
    if decision.resource is None:
        return
    for address in decision.resource.depends_on:
        before = made.get(str(address))
        if before is not None and before.verb in MAKING:
            yield before.id
        if decision.verb in (Verb.CREATE, Verb.REPLACE):
            yield from (leaver for leaver in leavers.get(address, ()) if leaver != decision.id)


def _leavers_by_dependency(made: Mapping[str, Decision]) -> Mapping[Address, tuple[str, ...]]:
    """Who is destroyed and thereby frees something that only one can have."""
    found: dict[Address, list[str]] = {}
    for identity, decision in made.items():
        if decision.verb is Verb.DESTROY and decision.record is not None and not decision.hosted:
            for address in decision.record.depends_on:
                if address.kind in EXCLUSIVE:
                    found.setdefault(address, []).append(identity)
    return {address: tuple(leavers) for address, leavers in found.items()}


def _parts_by_host(made: Mapping[str, Decision]) -> Mapping[Address, str]:
    """What makes a pod ready, by the pod's address."""
    return {
        decision.address.host: identity
        for identity, decision in made.items()
        if decision.address.host is not None and decision.verb in MAKING
    }


def _stopped_by_pod(made: Mapping[str, Decision]) -> Mapping[Json, tuple[str, ...]]:
    """What runs on a pod and is stopped there, to be started on another one, by the pod's id."""
    found: dict[Json, list[str]] = {}
    for identity, decision in made.items():
        if decision.hosted and decision.verb is Verb.REPLACE and decision.record is not None:
            found.setdefault(decision.record.attributes.get(HOST_ID), []).append(identity)
    return {pod_id: tuple(identities) for pod_id, identities in found.items()}


def _after_ending(
    situation: Situation,
    decision: Decision,
    made: Mapping[str, Decision],
    parts: Mapping[Address, str],
    stopped: Mapping[Json, tuple[str, ...]],
) -> Iterator[str]:
    if decision.releases and decision.record is not None:
        yield from stopped.get(decision.record.id, ())
    if decision.hosted:
        host = situation.host_record(decision.record) if decision.record is not None else None
        fate = made.get(str(host.address)) if host is not None else None
        if fate is not None and fate.verb in LETTING_GO:
            yield fate.id
    if decision.second_half or decision.awaits_successor:
        yield str(decision.address)
        if decision.address in parts:
            yield parts[decision.address]
    for user in _users(situation, decision):
        fate = made.get(user.key)
        if fate is not None and fate.verb in LETTING_GO and fate.verb is not Verb.CREATE:
            yield from (item for item in (fate.id, f"{fate.id}#{user.id}") if item in made)
