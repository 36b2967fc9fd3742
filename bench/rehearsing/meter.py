"""Whose CPU it was: the steps of some tasks of one event loop, measured one by one.

The local Lium and the model of SSH run in the process and on the loop of what is measured. Their tasks are told apart
by a context variable; what they take is subtracted from what the process took.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class Meter:
    """CPU seconds, user and system, of the steps of all tasks that run in its context."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.context = contextvars.copy_context()
        self.context.run(_METER.set, self)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task on the meter, and with it every task that it makes."""
        return asyncio.get_running_loop().create_task(coroutine, context=self.context.copy())


_METER: contextvars.ContextVar[Meter | None] = contextvars.ContextVar("meter", default=None)


def metering(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """The loop's task factory."""
    context = options.get("context")
    meter = _METER.get() if context is None else context.get(_METER)
    return asyncio.Task(coroutine if meter is None else _Steps(coroutine, meter), loop=loop, **options)


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine whose every step is measured."""

    def __init__(self, inner: Coroutine[Any, Any, Any], meter: Meter) -> None:
        self._inner = inner
        self._meter = meter
        self.__name__ = getattr(inner, "__name__", "task")
        self.__qualname__ = getattr(inner, "__qualname__", "task")

    def send(self, value: Any) -> Any:
        started = time.process_time()
        try:
            return self._inner.send(value)
        finally:
            self._meter.spent_s += time.process_time() - started

    def throw(self, kind: Any, value: Any = None, trace: Any = None) -> Any:
        started = time.process_time()
        try:
            return self._inner.throw(kind if value is None else value)
        finally:
            self._meter.spent_s += time.process_time() - started

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("only a task runs this")
