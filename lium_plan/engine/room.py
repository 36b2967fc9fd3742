"""Room under the limit per hour: a rent that finds none waits for what this walk still deletes, and for nothing else.

What waits for that rent itself never makes room for it, so it isn't waited for: when nothing else is left, the limit
refuses. Knows nothing of prices: those who wait say whether they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from lium_plan.addresses import Address
from lium_plan.diagnostics import counted
from lium_plan.engine.walk import Walk


class Room:
    """Of one run."""

    def __init__(self) -> None:
        self._walk: Walk | None = None
        self._say: Callable[[Address, str], None] = lambda _address, _phase: None
        self._leaving: dict[str, str] = {}
        """Remote id of what counts and is to go -> the node of the walk that ends it."""
        self._waiting: dict[str, Callable[[], bool]] = {}
        """Node -> whether there is room for it now."""

    @contextmanager
    def during(self, walk: Walk, leaving: Mapping[str, str], say: Callable[[Address, str], None]) -> Iterator[None]:
        """Let the rents of a walk wait for what goes in it. A walk within another one waits for nothing.

        `leaving`: by remote id the node that ends it. `say` tells people what an address waits for.
        """
        if self._walk is not None:
            yield
            return
        self._walk, self._leaving, self._say = walk, dict(leaving), say
        try:
            yield
        finally:
            self._walk = None
            self._leaving = {}

    async def wait(self, address: Address, fits: Callable[[], bool], limit: str) -> bool:
        """Until it fits; False as soon as nothing that still goes can make room for it. `limit`: its name."""
        node = str(address)
        if self._walk is None or not self._walk.runs(node):
            return False
        self._waiting[node] = fits
        try:
            while not fits():
                if not self._is_to_come(self._walk):
                    return False
                going = counted(len(self._leaving), "pod")
                self._say(address, f"waiting for room under {limit}: {going} to be deleted")
                await self._walk.rest(node)
        finally:
            del self._waiting[node]
        return True

    def gone(self, id: str) -> None:
        """It counts no more, or its deletion has ended without success."""
        self._leaving.pop(id, None)
        self.changed()

    def changed(self) -> None:
        """Something may fit now, or nothing ever will."""
        if self._walk is None or not self._waiting:
            return
        to_come = self._is_to_come(self._walk)
        for node, fits in self._waiting.items():
            if not to_come or fits():
                self._walk.call(node)

    def _is_to_come(self, walk: Walk) -> bool:
        """Whether anything is to go that waits for none of those who wait for room."""
        if any(not walk.graph.before(node) and node not in self._waiting for node in self._leaving.values()):
            return True
        stuck = [node for node, fits in self._waiting.items() if not fits()]
        held_up = {*stuck, *walk.graph.all_after(stuck)}
        return any(node not in held_up for node in self._leaving.values())
