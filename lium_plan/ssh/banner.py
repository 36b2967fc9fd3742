"""From an address to a socket on which an SSH server has begun to speak.

A pod's forwarded port accepts connections, and closes them, long before its sshd runs (contract §7.5), so an
open port proves nothing: the banner does. It is looked at without being taken from the socket, which then
serves for the login.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence

from lium_plan.ssh.errors import Stage
from lium_plan.ssh.protocol import Coordinates

_PEEK_BYTES = 4096
_PARTIAL_PAUSE_S = 0.05
"""A begun line keeps the socket readable, so that waiting for readability alone would spin."""

_SocketAddress = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
_Found = tuple[socket.AddressFamily, socket.SocketKind, int, str, _SocketAddress]


class NotYet(Exception):
    """This attempt failed in a way that a machine still starting up shows too."""

    def __init__(self, stage: Stage, reason: str) -> None:
        super().__init__(reason)
        self.stage = stage
        self.reason = reason


class Refused(Exception):
    """The server took none of our keys."""


async def connect(coordinates: Coordinates, *, timeout_s: float) -> socket.socket:
    """A connected non-blocking socket; the name's addresses are tried in turn. Raises `NotYet`."""
    reason = "the name has no address"
    try:
        async with asyncio.timeout(timeout_s):
            for family, address in await _resolve(coordinates.host, coordinates.port):
                sock = socket.socket(family, socket.SOCK_STREAM)
                try:
                    sock.setblocking(False)
                    await asyncio.get_running_loop().sock_connect(sock, address)
                except BaseException as error:
                    sock.close()
                    if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                        raise
                    reason = _words(error)
                else:
                    return sock
    except TimeoutError:
        reason = f"no answer within {timeout_s:.0f} s"
    raise NotYet(Stage.PORT, reason)


async def await_banner(sock: socket.socket, *, timeout_s: float) -> None:
    """Return once a line beginning with `SSH-` can be read; nothing is consumed. Raises `NotYet`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                readable = asyncio.Event()
                loop.add_reader(sock, readable.set)
                try:
                    await readable.wait()
                finally:
                    loop.remove_reader(sock)
                seen = sock.recv(_PEEK_BYTES, socket.MSG_PEEK)
                if not seen:
                    raise NotYet(Stage.BANNER, "the connection was closed before a banner")
                if any(line.startswith(b"SSH-") for line in seen.split(b"\n")):
                    return
                if len(seen) >= _PEEK_BYTES:
                    raise NotYet(Stage.BANNER, "what answers is no SSH server")
                await asyncio.sleep(_PARTIAL_PAUSE_S)
    except TimeoutError:
        raise NotYet(Stage.BANNER, f"connected, but no banner within {timeout_s:.0f} s") from None
    except OSError as error:
        raise NotYet(Stage.BANNER, f"{_words(error)} before a banner") from None


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


async def _resolve(host: str, port: int) -> Sequence[tuple[socket.AddressFamily, _SocketAddress]]:
    found: Sequence[_Found]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await _look_up(host, port)
    return tuple((family, address) for family, _, _, _, address in found)


async def _look_up(host: str, port: int) -> Sequence[_Found]:
    """getaddrinfo in a daemon thread of its own: the loop's executor is joined when the program ends, and a dead
    name server would hold that up for half a minute after Ctrl-C."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Sequence[_Found]] = loop.create_future()

    def settle(result: Sequence[_Found], failure: NotYet | None) -> None:
        if answer.done():
            return
        if failure is None:
            answer.set_result(result)
        else:
            answer.set_exception(failure)

    def ask() -> None:
        result: Sequence[_Found] = ()
        failure: NotYet | None = None
        try:
            result = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            failure = NotYet(Stage.PORT, f"the name {host} can't be resolved: {_words(error)}")
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(settle, result, failure)
            except RuntimeError:  # the loop was closed in between; nobody waits any more
                return

    threading.Thread(target=ask, name=f"resolve-{host}", daemon=True).start()
    return await answer
