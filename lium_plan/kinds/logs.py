"""What runs on pods writes to a log file each, here, readable by its owner alone and without secrets.

A new attempt begins a new file and keeps the one before it as `.1`. Beside the log of something that is followed over
several connections, and by several runs, lies a place mark: how far the log on the pod is contained in ours.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from lium_plan.addresses import Address
from lium_plan.kinds.masking import Mask


def log_path(directory: Path, address: Address) -> Path:
    return directory / f"{address}.log"


class LogFile:
    """Appends the masked output of one attempt; keeps the last lines for messages.

    With `source` (the attempt's place on the pod) a log of the same attempt is gone on with: `offset` then says how
    many bytes of the pod's log it contains. With `going_on` the file is gone on with as it is.
    """

    TAIL_BYTES = 4096

    def __init__(
        self,
        path: Path,
        *,
        secrets: Iterable[str],
        title: str,
        at: datetime,
        source: str | None = None,
        going_on: bool = False,
    ) -> None:
        self.path = path
        self._mask = Mask(secrets)
        self._tail = b""
        self._mark = None if source is None else _PlaceMark(path, source)
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        place = self._mark.load() if self._mark is not None else None
        self.offset = 0 if place is None else place[0]
        if place is not None:
            os.truncate(path, place[1])
            self._tail = last_bytes(path, self.TAIL_BYTES)
        elif not going_on:
            with suppress(FileNotFoundError):
                os.replace(path, path.with_name(path.name + ".1"))
        descriptor = _open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        self._size = os.fstat(descriptor).st_size
        self._mid_line = self._size > 0 and not last_bytes(path, 1).endswith(b"\n")
        if place is None:
            try:
                self._line(f"{at:%Y-%m-%dT%H:%M:%SZ} {title}")
            except OSError:
                self._file.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What is held back is part of what a later run reads again, unless this was the end.
        if self._mark is None or kind is None:
            self._pass_on(self._mask.flush())
        self._file.close()
        if self._mark is not None:
            self._mark.close()

    def write(self, chunk: bytes) -> None:
        self.offset += len(chunk)
        self._pass_on(self._mask.feed(chunk))

    def say(self, text: str) -> None:
        """A line of ours in between."""
        self._pass_on(self._mask.flush())
        self._line(text)

    def last_lines(self, count: int) -> str:
        """The newest output, for an error message."""
        lines = (self._tail + self._mask.peek()).decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-count:])

    def _pass_on(self, clean: bytes) -> None:
        if not clean:
            return
        self._write(clean)
        self._tail = (self._tail + clean)[-self.TAIL_BYTES :]
        self._remember()

    def _line(self, text: str) -> None:
        begin = "\n--- " if self._mid_line else "--- "
        self._write(f"{begin}{text}\n".encode())
        self._remember()

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._size += len(content)
        self._mid_line = not content.endswith(b"\n")

    def _remember(self) -> None:
        if self._mark is not None:
            self._mark.save(self.offset - self._mask.held_bytes, self._size)


class _PlaceMark:
    """How much of a pod's log is in ours. Written after the log itself, so that at worst a part is read again."""

    def __init__(self, log: Path, source: str) -> None:
        self._log = log
        self._path = log.with_name(log.name + ".at")
        self._source = source
        self._descriptor: int | None = None

    def load(self) -> tuple[int, int] | None:
        """(bytes of the pod's log, bytes of ours that hold them); None when the log is another attempt's."""
        try:
            with os.fdopen(_open_file(self._path, os.O_RDONLY)) as file:
                mark = json.load(file)
            source, there, here = mark["source"], int(mark["pod_bytes"]), int(mark["log_bytes"])
            if source == self._source and there >= 0 and 0 <= here <= self._log.stat().st_size:
                return there, here
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            pass  # no mark, or none that can be used: the log is read from its beginning
        return None

    def save(self, there: int, here: int) -> None:
        if self._descriptor is None:
            self._descriptor = _open_file(self._path, os.O_WRONLY | os.O_CREAT)
        text = json.dumps({"source": self._source, "pod_bytes": there, "log_bytes": here})
        # One write of a fixed length: what a killed process leaves behind is whole.
        os.pwrite(self._descriptor, f"{text:<250}\n".encode(), 0)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open_file(path: Path, flags: int) -> int:
    """A descriptor of a file that is 0600 when this makes it. A pipe's other end is not waited for: `OSError`."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return descriptor


def last_bytes(path: Path, count: int = LogFile.TAIL_BYTES) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - count))
        return file.read()
