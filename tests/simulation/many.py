"""Thousands of rehearsals, on as many processes as are given, and what is said of them meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def spread(
    rehearse: Callable[[Job], Result], jobs: Sequence[Job], *, processes: int, at_once: int = 8
) -> Iterator[Result]:
    """The results in the order of the jobs. `rehearse` is a function of a module: other processes import it."""
    if processes <= 1:
        yield from map(rehearse, jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(rehearse, jobs, chunksize=at_once)


def say(text: object) -> None:
    """At once, also into a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
