"""Paint: colours and a width when the caller says so, and text that cannot move the cursor.

Owns the escape sequences. Decides nothing about terminals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


@dataclass(frozen=True, slots=True)
class Paint:
    """`Paint(True)("red", text)` is red text, `Paint(False)(…)` the text as it is."""

    colours: bool = False
    width: int | None = None
    """Columns of the terminal; None: it is none, and nothing is to be left out."""

    def __call__(self, style: str, text: str) -> str:
        """`style` is one or more of bold dim red green yellow blue magenta cyan, separated by spaces."""
        if not self.colours or not text:
            return text
        codes = ";".join(_CODES[word] for word in style.split())
        return f"\x1b[{codes}m{text}\x1b[0m"


PLAIN = Paint(False)


def printable(text: str) -> str:
    """The text with control and direction characters spelled out: what a server says must not drive a terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def first_line(text: str, width: int = 200) -> str:
    """The first line only, as `one_line` shows it: what follows it is detail."""
    return one_line(text.strip().partition("\n")[0], width).rstrip(":")


def one_line(text: str, width: int = 200) -> str:
    """The text on one line, cut to `width` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"
