"""One pod's container as the outside sees it: its machine behind its ports, and the faults on the way."""

from __future__ import annotations

import asyncio
import enum
import socket
from collections.abc import Coroutine, Mapping
from pathlib import Path

from lium_plan.sim.pods import ssh
from lium_plan.sim.pods.door import HOST, Door, finish, hold, relay, reset
from lium_plan.sim.pods.machine import Machine, NotRunningError
from lium_plan.sim.pods.processes import LaunchError
from lium_plan.sim.runtime import Container, Endpoint, SshFault

SSH_PORT = 22
_FIRST_EXTRA_PORT = 20000


class Fault(enum.Enum):
    """The modes of `SshFault`."""

    NONE = "none"
    REFUSE = "refuse"
    RESET = "reset"
    CLOSE = "close"
    BANNER_ONLY = "banner_only"
    SILENT = "silent"
    AUTH = "auth"
    DROP = "drop"
    HANG = "hang"


class Pod:
    """A started container. Made inside an event loop; `open` starts it, `close` ends it."""

    def __init__(self, *, container: Container, machine: Machine, key_path: Path, wanted: Mapping[int, int]) -> None:
        self.container = container
        self.machine = machine
        self._loop = asyncio.get_running_loop()
        self._key_path = key_path
        self._fault = Fault.NONE
        self._healing: asyncio.TimerHandle | None = None
        self._silenced: set[asyncio.Task[None]] = set()
        self._answers_at = self._loop.time() + container.ssh_delay_s
        keys = ssh.authorised(container.public_keys)
        self._server = ssh.PodServer(machine, keys=keys, key=ssh.host_key(key_path))
        machine.on_end = self._server.cut
        self._doors: dict[int, Door] = {}
        try:
            for inner in self._inner_ports():
                self._doors[inner] = self._make_door(inner, wanted.get(inner, 0))
        except OSError:
            for door in self._doors.values():
                door.abandon()
            raise

    def _inner_ports(self) -> tuple[int, ...]:
        container = self.container
        extra = range(_FIRST_EXTRA_PORT, _FIRST_EXTRA_PORT + container.extra_ports)
        return tuple(dict.fromkeys((SSH_PORT, *container.internal_ports, *extra)))

    def _make_door(self, inner: int, wanted: int) -> Door:
        if inner == SSH_PORT:
            return Door(self._on_ssh, wanted)

        async def connect() -> socket.socket:
            try:
                return await self.machine.connect("127.0.0.1", inner)
            except (NotRunningError, LaunchError) as error:
                raise ConnectionRefusedError(str(error)) from error

        return Door(lambda sock: relay(sock, connect), wanted)

    @property
    def ports(self) -> Mapping[int, int]:
        """Container port -> external port."""
        return {inner: door.port for inner, door in self._doors.items()}

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(host=HOST, user="root", ports=self.ports)

    @property
    def is_entered(self) -> bool:
        """Whether somebody is logged in, or about to be."""
        return self._server.has_connections

    async def open(self) -> None:
        await self.machine.start()
        for door in self._doors.values():
            door.open()

    async def close(self) -> None:
        if self._healing is not None:
            self._healing.cancel()
        for door in self._doors.values():
            await door.close()
        self._server.cut()
        self._server.release_hung()
        await self.machine.stop()

    def set_fault(self, fault: SshFault) -> None:
        """Raises ValueError for a mode that `SshFault` doesn't list."""
        mode = Fault(fault.mode)
        if self._healing is not None:
            self._healing.cancel()
            self._healing = None
        self._leave_fault()
        self._fault = mode
        self._server.refuses_everybody = mode is Fault.AUTH
        if mode is Fault.REFUSE:
            self._doors[SSH_PORT].shut()
        elif mode is Fault.DROP:
            self._server.cut()
        elif mode is Fault.HANG:
            self._server.hang()
        if fault.seconds is not None and mode is not Fault.NONE:
            self._healing = self._loop.call_later(fault.seconds, self.set_fault, SshFault(Fault.NONE.value))

    def _leave_fault(self) -> None:
        self._doors[SSH_PORT].open()
        self._server.release_hung()
        for task in self._silenced:
            task.cancel()

    def change_host_key(self) -> None:
        self._key_path.unlink(missing_ok=True)
        self._server.change_key(ssh.host_key(self._key_path))
        self._server.cut()

    async def _on_ssh(self, sock: socket.socket) -> None:
        early = self._loop.time() < self._answers_at
        if self._fault is Fault.RESET:
            reset(sock)
        elif self._fault is Fault.CLOSE or early or not self.machine.running:
            # As docker-proxy does while nothing listens behind it (contract §7.5).
            await self._silence(finish(sock))
        elif self._fault is Fault.SILENT:
            await self._silence(hold(sock))
        elif self._fault is Fault.BANNER_ONLY:
            await self._silence(hold(sock, ssh.BANNER))
        else:
            await self._server.serve(sock)

    async def _silence(self, holding: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(holding)
        self._silenced.add(task)
        task.add_done_callback(self._silenced.discard)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
