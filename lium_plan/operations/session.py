"""One apply or destroy: what all its parts share, and what it has come to so far."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure
from lium_plan.engine.apply import Applier
from lium_plan.engine.emitter import Emitter
from lium_plan.engine.events import ActionResult, Proof, ResultKind
from lium_plan.engine.market import Desk, Limits
from lium_plan.engine.run import EngineRun
from lium_plan.interrupts import Interrupt
from lium_plan.kinds.failures import pause
from lium_plan.kinds.protocol import INTERRUPTION, Cancelled, Driver, Interrupted, Verb
from lium_plan.kinds.registry import kind
from lium_plan.manifest.model import Manifest
from lium_plan.operations.connecting import Connection
from lium_plan.operations.observing import load_feed
from lium_plan.operations.planning import Planned, look_and_plan
from lium_plan.planning.placement import Need
from lium_plan.planning.plan import Action
from lium_plan.planning.rents import placement_of
from lium_plan.requests import ApplyRequest, PlanRequest
from lium_plan.settings import Settings
from lium_plan.state.journal import JournaledLedger
from lium_plan.state.model import State

LOOK_AGAIN_S = 10.0
"""Between two tries to replace a pod that was taken away: it may be on its way out, or there may be no capacity."""
WORTH_ANOTHER_TRY = (INTERRUPTION, "no-capacity", "pod-failed")


@dataclass(slots=True)
class Outcome:
    """What the run has come to so far."""

    results: list[ActionResult] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    codes: set[ExitCode] = field(default_factory=lambda: {ExitCode.OK})


@dataclass(frozen=True, slots=True)
class Session:
    """A locked, connected run."""

    settings: Settings
    request: PlanRequest
    options: ApplyRequest
    connection: Connection
    manifest: Manifest | None
    run_id: str
    emitter: Emitter
    interrupt: Interrupt
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def interrupted(self) -> bool:
        return self.interrupt.first.is_set()

    async def plan(self, state: State, *, born: bool = True, request: PlanRequest | None = None) -> Planned:
        """A plan made now. A request to destroy needs no manifest."""
        asked = request or self.request
        manifest = None if asked.destroying else self.manifest
        return await look_and_plan(self.settings, self.connection, manifest, state, asked, born=born)

    def open_run(
        self,
        ledger: JournaledLedger,
        drivers: Mapping[str, Driver],
        planned: Planned,
        *,
        destroying: bool | None = None,
    ) -> EngineRun:
        return EngineRun(
            id=self.run_id,
            ledger=ledger,
            market=self._desk(ledger, planned),
            drivers=drivers,
            desired=planned.desired,
            destroying=self.request.destroying if destroying is None else destroying,
            wait_timeout_s=self.options.wait_timeout_s,
            force_replace=self.options.force_replace,
            emitter=self.emitter,
            now=self.connection.client.server_time,
            stop=self.interrupt.first,
            stop_now=self.interrupt.second,
        )

    def _desk(self, ledger: JournaledLedger, planned: Planned) -> Desk:
        resources = planned.desired.resources if planned.desired is not None else {}
        needs, offers = {}, {}
        for action in planned.plan.actions:
            resource = resources.get(action.address)
            requirement = kind(resource.kind).requirement(resource.spec) if resource is not None else None
            if resource is None or requirement is None or action.verb not in (Verb.CREATE, Verb.REPLACE):
                continue
            needs[action.address] = Need(action.address, requirement, action.address.name, placement_of(resource))
            if action.offer is not None:
                offers[action.address] = action.offer
        paid = [record for record in ledger.records().values() if kind(record.kind).price_per_hour_usd(record)]
        return Desk(
            lambda: load_feed(self.connection.client),
            needs=needs,
            planned=offers,
            running={
                record.address: kind(record.kind).price_per_hour_usd(record)
                for record in paid
                if not record.deposed and record.address not in needs
            },
            beside_usd=sum(
                (kind(record.kind).price_per_hour_usd(record) for record in paid if record.deposed), Decimal(0)
            ),
            limits=Limits(planned.plan.cost.ceiling_per_hour_usd, self.options.strict_offers),
        )

    async def carry_out(
        self,
        ledger: JournaledLedger,
        drivers: Mapping[str, Driver],
        planned: Planned,
        *,
        run: EngineRun | None = None,
    ) -> tuple[ActionResult, ...]:
        """Carry the plan out, and take what happened into the outcome."""
        run = run or self.open_run(ledger, drivers, planned, destroying=planned.plan.destroying)
        applier = Applier(
            planned.plan,
            planned.desired,
            run,
            drivers,
            emitter=self.emitter,
            now=self.connection.client.server_time,
            rescue=Rescuer(self, ledger, drivers, planned, run).rescue,
        )
        results = await applier.apply(parallelism=self.options.parallelism, stop=self.interrupt.first)
        self.outcome.results.extend(results)
        self.outcome.proofs.extend(run.proofs)
        if self.interrupted:
            self.outcome.codes.add(ExitCode.INTERRUPTED)
        if any(result.kind is ResultKind.UNKNOWN for result in results):
            self.outcome.codes.add(ExitCode.UNKNOWN_OUTCOME)
        return results


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

    async def rescue(self, action: Action, lost: Interrupted) -> bool:
        """Whether another pod stands at the lost one's address, set up as far as `action` needs it."""
        desired = self._planned.desired
        resource = None if desired is None else desired.resources.get(lost.pod)
        if resource is None or not resource.spec.interruption_retry_s:
            return False
        loop = asyncio.get_running_loop()
        deadline = self._deadlines.setdefault(lost.pod, loop.time() + resource.spec.interruption_retry_s)
        async with self._turns.setdefault(lost.pod, asyncio.Lock()):
            self._run.phase(lost.pod, "taken away: looking for another")
            while loop.time() < deadline:
                if self._stands(action, lost):
                    return True
                if not await self._again(action, lost):
                    return False
                if not self._stands(action, lost):
                    await pause(self._run, min(LOOK_AGAIN_S, max(deadline - loop.time(), 0)))
            return self._stands(action, lost)

    def _stands(self, action: Action, lost: Interrupted) -> bool:
        """Two tasks of one pod are interrupted together: the second one finds what the first one had rented."""
        pod = self._ledger.record(lost.pod)
        if pod is None or pod.id == lost.pod_id or pod.status != "ready":
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
        self._run.market.release(lost.pod)
        try:
            fresh = await self._session.plan(self._ledger.state, request=replace(self._session.request, fill=True))
        except Failure as failure:
            self._session.outcome.diagnostics.extend(failure.diagnostics)
            return False
        if fresh.plan.refusal is not None:
            self._session.outcome.diagnostics.extend(fresh.plan.diagnostics)
            return False
        wanted = {lost.pod, self._setup_of(lost.pod)} - {action.address}
        todo = tuple(self._within(item, lost) for item in fresh.plan.actions if self._is_due(item, wanted))
        applier = Applier(
            only(fresh, todo).plan,
            fresh.desired,
            self._run,
            self._drivers,
            emitter=self._session.emitter,
            now=self._session.connection.client.server_time,
        )
        results = await applier.apply(parallelism=0, stop=self._session.interrupt.first)
        if self._session.interrupted:
            raise Cancelled
        bad = [result for result in results if result.kind is not ResultKind.DONE]
        self._session.outcome.results.extend(result for result in results if result.kind is ResultKind.DONE)
        hopeless = [item for item in bad if item.cause is not None and item.cause.code not in WORTH_ANOTHER_TRY]
        self._session.outcome.diagnostics.extend(item.cause for item in hopeless if item.cause is not None)
        return not hopeless

    def _is_due(self, item: Action, wanted: set[Address | None]) -> bool:
        verbs = (Verb.CREATE, Verb.REPLACE, Verb.ADOPT, Verb.RUN)
        return item.address in wanted and item.verb in verbs and item.deposed_id is None

    def _within(self, item: Action, lost: Interrupted) -> Action:
        """Never above what was confirmed for this address, whatever the market says now."""
        record = self._ledger.record(lost.pod)
        written = None if record is None else record.attributes.get("ceiling_per_hour_usd")
        if item.address != lost.pod or written is None or item.ceiling_per_hour_usd is None:
            return item
        ceiling = min(Decimal(str(written)), item.ceiling_per_hour_usd)
        offer = item.offer if item.offer is not None and item.offer.price_per_hour_usd <= ceiling else None
        return replace(item, offer=offer, ceiling_per_hour_usd=ceiling)


def only(planned: Planned, actions: tuple[Action, ...]) -> Planned:
    """The same plan with some of its actions."""
    return replace(planned, plan=replace(planned.plan, actions=actions))


async def until_interrupted(work: asyncio.Future[object], interrupt: Interrupt) -> bool:
    """Wait for `work`; False when an interrupt came first and cancelled it."""
    stopping = asyncio.ensure_future(interrupt.first.wait())
    await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not work.done():
        work.cancel()
        await asyncio.wait((work,))
    return not work.cancelled()
