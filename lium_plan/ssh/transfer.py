"""Storing files so that a reader sees the old content or the new, never half of it.

Knows no SFTP: it drives a `Store`. Each file is written beside its target under another name, with no rights
for others while it is written, and renamed when it is complete.
"""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from lium_plan.ssh.errors import FileNotSent
from lium_plan.ssh.protocol import FileToSend
from lium_plan.ssh.small_files import temporary_name

_AT_ONCE = 8


class Store(Protocol):
    """A remote file system. Refusals are `OSError` whose text is for users; a missing directory `FileNotFoundError`."""

    async def write(self, path: str, source: bytes | Path, mode: int) -> None:
        """Create `path`, which must not exist, readable for its owner alone until it has `mode` at the end."""
        ...

    async def make_directories(self, path: str) -> None: ...

    async def replace(self, old: str, new: str) -> None: ...

    async def remove(self, path: str) -> None: ...


async def send(store: Store, files: Sequence[FileToSend], *, where: str) -> None:
    """Store all files, which `check` has passed, a few at a time.

    Raises `FileNotSent` for the first one refused, giving up the others.
    """
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(file: FileToSend) -> None:
        async with slots:
            try:
                await _store(store, file)
            except OSError as error:
                if isinstance(error, ConnectionError | TimeoutError):
                    raise
                reason = error.strerror or str(error)
                raise FileNotSent(where, target=file.target, reason=reason) from None

    try:
        async with asyncio.TaskGroup() as group:
            for file in files:
                group.create_task(one(file))
    except* Exception as failures:
        failure: BaseException = failures
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from None


def check(file: FileToSend, where: str) -> None:
    """Raises `FileNotSent` for what no server need be asked about."""
    if "\0" in file.target or not posixpath.basename(file.target) or file.target in (".", ".."):
        raise FileNotSent(where, target=repr(file.target), reason="it is no file name")
    if isinstance(file.source, Path) and not file.source.is_file():
        raise FileNotSent(where, target=file.target, reason=f"the local file {file.source} can't be read")


async def _store(store: Store, file: FileToSend) -> None:
    directory = posixpath.dirname(file.target)
    temporary = temporary_name(file.target, secrets.token_hex(6))
    try:
        try:
            await store.write(temporary, file.source, file.mode)
        except FileNotFoundError:
            if not directory:
                raise
            await store.make_directories(directory)
            await store.write(temporary, file.source, file.mode)
        await store.replace(temporary, file.target)
    except OSError:
        with suppress(OSError):
            await store.remove(temporary)
        raise
