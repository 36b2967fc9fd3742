"""One run as drivers see it: ledger, market, words for people, deferred values, and how an interrupt reaches them.

The first interrupt cancels the tasks of a run, but a request that is under way is let finish (a few seconds), so that
its answer is recorded; work over SSH is abandoned at once. The second one ends everything now: the journal holds what
was open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import TypeVar

from lium_plan.addresses import Address
from lium_plan.diagnostics import error
from lium_plan.engine.emitter import Emitter
from lium_plan.engine.events import EventType, Proof
from lium_plan.engine.room import Room
from lium_plan.expressions import ExpressionError, Reference, Text
from lium_plan.kinds.desired import Desired
from lium_plan.kinds.digests import content_digest
from lium_plan.kinds.pod.offers import Offer
from lium_plan.kinds.protocol import (
    ActionFailed,
    Begin,
    Cancelled,
    Driver,
    Json,
    Market,
    OpenEffect,
    Record,
    Resource,
    Step,
    Verb,
)
from lium_plan.kinds.registry import kind
from lium_plan.money import rate
from lium_plan.planning.moving import targets
from lium_plan.state.entries import Completion
from lium_plan.state.journal import JournaledLedger

LET_FINISH_S = 6.0
"""How long an answer on its way is waited for after the first interrupt; the run must end within 10 s."""

T = TypeVar("T")


class _Begin:
    """The `kinds.protocol.Begin` of one effect."""

    def __init__(self, run: EngineRun, address: Address, op: str, data: Mapping[str, Json]) -> None:
        self._run = run
        self._address = address
        self._op = op
        self._data = data
        self.effect: OpenEffect | None = None
        self.under_way = False

    def __call__(self) -> OpenEffect:
        if self._run.interrupted:
            raise Cancelled
        if self.effect is None:
            self.effect = self._run.ledger.begin(self._address, self._op, self._data)
        self.under_way = True
        return self.effect

    def limited(self) -> None:
        self.under_way = False


class EngineRun:
    """The `kinds.protocol.Run` of an apply or destroy."""

    def __init__(
        self,
        *,
        id: str,
        ledger: JournaledLedger,
        market: Market,
        drivers: Mapping[str, Driver],
        desired: Desired | None,
        destroying: bool,
        wait_timeout_s: float,
        force_replace: bool,
        emitter: Emitter,
        now: Callable[[], datetime],
        stop: asyncio.Event,
        stop_now: asyncio.Event,
        room: Room | None = None,
    ) -> None:
        """`room`: what its market's rents wait for."""
        self.id = id
        self.ledger = ledger
        self.market = market
        self.destroying = destroying
        self.wait_timeout_s = wait_timeout_s
        self.force_replace = force_replace
        self.proofs: list[Proof] = []
        self._drivers = drivers
        self._desired = desired
        self._now_at = targets(desired.moved if desired is not None else ())
        self._emitter = emitter
        self._now = now
        self._stop = stop
        self._stop_now = stop_now
        self.room = room or Room()

    @property
    def interrupted(self) -> bool:
        return self._stop.is_set()

    def desired(self, address: Address) -> Resource | None:
        if self.destroying or self._desired is None:
            return None
        # What an earlier run left open may stand at an address that has moved since.
        return self._desired.resources.get(self._now_at(address))

    # --- words ---------------------------------------------------------------------------------------------------

    def phase(self, address: Address, phase: str, **details: Json) -> None:
        record = self.ledger.record(address)
        self._emitter.emit(
            EventType.PHASE, address=address, phase=phase, price_per_hour_usd=price_of(record), details=details
        )

    def substituted(self, address: Address, planned: Offer, taken: Offer) -> None:
        self._emitter.emit(
            EventType.SUBSTITUTION,
            address=address,
            price_per_hour_usd=taken.price_per_hour_usd,
            message=f"node {planned.node_id} is not to be had; taking {taken.node_id} at "
            f"{rate(taken.price_per_hour_usd)}",
            details={"from_node_id": planned.node_id, "to_node_id": taken.node_id},
        )

    def proved(self, record: Record, *, removed_at: datetime | None, total_usd: Decimal | None) -> None:
        self.room.gone(str(record.id))
        proof = Proof(str(record.address), str(record.id), True, removed_at, total_usd)
        self.proofs.append(proof)
        self._emitter.emit(
            EventType.PROOF,
            address=record.address,
            details={
                "id": proof.id,
                "gone": True,
                "removed_at": None if removed_at is None else removed_at.isoformat().replace("+00:00", "Z"),
                "total_usd": None if total_usd is None else float(total_usd),
            },
        )

    # --- values --------------------------------------------------------------------------------------------------

    def resolve(self, text: Text) -> str:
        try:
            filled = text.fill(self.lookup)
        except ExpressionError as failure:
            raise ActionFailed(error("expression", f"{text.source}: {failure}")) from failure
        if not filled.known:
            unknown = ", ".join(str(reference) for reference in filled.references)
            raise ActionFailed(error("value-unknown", f"{unknown} has no value: what it refers to does not exist"))
        return filled.reveal()

    def lookup(self, reference: Reference) -> Json | None:
        """What a reference is now; None while it has no value."""
        values = [self._exported(address, reference) for address in reference.addresses(self._members)]
        if reference.is_list:
            return None if None in values else values
        return values[0] if values else None

    def _exported(self, address: Address, reference: Reference) -> Json | None:
        record = self.ledger.record(address)
        return None if record is None else kind(record.kind).exported(record, reference.path)

    def _members(self, fleet: str) -> tuple[str, ...]:
        resources = self._desired.resources if self._desired is not None else {}
        return tuple(
            address.member
            for address in resources
            if address.kind == "pod" and address.name == fleet and address.member is not None
        )

    # --- effects -------------------------------------------------------------------------------------------------

    async def effect(
        self,
        address: Address,
        op: str,
        data: Mapping[str, Json],
        send: Callable[[Begin], Awaitable[T]],
        *,
        abandon: bool = False,
    ) -> T:
        """See `kinds.protocol.Run.effect`."""
        begin = _Begin(self, address, op, data)
        if abandon:
            return await send(begin)
        work = asyncio.ensure_future(send(begin))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await self._let_finish(work, begin)
            raise

    async def _let_finish(self, work: asyncio.Future[T], begin: Begin) -> None:
        """An answer on its way is worth waiting for; a second interrupt is not to be kept waiting."""
        stop_now = asyncio.ensure_future(self._stop_now.wait())
        try:
            if begin.under_way:
                await asyncio.wait((work, stop_now), timeout=LET_FINISH_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop_now.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait((work,), timeout=1.0)
            if work.done() and not work.cancelled():
                work.exception()  # what it raised is in the ledger, or stays open there

    async def destroy(self, address: Address) -> None:
        record = self.ledger.record(address)
        if record is not None:
            await self._drivers[record.kind].perform(Step(Verb.DESTROY, address, None, record), self)

    def completed(self, address: Address, exit_code: int) -> None:
        resource = self.desired(address)
        if resource is not None:
            digest = content_digest(resource, self.ledger.state.salt)
            self.ledger.complete(address, Completion(digest, exit_code, self._now()))


def price_of(record: Record | None) -> Decimal | None:
    """USD per hour of what is billed by the hour; None for everything else."""
    price = kind(record.kind).price_per_hour_usd(record) if record is not None else Decimal(0)
    return price or None
