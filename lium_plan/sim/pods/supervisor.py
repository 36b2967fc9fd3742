"""Keeping a container's PID 1 running, as Docker's `unless-stopped` does (contract §6.4)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence

from lium_plan.sim.pods.output import Output
from lium_plan.sim.pods.processes import LaunchError, Started
from lium_plan.sim.pods.streams import Descriptor

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 60.0
_GOOD_RUN_S = 10.0
_LAST_WORDS_S = 0.2


class Supervisor:
    """Runs `launch` again and again.

    `launch` gets the three standard descriptors; `on_up` and `on_down` frame a run.
    """

    def __init__(
        self,
        *,
        launch: Callable[[Sequence[int]], Awaitable[Started]],
        on_up: Callable[[Started], None],
        on_down: Callable[[], None],
        output: Output,
    ) -> None:
        self._launch = launch
        self._on_up = on_up
        self._on_down = on_down
        self._output = output
        self._task: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._launching = asyncio.Lock()

    async def start(self) -> None:
        """Returns when PID 1 runs, or when its first start failed."""
        self._task = asyncio.create_task(self._run())
        await self._tried.wait()

    async def stop(self, kill: Callable[[], Awaitable[None]]) -> None:
        """End the run: `kill` ends the processes, after which nothing is started again."""
        if self._task is not None:
            # Not between fork and `on_up`: nobody would know the new PID 1.
            async with self._launching:
                self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await kill()
        self._on_down()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        while True:
            began = loop.time()
            await self._run_once()
            if loop.time() - began >= _GOOD_RUN_S:
                pause_s = _FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _run_once(self) -> None:
        read_fd, write_fd = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        reader = Descriptor(read_fd)
        collect = asyncio.create_task(self._collect(reader))
        try:
            try:
                async with self._launching:
                    started = await self._launch((nothing, write_fd, write_fd))
                    self._on_up(started)
            except LaunchError as error:
                self._output.note(f"the container did not start: {error}")
                return
            finally:
                os.close(nothing)
                os.close(write_fd)
            self._tried.set()
            status = await asyncio.shield(started.ended)
            self._on_down()
            await asyncio.wait({collect}, timeout=_LAST_WORDS_S)
            self._output.note(f"PID 1 ended with status {status}; the container is started again")
        finally:
            self._tried.set()
            collect.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await collect
            reader.close()

    async def _collect(self, reader: Descriptor) -> None:
        while data := await reader.read(1 << 16):
            self._output.add(data)
