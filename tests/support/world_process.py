"""A process that can be killed, inside one event loop: what `kill -9` is to a real one.

Owns the tasks of one run of lium-plan (told apart from the server's by a context variable), the counting of everything
at which it can be killed (`passes`), and the killing: from then on nothing that it does reaches the world. What touches
the world on its behalf asks `alive()` first. Knows neither HTTP nor files nor SSH.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import lium_plan

T = TypeVar("T")
Version = tuple[object, ...]

RESUME = "resume"
_OURS = str(Path(lium_plan.__file__).parent)
_MOST_THROWS = 1000
_MOST_AT_ONCE = 20_000
"""Points within one moment: far more than any run of a few pods passes."""
CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Crash(BaseException):
    """The process is no more. No handler of `Exception` sees it, and what a `finally` does goes nowhere."""


@dataclass(frozen=True, slots=True)
class Point:
    """One moment at which a process may be killed."""

    number: int
    """Which of all the points that the process passes, from 1."""
    site: str
    """`POST /executors/*/rent`, `journal begin rent`, `lium_plan/kinds/pod/rent.py:184 _find`, …"""
    phase: str
    """`before`, `torn`, `after`, … or `resume` for a task that is about to go on."""

    def __str__(self) -> str:
        return f"{self.number}: {self.site} ({self.phase})"


@dataclass(eq=False)
class Process:
    """One run. `crash_at` is the number of the point at which it is killed; with `recording` every point is noted."""

    crash_at: int | None = None
    crash_on: tuple[str, str, int] | None = None
    """(site, phase, which time): killed there instead."""
    recording: bool = False
    version: Callable[[], Version] = lambda: ()
    """What the outside world is now: two points with equal versions are the same crash."""
    dead: bool = False
    died_at: Point | None = None
    passed: int = 0
    changes: int = 0
    """Requests that it sent and that could have changed something."""
    spun: bool = False
    """It did one thing after the other for ever, and no time passed: it was ended for that."""
    points: list[tuple[Point, Version]] = field(default_factory=list)
    _moment: float = -1.0
    _passed_before: int = 0
    _times: int = 0
    on_death: list[Callable[[], None]] = field(default_factory=list)
    """What the world does at once: connections end."""
    on_burial: list[Callable[[], None]] = field(default_factory=list)
    """What it does when nothing of the process is left: files are closed, and locks with them."""
    _steps: list[_Steps] = field(default_factory=list)
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        return asyncio.get_running_loop().create_task(main, context=context)

    def alive(self) -> None:
        """Raises Crash when the process is dead."""
        if self.dead:
            raise Crash

    def passes(self, site: str, phase: str) -> bool:
        """Count this point; whether the process is to be killed at it. The caller then calls `crash`."""
        self.alive()
        self.passed += 1
        self._look_at_the_clock()
        if self.recording:
            self.points.append((Point(self.passed, site, phase), self.version()))
        if self.crash_on is not None and (site, phase) == self.crash_on[:2]:
            self._times += 1
        elif self.passed != self.crash_at:
            return False
        if self.crash_on is not None and self._times != self.crash_on[2]:
            return False
        self.died_at = Point(self.passed, site, phase)
        return True

    def _look_at_the_clock(self) -> None:
        """Virtual time stands still for whoever never waits, so a busy loop would be one for ever."""
        now = asyncio.get_running_loop().time()
        if now != self._moment:
            self._moment, self._passed_before = now, self.passed
        elif self.passed - self._passed_before > _MOST_AT_ONCE:
            self.spun = True
            self.crash()

    def may_crash(self, site: str, phase: str) -> None:
        """Count this point and be killed at it when it is the chosen one."""
        if self.passes(site, phase):
            self.crash()

    def crash(self) -> None:
        """Kill the process from within one of its own steps. Raises Crash."""
        self.kill()
        raise Crash

    def kill(self) -> None:
        """Nothing of it runs any more; what its tasks do while they unwind meets a world that refuses."""
        if self.dead:
            return
        self.dead = True
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        for steps in tuple(self._steps):
            context.run(steps.end)
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        for tell in self.on_death:
            tell()

    async def buried(self) -> None:
        """Wait until the loop has let go of the killed tasks."""
        left = [task for task in self._tasks if not task.done() and task is not asyncio.current_task()]
        while left:
            for task in left:
                task.cancel()
            await asyncio.wait(left)
            left = [task for task in self._tasks if not task.done()]
        for tell in self.on_burial:
            tell()
        self._steps.clear()
        self._tasks.clear()
        self.on_death.clear()
        self.on_burial.clear()

    def own(self, steps: _Steps, task: asyncio.Task[Any]) -> None:
        self._steps.append(steps)
        self._tasks.append(task)
        if len(self._steps) > 256:
            kept = [(s, t) for s, t in zip(self._steps, self._tasks, strict=True) if not t.done()]
            self._steps = [s for s, _ in kept]
            self._tasks = [t for _, t in kept]


class _Steps(Coroutine[Any, Any, Any]):
    """A task's coroutine, with a word to its process before each step."""

    def __init__(self, inner: Coroutine[Any, Any, Any], process: Process) -> None:
        self._inner = inner
        self._process = process
        self._running = False
        self._over = False
        self.__name__ = getattr(inner, "__name__", "task")
        self.__qualname__ = getattr(inner, "__qualname__", "task")

    @property
    def cr_frame(self) -> FrameType | None:
        return getattr(self._inner, "cr_frame", None)

    @property
    def cr_code(self) -> Any:
        return getattr(self._inner, "cr_code", None)

    @property
    def cr_running(self) -> bool:
        return self._running

    def send(self, value: Any) -> Any:
        return self._step(self._inner.send, value)

    def throw(self, kind: Any, value: Any = None, trace: Any = None) -> Any:
        return self._step(self._inner.throw, kind if value is None else value)

    def close(self) -> None:
        self._over = True
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("only a task runs this")

    def _step(self, go_on: Callable[[Any], Any], value: Any) -> Any:
        process = self._process
        if process.dead:
            self.end()
            raise asyncio.CancelledError
        self._running = True
        try:
            told = process.recording or process.crash_at == process.passed + 1
            site = where(self._inner) if told else ""
            if process.passes(site, RESUME):
                self._running = False
                process.kill()
                self.end()
                raise asyncio.CancelledError
            return go_on(value)
        except StopIteration:
            self._over = True
            raise
        except BaseException:
            self._over = True
            if process.dead:
                # Whatever its handlers made of the crash: nobody is left to whom it could be told.
                raise asyncio.CancelledError from None
            raise
        finally:
            self._running = False
            if process.dead and not self._over:
                self.end()
                raise asyncio.CancelledError

    def end(self) -> None:
        """Unwind it at once, without another turn of the loop, however often it tries to wait for something."""
        if self._over or self._running:
            return
        self._over = True
        for _ in range(_MOST_THROWS):
            try:
                self._inner.throw(Crash())
            except BaseException:
                return
        raise AssertionError(f"{self.__qualname__} does not end")


_PLUMBING = ("lium/", "ssh/")
"""Every request and every command over SSH waits in the same few lines there."""


def where(coroutine: Any) -> str:
    """The innermost await of ours that a task stands at; where that is the client's, also whose call it is."""
    nowhere = place = f"{getattr(coroutine, '__qualname__', 'a task')} begins"
    caller = ""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        frame = frame or getattr(coroutine, "ag_frame", None)
        if frame is not None and frame.f_code.co_filename.startswith(_OURS):
            file = frame.f_code.co_filename[len(_OURS) + 1 :]
            if frame.f_lasti > 0:
                place = f"{file}:{frame.f_lineno} {frame.f_code.co_name}"
            elif place == nowhere:
                place = f"{file} {frame.f_code.co_name} begins"
            if not file.startswith(_PLUMBING):
                caller = place
        coroutine = (
            getattr(coroutine, "cr_await", None)
            or getattr(coroutine, "gi_yieldfrom", None)
            or getattr(coroutine, "ag_await", None)
        )
    return place if caller in ("", place) else f"{caller} > {place}"


def task_factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Tasks made by a process are its own; everybody else's are ordinary ones."""
    process = CURRENT.get()
    context = options.get("context")
    if context is not None:
        process = context.get(CURRENT)
    if process is None:
        return asyncio.Task(coroutine, loop=loop, **options)
    steps = _Steps(coroutine, process)
    task = asyncio.Task(steps, loop=loop, **options)
    process.own(steps, task)
    if process.dead:
        steps.end()
    return task
