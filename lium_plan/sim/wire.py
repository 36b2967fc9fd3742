"""The edge of the server: every API request passes here on its way in and out.

It says who asks, lets faults happen before and after the server acts, records the request, adds the headers that
every answer has, and makes what happened last before the answer leaves.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from email.utils import format_datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lium_plan.sim import faults
from lium_plan.sim.accounts import find_caller, find_session
from lium_plan.sim.api.envelope import envelope
from lium_plan.sim.audit import record_audit
from lium_plan.sim.exchange import Exchange, ReplyLost
from lium_plan.sim.records import RequestSeen
from lium_plan.sim.refusal import Refusal
from lium_plan.sim.simulator import Simulator

DROP = "lium_sim.drop"
"""ASGI extension: a function that cuts this connection. Without it a lost reply is an exception for the client."""

KEPT_REQUESTS = 20_000
KEPT_READS = 5_000
"""Of those at most so many that change nothing: clients poll for hours, and what they changed is worth more."""

MOST_BODY = 64 * 2**20
"""A larger body is 413: it would have to be held in memory."""
KEPT_BODY = 128 * 1024
"""So many characters of a body are kept for looking at: more than a rent with the largest Dockerfile has."""

Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Reply:
    status: int
    headers: Headers
    body: bytes

    def header(self, name: bytes, value: bytes) -> None:
        self.headers = [(key, old) for key, old in self.headers if key.lower() != name.lower()]
        self.headers.append((name, value))


class Wire:
    """Wraps the API app. Paths are seen without `base`."""

    def __init__(self, app: ASGIApp, simulator: Simulator, *, base: str) -> None:
        self._app = app
        self._simulator = simulator
        self._base = base
        self._requests = 0
        self._reads: deque[str] = deque()
        self.last_request_at: float = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        simulator = self._simulator
        world = simulator.world
        body = await _whole_body(receive)
        if body is None:
            return
        self.last_request_at = asyncio.get_running_loop().time()
        if world.settings.latency_seconds:
            await asyncio.sleep(world.settings.latency_seconds)
        simulator.advance()
        self._requests += 1
        exchange = Exchange(request_id=_header(scope, b"x-request-id") or f"req-{world.seed}-{self._requests}")
        scope.setdefault("state", {})["exchange"] = exchange
        path = scope["path"].removeprefix(self._base)
        self._identify(scope, exchange)
        seen = self._note(scope, path, exchange, body)
        due = faults.due(world, method=scope["method"], path=path, account=exchange.account)
        exchange.twist = due.twist
        try:
            reply = _edge_refusal(scope, body) or await self._before(due, path, exchange)
            if reply is None:
                answer = _Answer(send, lambda head: self._begin_stream(exchange, seen, head))
                await self._serve(scope, receive, body, answer)
                reply = answer.reply
                if answer.streams:
                    await self._after(due, path, exchange, reply)
                    await answer.end()
                    return
            record_audit(world, scope, exchange, path=path, status=reply.status, body=reply.body)
            reply = await self._after(due, path, exchange, reply)
        except ReplyLost:
            self._keep(seen, None)
            await self._drop(scope, receive)
            return
        reply = self._finish(scope, exchange, seen, reply)
        await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else reply.body})

    def _identify(self, scope: Scope, exchange: Exchange) -> None:
        """Whose request this seems to be; whether that suffices is the route's business."""
        world = self._simulator.world
        caller = find_caller(world, _header(scope, b"x-api-key"))
        scheme, _, token = (_header(scope, b"authorization") or "").partition(" ")
        if caller is None and scheme.lower() == "bearer":
            caller = find_session(world, token)
        scope["state"]["caller"] = caller
        if caller is not None:
            exchange.account = caller.account.name
            exchange.caller_ids = (caller.account.id, caller.key.id)

    def _note(self, scope: Scope, path: str, exchange: Exchange, body: bytes) -> RequestSeen:
        world = self._simulator.world
        while len(world.requests) >= KEPT_REQUESTS:
            world.requests.drop(world.requests.oldest())
        seen_id = f"r{world.next_serial()}"
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            self._reads.append(seen_id)
            if len(self._reads) > KEPT_READS:
                world.requests.drop(self._reads.popleft())
        return world.requests.put(
            RequestSeen(
                id=seen_id,
                at=world.now,
                method=scope["method"],
                path=path,
                query=scope.get("query_string", b"").decode("latin-1"),
                account=exchange.account,
                idempotency_key=_header(scope, b"idempotency-key"),
                body=body[: 4 * KEPT_BODY].decode("utf-8", "replace")[:KEPT_BODY] if body else None,
            )
        )

    def _keep(self, seen: RequestSeen, status: int | None) -> bool:
        """Make what happened last; False when it can't be."""
        world = self._simulator.world
        if seen.id in world.requests:
            world.requests.change(seen.id, status=status)
        kept = self._simulator.commit()
        self._simulator.machines.kick()
        return kept

    def _finish(self, scope: Scope, exchange: Exchange, seen: RequestSeen, reply: Reply) -> Reply:
        """The answer as it leaves: what it tells is kept, or it tells of that."""
        if not self._keep(seen, reply.status):
            reply = refusal_reply(Refusal(500, "internal_error", "The world's file can't be written"), scope)
        self._add_headers(exchange, reply)
        return reply

    def _begin_stream(self, exchange: Exchange, seen: RequestSeen, head: Reply) -> None:
        if not self._keep(seen, head.status):
            raise ReplyLost("the world's file can't be written")
        self._add_headers(exchange, head)

    def _add_headers(self, exchange: Exchange, reply: Reply) -> None:
        """Those that every answer has."""
        world = self._simulator.world
        reply.header(b"X-Request-Id", exchange.request_id.encode("latin-1", "replace"))
        moment = world.now + timedelta(seconds=world.settings.date_skew_seconds)
        reply.header(b"Date", format_datetime(moment, usegmt=True).encode())

    async def _serve(self, scope: Scope, receive: Receive, body: bytes, answer: _Answer) -> None:
        """Have the app answer."""
        try:
            await self._app(scope, _replay(body, receive), answer)
        except ReplyLost:
            raise
        except Exception as problem:
            if DROP not in scope.get("extensions", {}):
                raise
            self._simulator.say(f"{scope['method']} {scope['path']} failed: {problem!r}")
            if answer.streams:
                raise ReplyLost("the stream broke off") from problem
            answer.reply = refusal_reply(Refusal(500, "internal_error", "Internal server error"), scope)

    async def _before(self, due: faults.Due, path: str, exchange: Exchange) -> Reply | None:
        world = self._simulator.world
        idempotent = path.endswith(("/rent", "/rent-by-spec"))
        for spec in due.before:
            effect = spec.effect
            match effect:
                case faults.LoseReply(where="inside") if idempotent:
                    exchange.lost_inside = True
                case faults.LoseReply():
                    raise ReplyLost("reply lost before the server acted")
                case faults.Delay(where="inside", seconds=seconds) if idempotent:
                    exchange.delay_inside_s += seconds
                case faults.Delay(seconds=seconds):
                    await self._pause(seconds)
                case faults.Answer():
                    return answer_reply(effect, exchange)
                case faults.Twisted():
                    continue
                case _:
                    faults.carry_out(world, effect, path=tuple(path.split("/")))
        exchange.unrecorded = any(
            isinstance(spec.effect, faults.LoseReply) and spec.effect.where == "unrecorded" for spec in due.after
        )
        return None

    async def _after(self, due: faults.Due, path: str, exchange: Exchange, reply: Reply) -> Reply:
        for spec in due.after:
            effect = spec.effect
            match effect:
                case faults.LoseReply():
                    self._simulator.commit()
                    self._simulator.machines.kick()
                    raise ReplyLost("reply lost after the server acted")
                case faults.Delay(seconds=seconds):
                    self._simulator.commit()
                    self._simulator.machines.kick()
                    await self._pause(seconds)
                case faults.Answer():
                    reply = answer_reply(effect, exchange)
                case faults.Twisted():
                    continue
                case _:
                    faults.carry_out(self._simulator.world, effect, path=tuple(path.split("/")))
        return reply

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._simulator.advance()

    async def _drop(self, scope: Scope, receive: Receive) -> None:
        cut = scope.get("extensions", {}).get(DROP)
        if cut is None:
            raise ReplyLost("the simulated server dropped the connection")
        cut()
        while (await receive())["type"] != "http.disconnect":
            pass


_EDGE_DISLIKES = re.compile(rb"https?://\d{1,3}(\.\d{1,3}){3}|\.\./\.\./")
_EDGE_BODY_LIMIT = 64 * 1024


def _edge_refusal(scope: Scope, body: bytes) -> Reply | None:
    """The firewall in front of the server, which looks into the bodies of deletions (contract §2.7.3)."""
    if len(body) > MOST_BODY:
        return refusal_reply(Refusal(413, None, "Request body is too large"), scope)
    if scope["method"] != "DELETE" or not (len(body) > _EDGE_BODY_LIMIT or _EDGE_DISLIKES.search(body)):
        return None
    text = b"Request blocked"
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
    return Reply(403, headers, text)


def answer_reply(effect: faults.Answer, exchange: Exchange) -> Reply:
    if effect.text is not None:
        body, kind = effect.text.encode(), "text/plain; charset=utf-8"
    elif effect.body is not None:
        body, kind = json.dumps(effect.body).encode(), "application/json"
    else:
        refusal = Refusal(effect.status, effect.code, f"Simulated answer {effect.status}")
        body, kind = json.dumps(envelope(refusal, exchange.request_id)).encode(), "application/json"
    if effect.status in (204, 304):  # these have no body, whatever was asked for
        reply = Reply(effect.status, [], b"")
    else:
        reply = Reply(effect.status, [(b"content-type", kind.encode())], body)
    for name, value in effect.headers.items():
        reply.header(name.lower().encode(), value.encode())
    if effect.status not in (204, 304):
        reply.header(b"content-length", str(len(body)).encode())
    return reply


def refusal_reply(refusal: Refusal, scope: Scope) -> Reply:
    body = json.dumps(envelope(refusal, scope["state"]["exchange"].request_id)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return Reply(refusal.status, headers, body)


class _Answer:
    """An ASGI `send` that keeps an ordinary answer, and lets a stream of events through but for its end: `end` sends
    that. `begin` is called with the head of a stream before that leaves."""

    def __init__(self, send: Send, begin: Callable[[Reply], None]) -> None:
        self._send = send
        self._begin = begin
        self._last: Message | None = None
        self.streams = False
        self.reply = Reply(500, [], b"")

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.reply = Reply(message["status"], list(message.get("headers", ())), b"")
            if _is_stream(self.reply.headers):
                self._begin(self.reply)
                self.streams = True
                await self._send({**message, "headers": self.reply.headers})
        elif not self.streams:
            self.reply.body += message.get("body", b"")
        elif message.get("more_body", False):
            await self._send(message)
        else:
            self._last = message

    async def end(self) -> None:
        """Without a last message the client has gone away."""
        if self._last is not None:
            await self._send(self._last)


def _is_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-type" and b"event-stream" in value for name, value in headers)


async def _whole_body(receive: Receive) -> bytes | None:
    """None when the client went away before all of it was there: half a request is no request. Of one that is too
    long no more than shows that it is."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        del body[MOST_BODY + 1 :]
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, then: Receive) -> Receive:
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await then()

    return receive


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key.lower() == name:
            return str(value.decode("latin-1"))
    return None
