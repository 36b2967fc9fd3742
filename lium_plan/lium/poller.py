"""One `GET /pods` for everybody who waits for a pod: the account's 60 lists a minute are shared by all (contract §4.3).

Owns when to list and who sees which listing. A waiter only sees listings *requested* after it began to wait, so what it
just did cannot be missing from them for being older. Lists that fail are counted and skipped, never shown as empty.
Refuses deadlines (each waiter has its own) and to judge pods. It lists only while somebody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType, TracebackType
from typing import Protocol, Self

from lium_plan.lium.errors import AuthError, LiumError, PermissionError_, RateLimitedError
from lium_plan.lium.models import Pod
from lium_plan.turns import Turns

LEAST_INTERVAL_S = 1.0
LONGEST_BACK_OFF_S = 60.0
HOPELESS_AFTER = 3
"""So many refusals in a row for want of permission end the waits: no later list will differ."""
_STEPS_S = ((40.0, 1.0), (90.0, 2.0))
_SLOWER = 25.0
"""Later on one list in so much of the time waited: whoever has waited for long is told at most 4 % too late."""
_SLOWEST_S = 10.0


class PodLister(Protocol):
    """What the poller needs of a client."""

    async def pods(self, *, attempts: int = ...) -> tuple[Pod, ...]: ...

    def server_time(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Listing:
    """One good list. Times are the event loop's but for `server_time`."""

    number: int
    pods: Mapping[str, Pod]
    """By id, every status included."""
    requested_at: float
    at: float
    """When the answer was there."""
    server_time: datetime


def adaptive_interval_s(waiting_s: float) -> float:
    """Seconds between lists for a waiter that has waited so long (contract §4.3, with a smooth end). Never falls."""
    later = min(waiting_s / _SLOWER, _SLOWEST_S)
    return next((step for until, step in _STEPS_S if waiting_s < until), later)


class PodPoller:
    """Lists pods for any number of waiters. An async context manager; `interval_s` replaces the adaptive pace.

    `failures` counts the failed lists since the last good one, `failed_lists` all of them, `last_error` is the newest.
    """

    def __init__(self, client: PodLister, interval_s: float | None = None) -> None:
        self._client = client
        self._fixed_s = None if interval_s is None else max(interval_s, LEAST_INTERVAL_S)
        # A dict for its order: who waits longer is woken first, and one seed gives one history.
        self._waiters: dict[_Waiter, None] = {}
        # Since when the youngest waits, and from which moment on a list is of use to anybody. Kept as they come, for
        # there may be thousands; who leaves can only have made the next list too early, and then it is looked at anew.
        self._youngest, self._useful_from = float("-inf"), float("inf")
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._turns = Turns()
        self._requests = 0
        self._listed_at = float("-inf")
        self._retry_after_s = 0.0
        self._closed = False
        self.latest: Listing | None = None
        self.failures = 0
        self.failed_lists = 0
        self.last_error: LiumError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listing; whoever still waits gets a RuntimeError."""
        self._closed = True
        self._end_waits(RuntimeError("the poller was closed"))
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def next_listing(
        self,
        after: float | None = None,
        *,
        since: float | None = None,
        news: Callable[[Listing], bool] = lambda _: True,
    ) -> Listing:
        """The first good listing requested after `after` (loop time; None: now) for which `news` is true.

        Where thousands wait, `news` is what keeps all but a few of them asleep. It must not raise.

        One that is there already is returned at once. `since` is when the thing waited for began: the longer ago, the
        slower the lists come; None: `after`. Raises AuthError or PermissionError_ when the server refuses lists for
        good; every other failure is waited out, so give it a deadline.
        """
        now = asyncio.get_running_loop().time()
        moment = now if after is None else after
        if self.latest is not None and self.latest.requested_at > moment and news(self.latest):
            return self.latest
        # A list that is under way counts when it was requested later than `after`; at the very same moment of the
        # clock nobody knows which came first.
        number = self._requests - 1 if self._listed_at > moment else self._requests
        return await self._wait(number, after=moment, since=min(now, moment if since is None else since), news=news)

    def subscribe(self, *, since: float | None = None) -> Subscription:
        """Listings requested from now on, as an async iterator; a slow reader skips to the newest."""
        now = asyncio.get_running_loop().time()
        return Subscription(self, number=self._requests, since=now if since is None else since)

    async def _after_number(self, number: int, since: float) -> Listing:
        if self.latest is not None and self.latest.number > number:
            return self.latest
        return await self._wait(number, after=float("-inf"), since=since)

    async def _wait(
        self, number: int, *, after: float, since: float, news: Callable[[Listing], bool] = lambda _: True
    ) -> Listing:
        if self._closed:
            raise RuntimeError("the poller is closed")
        waiter = _Waiter(number, after, since, news, asyncio.get_running_loop().create_future())
        self._waiters[waiter] = None
        if self._count_in(waiter):
            self._wake()
        try:
            listing = await waiter.future
        finally:
            self._waiters.pop(waiter, None)
            if not self._waiters:
                self._changed.set()
        await self._turns.take()
        return listing

    def _count_in(self, waiter: _Waiter) -> bool:
        """Whether the next list may be due earlier because of this one."""
        sooner = waiter.since > self._youngest or waiter.after < self._useful_from
        self._youngest = max(self._youngest, waiter.since)
        self._useful_from = min(self._useful_from, waiter.after)
        return sooner or self._task is None or self._task.done()

    def _count_all(self) -> None:
        self._youngest, self._useful_from = float("-inf"), float("inf")
        for waiter in self._waiters:
            self._count_in(waiter)

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._changed = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="pod poller")
        self._changed.set()

    async def _run(self) -> None:
        try:
            await self._poll()
        except Exception as error:
            # A bug, then: whoever waits must learn of it rather than wait for ever.
            self._end_waits(error)

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiters:
            self._changed.clear()
            due = self._due()
            if due > loop.time():
                try:
                    async with asyncio.timeout_at(due):
                        await self._changed.wait()
                except TimeoutError:
                    self._count_all()
                continue
            await self._list()
            self._count_all()

    def _due(self) -> float:
        """When the next list is to be requested: as often as the youngest waiter needs, no more than once a second."""
        now = asyncio.get_running_loop().time()
        wanted = self._fixed_s or adaptive_interval_s(now - self._youngest)
        if self.failures:
            backed_off = min(wanted * 2.0 ** min(self.failures, 10), LONGEST_BACK_OFF_S)
            wanted = max(backed_off, self._retry_after_s)
        due = self._listed_at + max(wanted, LEAST_INTERVAL_S)
        # Somebody who waits for a moment to come has no use for a list before it.
        return max(due, self._useful_from)

    async def list_now(self) -> Listing:
        """A list at once, with the client's own few attempts, that everybody who waits sees too. Raises `LiumError`."""
        number, requested_at = self._next()
        return self._publish(number, requested_at, await self._client.pods())

    async def _list(self) -> None:
        number, requested_at = self._next()
        try:
            pods = await self._client.pods(attempts=1)
        except LiumError as error:
            self._failed(error)
            return
        self._publish(number, requested_at, pods)

    def _next(self) -> tuple[int, float]:
        """Number and time of the list that is requested now."""
        self._requests += 1
        self._listed_at = asyncio.get_running_loop().time()
        return self._requests, self._listed_at

    def _publish(self, number: int, requested_at: float, pods: tuple[Pod, ...]) -> Listing:
        self.failures, self._retry_after_s = 0, 0.0
        listing = Listing(
            number=number,
            pods=MappingProxyType({pod.id: pod for pod in pods}),
            requested_at=requested_at,
            at=asyncio.get_running_loop().time(),
            server_time=self._client.server_time(),
        )
        if self.latest is None or number > self.latest.number:
            self.latest = listing
        for waiter in tuple(self._waiters):
            if waiter.may_see(listing) and not waiter.future.done():
                waiter.future.set_result(listing)
                self._waiters.pop(waiter, None)
        return listing

    def _failed(self, error: LiumError) -> None:
        self.failures += 1
        self.failed_lists += 1
        self.last_error = error
        self._retry_after_s = (error.retry_after_s or 0.0) if isinstance(error, RateLimitedError) else 0.0
        if self.failures >= HOPELESS_AFTER and isinstance(error, (AuthError, PermissionError_)):
            self._end_waits(error)

    def _end_waits(self, error: Exception) -> None:
        for waiter in tuple(self._waiters):
            if not waiter.future.done():
                waiter.future.set_exception(error)
            self._waiters.pop(waiter, None)


@dataclass(eq=False, slots=True)
class _Waiter:
    number: int
    """Lists up to this one are too old."""
    after: float
    since: float
    news: Callable[[Listing], bool]
    future: asyncio.Future[Listing]

    def may_see(self, listing: Listing) -> bool:
        return listing.number > self.number and listing.requested_at >= self.after and self.news(listing)


class Subscription:
    """An async iterator over good listings, each newer than the one before."""

    def __init__(self, poller: PodPoller, *, number: int, since: float) -> None:
        self._poller = poller
        self._number = number
        self._since = since

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Listing:
        listing = await self._poller._after_number(self._number, self._since)
        self._number = listing.number
        return listing
