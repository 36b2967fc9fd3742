"""Waiting for the server's rate limits, so that no amount of parallelism turns one into a failure.

Owns, per client: one gate for each family of requests (the windows known beforehand, and what 429s taught), the
bound on requests in flight, and the order of those who wait: whatever frees or finishes something goes before what
starts something, what more work waits for before what less does, first come first served among equals. Refuses to send
or to judge answers; time is the event loop's, so a wait can be cancelled at once and runs in virtual time.

A request occupies its windows from the moment it leaves until its answer, and is dated by the answer: the server
counted it somewhere in between, so this is never too early.
"""

from __future__ import annotations

import asyncio
import heapq
import random as random_module
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from lium_plan.lium.windows import (
    KNOWN_WINDOWS,
    Family,
    Window,
    earliest_s,
    longest_period_s,
    schedule_s,
)

FIRST_BACK_OFF_S = 5.0
LONGEST_BACK_OFF_S = 60.0
LEAST_BACK_OFF_S = 1.0
LONGEST_PACE_S = 30.0
MAX_IN_FLIGHT = 40
"""So many replies may come at one moment, and one event loop takes them in."""
LEAST_PATIENCE_S = 900.0
# The server counts template creations and rents together at times (contract §1.6).
_COUNTED_TOGETHER = (Family.TEMPLATE_CREATE, Family.RENT)
_APART_S = 5.0


class Priority(IntEnum):
    """Who goes first when several wait; lower is earlier."""

    FREE = 0
    """Ends, shortens or observes something that exists."""
    START = 1
    """Begins something that will have to be ended."""


@dataclass(order=True, slots=True)
class Turn:
    """A place in a family's queue, kept over repeats of one request."""

    priority: int
    patience: float
    """Minus the urgency: what most waits for goes first."""
    number: int
    family: str = field(compare=False)
    entered_at: float = field(compare=False, default=0.0)


class _Gate:
    """One queue with windows, a back-off and a pace."""

    def __init__(self, windows: tuple[Window, ...], random: Callable[[], float]) -> None:
        self.windows = windows
        self.stamps: deque[float] = deque()
        self.blocked_until = 0.0
        self._random = random
        self._in_flight = 0
        self._strikes = 0
        self._pace_s = 0.0
        self._last_entry: float | None = None
        self._refused_at = float("-inf")
        self._queue: list[tuple[Turn, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def refusing(self) -> bool:
        """The last word of the server was 429."""
        return self._strikes > 0

    def next_s(self, now: float) -> float:
        """When one more may enter as far as is known now."""
        moment = max(earliest_s(self.windows, self._taken(now), now), self.blocked_until)
        if self._pace_s and self._last_entry is not None:
            moment = max(moment, self._last_entry + self._pace_s)
        return moment

    def expected_wait_s(self, now: float) -> float:
        """How long a newcomer waits behind those in the queue, as far as is known now."""
        start, ahead = self.next_s(now), len(self._queue)
        if not self.windows:
            return start - now
        return schedule_s(self.windows, ahead + 1, stamps=self._taken(now), now=start)[-1] - now

    def _taken(self, now: float) -> list[float]:
        """When the windows were occupied, those in flight until now; nobody asks where there are no windows."""
        return [*self.stamps, *[now] * self._in_flight] if self.windows else []

    async def enter(self, turn: Turn) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        entry = (turn, future)
        heapq.heappush(self._queue, entry)
        self._pump()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.abandon()
            elif entry in self._queue:
                self._queue.remove(entry)
                heapq.heapify(self._queue)
                self._pump()
            raise
        turn.entered_at = loop.time()

    def leave(self) -> None:
        """A request that left this machine is over."""
        self.stamp(asyncio.get_running_loop().time())
        self.abandon()

    def abandon(self) -> None:
        """Whoever was let in sent nothing: no window counts it."""
        self._in_flight -= 1
        self._pump()

    def stamp(self, at: float) -> None:
        """Count one request at `at`."""
        self.stamps.append(at)
        oldest = at - longest_period_s(self.windows)
        while self.stamps and self.stamps[0] < oldest:
            self.stamps.popleft()

    def accepted(self, turn: Turn) -> None:
        """The server took a request that was sent after its last 429."""
        if turn.entered_at > self._refused_at:
            self._strikes = 0
            self._pace_s = self._pace_s * 0.7 if self._pace_s > 0.25 else 0.0

    def refused(self, turn: Turn, retry_after_s: float | None) -> None:
        """The server said 429. Answers to one burst count as one strike, or a burst would lock us out for minutes."""
        now = asyncio.get_running_loop().time()
        if turn.entered_at > self._refused_at:
            self._strikes += 1
            self._pace_s = min(LONGEST_PACE_S, max(2 * self._pace_s, LEAST_BACK_OFF_S))
            self._refused_at = now
        if retry_after_s is None:
            pause_s = min(FIRST_BACK_OFF_S * 2 ** min(self._strikes - 1, 10), LONGEST_BACK_OFF_S)
        else:
            # A server that says "at once" again and again would have us spin: the strikes still count a little.
            pause_s = max(retry_after_s, min(LEAST_BACK_OFF_S * self._strikes, LONGEST_BACK_OFF_S))
        self.hold_until(now + pause_s + self._random() * 0.5)

    def hold_until(self, moment: float) -> None:
        self.blocked_until = max(self.blocked_until, moment)
        self._pump()

    def _pump(self) -> None:
        """Let in everyone who may enter now, and set a timer for the next one."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue:
            now = loop.time()
            moment = self.next_s(now)
            if moment > now:
                self._timer = loop.call_at(moment, self._pump)
                return
            _, future = heapq.heappop(self._queue)
            if not future.done():
                self._in_flight += 1
                self._last_entry = now
                future.set_result(None)


class Limits:
    """The limits of one account, shared by all callers of one client."""

    def __init__(
        self,
        windows: Mapping[str, tuple[Window, ...]] = KNOWN_WINDOWS,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._windows = windows
        self._random = random
        self._gates: dict[str, _Gate] = {}
        self._slots = _Slots(max_in_flight)
        self._numbers = 0
        self._together = False
        self._rents: deque[float] = deque(maxlen=256)

    def turn(self, family: str, priority: Priority, urgency: float = 0.0) -> Turn:
        """A place in the queue of `family`, behind everyone as urgent of the same priority who has one already."""
        self._numbers += 1
        return Turn(int(priority), -urgency, self._numbers, family)

    async def enter(self, turn: Turn, *, on_wait: Callable[[float], object] | None = None) -> None:
        """Return when the request may be sent. Follow with `leave`, also after a cancellation or an error.

        `on_wait` is told first how many seconds that will take, as far as is known, when it is not at once.
        """
        gate = self._gate(turn.family)
        if on_wait is not None and (wait_s := gate.expected_wait_s(asyncio.get_running_loop().time())) > 0:
            on_wait(wait_s)
        await gate.enter(turn)
        try:
            await self._slots.enter(turn)
        except asyncio.CancelledError:
            gate.abandon()
            raise

    def leave(self, turn: Turn, *, sent: bool = True) -> None:
        """The request is over, however it ended; `sent` False when nothing of it left."""
        self._slots.leave()
        gate = self._gate(turn.family)
        if not sent:
            gate.abandon()
            return
        gate.leave()
        if turn.family == Family.RENT:
            self._rents.append(gate.stamps[-1])
            if self._together:
                self._gate(Family.TEMPLATE_CREATE).stamp(gate.stamps[-1])

    def accepted(self, turn: Turn) -> None:
        """The answer was anything but 429."""
        self._gate(turn.family).accepted(turn)

    def refused(self, turn: Turn, retry_after_s: float | None) -> None:
        """The answer was 429: the family waits, and so does the one that is counted with it."""
        self._gate(turn.family).refused(turn, retry_after_s)
        if turn.family not in _COUNTED_TOGETHER:
            return
        now = asyncio.get_running_loop().time()
        for other in _COUNTED_TOGETHER:
            if other != turn.family:
                self._gate(other).hold_until(now + _APART_S)
        if turn.family == Family.TEMPLATE_CREATE and not self._together and self._rents:
            # We kept to the known windows and were refused: rents count too. From now on we count them as well.
            self._together = True
            gate = self._gate(Family.TEMPLATE_CREATE)
            gate.stamps = deque(sorted([*gate.stamps, *self._rents]))

    def count_earlier(self, family: str, ages_s: Iterable[float]) -> None:
        """Requests that were sent so many seconds ago, by an earlier run or somebody else on the account.

        They are counted once, and before the first of this process: a later list would show that too.
        """
        gate = self._gate(family)
        if gate.stamps:
            return
        now, longest = asyncio.get_running_loop().time(), longest_period_s(gate.windows)
        gate.stamps.extend(sorted(now - age for age in ages_s if 0 <= age < longest))

    def ages_s(self, family: str) -> tuple[float, ...]:
        """How many seconds ago the requests left that still count, oldest first."""
        now = asyncio.get_running_loop().time()
        return tuple(now - stamp for stamp in self._gate(family).stamps)

    def estimate_s(self, family: str, count: int, now: float) -> float:
        """Seconds from `now` (the loop's clock) until `count` further requests of a family have been sent."""
        gate = self._gates.get(family)
        stamps = tuple(gate.stamps) if gate else ()
        start = max(now, gate.blocked_until) if gate else now
        sent = schedule_s(self._windows.get(family, ()), count, stamps=stamps, now=start)
        return max(0.0, sent[-1] - now) if sent else 0.0

    def patience_s(self, family: str) -> float:
        """How long one request may go on being refused before that is an error: longer than any window of it."""
        return max(LEAST_PATIENCE_S, 1.1 * longest_period_s(self._windows.get(family, ())))

    def _gate(self, family: str) -> _Gate:
        if family not in self._gates:
            self._gates[family] = _Gate(self._windows.get(family, ()), self._random)
        return self._gates[family]


class _Slots:
    """At most `count` requests in flight; who waits is let in by priority, then by age."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: list[tuple[Turn, asyncio.Future[None]]] = []

    async def enter(self, turn: Turn) -> None:
        if self._free > 0 and not self._queue:
            self._free -= 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (turn, future)
        heapq.heappush(self._queue, entry)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave()
            elif entry in self._queue:
                self._queue.remove(entry)
                heapq.heapify(self._queue)
            raise

    def leave(self) -> None:
        self._free += 1
        while self._queue and self._free > 0:
            _, future = heapq.heappop(self._queue)
            if not future.done():
                self._free -= 1
                future.set_result(None)
