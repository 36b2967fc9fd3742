"""Two stand-ins for the server: an application in process for virtual time, and raw bytes on a loopback socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from lium_plan.lium.client import LiumClient
from lium_plan.lium.limits import Limits

BASE = "http://127.0.0.1:9/api"
KEY = "sk_test_CANARY_0123456789"


@dataclass(frozen=True, slots=True)
class Seen:
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    at: float


@dataclass(frozen=True, slots=True)
class Reply:
    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


def reply(value: object, status: int = 200, **headers: str) -> Reply:
    """A JSON answer; header names are written with underscores."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Reply(status, json.dumps(value).encode(), {"content-type": "application/json", **named})


def refusal(status: int, code: str | None, message: str = "no", **headers: str) -> Reply:
    error = {"code": code, "message": message, "hint": None, "request_id": "req-1"}
    return reply({"success": False, "error": error, "message": message, "status_code": status}, status, **headers)


class App:
    """An ASGI application that answers by `respond`, or by the next of `replies`; it records what it was asked."""

    def __init__(self, *replies: Reply, respond: Callable[[Seen], Reply | Awaitable[Reply]] | None = None) -> None:
        self.seen: list[Seen] = []
        self._replies = list(replies)
        self._respond = respond

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        now = asyncio.get_running_loop().time()
        path = scope["raw_path"].decode()
        seen = Seen(scope["method"], path, scope["query_string"].decode(), headers, body, now)
        self.seen.append(seen)
        if self._respond is not None:
            found = self._respond(seen)
            answer = found if isinstance(found, Reply) else await found
        else:
            answer = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": raw})
        await send({"type": "http.response.body", "body": answer.body})


def client(app: App, *, limits: Limits | None = None, random: Callable[[], float] = lambda: 0.5) -> LiumClient:
    return LiumClient(BASE, KEY, transport=httpx.ASGITransport(app), limits=limits, random=random, environ={})


class RawServer:
    """Sends prepared bytes for each request, then closes (or resets, or falls silent)."""

    def __init__(self, *answers: bytes, ending: str = "close") -> None:
        self.requests: list[bytes] = []
        self._answers = answers
        self._ending = ending
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head)
            if self._answers:
                writer.write(self._answers[min(len(self.requests), len(self._answers)) - 1])
                await writer.drain()
            if self._ending == "silence":
                await asyncio.Event().wait()
            if self._ending == "reset":
                writer.transport.abort()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[RawServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.wait_closed()


def raw(status: int, body: bytes, *, content_type: str = "application/json", length: int | None = None) -> bytes:
    """A whole HTTP/1.1 answer; `length` may promise more than there is."""
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
