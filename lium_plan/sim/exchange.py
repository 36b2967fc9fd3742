"""One request on its way through the server, as the wire layer and the routes both see it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.requests import Request

from lium_plan.sim.twist import PLAIN, Twist


class ReplyLost(ConnectionError):
    """The server drops this connection without an answer. In process it reaches the client as it is."""


@dataclass(slots=True)
class Exchange:
    request_id: str
    twist: Twist = PLAIN
    delay_inside_s: float = 0.0
    lost_inside: bool = False
    unrecorded: bool = False
    """The outcome of this request's idempotency key is not stored."""
    account: str | None = None
    """The caller's account name, once known."""
    caller_ids: tuple[str, str] | None = None
    """Account and key id, once known."""

    async def inside(self) -> None:
        """The stretch between locking an idempotency key and acting."""
        if self.delay_inside_s:
            await asyncio.sleep(self.delay_inside_s)
        if self.lost_inside:
            raise ReplyLost("reply lost while the request was being worked on")


def exchange_of(request: Request) -> Exchange:
    exchange = request.scope["state"]["exchange"]
    assert isinstance(exchange, Exchange)
    return exchange
