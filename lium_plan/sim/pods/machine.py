"""What the SSH side needs of a container, whichever way it is run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lium_plan.sim.pods.output import Output
from lium_plan.sim.pods.processes import Processes, Started
from lium_plan.sim.pods.streams import Descriptor


class NotRunningError(Exception):
    """The container has no PID 1 at the moment."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """A pseudo-terminal as a client asks for it."""

    kind: str
    rows: int
    columns: int
    width_px: int = 0
    height_px: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One SSH session: `command` None is a login shell. `environment` is what sshd itself adds (SSH_CONNECTION …)."""

    command: str | None
    terminal: Terminal | None
    environment: Mapping[str, str]


@dataclass(slots=True)
class Session:
    """A running session's process and our ends of its streams; with a terminal all three are its master."""

    process: Started
    stdin: Descriptor
    stdout: Descriptor
    stderr: Descriptor | None

    def resize(self, terminal: Terminal) -> None:
        size = struct.pack("4H", terminal.rows, terminal.columns, terminal.width_px, terminal.height_px)
        with contextlib.suppress(OSError):  # the terminal may have gone a moment ago
            fcntl.ioctl(self.stdout.fd, termios.TIOCSWINSZ, size)

    def signal(self, name: str) -> None:
        """A signal by SSH's name (`TERM`, `INT`, …) to the session's process group; unknown names do nothing."""
        number = getattr(signal, f"SIG{name}", None)
        if isinstance(number, signal.Signals):
            self.process.signal(number)

    def close(self) -> None:
        """Let go of the streams. What runs goes on until it notices: as after a lost connection."""
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()


def nothing() -> None:
    """An `on_end` for a machine that nobody listens to."""


class Tree(Protocol):
    """How a path that an SFTP client names becomes one of the host's."""

    owner_uid: int | None
    """The host's uid that the pod sees as 0, where the two differ."""

    def locate(self, path: bytes, *, follow: bool) -> bytes:
        """The host's path, free of symbolic links but for the last part when `follow` is false.

        Raises PermissionError, with a readable reason, for what lies outside the pod.
        """
        ...

    def visible(self, path: bytes) -> bytes:
        """The canonical path as the pod sees it."""
        ...


class Machine(Protocol):
    """A container that can be entered. Made stopped."""

    output: Output
    on_end: Callable[[], None]
    """Called whenever PID 1 has ended: the container's sshd went with it."""

    @property
    def running(self) -> bool:
        """Whether PID 1 lives."""
        ...

    @property
    def first_pid(self) -> int | None:
        """The number of its PID 1 on the host, None while it has none."""
        ...

    async def start(self) -> None:
        """Build the file system and run PID 1, again whenever it ends. Returns after the first attempt."""
        ...

    async def stop(self) -> None:
        """End every process. The file system stays."""
        ...

    async def open(self, request: Request) -> Session:
        """Start a session. Raises NotRunningError, LaunchError."""
        ...

    async def connect(self, host: str, port: int) -> socket.socket:
        """A connection to a port as the container's own processes would make it. Raises OSError."""
        ...

    def tree(self) -> Tree:
        """Raises NotRunningError."""
        ...


def shell_arguments(shell: str, request: Request) -> dict[str, Any]:
    """The parts of a spec that run a session's command as sshd does: `shell -c command`, or a login shell."""
    name = os.path.basename(shell)
    spec: dict[str, Any] = {"program": shell}
    spec["arguments"] = [f"-{name}"] if request.command is None else [name, "-c", request.command]
    if request.terminal is not None:
        terminal = request.terminal
        spec["terminal"] = (terminal.rows, terminal.columns, terminal.width_px, terminal.height_px)
    return spec


async def launch_session(
    processes: Processes, spec: Mapping[str, Any], request: Request, before: Sequence[int] = ()
) -> Session:
    """Start a session's process with fresh streams, after the descriptors in `before`. Raises LaunchError."""
    if request.terminal is not None:
        process = await processes.start(spec, before)
        (master,) = process.descriptors
        stream = Descriptor(master)
        return Session(process=process, stdin=stream, stdout=stream, stderr=None)
    stdin, stdout, stderr = (os.pipe() for _ in range(3))
    theirs, ours = (stdin[0], stdout[1], stderr[1]), (stdin[1], stdout[0], stderr[0])
    try:
        process = await processes.start(spec, (*before, *theirs))
    except BaseException:
        close_all(ours)
        raise
    finally:
        close_all(theirs)
    return Session(process, Descriptor(ours[0]), Descriptor(ours[1]), Descriptor(ours[2]))


def close_all(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        os.close(fd)
