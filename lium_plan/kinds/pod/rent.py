"""Renting: the one request that starts a bill. Everything that may be needed to find out what became of it is in the
journal before it leaves (contract §1.7, §2.4, §8.22).

A lost answer is looked for in good pod lists by exact name and node, then in the account's events; the same request is
sent again only while that is safe and within the ceilings. What stays unknown stays open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.diagnostics import error, in_words
from lium_plan.kinds.failures import diagnose, limited_for_good, pause
from lium_plan.kinds.pod.offers import Offer
from lium_plan.kinds.pod.orders import Order, begin_data, begun_claim, begun_order, body_of, rented
from lium_plan.kinds.pod.spec import PodSpec
from lium_plan.kinds.protocol import (
    ActionFailed,
    Begin,
    Cancelled,
    Claim,
    OpenEffect,
    Outcome,
    Record,
    Resource,
    Run,
    Settlement,
    Step,
)
from lium_plan.kinds.services import Services
from lium_plan.lium.errors import LiumError, PermissionError_, Refusal, classify_refusal
from lium_plan.lium.models import Pod, RentAnswer
from lium_plan.lium.windows import Family
from lium_plan.marks import nonce_of, pod_name
from lium_plan.ssh.errors import KeyUnusable
from lium_plan.ssh.keys import public_key_line

LISTS_APART_S = 10.0
"""Two lists without the pod must be at least this far apart to count."""
IN_FLIGHT_S = 360.0
"""The server's lock on a key is 5 minutes (contract §1.7); after this long nothing is in flight any more."""
REPLAY_FOR = timedelta(hours=23)
WATCH_FOR = timedelta(hours=24)
MOST_REPEATS = 6
MOST_FAILED_LOOKS = 5
"""At lists and events, in a row, each with the client's own attempts: then what became of a rent stays open."""
LIMITED_APART_S = 600.0
"""Two 429s further apart say nothing of the time between."""
FEATURE = "rent_idempotency"


class Refused(Exception):
    """The server said no to this node, and nothing was rented."""

    def __init__(self, kind: Refusal, failure: LiumError) -> None:
        self.kind = kind
        self.failure = failure
        super().__init__(failure.reason)


class _TooOld(Exception):
    """What allowed a rent no longer does, or is older than it may be; nothing was sent."""


@dataclass(slots=True)
class _Trial:
    """How far an order got."""

    patience_s: float = 0.0
    """So long the limit on rents may let nothing through."""
    sent_at: float | None = None
    """When it was last sent, on the loop's clock: the server's may jump."""


class Rents:
    """Places orders and finds out what became of them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._client = services.client
        self._poller = services.poller
        self._features: frozenset[str] | None = None
        self._limited: tuple[float, float] | None = None
        """Since when every rent of this run was answered with 429, and when the last one was, on the loop's clock."""

    async def place(self, step: Step, claim: Claim, run: Run) -> Record:
        """Rent the claimed offer. Raises `Refused`, or `ActionFailed` with `unknown` when the outcome stays open."""
        order = replace(self._order(step.wanted(), claim.offer, run), urgency=step.urgency)
        patience_s = max(self._client.limits.patience_s(Family.RENT), step.wanted().spec.retry_s)

        async def send(begin: Begin) -> Settlement:
            return await self._send(begin, order, claim, _Trial(patience_s), run)

        settlement = await run.effect(step.address, "rent", begin_data(order, step, claim), send)
        if settlement.outcome is Outcome.UNKNOWN:
            raise ActionFailed(
                error(
                    "unknown-outcome",
                    f"rent: {settlement.message}",
                    address=str(step.address),
                    hint="the rent stays open in the journal; the next apply settles it",
                ),
                unknown=True,
            )
        record = run.ledger.record(step.address)
        if settlement.outcome is Outcome.NOT_DONE or record is None:
            raise Refused(Refusal.CAPACITY, LiumError(0, None, settlement.message))
        return record

    def _order(self, resource: Resource, offer: Offer, run: Run) -> Order:
        who = self._services.identity
        spec: PodSpec = resource.spec
        nonce = nonce_of(self._services.random_bytes(5))
        name = pod_name(who.project, who.stack, who.lineage, nonce, spec.fleet, spec.member)
        return Order(offer.node_id, name, self._services.new_uuid(), self._body(resource, name, offer.gpu_count, run))

    def _body(self, resource: Resource, name: str, gpu_count: int, run: Run) -> str:
        spec: PodSpec = resource.spec
        try:
            key = public_key_line(self._services.keys.private_key(spec.ssh_key))
        except (OSError, KeyUnusable) as failure:
            raise ActionFailed(error("ssh-key", in_words(failure), address=str(resource.address))) from failure
        return body_of(resource, name, gpu_count, run.ledger, public_key=key)

    async def _send(self, begin: Begin, order: Order, claim: Claim, trial: _Trial, run: Run) -> Settlement:
        try:
            return await self._try(begin, order, claim, trial, run)
        except (asyncio.CancelledError, Cancelled):
            if not begin.under_way:
                self._not_rented(begin.effect, order, "interrupted before it was sent", run)
            raise

    async def _try(self, begin: Begin, order: Order, claim: Claim, trial: _Trial, run: Run) -> Settlement:
        while True:
            try:
                answer = await self._rent(begin, order, claim, trial, run)
            except _TooOld:
                if not await run.market.still_allowed(claim):
                    return self._called_off(begin.effect, order, run)
                continue
            except LiumError as failure:
                kind, effect = classify_refusal(failure), _begun(begin)
                if kind in (Refusal.UNKNOWN, Refusal.IDEMPOTENCY_PENDING, Refusal.IDEMPOTENCY_UNKNOWN):
                    return await self._find(effect, order, claim, run, last_sent=trial.sent_at)
                if kind is Refusal.RATE_LIMITED:
                    begin.limited()
                    run.phase(claim.address, "waiting for the rent limit")
                    await pause(run, 1.0)
                    begin()  # it may have been carried out all the same
                    if await self._may_be_there(order):
                        return await self._find(effect, order, claim, run, last_sent=trial.sent_at)
                    begin.limited()
                    if self._is_limited_for_good(trial):
                        self._not_rented(effect, order, failure.reason, run)
                        raise limited_for_good(claim.address, "rent", trial.patience_s, failure) from failure
                    continue
                self._limited = None
                self._not_rented(effect, order, failure.reason, run)
                raise Refused(kind, failure) from failure
            self._limited = None
            effect = _begun(begin)
            if answer.pod_id is None or _is_held(answer.pod_id, run):
                return await self._find(effect, order, claim, run, last_sent=trial.sent_at)
            _keep(effect, rented(effect, answer.pod_id, self._services.now()), run)
            return Settlement(Outcome.DONE, "rented")

    def _is_limited_for_good(self, trial: _Trial) -> bool:
        """A limit that lets others' rents through is worth waiting for, however long the queue."""
        now = asyncio.get_running_loop().time()
        since, last = self._limited or (now, now)
        if now - last > LIMITED_APART_S:
            since = now
        self._limited = since, now
        return now - since > trial.patience_s

    async def _rent(
        self, begin: Callable[[], object], order: Order, claim: Claim, trial: _Trial, run: Run
    ) -> RentAnswer:
        """Send it, with a last look once the rate limit lets it go, and written down before it leaves.

        Raises `_TooOld`, and what `begin` raises.
        """

        def last_look() -> None:
            if not run.market.allows_now(claim):
                raise _TooOld
            begin()
            trial.sent_at = asyncio.get_running_loop().time()

        return await self._client.rent(
            order.node_id, order.sent(), order.key, urgency=order.urgency, before_send=last_look
        )

    def _called_off(self, effect: OpenEffect | None, order: Order, run: Run) -> Settlement:
        why = "taken, dearer than its ceiling or beyond the limit by the time it could be rented"
        self._not_rented(effect, order, why, run)
        return Settlement(Outcome.NOT_DONE, why)

    def _not_rented(self, effect: OpenEffect | None, order: Order, why: str, run: Run) -> None:
        """Nothing is billed. Should a refusal have been wrong, what appears under the name is ours all the same.

        Without an effect it was never sent, and there is nothing to write down.
        """
        if effect is not None:
            run.ledger.failed(effect, why)
            run.ledger.watch(order.pod_name, effect.address, self._services.now() + WATCH_FOR)

    # --- what became of it -------------------------------------------------------------------------------------

    async def settle(self, effect: OpenEffect, run: Run) -> Settlement:
        """An open rent of an earlier run. Only what the manifest still allows is sent again."""
        claim = begun_claim(effect, run.desired(effect.address))
        return await self._find(effect, begun_order(effect), claim, run)

    async def _find(
        self, effect: OpenEffect, order: Order, claim: Claim, run: Run, *, last_sent: float | None = None
    ) -> Settlement:
        """Look, repeat where that is allowed, and look again until lists, events and time decide."""
        loop = asyncio.get_running_loop()
        run.phase(effect.address, "looking for a rent whose answer was lost")
        if last_sent is None:  # by an earlier run
            last_sent = loop.time() - max((self._services.now() - effect.at).total_seconds(), 0.0)
        missing_since: float | None = None
        refused = unclear = False
        repeats = failed = 0
        while True:
            try:
                settlement = await self._look(effect, order, run)
            except LiumError as failure:
                failed += 1
                if failed == MOST_FAILED_LOOKS:
                    return Settlement(Outcome.UNKNOWN, f"{order.pod_name} can't be looked for: {failure}")
                await pause(run, LISTS_APART_S)
                continue
            failed = 0
            if settlement is not None:
                return settlement
            missing_since = loop.time() if missing_since is None else missing_since
            twice = loop.time() - missing_since >= LISTS_APART_S
            settled = refused or loop.time() - last_sent >= IN_FLIGHT_S
            if twice and settled and unclear:
                return Settlement(
                    Outcome.UNKNOWN,
                    f"the server itself does not know what became of {order.pod_name} on node {order.node_id}",
                )
            if twice and settled:
                run.ledger.failed(effect, "no list and no event shows it")
                run.ledger.watch(order.pod_name, effect.address, self._services.now() + WATCH_FOR)
                return Settlement(Outcome.NOT_DONE, "it was not rented: no list and no event shows it")
            if not refused and repeats < MOST_REPEATS and await self._may_repeat(effect, claim, run):
                repeats += 1
                last_sent = loop.time()
                answer = await self._repeat(effect, order, claim, run)
                if isinstance(answer, Settlement):
                    return answer
                refused = answer is not None and answer.decided_after_lookup
                unclear = answer is not None and classify_refusal(answer) is Refusal.IDEMPOTENCY_UNKNOWN
            await pause(run, min(LISTS_APART_S, 2.0 * (repeats + 1)))

    async def _look(self, effect: OpenEffect, order: Order, run: Run) -> Settlement | None:
        """By what lists and events show now; None while neither shows it."""
        found = await self._matches(order)
        if len(found) > 1:
            ids = ", ".join(pod.id for pod in found)
            return Settlement(
                Outcome.UNKNOWN, f"{len(found)} pods are called {order.pod_name} ({ids}); delete all but one"
            )
        if found:
            at = found[0].created_at or self._services.now()
            _take_from_others(found[0].id, run)
            _keep(effect, rented(effect, found[0].id, at, price_usd=found[0].price_per_hour_usd), run)
            return Settlement(Outcome.DONE, f"found pod {found[0].id}")
        by_event = await self._by_event(effect, order)
        return None if by_event is None else self._take_from_event(effect, by_event, run)

    async def _may_be_there(self, order: Order) -> bool:
        """Whether a refused request was carried out all the same: sent again it would rent twice."""
        try:
            return bool(await self._matches(order))
        except LiumError:
            return True  # then it is found out by those who can wait for a list

    async def _matches(self, order: Order) -> list[Pod]:
        listing = await self._poller.list_now()
        return [
            pod
            for pod in listing.pods.values()
            if pod.name == order.pod_name and pod.executor_id in (order.node_id, None)
        ]

    async def _by_event(self, effect: OpenEffect, order: Order) -> str | None:
        """The id of a pod that an event names; None where events say nothing, or may not be read (403)."""
        try:
            events = await self._client.events(since=effect.at - timedelta(minutes=1), limit=1000)
        except PermissionError_:
            return None
        return next((event.pod_id for event in events if event.pod_name == order.pod_name and event.pod_id), None)

    def _take_from_event(self, effect: OpenEffect, pod_id: str, run: Run) -> Settlement:
        """It was rented, and no list shows it (yet, or any more): it is ours until it is proved gone."""
        _take_from_others(pod_id, run)
        _keep(effect, rented(effect, pod_id, effect.at), run)
        return Settlement(Outcome.DONE, f"the account's events name pod {pod_id}")

    async def _may_repeat(self, effect: OpenEffect, claim: Claim, run: Run) -> bool:
        """Whether the same key and body may be sent again: wanted as it was, young enough, affordable, and safe."""
        if run.destroying or self._services.now() - effect.at >= REPLAY_FOR or _another_stands(effect, run):
            return False
        resource = run.desired(effect.address)
        if resource is None or not self._same_order(effect, claim.offer, resource, run):
            return False
        if self._features is None:
            try:
                self._features = (await self._client.version()).features
            except LiumError:
                return False  # for now: it is asked again
        return FEATURE in self._features and await run.market.still_allowed(claim)

    def _same_order(self, effect: OpenEffect, offer: Offer, resource: Resource, run: Run) -> bool:
        spec: PodSpec = resource.spec
        if not spec.requirement.fits(offer):
            return False
        try:
            body = self._body(resource, str(effect.data["pod_name"]), spec.requirement.gpu_count, run)
        except ActionFailed:
            return False
        return body == effect.data.get("body")

    async def _repeat(self, effect: OpenEffect, order: Order, claim: Claim, run: Run) -> Settlement | LiumError | None:
        """The same request once more: settled, the error it met, or None for an answer that names no pod."""
        try:
            answer = await self._rent(lambda: effect, order, claim, _Trial(), run)
        except _TooOld:
            return None
        except LiumError as failure:
            return failure
        if answer.pod_id is None or _is_held(answer.pod_id, run):
            return None
        _keep(effect, rented(effect, answer.pod_id, self._services.now()), run)
        return Settlement(Outcome.DONE, f"the repeated request named pod {answer.pod_id}")


def _begun(begin: Begin) -> OpenEffect:
    """The effect of a request that was answered. Also once the run is interrupted: the answer is to be recorded."""
    assert begin.effect is not None
    return begin.effect


def _is_held(pod_id: str, run: Run) -> bool:
    """Whether a record has this id already: then an answer that names it is wrong."""
    return bool(run.ledger.holders("pod", pod_id))


def _take_from_others(pod_id: str, run: Run) -> None:
    """A pod that bears this rent's name is nobody else's: whoever was given its id will be known by its own name."""
    for record in run.ledger.holders("pod", pod_id):
        run.ledger.put(replace(record, id=None))


def _another_stands(effect: OpenEffect, run: Run, pod_id: str | None = None) -> bool:
    """Whether there is a pod at its address by now that this rent was not to replace."""
    standing = run.ledger.record(effect.address)
    return standing is not None and standing.id not in (None, pod_id, effect.data.get("replaces"))


def _keep(effect: OpenEffect, record: Record, run: Run) -> None:
    """It is ours: at its address, or beside the other pod that stands there by now. Then the next plan deletes it."""
    if _another_stands(effect, run, record.id):
        record = replace(record, deposed=True, protected=False)
    run.ledger.done(effect, record)


async def statement_of(services: Services, pod_id: str) -> tuple[bool, datetime | None, Decimal | None]:
    """(removed, when, USD in all) by the server's statement; (False, None, None) where it has none, or none now."""
    try:
        statement = await services.client.statement(pod_id)
    except LiumError:
        return False, None, None
    return statement.removed, statement.removed_at, statement.total_usd


def why_refused(refused: Refused, address: Address) -> ActionFailed:
    return ActionFailed(diagnose(refused.failure, address, "rent"))
