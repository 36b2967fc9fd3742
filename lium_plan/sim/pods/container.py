"""A container in Linux namespaces: a PID 1 with its own users, mounts, processes, network, host name and IPC."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lium_plan.sim.pods import filesystem, images, machine, tracking
from lium_plan.sim.pods.layout import Layout
from lium_plan.sim.pods.output import Output
from lium_plan.sim.pods.processes import LaunchError, Processes, Started
from lium_plan.sim.pods.supervisor import Supervisor
from lium_plan.sim.runtime import Container

_LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost", "127.0.0.1", "::1", "0.0.0.0", "::", ""})
_MOST_LINKS = 40


@dataclass(slots=True)
class _Up:
    """A running PID 1. The descriptors keep its namespaces reachable even if its number were used again."""

    started: Started
    user_fd: int
    root_fd: int
    process_fd: int
    closed: bool = False

    def close(self) -> None:
        self.closed = True
        machine.close_all((self.user_fd, self.root_fd, self.process_fd))


class PodTree:
    """SFTP's view: paths are resolved inside the container's root, so that no link leads out of it."""

    def __init__(self, up: _Up, owner_uid: int | None) -> None:
        self.owner_uid = owner_uid
        self._up = up
        self._root = f"/proc/self/fd/{up.root_fd}".encode()

    def locate(self, path: bytes, *, follow: bool) -> bytes:
        return self._root + self._resolve(path, follow=follow)

    def visible(self, path: bytes) -> bytes:
        return self._resolve(path, follow=True)

    def _resolve(self, path: bytes, *, follow: bool) -> bytes:
        if self._up.closed:
            # The descriptor's number may belong to something else by now.
            raise OSError(errno.EIO, "the container has ended")
        pending = deque(posixpath.join(b"/root", path).split(b"/"))
        done: list[bytes] = []
        links = 0
        while pending:
            part = pending.popleft()
            if part in (b"", b"."):
                continue
            if part == b"..":
                del done[-1:]
                continue
            done.append(part)
            if not follow and not any(pending):
                break
            try:
                target = os.readlink(self._root + b"/" + b"/".join(done))
            except OSError:
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fsdecode(path))
            done = [] if target.startswith(b"/") else done[:-1]
            pending.extendleft(reversed(target.split(b"/")))
        return b"/" + b"/".join(done)


class NamespaceMachine:
    """One container. `on_pid` hears of each new PID 1 (pid, start time), so that it can be recorded."""

    def __init__(
        self,
        *,
        processes: Processes,
        layout: Layout,
        container: Container,
        on_pid: Callable[[int, int], None],
    ) -> None:
        self.output = Output()
        self.on_end: Callable[[], None] = machine.nothing
        self._processes = processes
        self._container = container
        self._image = images.describe(container.image)
        self._on_pid = on_pid
        self._places = _places(layout, container)
        self._up: _Up | None = None
        self._supervisor = Supervisor(
            launch=self._launch, on_up=self._come_up, on_down=self._go_down, output=self.output
        )

    @property
    def running(self) -> bool:
        return self._up is not None

    @property
    def first_pid(self) -> int | None:
        return None if self._up is None else self._up.started.pid

    async def start(self) -> None:
        await self._supervisor.start()

    async def stop(self) -> None:
        await self._supervisor.stop(self._kill)

    async def _kill(self) -> None:
        up = self._up
        if up is None:
            return
        try:
            signal.pidfd_send_signal(up.process_fd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        # The kernel ends a PID 1 only after everything in its namespace.
        await asyncio.shield(up.started.ended)

    async def _launch(self, streams: Sequence[int]) -> Started:
        try:
            mounts = await asyncio.to_thread(filesystem.populate, self._places, self._container, self._image)
        except OSError as error:
            raise LaunchError(f"its file system could not be made: {error}") from error
        if mounts.refused:
            self.output.note(mounts.refused)
        return await self._processes.start(self._first_process(mounts), streams)

    def _first_process(self, mounts: filesystem.Mounts) -> dict[str, Any]:
        container, image = self._container, self._image
        name = filesystem.hostname(container)
        return {
            "do": "create",
            "root": str(self._places.root),
            "read_only": mounts.read_only,
            "writable": mounts.writable,
            "volume_at": filesystem.VOLUME_AT,
            "gpu_count": container.gpu_count,
            "hostname": name,
            "uid": image.user.uid,
            "gid": image.user.gid,
            "arguments": images.arguments(container.entrypoint, container.command),
            "fallback": images.IDLE_COMMAND,
            "environment": {**image.environment, "HOSTNAME": name, **container.environment},
            "directories": (image.working_directory, "/"),
        }

    def _come_up(self, started: Started) -> None:
        user_fd, root_fd = started.descriptors
        try:
            process_fd = os.pidfd_open(started.pid)
        except ProcessLookupError as error:
            machine.close_all(started.descriptors)
            raise LaunchError("PID 1 ended at once") from error
        self._up = _Up(started=started, user_fd=user_fd, root_fd=root_fd, process_fd=process_fd)
        self._on_pid(started.pid, tracking.start_time(started.pid) or 0)

    def _go_down(self) -> None:
        if self._up is not None:
            self._up.close()
            self._up = None
            self.on_end()

    def _require(self) -> _Up:
        if self._up is None:
            raise machine.NotRunningError(f"the container of pod {self._container.pod_id} is not running")
        return self._up

    async def open(self, request: machine.Request) -> machine.Session:
        up = self._require()
        shell = filesystem.login_shell(self._image)
        environment = {
            "USER": "root",
            "LOGNAME": "root",
            "HOME": "/root",
            "SHELL": shell,
            "PATH": images.SYSTEM_PATH,
            **request.environment,
        }
        if request.command is None:
            # Only login shells read /etc/environment (contract §6.3).
            environment |= dict(self._container.environment)
        spec: dict[str, Any] = {
            "do": "enter",
            "environment": environment,
            "directories": ("/root", "/"),
            **machine.shell_arguments(shell, request),
        }
        return await machine.launch_session(self._processes, spec, request, (up.user_fd, up.process_fd))

    async def connect(self, host: str, port: int) -> socket.socket:
        up = self._require()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        name = filesystem.hostname(self._container)
        address = host
        if host in _LOOPBACK_NAMES or host == name:
            address = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        sock = await self._processes.network_socket(family, (up.user_fd, up.process_fd))
        try:
            # A name would be looked up on the host's network; the pod has none.
            socket.inet_pton(family, address)
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
        except BaseException:
            sock.close()
            raise
        return sock

    def tree(self) -> PodTree:
        own = os.geteuid()
        return PodTree(self._require(), None if own == 0 else own)


def _places(layout: Layout, container: Container) -> filesystem.Places:
    base = layout.generation(container.pod_id, container.generation)
    with_volume = container.volume_id is not None and not container.volume_mount_fails
    return filesystem.Places(
        root=base / "root",
        programs=base / "programs",
        shared=layout.root / "shared",
        local=layout.local(container.pod_id),
        volume=layout.volume(container.volume_id) if with_volume and container.volume_id else None,
    )


def trial(directory: Path) -> dict[str, Any]:
    """A `create` request that tries every step of a container's start in `directory` and then ends with status 0."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("usr", "proc", "sys", "dev", "tmp"):
        (directory / name).mkdir(exist_ok=True)
    for name in ("bin", "lib", "lib64"):
        host, here = Path("/", name), directory / name
        if host.is_symlink() and not here.is_symlink():
            here.symlink_to(os.readlink(host).lstrip("/"))
        elif host.is_dir() and not host.is_symlink():
            here.mkdir(exist_ok=True)
    real = [f"/{name}" for name in ("usr", "bin", "lib", "lib64") if Path("/", name).is_dir()]
    return {
        "do": "create",
        "root": str(directory),
        "read_only": [(path, path) for path in real if not Path(path).is_symlink()],
        "writable": [],
        "volume_at": filesystem.VOLUME_AT,
        "gpu_count": 0,
        "hostname": "trial",
        "uid": 0,
        "gid": 0,
        "arguments": ("/bin/sh", "-c", "exit 0"),
        "environment": {"PATH": images.SYSTEM_PATH},
        "directories": ("/",),
    }
