"""Several waits at once, none of which is left behind: when one fails, or the caller is cancelled, all end first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, overload

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
