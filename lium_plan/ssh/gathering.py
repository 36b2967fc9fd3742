"""A socket's transport that sends what is written in one turn of the event loop at once.

asyncssh writes each SSH packet by itself, and an empty one before it: a dozen small segments for a login, each of
which wakes the server up.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Protocol, TypeVar

_AT_MOST_BYTES = 1 << 18
"""More than this is not gathered: it is sent at once, and the rest of a turn after it."""


class Receiver(Protocol):
    """What a transport tells: `asyncio.Protocol`, of which asyncssh's connection is none by type."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool | None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


R = TypeVar("R", bound=Receiver)


async def attach(sock: socket.socket, receiver: R) -> R:
    """Hand a connected socket to `receiver`, with a transport that gathers what it writes."""
    await asyncio.get_running_loop().create_connection(lambda: _Front(receiver), sock=sock)
    return receiver


class _Front(asyncio.Protocol):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._receiver.connection_made(_Gathering(transport))

    def data_received(self, data: bytes) -> None:
        self._receiver.data_received(data)

    def eof_received(self) -> bool | None:
        return self._receiver.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver.connection_lost(exc)


class _Gathering(asyncio.Transport):
    """As much of a transport as a connection with its own flow control uses: everything but pausing."""

    def __init__(self, inner: asyncio.Transport) -> None:
        super().__init__()
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting += data
        if len(self._waiting) >= _AT_MOST_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            data, self._waiting = bytes(self._waiting), bytearray()
            self._inner.write(data)

    def close(self) -> None:
        self._flush()
        self._inner.close()

    def abort(self) -> None:
        self._flush()  # what was written is sent as far as the socket takes it, as without gathering
        self._inner.abort()

    def is_closing(self) -> bool:
        return self._inner.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)
