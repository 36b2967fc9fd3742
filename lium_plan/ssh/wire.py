"""The only module that imports asyncssh: logging in on a connected socket, and the session that results.

Whatever asyncssh raises is turned into this package's errors here. It is loaded when a first connection is
made. No configuration of the user's OpenSSH (`~/.ssh/config`, known_hosts, default keys) is read: what a plan
does must not depend on it.
"""

from __future__ import annotations

import asyncio
import ctypes.util
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EIO, ENOENT
from functools import lru_cache
from pathlib import Path

from lium_plan.ssh.banner import NotYet, Refused
from lium_plan.ssh.errors import (
    ConnectionLost,
    HostKeyChanged,
    KeyUnusable,
    SshError,
    Stage,
    TimedOut,
)
from lium_plan.ssh.gathering import Receiver, attach
from lium_plan.ssh.image_env import LAUNCH
from lium_plan.ssh.keys import KeyFile
from lium_plan.ssh.protocol import (
    Completed,
    Coordinates,
    FileToSend,
    HostKeyPin,
    OnOutput,
    OnStage,
    discard,
)
from lium_plan.ssh.quoting import check_script, quote_path
from lium_plan.ssh.small_files import PutAnswer, chosen, put_script
from lium_plan.ssh.transfer import check, send

# asyncssh looks for liboqs and nettle with ldconfig, gcc and ld: seven processes that take as long as all the rest of
# loading it, for algorithms that are asked for nowhere below.
_find_library = ctypes.util.find_library
ctypes.util.find_library = lambda name: None
try:
    import asyncssh
finally:
    ctypes.util.find_library = _find_library

# Cheapest first: what costs with many hosts is the key exchange. All are what OpenSSH offers by default; the rest is
# for older servers.
_KEX = (
    "curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256,ecdh-sha2-nistp384,ecdh-sha2-nistp521,"
    "diffie-hellman-group14-sha256,diffie-hellman-group16-sha512,diffie-hellman-group-exchange-sha256"
).split(",")
_CIPHERS = (
    "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr"
).split(",")
_HOST_KEYS = (
    "ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,rsa-sha2-512,rsa-sha2-256"
).split(",")
_CLOSE_S = 1.0
_QUIET_S = 3.0
_REST_S = 30.0
"""Of a command that may have left jobs which hold its output open, the rest of it is waited for until nothing has come
for `_QUIET_S`, and no longer than `_REST_S`. The exit status overtakes output on its way: of others all is awaited."""
_AGENT_S = 10.0
_CHUNK_BYTES = 4 << 20
_SIGNALS = {signal.name.removeprefix("SIG"): signal.value for signal in signal.Signals}


class _Client(asyncssh.SSHClient):
    """Judges the host key: any on first use, afterwards only a pinned one."""

    def __init__(self, pinned: Sequence[str], on_stage: OnStage) -> None:
        self._pinned = frozenset(pinned)
        self._on_stage = on_stage
        self.shown: asyncssh.SSHKey | None = None
        self.mismatch = False
        self.lost: Exception | None = None
        """Why the connection ended, once it has."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.shown = key
        self.mismatch = bool(self._pinned) and _key_text(key) not in self._pinned
        if not self.mismatch:
            self._on_stage(Stage.LOGIN)
        return not self.mismatch


def _key_text(key: asyncssh.SSHKey) -> str:
    fields = key.export_public_key("openssh").decode("ascii").split()
    return f"{fields[0]} {fields[1]}"


def _fingerprint(text: str) -> str:
    try:
        return asyncssh.import_public_key(text).get_fingerprint()
    except asyncssh.KeyImportError:
        return text[:40]


def _host_key_preference(pinned: Sequence[str]) -> list[str]:
    """The pinned key's algorithms first: a server with several host keys then shows that one again."""
    kinds = {text.split()[0] for text in pinned}
    first = [name for name in _HOST_KEYS if name in kinds or ("ssh-rsa" in kinds and name.startswith("rsa-"))]
    return first + [name for name in _HOST_KEYS if name not in first]


@dataclass(frozen=True, slots=True)
class LoadedKey:
    """A key to log in with; close it after the login (an agent's connection is held open for signing)."""

    path: Path
    keys: Sequence[asyncssh.SSHKey] | Sequence[asyncssh.SSHKeyPair]
    agent: asyncssh.SSHAgentClient | None = None

    def close(self) -> None:
        if self.agent is not None:
            self.agent.close()


async def load_key(found: KeyFile) -> LoadedKey:
    """The private key, or, when a passphrase protects it, the agent's key with the same public half.

    Raises `KeyUnusable`.
    """
    if found.encrypted:
        return await _agent_key(found)
    return LoadedKey(found.path, [_import_once(found)])


async def _agent_key(found: KeyFile) -> LoadedKey:
    hint = f"add it to an ssh-agent (`ssh-add {found.path}`), or use a key without a passphrase"
    reason = "it is protected by a passphrase"
    address = os.environ.get("SSH_AUTH_SOCK", "")
    if not address:
        raise KeyUnusable(str(found.path), f"{reason} and no ssh-agent runs (SSH_AUTH_SOCK is not set)", hint=hint)
    if found.public is None:
        raise KeyUnusable(str(found.path), f"{reason} and there is no {found.path}.pub to know it by", hint=hint)
    try:
        async with asyncio.timeout(_AGENT_S):
            agent = await asyncssh.connect_agent(address)
            wanted = asyncssh.import_public_key(found.public).public_data
            pairs = [pair for pair in await agent.get_keys() if pair.public_data == wanted]
    except (OSError, ValueError, asyncssh.Error) as error:
        text = getattr(error, "strerror", None) or str(error) or "no answer"
        raise KeyUnusable(str(found.path), f"{reason} and the ssh-agent can't be asked ({text})", hint=hint) from None
    if not pairs:
        agent.close()
        raise KeyUnusable(str(found.path), f"{reason} and the ssh-agent doesn't hold it", hint=hint)
    return LoadedKey(found.path, pairs, agent)


@lru_cache(maxsize=16)
def _import_once(found: KeyFile) -> asyncssh.SSHKey:
    """The same key opens many pods."""
    try:
        return asyncssh.import_private_key(found.text)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        hint = "give the path of an ed25519, RSA or ECDSA private key"
        raise KeyUnusable(str(found.path), str(error).lower(), hint=hint) from None


def read_public_key(found: KeyFile) -> str:
    """`algorithm base64` of an unprotected private key. Raises `KeyUnusable`."""
    return _key_text(_import_once(found))


def generate_key() -> tuple[bytes, str]:
    """A new ed25519 key: the private file's content, and `algorithm base64`."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    return key.export_private_key("openssh"), _key_text(key)


class _Road:
    """Where asyncssh looks for a tunnel to connect through: a connected socket, with a transport of ours."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def create_connection(
        self, session_factory: Callable[[], Receiver], _host: str, _port: int
    ) -> tuple[None, Receiver]:
        return None, await attach(self._sock, session_factory())


async def login(
    sock: socket.socket,
    coordinates: Coordinates,
    *,
    key: LoadedKey,
    pin: HostKeyPin,
    timeout_s: float,
    keepalive_s: float,
    keepalive_misses: int,
    on_stage: OnStage,
) -> WireSession:
    """Exchange keys and log in on a socket whose banner has been seen; the socket is owned from here on.

    Raises `NotYet` (worth another attempt), `Refused`, `HostKeyChanged`.
    """
    pinned = pin.load()
    client = _Client(pinned, on_stage)
    try:
        async with asyncio.timeout(timeout_s):
            connection = await asyncssh.connect(
                coordinates.host,
                coordinates.port,
                tunnel=_Road(sock),
                config=None,
                known_hosts=([], [], []),
                server_host_key_algs=_host_key_preference(pinned),
                username=coordinates.user,
                client_keys=list(key.keys),
                agent_path=None,
                x509_trusted_certs=None,
                preferred_auth="publickey",
                kex_algs=_KEX,
                encryption_algs=_CIPHERS,
                compression_algs=["none"],
                client_factory=lambda: client,
                login_timeout=timeout_s,
            )
    except BaseException as error:
        sock.close()  # asyncssh closes what it took over; a cancellation may come before that
        raise _login_failure(error, client, coordinates, pin, timeout_s) from None
    # Pinned only now: before the login succeeded, the port may still have led to somebody else's machine.
    if client.shown is not None and not pinned:
        pin.save(_key_text(client.shown))
    connection.set_keepalive(keepalive_s, keepalive_misses)  # the login has a time limit of its own
    return WireSession(connection, client, str(coordinates))


def _login_failure(
    error: BaseException, client: _Client, coordinates: Coordinates, pin: HostKeyPin, timeout_s: float
) -> BaseException:
    stage = Stage.HOST_KEY if client.shown is None else Stage.LOGIN
    match error:
        case TimeoutError():
            return NotYet(stage, f"no answer within {timeout_s:.0f} s after the banner")
        case asyncssh.PermissionDenied():
            return Refused(error.reason)
        case asyncssh.HostKeyNotVerifiable() if client.mismatch and client.shown is not None:
            return HostKeyChanged(
                str(coordinates),
                pin=str(pin),
                expected=tuple(_fingerprint(text) for text in pin.load()),
                shown=client.shown.get_fingerprint(),
            )
        case asyncssh.Error():
            return NotYet(stage, error.reason or "the connection was closed")
        case OSError():
            return NotYet(stage, (error.strerror or str(error)).lower())
        case _:
            return error


class _OutputRefused(Exception):
    """Carries what the caller's `on_output` raised past the handling of the connection's own errors."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class _Exec(asyncssh.SSHClientSession[bytes]):
    """One command's channel. Output is handed on as it arrives and kept nowhere, so the window throttles the sender."""

    def __init__(self, on_output: OnOutput) -> None:
        self.on_output = on_output
        self.leaves_jobs = False
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        """The exit status; None when the channel ended without one."""
        # A connection may be lost while the command is asked for, or is kept: nobody waits for it then.
        self.ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._status: int | None = None
        self._rest_until = 0.0
        self._quiet: asyncio.TimerHandle | None = None
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def feed(self, data: bytes, *, end: bool) -> None:
        with suppress(OSError):  # a short command may have ended before we come to feed it
            if self._channel is not None:
                self._channel.write(data)
                if end:
                    self._channel.write_eof()

    def give_up(self) -> None:
        """Tell the server to end it, and wait for nothing."""
        if self._channel is not None:
            with suppress(OSError):
                self._channel.send_signal("TERM")
            self._channel.abort()

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        if self.ended.done():
            return
        if self._status is not None and self.leaves_jobs:
            self._await_rest()
        try:
            self.on_output(data)
        except BaseException as error:  # raised by `run`, not swallowed by the protocol machine
            self.ended.set_exception(_OutputRefused(error))
            if self._channel is not None:
                self._channel.abort()

    def eof_received(self) -> bool:
        return True  # a command may close its output long before it ends

    def exit_status_received(self, status: int) -> None:
        self._take_status(status)

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self._take_status(128 + _SIGNALS.get(signal, 0))

    def _take_status(self, status: int) -> None:
        self._status = status
        self._rest_until = asyncio.get_running_loop().time() + _REST_S
        if self.leaves_jobs:
            self._await_rest()

    def _await_rest(self) -> None:
        """The server closes the channel only when nobody holds the command's output open any more."""
        if self._quiet is not None:
            self._quiet.cancel()
        loop = asyncio.get_running_loop()
        self._quiet = loop.call_at(min(loop.time() + _QUIET_S, self._rest_until), self._leave_rest)

    def _leave_rest(self) -> None:
        if not self.ended.done():
            self.ended.set_result(self._status)
        if self._channel is not None:
            self._channel.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
        if self.ended.done():
            return
        if self._status is None and exc is not None:
            self.ended.set_exception(exc)
        else:
            self.ended.set_result(self._status)


def _bytes(path: str) -> bytes:
    """A file's name as it is here, which need not be UTF-8."""
    return path.encode("utf-8", "surrogateescape")


class _Sftp:
    """`transfer.Store` over SFTP."""

    def __init__(self, client: asyncssh.SFTPClient) -> None:
        self._client = client

    async def write(self, path: str, source: bytes | Path, mode: int) -> None:
        with self._refusals():
            private = asyncssh.SFTPAttrs(permissions=0o600)
            async with self._client.open(_bytes(path), "xb", private) as file:
                if isinstance(source, bytes):
                    await file.write(source)
                else:
                    with source.open("rb") as local:
                        while chunk := local.read(_CHUNK_BYTES):
                            await file.write(chunk)
                await file.chmod(mode)

    async def make_directories(self, path: str) -> None:
        with self._refusals():
            await self._client.makedirs(_bytes(path), exist_ok=True)

    async def replace(self, old: str, new: str) -> None:
        with self._refusals():
            await self._client.posix_rename(_bytes(old), _bytes(new))

    async def remove(self, path: str) -> None:
        with self._refusals():
            await self._client.remove(_bytes(path))

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath) as error:
            raise FileNotFoundError(ENOENT, error.reason) from None
        except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection):
            raise
        except asyncssh.SFTPError as error:
            # OpenSSH gives no other reason for most refusals.
            why = error.reason if error.reason.lower() != "failure" else "the disk is full, or its name is taken"
            raise OSError(EIO, why) from None


class WireSession:
    """`protocol.Session` on one asyncssh connection."""

    def __init__(self, connection: asyncssh.SSHClientConnection, client: _Client, where: str) -> None:
        self._connection = connection
        self._client = client
        self._where = where
        self._opened_at = asyncio.get_running_loop().time()
        self._sftp: asyncssh.SFTPClient | None = None
        self._sftp_lock = asyncio.Lock()
        self._idle: _Exec | None = None
        """A shell begun with `LAUNCH` that waits for its next line."""

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
        with self._translated(Stage.COMMAND):
            try:
                async with asyncio.timeout(timeout_s):
                    status = await self._exec(
                        script, stdin, on_output, keep_stdin_open=keep_stdin_open, leaves_jobs=leaves_jobs
                    )
            except TimeoutError:
                raise TimedOut(self._where, stage=Stage.COMMAND, doing="the command", timeout_s=timeout_s) from None
        if status is None:
            raise self._lost(Stage.COMMAND, "the command ended without an exit status")
        return Completed(status)

    async def follow(self, path: str, *, offset_bytes: int = 0, on_output: OnOutput) -> None:
        # The reader of stdin ends `tail` when we go: an idle `tail -f` would never notice by itself.
        quoted = quote_path(path)
        script = (
            "exec 3<&0; { cat <&3; kill $$; } >/dev/null 2>&1 & "
            f"until [ -e {quoted} ]; do sleep 1; done; exec tail -c +{offset_bytes + 1} -f {quoted} 3<&-"
        )
        with self._translated(Stage.COMMAND):
            status = await self._exec(script, b"", on_output, keep_stdin_open=True)
        if status is None:
            raise self._lost(Stage.COMMAND, f"following {path} ended")
        raise SshError(f"{self._where}: {path} can't be followed: tail ended with status {status}")

    async def put(self, files: Sequence[FileToSend], *, timeout_s: float) -> None:
        for file in files:
            check(file, self._where)
        with self._translated(Stage.FILES):
            try:
                async with asyncio.timeout(timeout_s):
                    if left := await self._put_by_command(files):
                        await send(_Sftp(await self._sftp_client()), left, where=self._where)
            except TimeoutError:
                raise TimedOut(self._where, stage=Stage.FILES, doing="sending files", timeout_s=timeout_s) from None

    async def close(self) -> None:
        self._connection.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._connection.wait_closed()
        except TimeoutError:
            self._connection.abort()

    async def _exec(
        self,
        command: str,
        stdin: bytes,
        on_output: OnOutput,
        *,
        keep_stdin_open: bool = False,
        leaves_jobs: bool = False,
    ) -> int | None:
        check_script(command, "the command")
        running = await self._begin(command, on_output)
        running.leaves_jobs = leaves_jobs
        try:
            running.feed(stdin, end=not keep_stdin_open)
            return await running.ended
        except BaseException:
            running.give_up()
            raise

    async def _begin(self, command: str, on_output: OnOutput) -> _Exec:
        """A channel with the command: a new one, or the shell that the last `put` left behind."""
        if command == LAUNCH and self._idle is not None:
            idle, self._idle = self._idle, None
            if not idle.ended.done():
                idle.on_output = on_output
                return idle
        _, running = await self._connection.create_session(
            lambda: _Exec(on_output), command, encoding=None, request_pty=False
        )
        assert isinstance(running, _Exec)
        return running

    async def _put_by_command(self, files: Sequence[FileToSend]) -> list[FileToSend]:
        """One command for those that may be there already, and the small ones; returns what is left for SFTP.

        Its shell is as it was before, and kept: what is run next is most often a script for another one like it.
        """
        script = put_script(files, chosen(files), secrets.token_hex(6))
        if not script:
            return list(files)
        answer = PutAnswer()
        running = await self._begin(LAUNCH, answer.take)
        running.ended.add_done_callback(lambda _: answer.complete.set())
        try:
            running.feed(script, end=False)
            await answer.complete.wait()
        except BaseException:
            running.give_up()
            raise
        if running.ended.done():
            running.ended.result()
        elif self._idle is None:
            self._idle = running
        else:
            running.feed(b"", end=True)
        return [file for index, file in enumerate(files) if index not in answer.seen_to]

    async def _sftp_client(self) -> asyncssh.SFTPClient:
        async with self._sftp_lock:
            if self._sftp is None:
                self._sftp = await self._connection.start_sftp_client()
            return self._sftp

    def _lost(self, stage: Stage, reason: str) -> ConnectionLost:
        after_s = asyncio.get_running_loop().time() - self._opened_at
        return ConnectionLost(self._where, stage=stage, reason=reason, after_s=after_s)

    @contextmanager
    def _translated(self, stage: Stage) -> Iterator[None]:
        try:
            yield
        except _OutputRefused as refused:
            raise refused.error from None
        except (asyncssh.Error, ConnectionError) as error:
            cause = self._client.lost or error
            reason = cause.reason if isinstance(cause, asyncssh.Error) else str(cause)
            raise self._lost(stage, reason or "closed by the other side") from None
