"""Carrying out a plan: exactly its actions, in its order, each by its kind's driver.

Owns the way from an action to a driver's step, and from what happened to results. Knows no kind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, Failure, error, in_words
from lium_plan.engine.bookkeeping import is_bookkeeping, keep_books
from lium_plan.engine.emitter import Emitter
from lium_plan.engine.events import ActionResult, EventType, ResultKind
from lium_plan.engine.run import EngineRun, price_of
from lium_plan.engine.walk import Ending, Walk, remaining_s
from lium_plan.kinds.desired import Desired
from lium_plan.kinds.protocol import ActionFailed, Cancelled, Comparison, Driver, Interrupted, Record, Step, Verb
from lium_plan.kinds.registry import kind
from lium_plan.money import rate
from lium_plan.planning.observed import Found
from lium_plan.planning.order import Graph
from lium_plan.planning.plan import Action, Plan
from lium_plan.planning.rents import without_setup
from lium_plan.state.entries import Released

PROTECTION = "lifecycle.prevent_destroy"
_LOG = logging.getLogger(__name__)

Rescue = Callable[[Action, Interrupted], Awaitable[None]]
"""Puts another pod in the place of one that was taken away; raises `Interrupted` when the action has to fail."""
TAKEN_AWAY = "taken away since"


def action_id(action: Action) -> str:
    """Unique in a plan: the address, with the remote id for the deletion of a deposed resource."""
    return str(action.address) if action.deposed_id is None else f"{action.address}#{action.deposed_id}"


class Applier:
    """Carries out one plan in one run."""

    def __init__(
        self,
        plan: Plan,
        desired: Desired | None,
        run: EngineRun,
        drivers: Mapping[str, Driver],
        *,
        emitter: Emitter,
        now: Callable[[], datetime],
        rescue: Rescue | None = None,
        found: Mapping[Address, Found] | None = None,
    ) -> None:
        """`found`: what the manifest's imports named; only a plan that imports needs it."""
        self._first = tuple(action for action in plan.actions if is_bookkeeping(action))
        self._actions = {action_id(action): action for action in plan.actions if not is_bookkeeping(action)}
        self._found = found or {}
        self._desired = desired
        self._run = run
        self._drivers = drivers
        self._emitter = emitter
        self._now = now
        self._rescue = rescue
        self._started: dict[str, float] = {}
        self._urgency: Mapping[str, float] = {}
        self._leaving: Mapping[str, str] = {}
        """By the action that ends it, the remote id of what is billed."""
        self.results: list[ActionResult] = []

    async def apply(self, *, parallelism: int, stop: asyncio.Event) -> tuple[ActionResult, ...]:
        """Walk the plan. What failed, was skipped or stays unknown is in the results, never raised."""
        self._keep_books()
        graph = Graph(self._actions, self._edges())
        takes_s = {identity: self._takes_s(action) for identity, action in self._actions.items()}
        self._urgency = remaining_s(graph, takes_s)
        walk = Walk(graph, self._perform, parallelism=parallelism, urgency=self._urgency, ended=self._ended)
        leaving = dict(self._that_leave())
        self._leaving = {identity: id for id, identity in leaving.items()}
        with self._run.room.during(walk, leaving, self._run.phase):
            await walk.run(stop)
        return tuple(self.results)

    def _keep_books(self) -> None:
        for action in self._first:
            self._emitter.emit(EventType.APPLY_START, address=action.address, verb=action.verb)
        keep_books(self._first, self._found, self._run.ledger)
        for action in self._first:
            self.results.append(ActionResult(action.address, action.verb, ResultKind.DONE, 0.0))
            self._emitter.emit(EventType.APPLY_COMPLETE, address=action.address, verb=action.verb)

    def _takes_s(self, action: Action) -> float:
        resource = self._desired.resources.get(action.address) if self._desired is not None else None
        if resource is None or action.verb in (Verb.DESTROY, Verb.FORGET):
            return 1.0  # all alike: then what has the longest chain behind it goes first
        return kind(resource.kind).takes_s(resource.spec)

    def _edges(self) -> Mapping[str, tuple[str, ...]]:
        """What each action waits for, by id. An end waits for everything at the addresses it names, deposed too; at its
        own for what takes its place."""
        at: dict[Address, list[str]] = {}
        for identity, action in self._actions.items():
            at.setdefault(action.address, []).append(identity)
        edges: dict[str, tuple[str, ...]] = {}
        for identity, action in self._actions.items():
            ending = action.verb in (Verb.DESTROY, Verb.FORGET)
            edges[identity] = tuple(
                before
                for address in action.depends_on
                for before in (at.get(address, ()) if ending and address != action.address else (str(address),))
            )
        return edges

    def _that_leave(self) -> Iterator[tuple[str, str]]:
        """The remote id of what is billed to the stack, and the last action on it, after which it isn't any more."""
        ledger = self._run.ledger
        for identity, action in self._actions.items():
            if action.verb in (Verb.DESTROY, Verb.REPLACE) or action.releases:
                record = ledger.record_by_key(identity) or ledger.record(action.address)
                if record is not None and record.id is not None and price_of(record) is not None:
                    yield record.id, identity

    async def _perform(self, identity: str) -> None:
        action = self._actions[identity]
        self._started[identity] = asyncio.get_running_loop().time()
        self._emitter.emit(
            EventType.APPLY_START,
            address=action.address,
            verb=action.verb,
            price_per_hour_usd=action.price_per_hour_usd,
        )
        try:
            while True:
                try:
                    await self._carry_out(action, identity)
                    return
                except Interrupted as lost:
                    self.results[:] = taken_away(self.results, lost.pod)
                    if self._rescue is None:
                        raise
                    await self._rescue(action, lost)
                    # On another pod nothing of it is there yet.
                    action = replace(action, verb=Verb.RUN)
        except Cancelled:
            raise asyncio.CancelledError from None

    async def _carry_out(self, action: Action, identity: str) -> None:
        ledger = self._run.ledger
        record = ledger.record_by_key(identity)
        if action.verb is Verb.FORGET:
            if action.releases and record is not None and record.id is not None:
                price = price_of(record)
                told = None if price is None else str(price)
                ledger.release(Released(record.kind, record.id, _name_of(record), self._now(), told), key=identity)
            else:
                ledger.remove(identity, action.reason or "gone")
            self._keep_host(action)
            return
        resource = self._desired.resources.get(action.address) if self._desired is not None else None
        if action.verb is Verb.DESTROY:
            resource = None
            if record is None:
                return  # it went with something else of this run
        elif resource is None:
            raise ActionFailed(
                error("not-desired", "it is planned, and the manifest has it no more", address=str(action.address))
            )
        if not self._is_protection_only(action):
            step = Step(
                action.verb,
                action.address,
                resource,
                record,
                {} if resource is None else kind(resource.kind).inputs(resource.spec, self._comparison()),
                action.offer,
                action.ceiling_per_hour_usd,
                self._urgency.get(identity, 0.0),
            )
            await self._drivers[action.address.kind].perform(step, self._run)
        if resource is None:
            self._keep_host(action)
        else:
            self._keep_protection(action, resource.lifecycle.prevent_destroy)

    def _keep_host(self, action: Action) -> None:
        """Where something has ended that ran on a pod, the pod waits for it no more."""
        host = self._run.ledger.record(action.address.host) if action.address.host is not None else None
        if host is None or self._desired is None or action.address in self._desired.resources:
            return
        kept = without_setup(host, action.address)
        if kept != host:
            self._run.ledger.put(kept)

    def _is_protection_only(self, action: Action) -> bool:
        paths = {change.path for change in action.changes}
        return action.verb is Verb.UPDATE and paths == {PROTECTION}

    def _keep_protection(self, action: Action, protected: bool) -> None:
        record = self._run.ledger.record(action.address)
        if record is not None and record.protected != protected:
            self._run.ledger.put(replace(record, protected=protected))
            if action.verb is Verb.UPDATE:  # what is made protected is no news
                self._run.ledger.tell(record.key, "update", f"done: {'' if protected else 'no longer '}protected")

    def _comparison(self) -> Comparison:
        """What inputs are made from at the moment of the step: references have their values by now."""
        return Comparison(
            now=self._now(),
            salt=self._run.ledger.salt,
            resolve=self._run.lookup,
            verbs={},
            records=self._run.ledger.records(),
        )

    # --- results -------------------------------------------------------------------------------------------------

    def _ended(self, identity: str, ending: Ending) -> None:
        action = self._actions[identity]
        if identity in self._leaving:
            self._run.room.gone(self._leaving[identity])
        started = self._started.get(identity)
        seconds = 0.0 if started is None else asyncio.get_running_loop().time() - started
        kind_of_end, cause, because = self._judge(action, ending)
        record: Record | None = self._run.ledger.record_by_key(identity)
        note = _note(action, kind_of_end, record)
        self.results.append(ActionResult(action.address, action.verb, kind_of_end, seconds, cause, because, note))
        self._emitter.emit(
            _EVENTS[kind_of_end],
            address=action.address,
            verb=action.verb,
            price_per_hour_usd=price_of(record),
            message=_message(kind_of_end, cause, because, note),
            diagnostic=cause,
            details={"elapsed_s": round(seconds, 3), "id": record.id if record is not None else None},
        )

    def _judge(self, action: Action, ending: Ending) -> tuple[ResultKind, Diagnostic | None, Address | None]:
        if ending.done:
            return ResultKind.DONE, None, None
        if ending.interrupted:
            return ResultKind.INTERRUPTED, None, None
        if ending.skipped_because is not None:
            return ResultKind.SKIPPED, None, self._actions[ending.skipped_because].address
        if isinstance(ending.failure, ActionFailed):
            unknown = ending.failure.unknown
            return (ResultKind.UNKNOWN if unknown else ResultKind.FAILED), ending.failure.diagnostic, None
        unsure = any(effect.address == action.address for effect in self._run.ledger.open.values())
        return (ResultKind.UNKNOWN if unsure else ResultKind.FAILED), _unexpected(action, ending.failure), None


def taken_away(results: Iterable[ActionResult], pod: Address) -> Iterable[ActionResult]:
    """With a word on what was done to a pod that is lost now, and on it."""
    return [
        replace(item, note=TAKEN_AWAY)
        if item.kind is ResultKind.DONE and pod in (item.address, item.address.host)
        else item
        for item in results
    ]


def _name_of(record: Record) -> str:
    """What the server calls it."""
    name = record.attributes.get("pod_name") or record.attributes.get("remote_name") or record.address
    return str(name)


def _unexpected(action: Action, failure: BaseException | None) -> Diagnostic:
    """Whatever else a driver raises fails its own action only. What is neither ours nor the system's is a bug."""
    if isinstance(failure, Failure) and failure.diagnostics:
        return replace(failure.diagnostics[0], address=str(action.address))
    why = "it ended without a reason" if failure is None else in_words(failure)
    if isinstance(failure, OSError):
        why = f"on this machine: {why}"
    elif failure is not None and not type(failure).__module__.startswith("lium_plan."):
        _LOG.debug("%s of %s: %s", action.verb, action.address, type(failure).__name__)
        why = f"a bug of lium-plan: {why}"
    return error("action-failed", f"{action.verb}: {why}", address=str(action.address))


def _note(action: Action, end: ResultKind, record: Record | None) -> str:
    """Why what was there had to go; of what was interrupted, what goes on or is billed all the same."""
    if end is ResultKind.DONE:
        return action.reason if action.verb in (Verb.REPLACE, Verb.REBOOT) else ""
    if end is not ResultKind.INTERRUPTED or record is None:
        return ""
    price = price_of(record)
    if record.status == "pending" and record.id is not None and price is not None:
        return f"rented, not set up yet, {rate(price)}"
    if record.status == "running" and record.address.head == "task":
        return f"goes on on its pod: lium-plan logs -f '{record.address}'"
    return ""


def _message(end: ResultKind, cause: Diagnostic | None, because: Address | None, note: str) -> str | None:
    if cause is not None:
        return cause.message
    if because is not None:
        return f"because {because} failed"
    if end is ResultKind.INTERRUPTED:
        return f"interrupted: {note}" if note else "interrupted"
    return None


_EVENTS = {
    ResultKind.DONE: EventType.APPLY_COMPLETE,
    ResultKind.FAILED: EventType.APPLY_ERRORED,
    ResultKind.UNKNOWN: EventType.APPLY_ERRORED,
    ResultKind.SKIPPED: EventType.APPLY_SKIPPED,
    ResultKind.INTERRUPTED: EventType.APPLY_SKIPPED,
}


def failed_anything(results: Iterable[ActionResult]) -> bool:
    return any(result.kind in (ResultKind.FAILED, ResultKind.SKIPPED) for result in results)
