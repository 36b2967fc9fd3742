"""Keeping secrets out of streams: output of pods is shown and kept only after it went through a `Mask`. Pure.

Hides each secret as it is, line by line, and in the encodings that programs put it in. It can't hide what a program
derives from a secret in other ways, nor values so short that they would hide half of every text.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import urllib.parse
from collections.abc import Iterable, Iterator

MASK = b"***"
SHORTEST_SECRET = 4
"""Shorter values are not masked: they would turn every other word of a log into stars."""
SHORTEST_LINE = 8
"""Of a secret of several lines, those at least this long are masked by themselves too."""


class Mask:
    """Replaces secrets in a stream, also where a chunk ends inside one, and in their usual encodings."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = {form for secret in secrets if len(secret) >= SHORTEST_SECRET for form in _forms(secret)}
        # The longest first: a secret that begins with another one must not leave its own end behind.
        needles = sorted((form for form in found if len(form) >= SHORTEST_SECRET), key=lambda form: (-len(form), form))
        self._needles = tuple(needles)
        self._pattern = re.compile(b"|".join(map(re.escape, needles))) if needles else None
        self._held = b""

    @property
    def held_bytes(self) -> int:
        """How much of what was fed has not been passed on yet."""
        return len(self._held)

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now; the rest is held until it is clear that no secret begins in it."""
        if self._pattern is None:
            return chunk
        text = self._held + chunk
        hold_from = self._possible_start(text, 0)
        clean = bytearray()
        done = 0
        if any(needle in text for needle in self._needles):
            for match in self._pattern.finditer(text):
                if match.start() >= hold_from:
                    break
                clean += text[done : match.start()] + MASK
                done = match.end()
                if done > hold_from:
                    hold_from = self._possible_start(text, done)
        clean += text[done:hold_from]
        self._held = text[hold_from:]
        return bytes(clean)

    def flush(self) -> bytes:
        """The end of the stream, with all that was held."""
        clean, self._held = self.peek(), b""
        return clean

    def peek(self) -> bytes:
        """What `flush` would give: what is held is no secret as a whole, but may hold a shorter one."""
        return self._held if self._pattern is None else self._pattern.sub(MASK, self._held)

    def _possible_start(self, text: bytes, begin: int) -> int:
        """The first place, from `begin` on, where a secret begins that may go on beyond the end of `text`."""
        first = len(text)
        for needle in self._needles:
            at = max(begin, len(text) - len(needle) + 1)
            while (at := text.find(needle[:1], at, first)) >= 0:
                if needle.startswith(text[at:]):
                    first = at
                    break
                at += 1
        return first


def _forms(secret: str) -> Iterator[bytes]:
    raw = secret.encode("utf-8", "surrogateescape")
    yield raw
    yield json.dumps(secret)[1:-1].encode()
    yield json.dumps(secret, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape")
    yield urllib.parse.quote(raw, safe="").encode()
    yield urllib.parse.quote(raw).encode()
    yield urllib.parse.quote_plus(raw).encode()
    yield shlex.quote(secret)[1:-1].encode("utf-8", "surrogateescape") if "'" in secret else raw
    yield raw.hex().encode()
    if len(raw) >= SHORTEST_LINE:
        yield from _base64_forms(raw)
    for line in secret.splitlines():
        if len(line) >= SHORTEST_LINE:
            yield line.encode("utf-8", "surrogateescape")


def _base64_forms(raw: bytes) -> Iterator[bytes]:
    """As base64 shows it by itself and in the middle of something longer, whatever stands before and after it."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw)
        # The characters at either end also hold bits of the neighbours, and are left out.
        begin = (0, 2, 3)[before]
        end = len(encoded) if (before + len(raw)) % 3 == 0 else len(encoded) - (4 - (before + len(raw)) % 3)
        middle = encoded[begin:end]
        yield middle
        yield middle.replace(b"+", b"-").replace(b"/", b"_")
    yield base64.b64encode(raw).rstrip(b"=")
