"""External ports on loopback: opened, shut and reopened under one number, and what is behind them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine

HOST = "127.0.0.1"
_BACKLOG = 128
_CHUNK = 1 << 16
_NO_LINGER = struct.pack("ii", 1, 0)


class Door:
    """One external port. `on_connection` owns the socket it gets.

    A second, silent socket keeps the number reserved, so that a port which refuses today is the same tomorrow.
    """

    def __init__(self, on_connection: Callable[[socket.socket], Coroutine[None, None, None]], wanted: int = 0) -> None:
        self._on_connection = on_connection
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None
        self._reservation = _bound(wanted)
        self.port: int = self._reservation.getsockname()[1]

    def open(self) -> None:
        if self._listening is not None:
            return
        try:
            listening = _bound(self.port, strict=True)
        except OSError:
            # Some systems give a number to one socket only; the reservation then becomes the listener.
            self._reservation.close()
            listening = _bound(self.port, strict=True)
        listening.listen(_BACKLOG)
        self._listening = listening
        self._loop.add_reader(listening, self._accept)

    def shut(self) -> None:
        """Refuse connections from now on; those that are open stay."""
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def abandon(self) -> None:
        """Give back a port that was never opened."""
        self._reservation.close()

    async def close(self) -> None:
        """Give the port back and end what came through it."""
        self.shut()
        self._reservation.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            sock, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            # Out of descriptors: look again in a moment instead of spinning.
            self._loop.remove_reader(self._listening)
            self._loop.call_later(0.2, self._resume)
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._on_connection(sock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _resume(self) -> None:
        if self._listening is not None:
            self._loop.add_reader(self._listening, self._accept)


def _bound(port: int, *, strict: bool = False) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HOST, port))
    except OSError:
        if strict or port == 0:
            sock.close()
            raise
        sock.bind((HOST, 0))
    return sock


def reset(sock: socket.socket) -> None:
    """Close with a TCP reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    sock.close()


async def hold(sock: socket.socket, first: bytes = b"") -> None:
    """Say `first`, then nothing, until the other side gives up."""
    loop = asyncio.get_running_loop()
    with sock, contextlib.suppress(OSError):
        if first:
            await loop.sock_sendall(sock, first)
        while await loop.sock_recv(sock, _CHUNK):
            pass


async def finish(sock: socket.socket) -> None:
    """Close in good order, also when the other side has sent something that nobody read."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
    await hold(sock)


async def relay(outer: socket.socket, connect: Callable[[], Awaitable[socket.socket]]) -> None:
    """Join an accepted connection to one made by `connect`; when that fails, close it, as docker-proxy does."""
    try:
        inner = await connect()
    except OSError:
        await finish(outer)
        return
    with outer, inner, contextlib.suppress(OSError):
        await asyncio.gather(_copy(outer, inner), _copy(inner, outer))


async def _copy(source: socket.socket, target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, _CHUNK):
        await loop.sock_sendall(target, data)
    target.shutdown(socket.SHUT_WR)
