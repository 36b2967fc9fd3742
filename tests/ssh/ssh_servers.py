"""SSH servers on loopback for these tests, and a gate in front of them that misbehaves on demand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from lium_plan.ssh.connector import SshConnector, Timing
from lium_plan.ssh.keys import public_key_line
from lium_plan.ssh.pins import PinStore
from lium_plan.ssh.protocol import Coordinates, Session

FAST = Timing(connect_s=3.0, banner_s=0.2, attempt_every_s=0.02, login_patience_s=0.3)
PLAIN_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


@dataclass(frozen=True)
class Server:
    """A running server; `home` is the directory in which a session begins, on this machine's file system."""

    coordinates: Coordinates
    key_path: Path
    home: Path
    pins: PinStore
    pid: int = 0
    """Of a daemon; each connection is a child of it."""

    def drop(self) -> None:
        """Break every connection of a daemon, without a word to the other side; what runs there goes on."""
        for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)

    async def open(
        self, pod_id: str = "pod-1", *, port: int | None = None, timing: Timing = FAST, deadline_s: float = 10
    ) -> Session:
        where = self.coordinates
        if port is not None:
            where = Coordinates(where.user, where.host, port)
        return await SshConnector(timing).open(
            where, pin=self.pins.pin(pod_id), key_path=self.key_path, deadline_s=deadline_s
        )


@contextlib.asynccontextmanager
async def session_on(server: Server) -> AsyncIterator[Session]:
    session = await server.open()
    try:
        yield session
    finally:
        await session.close()


class _Door(asyncssh.SSHServer):
    def __init__(self, public_key: str, lets_in: Callable[[], bool]) -> None:
        self._public_key = public_key
        self._lets_in = lets_in
        self._now = False

    def begin_auth(self, username: str) -> bool:
        self._now = self._lets_in()
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return self._now and key == asyncssh.import_public_key(self._public_key)


@contextlib.asynccontextmanager
async def asyncssh_server(
    directory: Path,
    key_path: Path,
    *,
    port: int = 0,
    lets_in: Callable[[], bool] = lambda: True,
    host_key: asyncssh.SSHKey | None = None,
) -> AsyncIterator[Server]:
    """A real SSH server whose commands are this machine's `/bin/sh`, at home in `directory`/home.

    The command `no-status` ends without an exit status, `drop` cuts the connection after some output.
    """
    home = directory / "home"
    home.mkdir(exist_ok=True)
    public_key = public_key_line(key_path)
    children: dict[asyncio.subprocess.Process, tuple[asyncio.Task[None], asyncio.Task[None]]] = {}

    async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
        command = process.command or ""
        if command in ("no-status", "drop"):
            process.stdout.write(b"begun\n")
            await process.stdout.drain()
            if command == "drop":
                process.channel.get_connection().abort()
            process.channel.close()
            return
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=home,
            env={**PLAIN_ENV, "HOME": str(home), "LIUM_SIM_CONFINED": "1"},
            start_new_session=True,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        feeding = asyncio.create_task(_feed(process, child.stdin))
        task = asyncio.current_task()
        assert task is not None
        children[child] = (feeding, task)
        while data := await child.stdout.read(65536):
            try:
                process.stdout.write(data)
                await process.stdout.drain()
            except (OSError, asyncssh.Error):  # nobody reads any more
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        status = await child.wait()
        feeding.cancel()
        if process.channel.is_closing():
            return
        if status < 0:
            process.exit_with_signal("KILL" if status == -9 else "TERM")
        else:
            process.exit(status)

    listener = await asyncssh.listen(
        "127.0.0.1",
        port,
        server_factory=lambda: _Door(public_key, lets_in),
        server_host_keys=[host_key or asyncssh.generate_private_key("ssh-ed25519")],
        process_factory=serve,
        encoding=None,
        sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=str(home).encode()),
        gss_host=None,
    )
    try:
        where = Coordinates("root", "127.0.0.1", listener.get_port())
        yield Server(where, key_path, home, PinStore(directory / "pins"))
    finally:
        listener.close()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        for feeding, serving in children.values():
            feeding.cancel()
            await asyncio.wait([feeding, serving], timeout=5)


async def _feed(process: asyncssh.SSHServerProcess[bytes], pipe: asyncio.StreamWriter) -> None:
    # A client's signals are ignored, as OpenSSH does for root.
    with contextlib.suppress(OSError, asyncssh.Error, asyncssh.SignalReceived):
        while data := await process.stdin.read(65536):
            pipe.write(data)
            await pipe.drain()
    pipe.close()


@contextlib.contextmanager
def openssh_server(directory: Path, key_path: Path, user: str, environment: str = "") -> Iterator[Server]:
    """OpenSSH's sshd with a configuration of its own. Whoever opens it waits for it as for any pod.

    `environment`: `NAME=value …` for its sessions.
    """
    host_key = directory / "host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(host_key)], check=True)
    keys = directory / "authorized_keys"
    keys.write_text(public_key_line(key_path) + "\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = directory / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {host_key}\nAuthorizedKeysFile {keys}\nPidFile none\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nSubsystem sftp internal-sftp\nMaxStartups 100\n"
        # Not the user's own home, whose shell profile may take a second for every command.
        f"SetEnv HOME={directory} {environment}\n"
    )
    with subprocess.Popen(
        ["/usr/sbin/sshd", "-D", "-e", "-f", str(config)], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    ) as daemon:
        try:
            where = Coordinates(user, "127.0.0.1", port)
            yield Server(where, key_path, directory, PinStore(directory / "pins"), daemon.pid)
        finally:
            daemon.terminate()


class Gate:
    """A TCP forwarder. Each new connection takes the next of `faults` (`close`, `reset`, `silent`, `banner`, `http`),
    and passes once they are used up. `freeze` stops all forwarding without a word; `cut` resets what is open."""

    def __init__(self, target_port: int, faults: Sequence[str] = ()) -> None:
        self._target_port = target_port
        self._faults = list(faults)
        self._open: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.connections = 0
        self.pieces = 0
        """How often something arrived, from either side."""
        self.port = 0

    async def __aenter__(self) -> Gate:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def freeze(self) -> None:
        self._flowing.clear()

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # asyncio would report it as an error of ours
            await self._treat(reader, writer)

    async def _treat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.append(writer)
        self.connections += 1
        match self._faults.pop(0) if self._faults else "pass":
            case "close":
                writer.close()
            case "reset":
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
            case "silent":
                await asyncio.Event().wait()
            case "banner":
                writer.write(b"SSH-2.0-slow\r\n")
                await asyncio.Event().wait()
            case "http":
                writer.write(b"HTTP/1.1 400 Bad Request\r\n" * 300)
                await asyncio.Event().wait()
            case _:
                there = await asyncio.open_connection("127.0.0.1", self._target_port)
                self._open.append(there[1])
                await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self.pieces += 1
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
