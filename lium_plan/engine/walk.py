"""Walking a graph of work: what is free to go starts at once, what depends on a failure is skipped, the rest goes on.

Knows nothing of resources. Owns who may start when, how many at a time, who goes first, and how an interrupt ends it.
"""

from __future__ import annotations

import asyncio
import heapq
import math
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


SPREAD = 0.2
"""The slowest of twice as many that are alike takes about so much longer."""

DONE = Ending()
INTERRUPTED = Ending(interrupted=True)


async def walk(
    graph: Graph[str],
    perform: Callable[[str], Awaitable[None]],
    *,
    parallelism: int,
    stop: asyncio.Event,
    urgency: Mapping[str, float] | None = None,
    ended: Callable[[str, Ending], None] = lambda _node, _ending: None,
) -> Mapping[str, Ending]:
    """Perform every node after those it waits for, at most `parallelism` at once (0: no limit).

    Of the nodes that are free to go, the most urgent ones start first, and in the graph's order among equals.
    When `stop` is set nothing more is started and what runs is cancelled; `perform` decides how fast that is. `ended`
    is told of every node once, in the order in which they end. Never raises what `perform` raised.
    """
    return await Walk(graph, perform, parallelism=parallelism, urgency=urgency, ended=ended).run(stop)


def remaining_s(graph: Graph[str], seconds: Mapping[str, float]) -> Mapping[str, float]:
    """Seconds from the start of each node to the end of the longest path from it, given what each usually takes.

    Whoever has the most before it is the most urgent: it must not be what everybody waits for in the end.
    """
    left: dict[str, float] = {}
    for node in reversed(graph.order):
        afters = graph.after(node)
        slowest = 1.0 + SPREAD * math.log2(len(afters)) if afters else 0.0
        left[node] = seconds[node] + slowest * max((left[after] for after in afters), default=0.0)
    return left


class Walk:
    """One `walk`, whose nodes may give up their place among those that run for a while."""

    def __init__(
        self,
        graph: Graph[str],
        perform: Callable[[str], Awaitable[None]],
        *,
        parallelism: int,
        urgency: Mapping[str, float] | None = None,
        ended: Callable[[str, Ending], None] = lambda _node, _ending: None,
    ) -> None:
        """See `walk`."""
        self.graph = graph
        self._perform = perform
        self._parallelism = parallelism or len(graph.order)
        self._ended = ended
        self._place = {node: index for index, node in enumerate(graph.order)}
        urgent = urgency or {}
        self._turn = {node: (-urgent.get(node, 0.0), index) for node, index in self._place.items()}
        self._waiting = {node: len(graph.before(node)) for node in graph.order}
        self._free = [(self._turn[node], node) for node in graph.order if not self._waiting[node]]
        heapq.heapify(self._free)
        self._running: dict[asyncio.Task[None], str] = {}
        self._resting: dict[str, asyncio.Future[None]] = {}
        """Of those that run, who has no place now."""
        self._called: set[str] = set()
        """Who of them is to have one as soon as there is one."""
        self._finished: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        """Something has finished, or the walk is to stop."""
        self._endings: dict[str, Ending] = {}

    async def run(self, stop: asyncio.Event) -> Mapping[str, Ending]:
        stopping = asyncio.ensure_future(self._await_stop(stop))
        try:
            while (self._free and not stop.is_set()) or self._running:
                if not stop.is_set():
                    self._start_what_is_free()
                if not self._running:
                    continue  # who was called has ended without its place
                await self._news.wait()
                self._news.clear()
                if stop.is_set():
                    await self._cancel_what_runs()
                self._collect()
        except asyncio.CancelledError:
            await self._cancel_what_runs()
            self._collect()
            raise
        finally:
            stopping.cancel()
        for node in self.graph.order:
            if node not in self._endings:
                self._end(node, INTERRUPTED)
        return self._endings

    async def _await_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._news.set()

    def runs(self, node: str) -> bool:
        """Whether it has begun and not ended."""
        return node in self._running.values()

    async def rest(self, node: str) -> None:
        """Give up the place of a node that runs until it is called, and has one again."""
        turn = self._resting[node] = asyncio.get_running_loop().create_future()
        self._news.set()
        try:
            await turn
        finally:
            self._resting.pop(node, None)

    def call(self, node: str) -> None:
        """End the rest of a node, if it does rest."""
        if node in self._resting and node not in self._called:
            self._called.add(node)
            heapq.heappush(self._free, (self._turn[node], node))
            self._news.set()

    def _start_what_is_free(self) -> None:
        while self._free and len(self._running) - len(self._resting) < self._parallelism:
            _, node = heapq.heappop(self._free)
            if node in self._called:
                self._end_rest(node)
                continue
            task = asyncio.ensure_future(self._perform(node))
            self._running[task] = node
            task.add_done_callback(self._note)

    def _end_rest(self, node: str) -> None:
        self._called.discard(node)
        turn = self._resting.pop(node, None)
        if turn is not None and not turn.done():  # else it has been cancelled meanwhile
            turn.set_result(None)

    def _note(self, task: asyncio.Task[None]) -> None:
        self._finished.append(task)
        self._news.set()

    async def _cancel_what_runs(self) -> None:
        running = [task for task in self._running if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        # Those that were done a moment ago may not have been noted yet.
        self._finished = [task for task in self._running if task.done()]

    def _collect(self) -> None:
        """Take in what has ended, in the plan's order, so that one history follows from one seed."""
        finished, self._finished = self._finished, []
        for task in sorted(finished, key=lambda task: self._place[self._running[task]]):
            node = self._running.pop(task)
            if task.cancelled():
                self._end(node, INTERRUPTED)
            elif (failure := task.exception()) is not None:
                self._end(node, Ending(failure=failure))
                self._skip_what_waits_for(node)
            else:
                self._end(node, DONE)
                for after in self.graph.after(node):
                    self._waiting[after] -= 1
                    if not self._waiting[after] and after not in self._endings:
                        heapq.heappush(self._free, (self._turn[after], after))

    def _skip_what_waits_for(self, node: str) -> None:
        skipped: set[str] = set()
        pending = [node]
        while pending:
            new = [after for after in self.graph.after(pending.pop()) if after not in skipped]
            skipped.update(new)
            pending.extend(new)
        for after in sorted(skipped, key=self._place.__getitem__):
            if after not in self._endings:
                self._end(after, Ending(skipped_because=node))

    def _end(self, node: str, ending: Ending) -> None:
        self._endings[node] = ending
        self._ended(node, ending)
