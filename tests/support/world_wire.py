"""The network between a simulated process and the local Lium: what a killed process had not sent never arrives, and
what it had sent is served, whether anybody waits for the answer or not."""

from __future__ import annotations

import asyncio
import contextvars
import re
from collections.abc import Callable

import httpx

from tests.support.world_process import CURRENT

_IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


class ProcessTransport(httpx.AsyncBaseTransport):
    """Around the in-process server's transport. `served` is told of each request once the server is done with it."""

    def __init__(
        self,
        server: httpx.AsyncBaseTransport,
        *,
        server_context: contextvars.Context,
        served: Callable[[str], None],
    ) -> None:
        self._server = server
        self._context = server_context
        self._served = served
        self.sent = 0
        self.answered = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        process = CURRENT.get()
        if process is None:
            return await self._server.handle_async_request(request)
        site = site_of(request)
        process.may_crash(site, "before")
        self.sent += 1
        process.changes += request.method != "GET"
        # In the server's context: nothing that it does belongs to the process that asked.
        task = asyncio.get_running_loop().create_task(
            self._server.handle_async_request(request), context=self._context.copy()
        )
        task.add_done_callback(lambda done: self._done(done, request.method))
        process.may_crash(site, "on its way")
        await asyncio.wait((task,))
        process.may_crash(site, "answered")
        return task.result()

    def _done(self, task: asyncio.Task[httpx.Response], method: str) -> None:
        self.answered += 1
        if not task.cancelled():
            task.exception()  # also for one that nobody waits for any more
        self._served(method)


def site_of(request: httpx.Request) -> str:
    """`POST /executors/*/rent`."""
    return f"{request.method} {_IDS.sub('*', request.url.path).removeprefix('/api')}"
