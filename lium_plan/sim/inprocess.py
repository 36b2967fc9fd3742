"""A local Lium inside the caller's event loop: no socket, no thread, and virtual time where the loop has it.

    async with open_in_process(seed=7) as lium:
        client = httpx.AsyncClient(transport=lium.transport, base_url=lium.base_url)

A lost reply is `httpx.ReadError` and a late one `httpx.ReadTimeout`, as a real connection would have it; the server
goes on with a request whose client has given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from starlette.types import Message

from lium_plan.sim.app import BASE, LocalLium
from lium_plan.sim.bare import BareRuntime
from lium_plan.sim.clock import Clock, LoopClock
from lium_plan.sim.exchange import ReplyLost
from lium_plan.sim.runtime import Runtime
from lium_plan.sim.simulator import Beginning, Simulator
from lium_plan.sim.store import FileStore
from lium_plan.sim.world import World

HOST = "http://lium.test"


@dataclass(frozen=True, slots=True)
class InProcess:
    simulator: Simulator
    app: LocalLium
    transport: httpx.AsyncBaseTransport
    base_url: str = HOST + BASE

    @property
    def world(self) -> World:
        return self.simulator.world


@asynccontextmanager
async def open_in_process(
    beginning: Beginning | None = None,
    *,
    clock: Clock | None = None,
    runtime: Runtime | None = None,
    store: FileStore | None = None,
) -> AsyncIterator[InProcess]:
    """By default 84 seeded nodes, the loop's own time from a fixed start, and no machines behind pods."""
    simulator = Simulator(
        beginning or Beginning(),
        clock=clock or LoopClock(),
        runtime=runtime or BareRuntime(),
        store=store,
    )
    async with simulator:
        app = LocalLium(simulator)
        transport = InProcessTransport(app)
        try:
            yield InProcess(simulator, app, transport)
        finally:
            await transport.aclose()


class InProcessTransport(httpx.AsyncBaseTransport):
    """Hands requests to an app, and its losses and delays to the client as a network would."""

    def __init__(self, app: LocalLium) -> None:
        self._app = app
        self._running: set[asyncio.Task[httpx.Response]] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        body = b"".join([part async for part in request.stream])
        task = asyncio.create_task(self._respond(request, body))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        timeout = request.extensions.get("timeout", {}).get("read")
        done, _ = await asyncio.wait((task,), timeout=timeout)
        if not done:
            task.add_done_callback(_ignore)
            raise httpx.ReadTimeout("the server did not answer in time", request=request)
        try:
            return task.result()
        except ReplyLost as problem:
            raise httpx.ReadError(str(problem), request=request) from problem

    async def aclose(self) -> None:
        for task in tuple(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _respond(self, request: httpx.Request, body: bytes) -> httpx.Response:
        """Runs to its end even when the client has given up."""
        start: Message = {}
        parts: list[bytes] = []
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if sent:
                await asyncio.Event().wait()  # the client stays
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.append(message.get("body", b""))

        await self._app(_scope(request), receive, send)
        return httpx.Response(start["status"], headers=start["headers"], content=b"".join(parts))


def _scope(request: httpx.Request) -> dict[str, object]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.split(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
        "root_path": "",
    }


def _ignore(task: asyncio.Task[httpx.Response]) -> None:
    """Whatever came of a request that nobody waits for: asked for, so that asyncio doesn't complain."""
    if not task.cancelled():
        task.exception()
