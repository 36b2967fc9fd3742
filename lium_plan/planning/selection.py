"""Selection: what `--target` and `--exclude` leave of a plan, and what they pull in or out with it. Pure.

Making a thing pulls in what it waits for; ending one pulls in what has to end first, and takes the records of what
ran on it along. Nothing is pulled in silently. A late pod whose place is taken is nobody's and goes in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from lium_plan.addresses import matches_any
from lium_plan.diagnostics import Diagnostic, warning
from lium_plan.kinds.protocol import Presence, Record, Verb
from lium_plan.kinds.registry import kind
from lium_plan.money import rate
from lium_plan.planning.decisions import Decision, ended_by_its_task
from lium_plan.planning.order import Graph
from lium_plan.planning.situation import Situation


@dataclass(frozen=True, slots=True)
class Selection:
    kept: tuple[Decision, ...]
    """In an order in which they could be carried out one by one."""
    diagnostics: tuple[Diagnostic, ...]
    left_out: bool
    """Whether something that is needed is not done."""


def select(situation: Situation, made: Mapping[str, Decision], graph: Graph[str]) -> Selection:
    kept = set(graph.order)
    diagnostics: list[Diagnostic] = []
    if situation.targets:
        chosen = [identity for identity in graph.order if matches_any(situation.targets, made[identity].address)]
        kept = set(chosen) | set(_pulled_in(chosen, made, graph))
        kept |= _left_without_users(kept, made, graph)
        diagnostics.extend(_say_pulled_in(kept - set(chosen), made, graph, kept))
        staying = set(_staying_with_their_pods(situation, made, kept, graph))
        diagnostics.extend(_say_pulled_out(staying, made, graph, "--target"))
        kept -= staying
    if situation.excludes:
        removed = [identity for identity in graph.order if matches_any(situation.excludes, made[identity].address)]
        with_them = _pulled_out(removed, made, graph)
        diagnostics.extend(_say_pulled_out(with_them & kept - set(removed), made, graph, "--exclude"))
        kept -= with_them
    kept = _whole_replacements(kept, made, graph)
    kept |= {late.record.key for late in situation.observed.late if late.record.deposed} & made.keys()
    diagnostics.extend(_say_left_behind(situation, made.keys() - kept))
    order = tuple(_alone(situation, made[identity], kept, graph) for identity in graph.order if identity in kept)
    return Selection(order, tuple(diagnostics), left_out=len(order) < len(graph.order))


def _alone(situation: Situation, decision: Decision, kept: set[str], graph: Graph[str]) -> Decision:
    """What runs on a pod that stays after all is stopped, not just forgotten."""
    record = decision.record
    if not decision.hosted or decision.verb is not Verb.FORGET or record is None or not situation.still_runs(record):
        return decision
    host = situation.host_record(record)
    if host is None or situation.presence(host) is Presence.ABSENT or kept & set(graph.before(decision.id)):
        return decision
    return replace(decision, verb=Verb.DESTROY, reason="it is running")


def _staying_with_their_pods(
    situation: Situation, made: Mapping[str, Decision], kept: set[str], graph: Graph[str]
) -> Iterator[str]:
    """What is still declared and was to go with a pod that is not chosen: how it ended must not be forgotten, or it
    would run again."""
    if situation.request.destroying:
        return
    declared = {(address.kind, address.name) for address in situation.resources}
    for identity in kept:
        decision = made[identity]
        if not decision.hosted or decision.verb is not Verb.FORGET or decision.record is None:
            continue
        pods = graph.before(identity)
        name = (decision.address.kind, decision.address.name)  # of another member, or on a fleet that its end took
        if pods and kept.isdisjoint(pods) and (name in declared or _ended_its_fleet(situation, decision.record)):
            yield identity


def _ended_its_fleet(situation: Situation, record: Record) -> bool:
    host = situation.host_record(record)
    return host is not None and ended_by_its_task(situation, host.address.name)


def _pulled_in(chosen: Iterable[str], made: Mapping[str, Decision], graph: Graph[str]) -> Iterator[str]:
    pending, seen = list(chosen), set(chosen)
    while pending:
        identity = pending.pop()
        for needed in (*_needs(identity, made, graph), *_consequences(identity, made, graph)):
            if needed not in seen:
                seen.add(needed)
                pending.append(needed)
    yield from seen


def _needs(identity: str, made: Mapping[str, Decision], graph: Graph[str]) -> Iterator[str]:
    # Forgetting a record is possible whatever becomes of the pod.
    if not (made[identity].hosted and made[identity].verb is Verb.FORGET):
        yield from graph.before(identity)


def _consequences(identity: str, made: Mapping[str, Decision], graph: Graph[str]) -> Iterator[str]:
    """What goes with it: the records of what ran on it, the old half of a replacement."""
    decision = made[identity]
    for after in graph.after(identity):
        follower = made[after]
        forgotten = follower.hosted and follower.verb is Verb.FORGET
        if forgotten or (follower.second_half and follower.address == decision.address):
            yield after


def _left_without_users(kept: set[str], made: Mapping[str, Decision], graph: Graph[str]) -> set[str]:
    """What exists only for things that all go with the chosen ones: templates, and then their credentials."""
    found: set[str] = set()
    for identity in graph.order:
        decision = made[identity]
        ends = decision.verb is Verb.DESTROY and not decision.second_half and kind(decision.address.kind).incidental
        users = graph.before(identity)
        if ends and users and all(user in kept or user in found for user in users):
            found.add(identity)
    return found


def _pulled_out(removed: Iterable[str], made: Mapping[str, Decision], graph: Graph[str]) -> set[str]:
    """With `removed`, everything that waits for one of them."""
    return set(removed) | set(graph.all_after(removed))


def _whole_replacements(kept: set[str], made: Mapping[str, Decision], graph: Graph[str]) -> set[str]:
    """An old half stays only with all that lets go of it; until then it is a deposed resource in state."""
    return {
        identity
        for identity in kept
        if not made[identity].second_half or all(before in kept for before in graph.before(identity))
    }


def _say_left_behind(situation: Situation, left_out: Set[str]) -> Iterator[Diagnostic]:
    for late in situation.observed.late:
        if late.record.key in left_out:
            price = kind(late.record.kind).price_per_hour_usd(late.record)
            message = f"pod {late.name} costs {rate(price)}, and all that is done is to know it: it is left out"
            yield warning("late-pod", message, address=str(late.record.address), hint="apply without leaving it out")


def _say_pulled_in(
    pulled: set[str], made: Mapping[str, Decision], graph: Graph[str], kept: set[str]
) -> Iterator[Diagnostic]:
    for identity in graph.order:
        if identity not in pulled or made[identity].second_half:
            continue
        if kind(made[identity].address.kind).incidental and made[identity].verb is Verb.DESTROY:
            yield warning(
                "pulled-in", "included with --target: nothing else uses it", address=str(made[identity].address)
            )
            continue
        because = next((after for after in graph.after(identity) if after in kept), None)
        because = because or next((before for before in graph.before(identity) if before in kept), None)
        how = "waits for it" if because in graph.after(identity) else "takes it along"
        yield warning("pulled-in", f"included with --target: {because} {how}", address=str(made[identity].address))


def _say_pulled_out(
    pulled: set[str], made: Mapping[str, Decision], graph: Graph[str], option: str
) -> Iterator[Diagnostic]:
    for identity in graph.order:
        if identity in pulled and not made[identity].second_half:
            waits = ", ".join(graph.before(identity))
            yield warning(
                "pulled-out", f"left out with {option}: it waits for {waits}", address=str(made[identity].address)
            )
