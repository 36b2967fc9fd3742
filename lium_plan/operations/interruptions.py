"""Pods that are taken away in the middle of work are an interruption, not a failure of the work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from lium_plan.addresses import Address, matches_any, parse_pattern
from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.engine.apply import Applier, taken_away
from lium_plan.engine.events import ResultKind
from lium_plan.engine.run import EngineRun
from lium_plan.kinds.failures import pause
from lium_plan.kinds.protocol import INTERRUPTION, ActionFailed, Cancelled, Driver, Interrupted, Verb
from lium_plan.lium.errors import ServerError, TransportError
from lium_plan.planning.plan import Action
from lium_plan.state.journal import JournaledLedger

if TYPE_CHECKING:
    from lium_plan.operations.planning import Planned
    from lium_plan.operations.session import Session

LOOK_AGAIN_S = 10.0
"""Between two tries to replace a pod that was taken away: it may be on its way out, or there may be no capacity."""
WORTH_ANOTHER_TRY = (INTERRUPTION, "no-capacity", "rate-limited")


class Rescuer:
    """Rents again what was taken away in the middle of work, where its fleet says so (`retry.on_events`).

    What was confirmed covers it: the same address, at or under the ceiling that it was rented at, within every limit of
    now. Everything else goes on meanwhile, and the interrupted action is then carried out on the new pod.
    """

    def __init__(
        self,
        session: Session,
        ledger: JournaledLedger,
        drivers: Mapping[str, Driver],
        planned: Planned,
        run: EngineRun,
    ) -> None:
        self._session = session
        self._ledger = ledger
        self._drivers = drivers
        self._planned = planned
        self._run = run
        self._turns: dict[Address, asyncio.Lock] = {}
        self._deadlines: dict[Address, float] = {}
        self._ceilings: dict[Address, Decimal] = {}
        """What was allowed for the pods that were lost; their records go before a successor is found."""
        self._replaced: dict[Address, set[str | None]] = {}
        """Ids of pods that were to be replaced by what was lost: none of them is another one for it."""
        self._why_none: dict[Address, str] = {}
        """Why the last try at an address brought no pod, where nothing else tells."""

    async def rescue(self, action: Action, lost: Interrupted) -> None:
        """Until another pod stands at the lost one's address, set up as far as `action` needs it. Raises `Interrupted`
        where none will: its fleet wants none, the time for it is up, or a try failed for good."""
        outcome = self._session.outcome
        outcome.lost.add(lost.pod_id)
        outcome.results[:] = taken_away(outcome.results, lost.pod)
        desired = self._planned.desired
        resource = None if desired is None else desired.resources.get(lost.pod)
        excluded = matches_any(tuple(map(parse_pattern, self._session.request.excludes)), lost.pod)
        if resource is None or excluded or not resource.spec.interruption_retry_s:
            raise lost
        left = (record for record in self._ledger.records().values() if record.deposed and record.address == lost.pod)
        self._replaced.setdefault(lost.pod, set()).update(record.id for record in left)
        record = self._ledger.record(lost.pod)
        written = None if record is None else record.attributes.get("ceiling_per_hour_usd")
        if written is not None:
            self._ceilings.setdefault(lost.pod, Decimal(str(written)))
        loop = asyncio.get_running_loop()
        deadline = self._deadlines.setdefault(lost.pod, loop.time() + resource.spec.interruption_retry_s)
        async with self._turns.setdefault(lost.pod, asyncio.Lock()):
            left_s = max(deadline - loop.time(), 0)
            until = self._session.connection.client.server_time() + timedelta(seconds=left_s)
            self._run.phase(lost.pod, f"taken away: looking for another, until {until:%H:%M:%S}Z")
            while not self._stands(action, lost):
                if loop.time() >= deadline or not await self._again(action, lost):
                    raise self._given_up(lost)
                if not self._stands(action, lost):
                    await pause(self._run, min(LOOK_AGAIN_S, max(deadline - loop.time(), 0)))

    def _given_up(self, lost: Interrupted) -> Interrupted:
        why = self._why_none.get(lost.pod)
        if not why:
            return lost
        told = replace(lost.diagnostic, message=f"{lost.diagnostic.message}, and no other was had: {why}")
        return Interrupted(told, pod=lost.pod, pod_id=lost.pod_id)

    def _stands(self, action: Action, lost: Interrupted) -> bool:
        """Two tasks of one pod are interrupted together: the second one finds what the first one had rented."""
        pod = self._ledger.record(lost.pod)
        if pod is None or pod.id == lost.pod_id or pod.status != "ready":
            return False
        if pod.id in self._replaced.get(lost.pod, ()):
            return False
        setup = self._setup_of(lost.pod)
        if setup is None or setup == action.address:
            return True
        record = self._ledger.record(setup)
        return record is not None and record.status == "ready" and record.attributes.get("pod_id") == pod.id

    def _setup_of(self, pod: Address) -> Address | None:
        resources = self._planned.desired.resources if self._planned.desired is not None else {}
        setup = Address.of(pod.head, pod.name, pod.member, "bootstrap")
        return setup if setup in resources else None

    async def _again(self, action: Action, lost: Interrupted) -> bool:
        """One look, one plan, one try. False: it is no use to go on."""
        outcome, request = self._session.outcome, self._session.request
        if self._rent_is_open(lost.pod):
            outcome.codes.add(ExitCode.UNKNOWN_OUTCOME)
            return False  # there may be one already
        self._run.market.release(lost.pod)
        try:
            fresh = await self._session.plan(
                self._ledger.state,
                request=replace(request, fill=True),
                market=self._run.market.reading,  # the rents under way go by the same prices
                reread=lambda: self._ledger.state,  # and what they brought is known
            )
        except ActionFailed as failure:
            self._why_none[lost.pod] = failure.diagnostic.message
            return True  # the market can't be read: it may be in a moment
        except Failure as failure:
            if isinstance(failure.__cause__, ServerError | TransportError):
                self._why_none[lost.pod] = "; ".join(item.message for item in failure.diagnostics)
                return True
            outcome.diagnostics.extend(failure.diagnostics)
            return False
        if fresh.plan.refusal is not None:
            outcome.diagnostics.extend(fresh.plan.diagnostics)
            return False
        if fresh.desired is None or lost.pod not in fresh.desired.resources:
            return False  # the fleet makes up for it under another number; the next apply does
        wanted = {lost.pod, self._setup_of(lost.pod)} - {action.address}
        todo = tuple(self._within(item, lost) for item in fresh.plan.actions if self._is_due(item, wanted))
        applier = Applier(
            replace(fresh.plan, actions=todo),
            fresh.desired,
            self._run,
            self._drivers,
            emitter=self._session.emitter,
            now=self._session.connection.client.server_time,
        )
        if {item.verb for item in todo if item.address == lost.pod and item.deposed_id is None} == {Verb.ADOPT}:
            self._replaced.pop(lost.pod, None)  # what was to be replaced is what is asked for, and stands again
        results = await applier.apply(parallelism=0, stop=self._session.interrupt.first)
        if self._session.interrupted:
            raise Cancelled
        bad = [result for result in results if result.kind is not ResultKind.DONE]
        outcome.results.extend(result for result in results if result.kind is ResultKind.DONE)
        if any(result.kind is ResultKind.UNKNOWN for result in bad):
            outcome.codes.add(ExitCode.UNKNOWN_OUTCOME)
        causes = [item.cause for item in bad if item.cause is not None]
        hopeless = [cause for cause in causes if cause.code not in WORTH_ANOTHER_TRY]
        outcome.diagnostics.extend(hopeless)
        self._why_none[lost.pod] = "" if hopeless or not causes else causes[0].message
        return not hopeless

    def _rent_is_open(self, pod: Address) -> bool:
        return any(effect.address == pod and effect.op == "rent" for effect in self._ledger.open.values())

    def _is_due(self, item: Action, wanted: set[Address | None]) -> bool:
        verbs = (Verb.CREATE, Verb.REPLACE, Verb.ADOPT, Verb.RUN)
        gone = item.deposed_id is not None and item.verb is Verb.FORGET
        return item.address in wanted and (gone or (item.verb in verbs and item.deposed_id is None))

    def _within(self, item: Action, lost: Interrupted) -> Action:
        """Never above what was confirmed for this address, whatever the market says now."""
        ceiling = self._ceilings.get(lost.pod)
        if item.address != lost.pod or ceiling is None or item.verb not in (Verb.CREATE, Verb.REPLACE):
            return item
        if item.ceiling_per_hour_usd is not None:
            ceiling = min(ceiling, item.ceiling_per_hour_usd)
        offer = item.offer if item.offer is not None and item.offer.price_per_hour_usd <= ceiling else None
        return replace(item, offer=offer, ceiling_per_hour_usd=ceiling)
