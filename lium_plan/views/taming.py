"""Somebody else's output for a terminal: colours and line ends are obeyed, every other control is shown instead.

A log may hold a title, a cleared screen, or what makes a terminal answer as if the user had typed.
"""

from __future__ import annotations

import re

# Kept: colours, erasing in a line, tab, newline, carriage return and backspace (progress bars).
_KEPT = rb"\x1b\[[0-9;:]{0,40}[mK]|[\t\n\r\x08]"
_CONTROL = re.compile(_KEPT + rb"|[\x00-\x1f\x7f]|\xc2[\x80-\x9f]")
_KEPT_ONE = re.compile(_KEPT)
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[0-9;:]{0,40})?|\xc2)\Z")


class Tame:
    """A filter for one stream; sequences may be cut anywhere."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        text = self._held + chunk
        cut = _UNFINISHED.search(text)
        self._held = b"" if cut is None else text[cut.start() :]
        return _shown(text if cut is None else text[: cut.start()])

    def flush(self) -> bytes:
        """What was held, when nothing follows."""
        held, self._held = self._held, b""
        return _shown(held)


def _shown(text: bytes) -> bytes:
    return _CONTROL.sub(lambda match: match[0] if _KEPT_ONE.fullmatch(match[0]) else _spelled(match[0]), text)


def _spelled(control: bytes) -> bytes:
    return f"\\x{control[-1]:02x}".encode()
