"""The machines behind simulated pods: containers as data, what a user's commands do on them, and what was done to them.

A `sim.runtime.Runtime` for the server; `world_shell` is the way in for lium-plan. Nothing is run: a command takes as
long, prints and ends as its `Behaviour` says.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from lium_plan.sim.runtime import Container, Endpoint, SshFault


class Connected(Protocol):
    """A session that the machine can end."""

    def cut(self, *, hang: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a user's commands do where `pattern` is found in them."""

    pattern: str
    duration_s: float = 1.0
    exit_status: int = 0
    output: bytes = b"done\n"
    times: int | None = None
    """How often, None: always; then the next behaviour that fits counts."""


@dataclass(slots=True)
class Started:
    """A detached command, or a marked run."""

    script: str
    began_at: float
    ends_at: float
    exit_status: int
    output: bytes
    ending: str = "by-itself"
    steps: int = 0
    lost: bool = False

    def ended(self, now: float) -> bool:
        return now >= self.ends_at

    def written(self, now: float) -> bytes:
        """What it has printed by now: evenly over its time."""
        span = self.ends_at - self.began_at
        share = 1.0 if span <= 0 else min(1.0, (now - self.began_at) / span)
        return self.output[: int(len(self.output) * share)]


@dataclass(eq=False, slots=True)
class Machine:
    """One container of one pod."""

    container: Container
    host_key: str
    started_at: float
    fault: SshFault = field(default_factory=lambda: SshFault("none"))
    fault_until: float | None = None
    gone: bool = False
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Target -> (sha256, mode)."""
    commands: dict[str, Started] = field(default_factory=dict)
    """Detached ones, by directory."""
    runs: dict[str, Started] = field(default_factory=dict)
    """Marked ones, by directory."""
    sessions: dict[int, Connected] = field(default_factory=dict)

    def mode(self, now: float) -> str:
        healed = self.fault_until is not None and now >= self.fault_until
        return "none" if healed else self.fault.mode


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that a process did to a machine, for the checks of what was done how often."""

    pod_id: str
    what: str
    """`run`, `start`, `stop`, `put`."""
    script: str
    at: float


class Machines:
    """A `sim.runtime.Runtime`, and the connectors into it."""

    mode = "shell model"

    def __init__(self, behaviours: Iterable[Behaviour] = ()) -> None:
        self.behaviours = list(behaviours)
        self.effects: list[Effect] = []
        self.version = 0
        self._used: dict[int, int] = {}
        self._machines: dict[str, Machine] = {}
        self._doors: dict[int, str] = {}
        self._ports = count(30000)
        self._keys = count(1)
        self.numbers = count(1)
        """Of sessions."""

    # --- the server's side -----------------------------------------------------------------------------------------

    async def start(self, container: Container) -> Endpoint:
        await self.stop(container.pod_id)
        inner = [*container.internal_ports, *(20000 + index for index in range(container.extra_ports))]
        ports = {port: next(self._ports) for port in dict.fromkeys(inner)}
        self._machines[container.pod_id] = Machine(container, self._new_key(), now_s())
        self._doors[ports[22]] = container.pod_id
        return Endpoint("127.0.0.1", "root", ports)

    async def stop(self, pod_id: str) -> None:
        machine = self._machines.pop(pod_id, None)
        if machine is not None:
            machine.gone = True
            self._cut(machine)

    async def output(self, pod_id: str, tail: int) -> tuple[str, ...]:
        return ()

    async def set_fault(self, pod_id: str, fault: SshFault) -> None:
        machine = self._machines.get(pod_id)
        if machine is None:
            return
        machine.fault = fault
        machine.fault_until = None if fault.seconds is None else now_s() + fault.seconds
        if fault.mode in ("drop", "hang"):
            self._cut(machine, hang=fault.mode == "hang")
            machine.fault = SshFault("none")

    async def change_host_key(self, pod_id: str) -> None:
        machine = self._machines.get(pod_id)
        if machine is not None:
            machine.host_key = self._new_key()
            self._cut(machine)

    async def forget_volume(self, volume_id: str) -> None:
        return None

    async def close(self) -> None:
        for pod_id in tuple(self._machines):
            await self.stop(pod_id)

    def machine(self, pod_id: str) -> Machine | None:
        return self._machines.get(pod_id)

    def _new_key(self) -> str:
        return f"ssh-ed25519 {hashlib.sha256(str(next(self._keys)).encode()).hexdigest()[:43]}="

    def _cut(self, machine: Machine, *, hang: bool = False) -> None:
        for session in tuple(machine.sessions.values()):
            session.cut(hang=hang)

    # --- the client's side -----------------------------------------------------------------------------------------

    def at(self, port: int) -> Machine | None:
        pod_id = self._doors.get(port)
        return None if pod_id is None else self._machines.get(pod_id)

    def behaviour(self, script: str) -> Behaviour:
        for index, behaviour in enumerate(self.behaviours):
            used = self._used.get(index, 0)
            if re.search(behaviour.pattern, script) and (behaviour.times is None or used < behaviour.times):
                self._used[index] = used + 1
                return behaviour
        return Behaviour("")

    def did(self, machine: Machine, what: str, script: str) -> None:
        self.version += 1
        self.effects.append(Effect(machine.container.pod_id, what, script, now_s()))


def now_s() -> float:
    return asyncio.get_running_loop().time()
