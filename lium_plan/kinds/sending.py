"""Turning what a bootstrap or a task was given into what is sent to a pod: files, environment, commands."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from lium_plan.addresses import Address
from lium_plan.diagnostics import error
from lium_plan.expressions import Text
from lium_plan.kinds.files import FileSpec
from lium_plan.kinds.protocol import ActionFailed, Run
from lium_plan.ssh.protocol import FileToSend

READ_AT_ONCE_BYTES = 1 << 20
"""A bigger file is streamed from its place rather than held in memory, once for each pod."""
_CHUNK_BYTES = 1 << 20


def files_to_send(files: Iterable[FileSpec], address: Address, run: Run, *, may_be_there: bool) -> list[FileToSend]:
    """The files with their templates filled in; with `may_be_there` the pod is asked first which it has already.

    Raises `ActionFailed` for one that changed since the plan.
    """
    return [_file(file, address, run, may_be_there) for file in files]


def _file(file: FileSpec, address: Address, run: Run, may_be_there: bool) -> FileToSend:
    if file.content is not None:
        content = run.resolve(file.content).encode()
        digest = hashlib.sha256(content).hexdigest()
        return FileToSend(content, file.target, file.mode, sha256=digest if may_be_there else None)
    try:
        source = _source(file)
    except OSError as failure:
        why = failure.strerror or str(failure)
        raise ActionFailed(
            error("file-unreadable", f"{file.source} can't be read: {why}", address=str(address))
        ) from failure
    except ValueError:
        raise ActionFailed(
            error(
                "file-changed",
                f"{file.source} changed after it was planned",
                address=str(address),
                hint="plan again: what was reviewed is what runs",
            )
        ) from None
    return FileToSend(source, file.target, file.mode, sha256=file.sha256 if may_be_there else None)


def _source(file: FileSpec) -> bytes | Path:
    """What to send. Raises `ValueError` when it is not what was planned."""
    facts = file.source.stat()
    if facts.st_size <= READ_AT_ONCE_BYTES:
        content = file.source.read_bytes()
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise ValueError(file.source)
        return content
    if _digest_of(file.source, facts.st_ino, facts.st_size, facts.st_mtime_ns) != file.sha256:
        raise ValueError(file.source)
    return file.source


@lru_cache(maxsize=4096)
def _digest_of(path: Path, inode: int, size: int, modified_ns: int) -> str:
    """Once for all members; the numbers are those of the file as it stands."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def filled(texts: Mapping[str, Text], run: Run) -> dict[str, str]:
    return {name: run.resolve(text) for name, text in texts.items()}


def secrets_of(texts: Iterable[Text], contents: Iterable[Text], run: Run) -> tuple[str, ...]:
    """What must not show up in a log: the sensitive `texts`, and each secret in them and in the files' `contents`."""
    found: dict[str, None] = {}
    for text in texts:
        if text.sensitive:
            found.update(dict.fromkeys((run.resolve(text), *text.secrets())))
    for content in contents:
        found.update(dict.fromkeys(content.secrets()))
    return tuple(found)
