"""The journal as a file: lines are appended durably, and what is in flight still fits when the disk is full.

Before an intent is written, space for it *and* for the ends of everything open is preallocated behind it (NUL bytes
until they are used). When that, a write or an fsync fails, the file accepts no further intent in this process; ends
are still tried, in the space that was kept for them.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lium_plan.state import codec
from lium_plan.state.entries import Entry
from lium_plan.state.files import is_at, open_file, sync, sync_directory, write_all

SLACK = 16 * 1024
SLACK_PER_EFFECT = 8 * 1024
CHUNK = 32 * 1024
BLOCK = 4096
SECTOR = 512


class IntentRefused(OSError):
    """An earlier write failed: no new effect may begin in this process."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a journal's bytes say."""

    entries: tuple[Entry, ...]
    used: int
    """Where the last whole line ends, with or without its newline."""
    torn: int
    """Bytes of a line behind it that was never written to its end."""


def parse_journal(data: bytes, lineage: str | None, *, file: str) -> Parsed:
    """Read lines up to the torn tail that a crash may leave. Raises `Unreadable` for anything but such a tail.

    A tail is torn when its line was not ended or has holes (sectors that never reached the disk). A line that lacks
    nothing but its end counts. A complete line with a wrong checksum or another end, NULs that no disk leaves, or a
    whole line behind a bad one: that was changed by somebody, and is refused.
    """
    entries: list[Entry] = []
    used = number = 0
    while (end := data.find(b"\n", used)) >= 0:
        line = data[used:end]
        if not codec.is_whole(line):
            break
        number += 1
        entries.append(codec.decode_entry(line, lineage, file=file, number=number))
        used = end + 1
    rest = data[used:].rstrip(b"\0")
    if codec.is_whole(rest):
        entries.append(codec.decode_entry(rest, lineage, file=file, number=number + 1))
        return Parsed(tuple(entries), used + len(rest), 0)
    holes = [(used + found.start(), used + found.end()) for found in re.finditer(rb"\0+", rest)]
    torn = b"\n" not in rest or holes
    changed = codec.is_whole(rest[:-1]) or not all(_can_be_a_hole(start, end, used) for start, end in holes)
    if changed or not torn or any(codec.is_whole(line) for line in rest.split(b"\n")[1:-1]):
        message = "this line was changed (its checksum doesn't match), or lines were lost here"
        raise codec.Unreadable("journal-damaged", message, file=file, line=number + 1)
    return Parsed(tuple(entries), used, len(rest))


def _can_be_a_hole(start: int, end: int, written_from: int) -> bool:
    """Whether a disk can have left these NULs: it writes whole sectors, and had the line from `written_from` to."""
    return (start == written_from or start % SECTOR == 0) and end % SECTOR == 0


class JournalFile:
    """An open journal. Its owner holds the lock."""

    def __init__(self, path: Path, used: int, *, fault: OSError | None = None) -> None:
        """Cut off what lies behind `used` (durably), end the line there, and be ready to append.

        `fault` is what an earlier journal of this process failed with.
        """
        created = not path.exists()
        self._path = path
        self._handle = open_file(path, os.O_RDWR | os.O_CREAT)
        self._used = used
        self._allocated = used
        self._fault = fault
        try:
            os.fchmod(self._handle, 0o600)
            if os.fstat(self._handle).st_size != used:
                os.ftruncate(self._handle, used)
            if used and os.pread(self._handle, 1, used - 1) != b"\n":
                write_all(self._handle, b"\n", used)
                self._used = self._allocated = used + 1
            sync(self._handle)
            if created:
                sync_directory(path.parent)
        except OSError:
            os.close(self._handle)
            raise

    def append(self, data: bytes, *, intents: int, open_effects: int) -> None:
        """Write whole lines durably. `intents` of them are begins, `open_effects` are open once they are written.

        Raises `OSError`; then nothing of `data` counts as written.
        """
        self._require_there()
        if intents:
            if self._fault is not None:
                raise IntentRefused(self._fault.errno, self._fault.strerror)
            try:
                self._reserve(len(data), SLACK + SLACK_PER_EFFECT * open_effects)
            except OSError as fault:
                self._fault = fault
                raise
        start = self._used
        try:
            write_all(self._handle, data, start)
            sync(self._handle)
            self._used = start + len(data)
        except BaseException as fault:  # an interrupt too: what it cut short must not stay behind the next line
            if isinstance(fault, OSError):
                self._fault = self._fault or fault
            self._used = start
            self._blank(len(data))
            raise
        self._allocated = max(self._allocated, self._used)

    @property
    def used(self) -> int:
        """Where the last whole line ends."""
        return self._used

    @property
    def fault(self) -> OSError | None:
        """What a write failed with; no intent is accepted after it."""
        return self._fault

    def reset(self) -> None:
        """Forget every line: a snapshot contains them."""
        os.ftruncate(self._handle, 0)
        self._used = self._allocated = 0
        sync(self._handle)

    def close(self) -> None:
        """Give the preallocated space back."""
        try:
            os.ftruncate(self._handle, self._used)
        finally:
            os.close(self._handle)

    def _require_there(self) -> None:
        """A file that has lost its name takes every line, and nobody reads them again."""
        if not is_at(self._handle, self._path):
            fault = FileNotFoundError(errno.ENOENT, "it was deleted or replaced while it was in use", str(self._path))
            self._fault = self._fault or fault
            raise fault

    def _reserve(self, size: int, slack: int) -> None:
        needed = self._used + size + slack
        if needed <= self._allocated:
            return
        for extra in (CHUNK, 0):
            target = -(-(needed + extra) // BLOCK) * BLOCK
            try:
                self._allocate(target)
                break
            except OSError:
                if not extra:
                    raise
        sync(self._handle)
        self._allocated = target

    def _allocate(self, target: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._handle, self._allocated, target - self._allocated)
        else:
            write_all(self._handle, bytes(target - self._allocated), self._allocated)

    def _blank(self, size: int) -> None:
        """A line that was half written must not stand behind the next, shorter one."""
        # Where the disk refuses that too, the tail stays torn: readers cut it, and the next append writes over it.
        with suppress(OSError):
            write_all(self._handle, bytes(max(0, min(size, self._allocated - self._used))), self._used)
            if os.fstat(self._handle).st_size > self._allocated:
                os.ftruncate(self._handle, self._allocated)
