"""A world on disk: one line of JSON per change set, appended before the answer that tells of it leaves.

A killed process loses nothing that was answered (the kernel has the line); power loss is not provided for. A torn
last line was never answered and is cut off. What could not be written (a full disk) is cut off as well, and tried again
with the next line. Loading rewrites the file as one line per row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from pydantic import TypeAdapter, ValidationError

from lium_plan.sim.records import Meta, RequestSeen
from lium_plan.sim.rows import Json
from lium_plan.sim.settings import Settings
from lium_plan.sim.table import Table
from lium_plan.sim.world import FORMAT, World

KEPT_REQUESTS = 10_000
"""How many requests a rewritten file keeps."""

_META = TypeAdapter(Meta)


class BrokenWorld(Exception):
    """The file is no world, or another version's, or another process has it. The message says which."""


class Store(Protocol):
    def flush(self, world: World) -> None:
        """Write what changed since the last call. Raises OSError; then the next call has it to write too."""
        ...

    def close(self) -> None: ...


class NoStore:
    """For worlds that live in memory."""

    def flush(self, world: World) -> None:
        return None

    def close(self) -> None:
        return None


class FileStore:
    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises BrokenWorld when another process has it, OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lock = _lock(path.with_name(path.name + ".lock"))
        self._file: BinaryIO | None = None
        self._size = 0
        """Of the lines that were written whole."""
        self._changed: dict[tuple[str, str], None] = {}
        self._tables: dict[str, Table[Any]] = {}
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        self._settings: Settings | None = None
        self._clock_shift_s = 0.0

    @property
    def has_world(self) -> bool:
        return self._path.exists() and self._path.stat().st_size > 0

    def load(self, world: World) -> None:
        """Fill an empty world from the file. Raises BrokenWorld."""
        rows: dict[str, dict[str, dict[str, Json]]] = {}
        meta: Json = None
        settings: Json = None
        lines = self._path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                entry = json.loads(line)
            except ValueError as problem:
                if number == len(lines):
                    break  # no newline after it: torn, and so never answered
                raise BrokenWorld(f"{self._path}:{number}: not a line of a world file: {problem}") from None
            meta = entry.get("meta", meta)
            settings = entry.get("settings", settings)
            for table, row_id, row in entry.get("rows", ()):
                if row is None:
                    rows.get(table, {}).pop(row_id, None)
                else:
                    rows.setdefault(table, {})[row_id] = row
        try:
            self._fill(world, rows, _META.validate_python(meta), settings)
        except (ValidationError, KeyError, TypeError) as problem:
            raise BrokenWorld(f"{self._path}: not a world of this version: {problem}") from None

    def _fill(self, world: World, rows: Mapping[str, Mapping[str, Json]], meta: Meta, settings: Json) -> None:
        if meta.format != FORMAT:
            raise BrokenWorld(f"{self._path}: world format {meta.format}, this version reads {FORMAT}")
        tables = {table.name: table for table in world.tables}
        for name, table_rows in rows.items():
            adapter = TypeAdapter(tables[name].row_type)
            for row in table_rows.values():
                tables[name].put(adapter.validate_json(json.dumps(row)))
        world.settings = Settings.model_validate(settings)
        world.resume(meta)

    def begin(self, world: World) -> None:
        """Rewrite the file with all the world holds, and follow its changes from here on. Raises OSError; then the old
        file is as it was."""
        self._tables = {table.name: table for table in world.tables}
        self._adapters = {name: TypeAdapter(table.row_type) for name, table in self._tables.items()}
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            with open(fresh, "wb", opener=_private) as out:
                for line in self._lines(world):
                    out.write(line)
            fresh.replace(self._path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        self._file = self._path.open("ab", buffering=0)
        self._size = self._path.stat().st_size
        for table in self._tables.values():
            table.listener = self._note

    def _lines(self, world: World) -> Iterator[bytes]:
        """The whole world, a line for each row."""
        yield self._line(world, [], with_settings=True)
        for name, table in self._tables.items():
            kept = list(table)[-KEPT_REQUESTS:] if name == "requests" else table
            for row in kept:
                if self._is_kept(name, row.id):
                    yield self._line(world, [(name, row.id)])

    def _note(self, table: str, row_id: str) -> None:
        if self._is_kept(table, row_id):
            self._changed[table, row_id] = None

    def _is_kept(self, table: str, row_id: str) -> bool:
        """Requests that change nothing are not worth the disk."""
        if table != "requests":
            return True
        row = self._tables[table].get(row_id)
        return isinstance(row, RequestSeen) and row.method not in ("GET", "HEAD", "OPTIONS")

    def _line(self, world: World, keys: list[tuple[str, str]], *, with_settings: bool = False) -> bytes:
        entry: dict[str, object] = {"meta": _META.dump_python(world.meta(), mode="json")}
        if with_settings:
            entry["settings"] = world.settings.model_dump(mode="json")
        rows = []
        for table, row_id in keys:
            row = self._tables[table].get(row_id)
            dumped = None if row is None else self._adapters[table].dump_python(row, mode="json")
            rows.append([table, row_id, dumped])
        entry["rows"] = rows
        return json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"

    def flush(self, world: World) -> None:
        jumped = self._clock_shift_s != world.clock_shift_s
        if self._file is None or not (self._changed or jumped or self._settings is not world.settings):
            return
        line = self._line(world, list(self._changed), with_settings=self._settings is not world.settings)
        self._append(self._file, line)
        self._changed.clear()
        self._settings = world.settings
        self._clock_shift_s = world.clock_shift_s

    def _append(self, file: BinaryIO, line: bytes) -> None:
        view = memoryview(line)
        try:
            while view:
                view = view[file.write(view) :]
        except OSError:
            file.truncate(self._size)  # half a line would spoil those after it
            raise
        self._size += len(line)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        os.close(self._lock)


def _private(path: str, flags: int) -> int:
    """The file holds passwords and keys, if only invented ones: nobody else's to read."""
    return os.open(path, flags, 0o600)


def _lock(path: Path) -> int:
    """Held until the process ends, however it ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        import fcntl
    except ImportError:  # no such lock on this platform
        return handle
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise BrokenWorld(f"{path}: another simulator is using this world") from None
    return handle
