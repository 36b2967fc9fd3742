"""Carries out the world's effects on the machines behind pods, and brings their reports back.

Effects on one pod happen one after the other, those on different pods side by side. It also wakes the world when
something becomes due, so that a pod gets ready without anybody asking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from lium_plan.sim import lifecycle
from lium_plan.sim.effects import (
    ChangeHostKey,
    Effect,
    ForgetVolume,
    SetSshFault,
    StartContainer,
    StopContainer,
)
from lium_plan.sim.runtime import Runtime
from lium_plan.sim.world import World

if TYPE_CHECKING:
    from lium_plan.sim.clock import Clock

_LONGEST_NAP_S = 3600.0
_JUST_AFTER_S = 2e-6
"""Clocks count microseconds: wake on the far side of the moment."""


class Machines:
    """`advance` brings the world to the present, `commit` makes it last; both come from the simulator."""

    def __init__(
        self,
        world: World,
        runtime: Runtime,
        clock: Clock,
        *,
        advance: Callable[[], None],
        commit: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._world = world
        self._runtime = runtime
        self._clock = clock
        self._advance = advance
        self._commit = commit
        self._say = say
        self._queues: dict[str, asyncio.Task[None]] = {}
        self._waker = asyncio.Event()
        self._timekeeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._timekeeper = asyncio.create_task(self._keep_time(), name="lium-sim-time")
        self._timekeeper.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Time stands still after a bug: say so at once, `close` raises it."""
        if not task.cancelled() and task.exception() is not None:
            self._say(f"the world's time has stopped: {task.exception()!r}")

    async def close(self) -> None:
        tasks = [task for task in (self._timekeeper, *self._queues.values()) if task is not None]
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    def kick(self) -> None:
        """Take up the effects that have piled up, and look at the next due moment anew."""
        effects, self._world.effects[:] = list(self._world.effects), []
        for effect in effects:
            before = self._queues.get(effect.subject)
            task = asyncio.create_task(self._carry_out(effect, before), name=f"lium-sim-{effect.subject}")
            self._queues[effect.subject] = task
            task.add_done_callback(partial(self._forget, effect.subject))
        self._waker.set()

    def _forget(self, subject: str, task: asyncio.Task[None]) -> None:
        if self._queues.get(subject) is task:
            del self._queues[subject]

    async def settle(self) -> None:
        """Until no effect is being carried out."""
        while self._queues:
            await asyncio.wait(tuple(self._queues.values()))

    async def _keep_time(self) -> None:
        while True:
            self._waker.clear()
            self._advance()
            self._commit()
            if self._world.effects:
                self.kick()
                self._waker.clear()
            nap = self._until(self._world.next_due())
            alarm = None if nap is None else asyncio.get_running_loop().call_later(nap, self._waker.set)
            try:
                await self._waker.wait()
            finally:
                if alarm is not None:
                    alarm.cancel()

    def _until(self, due: datetime | None) -> float | None:
        if due is None:
            return None
        left = (due - self._clock.now()).total_seconds()
        return min(max(0.0, left), _LONGEST_NAP_S) + _JUST_AFTER_S

    async def _carry_out(self, effect: Effect, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        try:
            await self._do(effect)
        except asyncio.CancelledError:
            raise
        except Exception as problem:  # a machine that fails is news for the world, not an end of it
            self._say(f"{type(effect).__name__} of {effect.subject} failed: {problem!r}")
            if isinstance(effect, StartContainer):
                self._advance()
                lifecycle.container_failed(
                    self._world, effect.subject, effect.container.generation, str(problem) or repr(problem)
                )
        self._commit()
        if self._world.effects:
            self.kick()

    async def _do(self, effect: Effect) -> None:
        match effect:
            case StartContainer(container, fault):
                endpoint = await self._runtime.start(container)
                if fault is not None:
                    await self._runtime.set_fault(container.pod_id, fault)
                self._advance()
                lifecycle.container_started(self._world, container.pod_id, container.generation, endpoint)
                self._waker.set()
            case StopContainer(pod_id):
                await self._runtime.stop(pod_id)
            case SetSshFault(pod_id, fault):
                await self._runtime.set_fault(pod_id, fault)
            case ChangeHostKey(pod_id):
                await self._runtime.change_host_key(pod_id)
            case ForgetVolume(volume_id):
                await self._runtime.forget_volume(volume_id)
