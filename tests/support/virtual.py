"""An event loop whose clock jumps to the next timer, so that an hour of waiting takes no time.

`run_virtual(coro)` runs a coroutine to its end on such a loop. Deterministic: nothing but the coroutine's own steps and
timers moves it. When every task waits for something that no timer will bring, it raises `Deadlock` and says who waits
where. Threads and real sockets have no place here: `run_in_executor` is refused, an unanswered socket is a deadlock.
"""

from __future__ import annotations

import asyncio
import io
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
_Event = list[tuple[selectors.SelectorKey, int]]


class Deadlock(AssertionError):
    """Every task waits and there is no timer that could wake one."""


class TooLate(AssertionError):
    """The coroutine still ran at the virtual time at which it should have ended."""


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.idle: Callable[[float | None], None] = lambda timeout: None

    def select(self, timeout: float | None = None) -> _Event:
        ready = super().select(0)
        if not ready and (timeout is None or timeout > 0):
            self.idle(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector loop with a clock of its own that starts at `start_s` and moves only while everybody waits."""

    def __init__(self, *, start_s: float = 0.0, limit_s: float | None = None) -> None:
        selector = _JumpingSelector()
        self._virtual_now = start_s
        self._limit_s = limit_s
        super().__init__(selector)
        selector.idle = self._jump

    def time(self) -> float:
        return self._virtual_now

    def _jump(self, timeout: float | None) -> None:
        # The loop has dropped cancelled timers from the head of this heap before it asks how long to wait.
        timers = self._scheduled  # type: ignore[attr-defined]
        if timeout is None or not timers:
            raise Deadlock(f"at {self._virtual_now:g} s nothing can go on:\n{_who_waits(self)}")
        moment = max(self._virtual_now, timers[0].when())
        if self._limit_s is not None and moment > self._limit_s:
            raise TooLate(f"still running at {self._limit_s:g} s:\n{_who_waits(self)}")
        self._virtual_now = moment
        # The loop runs timers that are due before now + resolution; a large clock would swallow the usual nanosecond.
        self._clock_resolution = max(1e-9, 2 * math.ulp(moment))

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise RuntimeError("no threads in virtual time: their pace is not the clock's")


def run_virtual(main: Coroutine[Any, Any, _T], *, start_s: float = 0.0, limit_s: float | None = 30 * 86400.0) -> _T:
    """The result of `main`, run on a `VirtualLoop`; tasks that it leaves behind are cancelled.

    Raises Deadlock when nothing can go on and TooLate when it still runs at `limit_s` of the loop's clock.
    """
    loop = VirtualLoop(start_s=start_s, limit_s=limit_s)
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            _cancel_rest(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_rest(loop: VirtualLoop) -> None:
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    if rest:
        loop._limit_s = None
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))


def _who_waits(loop: asyncio.AbstractEventLoop) -> str:
    text = io.StringIO()
    for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
        task.print_stack(limit=4, file=text)
    return text.getvalue()
