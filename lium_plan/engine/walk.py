"""Walking a graph of work: what is free to go starts at once, what depends on a failure is skipped, the rest goes on.

Knows nothing of resources. Owns who may start when, how many at a time, and how an interrupt ends it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from lium_plan.planning.order import Graph


@dataclass(frozen=True, slots=True)
class Ending:
    """How one node ended. Exactly one of the fields says more, and none for a node that is done."""

    failure: BaseException | None = None
    skipped_because: str | None = None
    """The failed node that it waited for, directly or not."""
    interrupted: bool = False
    """Cancelled while running, or never started, because the walk was asked to end."""

    @property
    def done(self) -> bool:
        return self.failure is None and self.skipped_because is None and not self.interrupted


DONE = Ending()
INTERRUPTED = Ending(interrupted=True)


async def walk(
    graph: Graph[str],
    perform: Callable[[str], Awaitable[None]],
    *,
    parallelism: int,
    stop: asyncio.Event,
    ended: Callable[[str, Ending], None] = lambda _node, _ending: None,
) -> Mapping[str, Ending]:
    """Perform every node after those it waits for, at most `parallelism` at once (0: no limit).

    When `stop` is set nothing more is started and what runs is cancelled; `perform` decides how fast that is. `ended`
    is told of every node once, in the order in which they end. Never raises what `perform` raised.
    """
    walker = _Walker(graph, perform, parallelism, ended)
    return await walker.run(stop)


class _Walker:
    def __init__(
        self,
        graph: Graph[str],
        perform: Callable[[str], Awaitable[None]],
        parallelism: int,
        ended: Callable[[str, Ending], None],
    ) -> None:
        self._graph = graph
        self._perform = perform
        self._parallelism = parallelism or len(graph.order)
        self._ended = ended
        self._place = {node: index for index, node in enumerate(graph.order)}
        self._waiting = {node: len(graph.before(node)) for node in graph.order}
        self._free = [self._place[node] for node in graph.order if not self._waiting[node]]
        heapq.heapify(self._free)
        self._running: dict[asyncio.Task[None], str] = {}
        self._endings: dict[str, Ending] = {}

    async def run(self, stop: asyncio.Event) -> Mapping[str, Ending]:
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while (self._free and not stop.is_set()) or self._running:
                if not stop.is_set():
                    self._start_what_is_free()
                await asyncio.wait({*self._running, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if stop.is_set():
                    await self._cancel_what_runs()
                self._collect()
        except asyncio.CancelledError:
            await self._cancel_what_runs()
            self._collect()
            raise
        finally:
            stopping.cancel()
        for node in self._graph.order:
            if node not in self._endings:
                self._end(node, INTERRUPTED)
        return self._endings

    def _start_what_is_free(self) -> None:
        while self._free and len(self._running) < self._parallelism:
            node = self._graph.order[heapq.heappop(self._free)]
            self._running[asyncio.ensure_future(self._perform(node))] = node

    async def _cancel_what_runs(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    def _collect(self) -> None:
        """Take in what has ended, in the plan's order, so that one history follows from one seed."""
        finished = sorted(
            (task for task in self._running if task.done()), key=lambda task: self._place[self._running[task]]
        )
        for task in finished:
            node = self._running.pop(task)
            if task.cancelled():
                self._end(node, INTERRUPTED)
            elif (failure := task.exception()) is not None:
                self._end(node, Ending(failure=failure))
                self._skip_what_waits_for(node)
            else:
                self._end(node, DONE)
                for after in self._graph.after(node):
                    self._waiting[after] -= 1
                    if not self._waiting[after] and after not in self._endings:
                        heapq.heappush(self._free, self._place[after])

    def _skip_what_waits_for(self, node: str) -> None:
        for after in self._graph.all_after((node,)):
            if after not in self._endings:
                self._end(after, Ending(skipped_because=node))

    def _end(self, node: str, ending: Ending) -> None:
        self._endings[node] = ending
        self._ended(node, ending)
