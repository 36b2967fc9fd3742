"""The scripts' own test bed: a session whose machine is this one, with the `sh` and the tools of different images."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lium_plan.ssh.errors import ConnectionLost, Stage
from lium_plan.ssh.protocol import Completed, FileToSend, OnOutput, discard

SHELLS = ("dash", "bash", "busybox", "bare")
_BARE_TOOLS = "cat env tr mkdir rm mv sleep wc tail head true id kill"


@dataclass(frozen=True)
class Shell:
    """A PATH with one kind of `sh`. `bare` has neither setsid nor setpriv nor su."""

    name: str
    path: Path
    home: Path

    def session(self, **kwargs: object) -> LocalSession:
        return LocalSession(self, **kwargs)  # type: ignore[arg-type]


def make_shell(name: str, directory: Path) -> Shell:
    """Fill directory/`name` with the tools; the home is to be replaced for each test."""
    home, tools = directory / "home", directory / name
    tools.mkdir()
    program = shutil.which("dash" if name == "bare" else name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    if name == "busybox":
        subprocess.run([program, "--install", "-s", str(tools)], check=True)
        return Shell(name, tools, home)
    (tools / "sh").symlink_to(program)
    if name == "bare":
        for tool in _BARE_TOOLS.split():
            (tools / tool).symlink_to(str(shutil.which(tool)))
        return Shell(name, tools, home)
    for folder in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for file in Path(folder).iterdir():
            if not (tools / file.name).is_symlink():
                (tools / file.name).symlink_to(file)
    return Shell(name, tools, home)


class LocalSession:
    """`protocol.Session.run` on this machine, in a process group of its own, as sshd does it.

    With `image` the command runs in a pid namespace whose PID 1 has that environment and working directory.
    """

    def __init__(
        self,
        shell: Shell,
        *,
        image: Mapping[bytes, bytes] | None = None,
        image_cwd: Path = Path("/"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._shell = shell
        self._image = image
        self._image_cwd = image_cwd
        self._environment = environment or {}
        self.pid = 0

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
        environment = {"PATH": str(self._shell.path), "HOME": str(self._shell.home), "SSH_CLIENT": "x"}
        environment.update(self._environment)
        prefix: list[bytes] = []
        if self._image is not None:
            own = [f"{name}={value}".encode() for name, value in environment.items()]
            pid_1 = b'cd "$1"; shift; env -i "$@"; exit $?'
            prefix = [b"unshare", b"-pf", b"--mount-proc", b"env", b"-i"]
            prefix += [name + b"=" + value for name, value in self._image.items()]
            prefix += [b"/bin/sh", b"-c", pid_1, b"sh", os.fsencode(self._image_cwd), *own]
        child = await asyncio.create_subprocess_exec(
            *prefix,
            str(self._shell.path / "sh").encode(),
            b"-c",
            script.encode(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._shell.home,
            env=None if prefix else environment,
            start_new_session=True,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        self.pid = child.pid
        try:
            async with asyncio.timeout(timeout_s):
                child.stdin.write(stdin)
                await child.stdin.drain()
                if not keep_stdin_open:
                    child.stdin.close()
                while chunk := await child.stdout.read(65536):
                    on_output(chunk)
                return Completed(await child.wait() % 256)
        finally:
            child.stdin.close()
            if child.returncode is None and prefix:
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()

    async def put(self, files: Sequence[FileToSend], *, timeout_s: float) -> None:
        raise ConnectionLost("here", stage=Stage.FILES, reason="this session has no files", after_s=0)

    async def follow(self, path: str, *, offset_bytes: int = 0, on_output: OnOutput) -> None:
        raise ConnectionLost("here", stage=Stage.COMMAND, reason="this session follows nothing", after_s=0)

    async def close(self) -> None:
        return


def namespaces_allowed() -> bool:
    probe = ["unshare", "-pf", "--mount-proc", "true"]
    return (
        shutil.which("unshare") is not None and subprocess.run(probe, check=False, capture_output=True).returncode == 0
    )
