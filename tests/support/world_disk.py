"""The disk of a simulated process: the interpreter's own calls that change files, with crashes and failures around.

It stands behind `os`, where a kernel's view of a process begins, and changes nothing of lium-plan. Only what a
`Process` does below one directory passes here; everybody else's files are untouched. A kill leaves what was written; a
loss of power (phase `unsynced`) also takes back what no fsync had made durable yet.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.world_process import CURRENT, Process

_NUMBERED = re.compile(r"\.json\.\d+$")
_PATCHED = (
    *("open", "close", "fdopen", "pwrite", "ftruncate", "fdatasync", "fsync", "posix_fallocate"),
    *("replace", "rename", "link", "unlink", "mkdir"),
)


@dataclass(slots=True)
class _Open:
    path: Path
    process: Process
    inode: tuple[int, int] | None
    unsynced: list[tuple[int, bytes, int]] = field(default_factory=list)
    """(offset, bytes that were there, size before) of every write since the last sync."""


class Disk:
    """Use it as a context manager. `version` grows with every change that a process makes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.version = 0
        self._full_after_bytes: int | None = None
        self._failing_syncs: set[int] = set()
        self.changed: Callable[[str], None] = lambda site: None
        """Told of every change of a name or a size."""
        self._syncs = 0
        self._handles: dict[int, _Open] = {}
        self._real: dict[str, Callable[..., Any]] = {}

    @contextmanager
    def mounted(self) -> Iterator[Disk]:
        self._real = {name: getattr(os, name) for name in _PATCHED if hasattr(os, name)}
        for name in self._real:
            setattr(os, name, getattr(self, f"_{name}"))
        try:
            yield self
        finally:
            for name, real in self._real.items():
                setattr(os, name, real)

    def begin_trouble(self, kind: str, number: int) -> None:
        """`sync`: the fsync of that number, from 1, fails; `full`: so many bytes more can be written."""
        self._syncs = 0
        self._failing_syncs = {number} if kind == "sync" else set()
        self._full_after_bytes = number if kind == "full" else None

    def end_trouble(self) -> None:
        self._failing_syncs.clear()
        self._full_after_bytes = None

    # --- what a process does -------------------------------------------------------------------------------------

    def _mine(self, path: object) -> tuple[Process, Path] | None:
        process = CURRENT.get()
        if process is None or not isinstance(path, str | bytes | os.PathLike):
            return None
        found = Path(os.path.abspath(os.fsdecode(path)))
        return (process, found) if found.is_relative_to(self.root) else None

    def _change(self, process: Process, site: str, act: Callable[[], Any]) -> Any:
        process.may_crash(site, "before")
        answer = act()
        self.version += 1
        self.changed(site)
        process.may_crash(site, "after")
        return answer

    def _open(self, path: Any, flags: int, *rest: Any, **named: Any) -> int:
        mine = self._mine(path)
        if mine is None:
            handle: int = self._real["open"](path, flags, *rest, **named)
            self._handles.pop(handle, None)
            return handle
        process, found = mine
        process.alive()
        handle = self._real["open"](path, flags, *rest, **named)
        opened = self._handles[handle] = _Open(found, process, _inode(handle))
        process.on_burial.append(lambda: self._forsake(handle, opened))
        return handle

    def _forsake(self, handle: int, opened: _Open) -> None:
        """The kernel closes what a killed process had open, which also frees its locks."""
        # A number may long be another file's: what was handed to a stream is not closed through `os`.
        if self._handles.get(handle) is opened and _inode(handle) == opened.inode:
            del self._handles[handle]
            self._real["close"](handle)

    def _close(self, handle: int) -> None:
        self._handles.pop(handle, None)
        self._real["close"](handle)

    def _fdopen(self, handle: int, *rest: Any, **named: Any) -> Any:
        stream = self._real["fdopen"](handle, *rest, **named)
        opened = self._handles.get(handle)
        if opened is not None:
            opened.process.on_burial.insert(0, stream.close)
        return stream

    def _pwrite(self, handle: int, data: Any, offset: int) -> int:
        opened = self._handles.get(handle)
        if opened is None:
            written: int = self._real["pwrite"](handle, data, offset)
            return written
        process, site = opened.process, site_of(opened.path, bytes(data))
        process.may_crash(site, "before")
        size = os.fstat(handle).st_size
        data = bytes(data)[: self._fitting(offset, len(data), size)]
        opened.unsynced.append((offset, _content(handle, len(data), offset), size))
        if process.passes(site, "torn"):
            self._real["pwrite"](handle, bytes(data)[: len(data) // 2], offset)
            self.version += 1
            process.crash()
        written = self._real["pwrite"](handle, data, offset)
        self.version += 1
        process.may_crash(site, "after")
        return written

    def _fitting(self, offset: int, length: int, size: int) -> int:
        """How much of a write is done: a nearly full disk takes what still fits; what is preallocated is there."""
        growth = max(0, offset + length - size)
        if self._full_after_bytes is None or not growth:
            return length
        fits = min(growth, self._full_after_bytes)
        if length - growth + fits == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._full_after_bytes -= fits
        return length - growth + fits

    def _fdatasync(self, handle: int) -> None:
        self._sync("fdatasync", handle)

    def _fsync(self, handle: int) -> None:
        self._sync("fsync", handle)

    def _sync(self, name: str, handle: int) -> None:
        opened = self._handles.get(handle)
        if opened is None:
            self._real[name](handle)
            return
        process, site = opened.process, f"sync of {site_of(opened.path, b'')}"
        process.alive()
        if opened.unsynced and process.passes(site, "unsynced"):
            for offset, before, size in reversed(opened.unsynced):
                self._real["pwrite"](handle, before, offset)
                self._real["ftruncate"](handle, size)
            self.version += 1
            process.crash()
        self._syncs += 1
        if self._syncs in self._failing_syncs:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        opened.unsynced.clear()
        process.may_crash(site, "after")

    def _ftruncate(self, handle: int, size: int) -> None:
        opened = self._handles.get(handle)
        if opened is None:
            self._real["ftruncate"](handle, size)
            return
        site = f"cutting {site_of(opened.path, b'')}"
        self._change(opened.process, site, lambda: self._real["ftruncate"](handle, size))

    def _posix_fallocate(self, handle: int, offset: int, size: int) -> None:
        opened = self._handles.get(handle)
        if opened is None:
            self._real["posix_fallocate"](handle, offset, size)
            return
        site = f"space for {site_of(opened.path, b'')}"
        if self._full_after_bytes is not None:
            if size > self._full_after_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._full_after_bytes -= size
        self._change(opened.process, site, lambda: self._real["posix_fallocate"](handle, offset, size))

    def _on_path(self, name: str, word: str, path: Any, *rest: Any, **named: Any) -> Any:
        mine = self._mine(rest[0] if name in ("replace", "rename", "link") and rest else path)
        if mine is None:
            return self._real[name](path, *rest, **named)
        process, found = mine
        process.alive()
        if name == "unlink" and not os.path.lexists(path):
            return self._real[name](path, *rest, **named)
        site = f"{word} {site_of(found, b'')}"
        return self._change(process, site, lambda: self._real[name](path, *rest, **named))

    def _replace(self, source: Any, target: Any, **named: Any) -> None:
        self._on_path("replace", "rename to", source, target, **named)

    def _rename(self, source: Any, target: Any, **named: Any) -> None:
        self._on_path("rename", "rename to", source, target, **named)

    def _link(self, source: Any, target: Any, **named: Any) -> None:
        self._on_path("link", "second name", source, target, **named)

    def _unlink(self, path: Any, **named: Any) -> None:
        self._on_path("unlink", "removal of", path, **named)

    def _mkdir(self, path: Any, *rest: Any, **named: Any) -> None:
        self._on_path("mkdir", "making", path, *rest, **named)


def _content(handle: int, size: int, offset: int) -> bytes:
    try:
        return os.pread(handle, size, offset)
    except OSError:
        return b""  # opened for writing only, so it is a new file


def _inode(handle: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(handle)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def site_of(path: Path, data: bytes) -> str:
    """Which file it is by its role; for a journal's line also what it says."""
    name = path.name
    if name.endswith(".journal.jsonl"):
        return f"journal {_said(data)}".strip()
    if path.parent.name == "known_hosts":
        return "host key pin"
    if path.parent.parent.name == "logs" or path.parent.name == "logs":
        return "log"
    if name.startswith("."):
        return "temporary snapshot" if name.endswith(".json.tmp") else "temporary file"
    if _NUMBERED.search(name):
        return "earlier snapshot"
    for suffix, word in ((".json", "snapshot"), (".events.jsonl", "audit log"), (".lock", "lock"), (".hold", "hold")):
        if name.endswith(suffix):
            return word
    return "directory" if path.is_dir() else "file"


def _said(data: bytes) -> str:
    """`begin rent`, `done`, `put`, … of the last whole line; the first entry of a run also names itself."""
    words = []
    for line in data.split(b"\n"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        fact = entry.get("fact", {})
        words.append(f"{entry.get('type')} {fact.get('op', '')}".strip())
    return " + ".join(words)
