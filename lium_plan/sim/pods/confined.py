"""A container where namespaces are not allowed: a directory that is home and working directory of all that runs.

What holds: SFTP refuses what lies outside the pod's directory; `nvidia-smi` and `mountpoint` come first in PATH;
on Linux with Landlock the kernel lets commands write nowhere else. What does not: reading is not restricted,
commands run as the simulator's own user, `/root`, `/mnt` and `/workspace` are the host's, the network is the host's,
PID 1 has no such number. Without Landlock (other systems, kernels before 5.13) a command that names an absolute
path can write wherever the user can; the runtime says so once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lium_plan.sim.pods import filesystem, gpu, images, machine, tracking
from lium_plan.sim.pods.layout import Layout
from lium_plan.sim.pods.output import Output
from lium_plan.sim.pods.processes import Processes, Started
from lium_plan.sim.pods.supervisor import Supervisor
from lium_plan.sim.runtime import Container

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts")


class ConfinedTree:
    """SFTP's view: the host's own paths, refused when they lead out of the pod's directories."""

    owner_uid: int | None = None

    def __init__(self, home: Path, others: Sequence[Path]) -> None:
        self._home = os.fsencode(home)
        self._allowed = tuple(os.fsencode(path) for path in (home, *others))

    def locate(self, path: bytes, *, follow: bool) -> bytes:
        joined = os.path.join(self._home, path)
        if follow:
            real = os.path.realpath(joined)
        else:
            head, name = os.path.split(joined.rstrip(b"/"))
            real = (
                os.path.join(os.path.realpath(head), name)
                if name not in (b"", b".", b"..")
                else os.path.realpath(joined)
            )
        if not any(real == top or real.startswith(top + b"/") for top in self._allowed):
            shown = os.fsdecode(path)
            raise PermissionError(
                f"{shown}: outside this pod's directory. The simulator runs in confined mode here, where a pod has "
                f"only its home: use a path relative to it"
            )
        return real

    def visible(self, path: bytes) -> bytes:
        return self.locate(path, follow=True)


class ConfinedMachine:
    """One container. `mark` is put into every process's environment; `fenced` says whether Landlock holds it."""

    def __init__(
        self,
        *,
        processes: Processes,
        layout: Layout,
        container: Container,
        mark: str,
        fenced: bool,
        on_pid: Callable[[int, int], None],
    ) -> None:
        self.output = Output()
        self.on_end: Callable[[], None] = machine.nothing
        self._processes = processes
        self._container = container
        self._image = images.describe(container.image)
        self._mark = mark
        self._fenced = fenced
        self._on_pid = on_pid
        base = layout.generation(container.pod_id, container.generation)
        local_is_home = os.path.normpath(container.local_volume) == "/root"
        self._home = layout.local(container.pod_id) if local_is_home else base / "home"
        self._temporary = base / "tmp"
        self._programs = base / "programs"
        attached = container.volume_id is not None and not container.volume_mount_fails
        self._volume = layout.volume(container.volume_id) if attached and container.volume_id else None
        self._groups: set[int] = set()
        self._first: Started | None = None
        self._ran_before = False
        self._supervisor = Supervisor(
            launch=self._launch, on_up=self._come_up, on_down=self._go_down, output=self.output
        )

    @property
    def running(self) -> bool:
        return self._first is not None

    @property
    def first_pid(self) -> int | None:
        return None if self._first is None else self._first.pid

    async def start(self) -> None:
        await asyncio.to_thread(self._prepare)
        await self._supervisor.start()

    async def stop(self) -> None:
        await self._supervisor.stop(self._kill)

    def _prepare(self) -> None:
        for path in (self._home, self._temporary, self._programs):
            path.mkdir(parents=True, exist_ok=True)
        if self._volume is not None:
            self._volume.mkdir(exist_ok=True)
            link = self._home / "mnt"
            if not os.path.lexists(link):
                link.symlink_to(self._volume)
        container = self._container
        gpus = gpu.Gpus(
            pod_id=container.pod_id,
            name=container.gpu_name,
            count=container.gpu_count,
            memory_mib=container.gpu_memory_mib,
        )
        filesystem.write_program(self._programs / "nvidia-smi", gpu.nvidia_smi(gpus))
        text = gpu.mountpoint(volume_attached=self._volume is not None)
        filesystem.write_program(self._programs / "mountpoint", text)
        filesystem.write_authorized_keys(self._home, container.public_keys)

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self._home),
            "TMPDIR": str(self._temporary),
            "PATH": f"{self._programs}:{images.SYSTEM_PATH}:{os.environ.get('PATH', os.defpath)}",
            "LIUM_SIM_CONFINED": "1",
            tracking.VARIABLE: self._mark,
        }

    def _spec(self, *, dies_with_launcher: bool) -> dict[str, Any]:
        writable = [str(self._home), str(self._temporary)]
        if self._volume is not None:
            writable.append(str(self._volume))
        return {
            "do": "confine",
            "fenced": self._fenced,
            "writable": writable,
            "devices": _DEVICES,
            "dies_with_launcher": dies_with_launcher,
            "directories": (str(self._home),),
        }

    async def _launch(self, streams: Sequence[int]) -> Started:
        if self._ran_before:
            # With its PID 1 a container's other processes end too.
            await self._kill()
        self._ran_before = True
        container = self._container
        spec = self._spec(dies_with_launcher=True) | {
            "arguments": images.arguments(container.entrypoint, container.command),
            "fallback": images.IDLE_COMMAND if shutil.which("sleep") else (),
            "environment": {**self._image.environment, **container.environment, **self._environment()},
        }
        return await self._processes.start(spec, streams)

    def _come_up(self, started: Started) -> None:
        self._first = started
        self._note_group(started)
        self._on_pid(started.pid, tracking.start_time(started.pid) or 0)

    def _go_down(self) -> None:
        if self._first is not None:
            self._first = None
            self.on_end()

    def _note_group(self, started: Started) -> None:
        # The group may outlive its leader, so its number stays noted where marks can't be looked up.
        self._groups.add(started.pid)
        if os.path.isdir("/proc/self"):
            started.ended.add_done_callback(lambda _: self._groups.discard(started.pid))

    async def _kill(self) -> None:
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        await asyncio.to_thread(tracking.end_marked, self._mark)

    async def open(self, request: machine.Request) -> machine.Session:
        if self._first is None:
            raise machine.NotRunningError(f"the container of pod {self._container.pod_id} is not running")
        shell = shutil.which("bash", path=images.SYSTEM_PATH) or "/bin/sh"
        if self._image.tools is images.Tools.MINIMAL:
            shell = "/bin/sh"
        environment = {
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": shell,
            **request.environment,
            **self._environment(),
        }
        if request.command is None:
            environment = {**self._container.environment, **environment}
        spec = self._spec(dies_with_launcher=False) | {"environment": environment}
        spec |= machine.shell_arguments(shell, request)
        session = await machine.launch_session(self._processes, spec, request)
        self._note_group(session.process)
        return session

    async def connect(self, host: str, port: int) -> socket.socket:
        if host not in ("localhost", "127.0.0.1", "::1", ""):
            raise ConnectionRefusedError(f"{host}: a confined pod reaches only this machine's own loopback")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            address = "::1" if family == socket.AF_INET6 else "127.0.0.1"
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
        except BaseException:
            sock.close()
            raise
        return sock

    def tree(self) -> ConfinedTree:
        return ConfinedTree(self._home, [self._volume] if self._volume is not None else [])
