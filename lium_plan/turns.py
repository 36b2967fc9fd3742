"""Turns: many coroutines that become ready at the same moment go on a few at a time, and the loop lives in between.

Sixty replies that arrive together would otherwise be worked through in one turn of the event loop; whatever else is due
(a key pressed, a progress line, another reply's deadline) would wait for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 4


class Turns:
    """For one event loop. Costs nothing while fewer than `at_once` ask in one turn of it."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = self._left = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Go on now, or in one of the loop's next turns, in the order of asking."""
        loop = asyncio.get_running_loop()
        if self._left == self._at_once:
            loop.call_soon(self._next_turn)
        if self._left and not self._waiting:
            self._left -= 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_turn(self) -> None:
        self._left = self._at_once
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # else its coroutine was cancelled meanwhile
                turn.set_result(None)
                self._left -= 1
        if self._left < self._at_once:
            asyncio.get_running_loop().call_soon(self._next_turn)
