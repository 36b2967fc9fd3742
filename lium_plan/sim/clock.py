"""Where the world's time comes from: the machine's clock, or an event loop's (virtual time). Both can be pushed
forward, never back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    shift_s: float
    """Seconds the world is ahead because of `push`."""

    def now(self) -> datetime: ...

    def push(self, seconds: float) -> None: ...


class RealClock:
    """The machine's clock plus what `/_sim/advance` added."""

    def __init__(self, shift_s: float = 0.0) -> None:
        self.shift_s = shift_s

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.shift_s)

    def push(self, seconds: float) -> None:
        self.shift_s += seconds


class LoopClock:
    """The running event loop's `time()` counted from `start`; under a virtual-time loop the world's time is virtual."""

    def __init__(self, start: datetime = datetime(2026, 9, 10, 12, tzinfo=UTC)) -> None:
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._zero = self._loop.time()
        self.shift_s = 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._loop.time() - self._zero + self.shift_s)

    def push(self, seconds: float) -> None:
        self.shift_s += seconds
