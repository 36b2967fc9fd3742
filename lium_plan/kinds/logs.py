"""What runs on pods writes to a log file each, here, readable by its owner alone and without secrets."""

from __future__ import annotations

import base64
import json
import os
import urllib.parse
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from lium_plan.addresses import Address

MASK = b"***"
SHORTEST_SECRET = 4
"""Shorter values are not masked: they would turn every other word of a log into stars."""


def log_path(directory: Path, address: Address) -> Path:
    return directory / f"{address}.log"


class Mask:
    """Replaces secrets in a stream, also where a chunk ends inside one, and in their usual encodings."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = {form for secret in secrets if len(secret) >= SHORTEST_SECRET for form in _forms(secret)}
        self._needles = tuple(sorted(found, key=lambda needle: (-len(needle), needle)))
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now; the rest is held until it is clear that no secret begins in it."""
        if not self._needles:
            return chunk
        text = self._replace(self._held + chunk)
        keep = self._longest_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def _replace(self, text: bytes) -> bytes:
        for needle in self._needles:
            text = text.replace(needle, MASK)
        return text

    def _longest_start(self, text: bytes) -> int:
        """The length of the longest end of `text` that a secret begins with."""
        longest = max(map(len, self._needles)) - 1
        for size in range(min(longest, len(text)), 0, -1):
            end = text[-size:]
            if any(needle.startswith(end) for needle in self._needles):
                return size
        return 0


def _forms(secret: str) -> tuple[bytes, ...]:
    raw = secret.encode("utf-8", "surrogateescape")
    lines = [line for line in secret.splitlines() if len(line) >= 2 * SHORTEST_SECRET]
    return (
        raw,
        base64.b64encode(raw).rstrip(b"="),
        json.dumps(secret)[1:-1].encode(),
        json.dumps(secret, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape"),
        urllib.parse.quote(raw, safe="").encode(),
        *(line.encode("utf-8", "surrogateescape") for line in lines),
    )


class LogFile:
    """Appends the masked output of one run; keeps the last lines for messages."""

    TAIL_BYTES = 4096

    def __init__(
        self,
        path: Path,
        *,
        secrets: Iterable[str],
        title: str,
        at: datetime,
        echo: Callable[[bytes], None] | None = None,
    ) -> None:
        self.path = path
        self._mask = Mask(secrets)
        self._echo = echo
        self._tail = b""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        self._file.write(f"--- {at:%Y-%m-%dT%H:%M:%SZ} {title}\n".encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pass_on(self._mask.flush())
        self._file.close()

    def write(self, chunk: bytes) -> None:
        self._pass_on(self._mask.feed(chunk))

    def last_lines(self, count: int) -> str:
        """The newest output, for an error message."""
        lines = self._tail.decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-count:])

    def _pass_on(self, clean: bytes) -> None:
        if not clean:
            return
        self._file.write(clean)
        self._tail = (self._tail + clean)[-self.TAIL_BYTES :]
        if self._echo is not None:
            self._echo(clean)
