"""The one seam through which the rest of the program touches a machine: open, put, run, follow.

Owns the shapes; does nothing. Two things implement it: asyncssh (`connector`) and, in virtual time, the
simulator's in-process shell. A non-zero exit status is an answer, not an error; a missing one is
`ConnectionLost`, never success.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lium_plan.ssh.errors import Stage

OnOutput = Callable[[bytes], None]
"""Receives output as it comes, in chunks cut anywhere. It must not block; what it raises ends the command."""

OnStage = Callable[[Stage], None]


def discard(_chunk: bytes) -> None:
    """An `OnOutput` that keeps nothing."""


def ignore_stage(_stage: Stage) -> None:
    """An `OnStage` that keeps nothing."""


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where a pod's SSH is reached. They change with a reboot: read them anew before connecting (contract §4.4)."""

    user: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class FileToSend:
    """One file for the machine.

    `source` is the content, or the local path it is read from. `target` is absolute, or relative to the login
    directory; missing parent directories are created. `mode` is all of its permission bits.
    """

    source: bytes | Path
    target: str
    mode: int = 0o600
    sha256: str | None = None
    """Lower-case hex digest of the content. When the machine already has this content there, it isn't written again."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended by itself; one killed by signal N has status 128 + N."""

    exit_status: int


class HostKeyPin(Protocol):
    """The host keys known for one pod. Trust on first use: empty until the first login."""

    def load(self) -> tuple[str, ...]:
        """The pinned public keys, `algorithm base64`; empty when there is none yet."""
        ...

    def save(self, key: str) -> None:
        """Pin `key` (`algorithm base64`) as the pod's only one."""
        ...

    def __str__(self) -> str:
        """Where it is kept, for messages."""
        ...


class Session(Protocol):
    """One logged-in connection. Its methods may be used concurrently."""

    async def put(self, files: Sequence[FileToSend], *, timeout_s: float) -> None:
        """Store the files, each under its name only once complete, with its mode.

        Raises `FileNotSent`, `ConnectionLost`, `TimedOut`. Files already stored stay.
        """
        ...

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        keep_stdin_open: bool = False,
        leaves_jobs: bool = False,
        on_output: OnOutput = discard,
        timeout_s: float,
    ) -> Completed:
        """Have the login shell run `script`; stdout and stderr both go to `on_output`.

        Its stdin ends after `stdin`, or with `keep_stdin_open` only when the command ends or is given up, which
        lets it notice that its caller has left. It has ended when nobody holds its output open any more, or, with
        `leaves_jobs`, a few seconds after its own end. No pty, no environment sent. Nothing is repeated. `script` is
        visible in the machine's process list: secrets belong into `stdin`. Raises `ConnectionLost` (also for a missing
        exit status), `TimedOut`.
        """
        ...

    async def follow(self, path: str, *, offset_bytes: int = 0, on_output: OnOutput) -> None:
        """Stream the file at `path` from `offset_bytes` on, and what is appended to it, until cancelled.

        A file that doesn't exist yet is waited for. Raises `ConnectionLost`, and `SshError` when it can't be read.
        """
        ...

    async def close(self) -> None:
        """End the connection; returns within about a second whatever the other side does."""
        ...


class Connector(Protocol):
    async def open(
        self,
        coordinates: Coordinates,
        *,
        pin: HostKeyPin,
        key_path: Path,
        deadline_s: float,
        on_stage: OnStage = ignore_stage,
    ) -> Session:
        """Log in, waiting until `deadline_s` from now for a machine that isn't ready yet (contract §7.5).

        Raises `Unreachable`, `LoginRefused`, `HostKeyChanged`, `KeyUnusable`. Cancelling it takes effect at once.
        """
        ...
