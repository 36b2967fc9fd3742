"""Several waits at once, none of which is left behind: when one fails, or the caller is cancelled, all end first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
Work = Coroutine[Any, Any, T]


@overload
async def together(first: Work[A], second: Work[B], /) -> tuple[A, B]: ...
@overload
async def together(first: Work[A], second: Work[B], third: Work[C], fourth: Work[D], /) -> tuple[A, B, C, D]: ...
@overload
async def together(*work: Work[T]) -> tuple[T, ...]: ...
async def together(*work: Work[Any]) -> tuple[Any, ...]:
    """Their results, in order. Raises what the first to fail raised; by then all of them have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        first = failures.exceptions[0]
    else:
        return tuple(task.result() for task in tasks)
    raise first


class Shared(Generic[T]):
    """One answer for all who ask at the same moment; it is given up once nobody waits for it any more.

    Who asks while one is under way gets a newer one: the other may be older than what was done meanwhile.
    """

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._ask = ask
        self._next: asyncio.Task[T] | None = None
        self._waiting: dict[asyncio.Task[T], int] = {}

    async def __call__(self) -> T:
        """Raises what asking raises."""
        asking = self._next
        if asking is None:
            asking = self._next = asyncio.ensure_future(self._begin())
            self._waiting[asking] = 0
        self._waiting[asking] += 1
        try:
            return await asyncio.shield(asking)
        finally:
            self._waiting[asking] -= 1
            if not self._waiting[asking]:
                del self._waiting[asking]
                asking.cancel()
                if self._next is asking:
                    self._next = None

    async def _begin(self) -> T:
        self._next = None
        return await self._ask()
