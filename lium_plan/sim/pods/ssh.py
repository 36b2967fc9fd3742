"""The SSH server of one pod: who may come in, and what a session does with the machine behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path

import asyncssh
from asyncssh.packet import UInt32
from asyncssh.stream import SSHTCPStreamSession

from lium_plan.sim.pods.files import PodFiles
from lium_plan.sim.pods.machine import Machine, NotRunningError, Request, Session, Terminal
from lium_plan.sim.pods.processes import LaunchError

_CHUNK = 1 << 16
_CONTAINER_END_S = 0.2
_LAST_OUTPUT_S = 0.1
"""What a process wrote is sent before its status, unless something else holds its output open."""
_VERSION = "LiumSim_1"
_Read = Callable[[int], Awaitable[bytes]]
BANNER = f"SSH-2.0-{_VERSION}\r\n".encode()


def host_key(path: Path) -> asyncssh.SSHKey:
    """The host key kept at `path`, made when there is none."""
    if not path.exists():
        fresh = path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
        fresh.replace(path)
    return asyncssh.read_private_key(path)


def authorised(public_keys: Sequence[str]) -> frozenset[bytes]:
    """The keys behind OpenSSH public key lines; lines that hold none are left out, as sshd does."""
    found: set[bytes] = set()
    for line in public_keys:
        with contextlib.suppress(asyncssh.KeyImportError):
            found.add(asyncssh.import_public_key(line).public_data)
    return frozenset(found)


class PodServer:
    """Serves connections for one machine. Faults that concern logging in and open sessions are applied here."""

    def __init__(self, machine: Machine, *, keys: frozenset[bytes], key: asyncssh.SSHKey) -> None:
        self._machine = machine
        self._keys = keys
        self.refuses_everybody = False
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self._hung: list[int] = []
        self._options = self._make_options(key)

    def _make_options(self, key: asyncssh.SSHKey) -> asyncssh.SSHServerConnectionOptions:
        return asyncssh.SSHServerConnectionOptions(
            server_factory=lambda: _Guard(self),
            server_host_keys=[key],
            server_version=_VERSION,
            process_factory=self._serve_process,
            sftp_factory=self._serve_files,
            allow_scp=True,
            encoding=None,
            line_editor=False,
            password_auth=False,
            kbdint_auth=False,
            agent_forwarding=False,
            x11_forwarding=False,
            gss_host=None,
            compression_algs=["none"],
        )

    def change_key(self, key: asyncssh.SSHKey) -> None:
        self._options = self._make_options(key)

    async def serve(self, sock: socket.socket) -> None:
        """One accepted connection, until its end."""
        try:
            connection = await asyncssh.run_server(sock, options=self._options)
        except (OSError, asyncssh.Error):
            # Whatever a client does wrong is the client's to report.
            sock.close()
            return
        try:
            await connection.wait_closed()
        except asyncio.CancelledError:
            connection.abort()
            raise

    def cut(self) -> None:
        """End every connection without a word of SSH."""
        for connection in tuple(self._connections):
            connection.abort()

    def hang(self) -> None:
        """Have every connection fall silent, as if the host had vanished: neither an end nor a reset is sent."""
        for connection in tuple(self._connections):
            sock = connection.get_extra_info("socket")
            if sock is not None:
                # The second descriptor keeps the TCP connection when the server lets go of the first.
                self._hung.append(os.dup(sock.fileno()))
            connection.abort()

    def release_hung(self) -> None:
        """Close what hang() left open."""
        for fd in self._hung:
            os.close(fd)
        self._hung.clear()

    @property
    def has_connections(self) -> bool:
        return bool(self._connections)

    def accepts(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == "root" and not self.refuses_everybody and key.public_data in self._keys

    def came(self, connection: asyncssh.SSHServerConnection) -> None:
        self._connections.add(connection)

    def went(self, connection: asyncssh.SSHServerConnection) -> None:
        self._connections.discard(connection)

    async def forward(self, host: str, port: int) -> asyncssh.SSHTCPSession[bytes]:
        """A `direct-tcpip` channel into the pod's own network."""
        try:
            sock = await self._machine.connect(host, port)
            reader, writer = await asyncio.open_connection(sock=sock)
        except (OSError, NotRunningError, LaunchError) as error:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from error

        async def exchange(ssh_reader: asyncssh.SSHReader[bytes], ssh_writer: asyncssh.SSHWriter[bytes]) -> None:
            with contextlib.suppress(OSError, asyncssh.Error):
                await asyncio.gather(_pump(ssh_reader, writer), _pump(reader, ssh_writer))
            ssh_writer.close()
            writer.close()

        return SSHTCPStreamSession[bytes](exchange)

    def _serve_files(self, channel: asyncssh.SSHServerChannel[bytes]) -> PodFiles:
        return PodFiles(channel, self._machine.tree())

    async def _serve_process(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        if process.subsystem is not None:
            process.exit(1)
            return
        try:
            session = await self._machine.open(_request(process))
        except (NotRunningError, LaunchError) as error:
            with contextlib.suppress(OSError, asyncssh.Error):  # the client may be gone as well
                process.stderr.write(f"the pod is not ready: {error}\n".encode())
                await _end_output(process)
                process.exit(255)
            return
        try:
            await _Conversation(process, session).run()
        finally:
            session.close()


async def _pump(
    source: asyncssh.SSHReader[bytes] | asyncio.StreamReader,
    target: asyncssh.SSHWriter[bytes] | asyncio.StreamWriter,
) -> None:
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


async def _end_output(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Have everything sent that was written, then say that no more comes, as sshd does before it closes a channel.

    Without the EOF paramiko's `eof_received` stays false for ever. A channel that is closed while data waits for the
    client's window never sends one, hence the limit of nothing and the drain.
    """
    process.channel.set_write_buffer_limits(high=0, low=0)
    await process.stdout.drain()
    process.channel.write_eof()


def _request(process: asyncssh.SSHServerProcess[bytes]) -> Request:
    local = process.get_extra_info("sockname") or ("", 0)
    peer = process.get_extra_info("peername") or ("", 0)
    environment = {
        "SSH_CLIENT": f"{peer[0]} {peer[1]} 22",
        "SSH_CONNECTION": f"{peer[0]} {peer[1]} {local[0]} 22",
    }
    terminal = None
    if process.term_type is not None:
        columns, rows, width_px, height_px = process.term_size
        terminal = Terminal(process.term_type, rows=rows, columns=columns, width_px=width_px, height_px=height_px)
        environment["TERM"] = process.term_type
    return Request(command=process.command, terminal=terminal, environment=environment)


class _Guard(asyncssh.SSHServer):
    """What asyncssh asks about one connection."""

    def __init__(self, server: PodServer) -> None:
        self._server = server
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._server.came(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._server.went(self._connection)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return self._server.accepts(username, key)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Coroutine[None, None, asyncssh.SSHTCPSession[bytes]]:
        return self._server.forward(dest_host, dest_port)


class _Conversation:
    """One session's traffic: the client's input to the process, its output back, and its end."""

    def __init__(self, process: asyncssh.SSHServerProcess[bytes], session: Session) -> None:
        self._process = process
        self._session = session
        # asyncssh hands these out through stdin, where they would wait behind data that the command doesn't read,
        # and be lost after its end.
        process.signal_received = self._signal  # type: ignore[method-assign]
        process.terminal_size_changed = self._resize  # type: ignore[method-assign]

    def _signal(self, signal: str) -> None:
        self._session.signal(signal)

    def _resize(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        size = Terminal("", rows=height, columns=width, width_px=pixwidth, height_px=pixheight)
        self._session.resize(size)

    async def run(self) -> None:
        """Until the process has ended and its output is out, or the client is gone.

        As with OpenSSH, a background process that kept the output open keeps the session open.
        """
        feeding = asyncio.create_task(self._feed())
        gone = asyncio.create_task(self._process.channel.wait_closed())
        finishing = asyncio.create_task(self._finish())
        try:
            await asyncio.wait({gone, finishing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = (feeding, gone, finishing)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish(self) -> None:
        session = self._session
        sending = [self._send(session.stdout.read, self._process.stdout)]
        if session.stderr is not None:
            sending.append(self._send(session.stderr.read, self._process.stderr))
        sent = asyncio.gather(*sending)
        try:
            status = await asyncio.shield(session.process.ended)
            await asyncio.wait({sent}, timeout=_LAST_OUTPUT_S)
            told = not sent.done() and status >= 0
            if told:
                # What keeps the output open keeps the channel open, but not the status back: sshd sends it at once.
                with contextlib.suppress(OSError, asyncssh.Error):
                    self._process.channel._send_request(b"exit-status", UInt32(status))
            await sent
        finally:
            sent.cancel()
        if status == -signal.SIGKILL:
            # Perhaps the whole container is being ended. Then its sshd could not have told how the command ended,
            # and this task is cancelled before the pause is over.
            await asyncio.sleep(_CONTAINER_END_S)
        with contextlib.suppress(OSError, asyncssh.Error):
            await _end_output(self._process)
            if told:
                self._process.channel.close()
            elif status < 0:
                self._process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
            else:
                self._process.exit(status)

    async def _send(self, read: _Read, target: asyncssh.SSHWriter[bytes]) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await read(_CHUNK):
                target.write(data)
                await target.drain()

    async def _feed(self) -> None:
        stdin, listening = self._session.stdin, True
        while True:
            try:
                data = await self._process.stdin.read(_CHUNK)
            except asyncssh.TerminalSizeChanged as size:
                self._resize(size.width, size.height, size.pixwidth, size.pixheight)
                continue
            except asyncssh.SignalReceived as received:
                self._session.signal(received.signal)
                continue
            except asyncssh.BreakReceived:
                self._session.signal("INT")
                continue
            except (asyncssh.Error, OSError):
                data = b""
            if not data:
                break
            if listening:
                try:
                    await stdin.write(data)
                except OSError:
                    # It reads no more; what the client still sends is dropped, and signals still arrive.
                    listening = False
        if stdin is not self._session.stdout:
            stdin.close()
