"""One apply or destroy: what all its parts share, and what it has come to so far."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure
from lium_plan.engine.apply import Applier
from lium_plan.engine.commitments import Commitments, Holding
from lium_plan.engine.emitter import Emitter
from lium_plan.engine.events import ActionResult, Proof, ResultKind
from lium_plan.engine.market import Desk, Limits
from lium_plan.engine.room import Room
from lium_plan.engine.run import EngineRun
from lium_plan.interrupts import Interrupt
from lium_plan.kinds.pod.feed import NodeMemory
from lium_plan.kinds.pod.offers import Feed
from lium_plan.kinds.pod.rows import own_row
from lium_plan.kinds.protocol import ActionFailed, Driver, Marked, Record, Verb
from lium_plan.kinds.registry import kind
from lium_plan.lium.errors import LiumError
from lium_plan.lium.poller import Listing, PodPoller
from lium_plan.manifest.model import Manifest
from lium_plan.operations.connecting import Connection, api_diagnostic
from lium_plan.operations.interruptions import Rescuer
from lium_plan.operations.observing import load_feed
from lium_plan.operations.planning import Planned, look_and_plan
from lium_plan.planning.guards import hourly_limit_name
from lium_plan.planning.placement import Need
from lium_plan.planning.plan import Action
from lium_plan.planning.refreshing import takeovers
from lium_plan.planning.rents import bills, most_per_hour_usd, node_of, placement_of, ttl_s
from lium_plan.requests import ApplyRequest, PlanRequest
from lium_plan.settings import Settings
from lium_plan.state.journal import JournaledLedger
from lium_plan.state.model import State


@dataclass(slots=True)
class Outcome:
    """What the run has come to so far."""

    results: list[ActionResult] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    released: tuple[Marked, ...] | None = None
    """Pods that were given up and run on; None while nobody has looked."""
    others: tuple[Marked, ...] = ()
    """Pods of the same stack that run under another state."""
    lost: set[str] = field(default_factory=set)
    """Ids of pods that were taken away under the work; what the state still holds of them bills no more."""
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
    nodes: NodeMemory = field(default_factory=NodeMemory)

    @property
    def has_sent_changes(self) -> bool:
        """Whether a request was sent that may have changed something: no code may say then that nothing was."""
        return self.connection.client.changes_sent > 0

    @property
    def interrupted(self) -> bool:
        return self.interrupt.first.is_set()

    async def plan(
        self,
        state: State,
        *,
        born: bool = True,
        request: PlanRequest | None = None,
        market: Callable[[], Awaitable[Feed]] | None = None,
        reread: Callable[[], State] | None = None,
    ) -> Planned:
        """A plan made now. A request to destroy needs no manifest. `market`: another's reading, else one of its own.

        `reread`: the state as it is after the look, where others of this run go on meanwhile.
        """
        asked = request or self.request
        manifest = None if asked.destroying else self.manifest
        return await look_and_plan(
            self.settings,
            self.connection,
            manifest,
            state,
            asked,
            born=born,
            market=market or self._load_feed,
            reread=reread,
        )

    async def plan_again(self, state: State, *, request: PlanRequest | None = None) -> Planned:
        """As `plan`, once something may have been sent: an interrupt ends it. Raises `Failure`, then with exit 7."""
        planning = asyncio.ensure_future(self.plan(state, request=request))
        if not await until_interrupted(planning, self.interrupt):
            raise Failure(ExitCode.INTERRUPTED, ())
        return planning.result()

    def open_run(
        self,
        ledger: JournaledLedger,
        drivers: Mapping[str, Driver],
        planned: Planned,
        *,
        destroying: bool | None = None,
    ) -> EngineRun:
        room = Room()
        return EngineRun(
            id=self.run_id,
            ledger=ledger,
            market=self._desk(ledger, planned, room),
            drivers=drivers,
            desired=planned.desired,
            destroying=self.request.destroying if destroying is None else destroying,
            wait_timeout_s=self.options.wait_timeout_s,
            force_replace=self.options.force_replace,
            emitter=self.emitter,
            now=self.connection.client.server_time,
            stop=self.interrupt.first,
            stop_now=self.interrupt.second,
            room=room,
        )

    def _desk(self, ledger: JournaledLedger, planned: Planned, room: Room) -> Desk:
        resources = planned.desired.resources if planned.desired is not None else {}
        needs, offers, ceilings = {}, {}, {}
        for address, resource in resources.items():
            requirement = kind(resource.kind).requirement(resource.spec)
            if requirement is not None:
                ttl = ttl_s(resource)
                until = planned.observed.at + timedelta(seconds=ttl) if ttl is not None else None
                needs[address] = Need(address, requirement, address.name, placement_of(resource), until)
        renting = [
            action
            for action in planned.plan.actions
            if action.address in needs and action.verb in (Verb.CREATE, Verb.REPLACE)
        ]
        for action in renting:
            if action.offer is not None:
                offers[action.address] = action.offer
            if action.ceiling_per_hour_usd is not None:
                ceilings[action.address] = action.ceiling_per_hour_usd
        return Desk(
            self._read_market,
            needs=needs,
            renting=[action.address for action in renting],
            planned=offers,
            ceilings=ceilings,
            commitments=Commitments(
                _Books(ledger, planned, self.connection.poller).changes, lambda: _open_rents(ledger)
            ),
            limits=self._limits(planned),
            room=room,
        )

    def _limits(self, planned: Planned) -> Limits:
        limit = planned.plan.cost.ceiling_per_hour_usd
        set_by = hourly_limit_name(limit, self.request)
        return Limits(limit, self.options.strict_offers, set_by)

    async def _read_market(self) -> Feed:
        """Raises `ActionFailed`: whoever wanted it for a rent may try again, as its fleet says."""
        try:
            return await self._load_feed()
        except LiumError as failure:
            raise ActionFailed(api_diagnostic(failure, "read the market")) from failure

    async def _load_feed(self) -> Feed:
        return await load_feed(self.connection.client, self.nodes)

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
            found=(
                takeovers(ledger.state.records.values(), planned.observed)
                if self.request.refresh_only
                else planned.observed.imports
            ),
        )
        results = await applier.apply(parallelism=self.options.parallelism, stop=self.interrupt.first)
        self.outcome.results.extend(results)
        self.outcome.proofs.extend(run.proofs)
        if self.interrupted:
            self.outcome.codes.add(ExitCode.INTERRUPTED)
        if any(result.kind is ResultKind.UNKNOWN for result in results):
            self.outcome.codes.add(ExitCode.UNKNOWN_OUTCOME)
        return results


class _Books:
    """What is billed by the hour, at what the server said last; without what had ended before the run."""

    def __init__(self, ledger: JournaledLedger, planned: Planned, poller: PodPoller) -> None:
        self._ledger = ledger
        self._observed = planned.observed
        self._poller = poller
        self._listing: Listing | None = None
        self._read: int | None = None
        """How much of what the ledger touched is known; None: nothing yet."""

    def changes(self) -> Iterator[tuple[str, Holding | None]]:
        """See `engine.commitments.Changes`."""
        touched, listing = self._ledger.touched, self._poller.latest
        keys = list(dict.fromkeys(touched[self._read or 0 :]))
        if self._read is None or listing is not self._listing:
            keys = list(dict.fromkeys((*self._ledger.records(), *keys)))  # a new list may name another price of each
        self._read, self._listing = len(touched), listing
        for key in keys:
            yield key, self._holding(key)

    def _holding(self, key: str) -> Holding | None:
        record, seen = self._ledger.record_by_key(key), self._observed.observations.get(key)
        if record is None or not bills(record, seen, self._observed.at):
            return None
        price = max(most_per_hour_usd(record, seen), self._listed_price(record))
        return Holding(record.address, price, node_of(record), record.deposed) if price else None

    def _listed_price(self, record: Record) -> Decimal:
        """USD per hour by the newest list of pods: an announced price may have come into effect meanwhile."""
        row = own_row(record, self._listing.pods) if self._listing is not None else None
        return (row.price_per_hour_usd if row is not None else None) or Decimal(0)


def _open_rents(ledger: JournaledLedger) -> Mapping[Address, Decimal]:
    """The ceilings of rents without an outcome."""
    written = {effect.address: effect.data.get("ceiling_per_hour_usd") for effect in ledger.open.values()}
    return {address: Decimal(str(ceiling)) for address, ceiling in written.items() if ceiling is not None}


def only(planned: Planned, actions: tuple[Action, ...]) -> Planned:
    """The same plan with some of its actions."""
    return replace(planned, plan=replace(planned.plan, actions=actions))


async def until_interrupted(work: asyncio.Future[Any], interrupt: Interrupt) -> bool:
    """Wait for `work`; False when an interrupt came first and cancelled it."""
    stopping = asyncio.ensure_future(interrupt.first.wait())
    await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not work.done():
        work.cancel()
        await asyncio.wait((work,))
    return not work.cancelled()
