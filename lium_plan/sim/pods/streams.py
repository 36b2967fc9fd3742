"""Pipes and terminals in an event loop, read and written only as fast as the other side takes it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable


class Descriptor:
    """One non-blocking descriptor that this object owns. One reader and one writer at a time."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._loop = asyncio.get_running_loop()
        self._wake: set[asyncio.Future[None]] = set()

    async def read(self, size: int) -> bytes:
        """Up to `size` bytes; b"" at the end, which for a terminal is when its last process let go of it."""
        while True:
            if self.fd < 0:
                return b""
            try:
                return os.read(self.fd, size)
            except BlockingIOError:
                await self._until(self._loop.add_reader, self._loop.remove_reader)
            except OSError as error:
                if error.errno == errno.EIO:
                    return b""
                raise

    async def write(self, data: bytes) -> None:
        """All of `data`. Raises BrokenPipeError when nobody reads any more, or after close()."""
        view = memoryview(data)
        while view:
            if self.fd < 0:
                raise BrokenPipeError(errno.EPIPE, "closed")
            try:
                view = view[os.write(self.fd, view) :]
            except BlockingIOError:
                await self._until(self._loop.add_writer, self._loop.remove_writer)

    async def _until(self, add: Callable[..., object], remove: Callable[[int], bool]) -> None:
        fd, ready = self.fd, self._loop.create_future()
        self._wake.add(ready)
        add(fd, _set, ready)
        try:
            await ready
        finally:
            self._wake.discard(ready)
            if self.fd == fd:
                remove(fd)

    def close(self) -> None:
        """Let go; a read that waits ends with b"", a write with BrokenPipeError."""
        if self.fd < 0:
            return
        fd, self.fd = self.fd, -1
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        with contextlib.suppress(OSError):
            os.close(fd)
        for ready in self._wake:
            _set(ready)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
