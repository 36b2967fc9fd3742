"""A runtime in a temporary directory, containers with ordinary values, and a client that may log in to them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import asyncssh

from lium_plan.sim.pods import open_runtime
from lium_plan.sim.runtime import Container, Endpoint, Runtime

T = TypeVar("T")
KEY = asyncssh.generate_private_key("ssh-ed25519")
TIMEOUT_S = 30.0


def run(test: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine; one that hangs fails instead."""
    return asyncio.run(asyncio.wait_for(test, TIMEOUT_S))


def container(**changes: Any) -> Container:
    values: dict[str, Any] = {
        "pod_id": "pod-1",
        "generation": 1,
        "image": "some/image:1",
        "entrypoint": "",
        "command": "",
        "environment": {},
        "public_keys": (KEY.export_public_key().decode(),),
        "internal_ports": (22,),
        "extra_ports": 0,
        "local_volume": "/root",
        "volume_id": None,
        "volume_mount_fails": False,
        "gpu_name": "NVIDIA H200",
        "gpu_count": 2,
        "gpu_memory_mib": 143771,
        "ssh_delay_s": 0.0,
    }
    return Container(**(values | changes))


class Lab:
    """What a test holds: the runtime, what it said, and ways in."""

    def __init__(self, root: Path, *, confined: bool) -> None:
        self.root = root
        self.said: list[str] = []
        self.runtime: Runtime = open_runtime(root, confined=confined, say=self.said.append)

    async def start(self, **changes: Any) -> Endpoint:
        return await self.runtime.start(container(**changes))

    async def connect(self, endpoint: Endpoint, **options: Any) -> asyncssh.SSHClientConnection:
        wanted: dict[str, Any] = {"username": "root", "client_keys": [KEY], "known_hosts": None, "config": []}
        return await asyncssh.connect(endpoint.host, endpoint.ports[22], **(wanted | options))

    async def sh(self, endpoint: Endpoint, command: str, **options: Any) -> str:
        """A command's output; a failing command fails the test."""
        async with await self.connect(endpoint) as connection:
            done = await connection.run(command, check=True, **options)
        return str(done.stdout)


@asynccontextmanager
async def laboratory(root: Path, *, confined: bool) -> AsyncIterator[Lab]:
    lab = Lab(root, confined=confined)
    try:
        yield lab
    finally:
        await lab.runtime.close()


@asynccontextmanager
async def entered(root: Path, *, confined: bool, **changes: Any) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """A connection to the only container of a fresh runtime."""
    async with (
        laboratory(root, confined=confined) as lab,
        await lab.connect(await lab.start(**changes)) as connection,
    ):
        yield connection


@asynccontextmanager
async def with_files(
    root: Path, *, confined: bool
) -> AsyncIterator[tuple[asyncssh.SSHClientConnection, asyncssh.SFTPClient]]:
    """The same, with an SFTP session."""
    async with entered(root, confined=confined) as connection, connection.start_sftp_client() as sftp:
        yield connection, sftp


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it holds; `run` limits how long."""
    while not await condition():  # noqa: ASYNC110
        # Each question is a round trip to another process: there is no event to wait for.
        await asyncio.sleep(0.01)


def unmistakable_seconds() -> str:
    """An argument for `sleep` by which to find it among other people's processes."""
    return f"4321.{secrets.randbelow(10**12):012}"


def sleeping(seconds: str) -> list[int]:
    """The pids of the host's processes `sleep SECONDS`."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:2] == [b"sleep", seconds.encode()]:
                found.append(int(path.name))
    return found
