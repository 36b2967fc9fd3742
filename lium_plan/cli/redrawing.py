"""Redrawing: a few lines at the bottom of a terminal, drawn again and again in place.

Between two drawings the cursor stands at the beginning of the first line. When the terminal gets another width it
breaks the lines anew, and takes the cursor along: nothing has to be known of how many there are then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_NO_BREAKS, _BREAKS = "\x1b[?7l", "\x1b[?7h"
"""Whether a line that is too long goes on in the next one: a terminal may be narrower than we know yet."""
_REST_OF_LINE, _REST_OF_SCREEN = "\x1b[K", "\x1b[J"


class Redrawn:
    """`write` puts text on the terminal as it is."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._lines: tuple[str, ...] = ()

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines instead of those that are shown: fewer, and shorter, than the terminal has room for."""
        self._lines = tuple(lines)
        self._write(self._drawing())

    def above(self, text: str) -> None:
        """Let text stand above for good."""
        kept = "".join(f"{line}{_REST_OF_LINE}\n" for line in text.rstrip("\n").split("\n"))
        self._write("\r" + kept + self._drawing())

    def close(self) -> None:
        """Nothing of it stays."""
        lines, self._lines = self._lines, ("",) * len(self._lines)
        self._write((self._drawing() if lines else "") + _SHOW)

    def _drawing(self) -> str:
        if not self._lines:
            return ""
        # Line by line: some terminals keep in their history what is erased all at once.
        body = "\n".join(f"\r{line}{_REST_OF_LINE}" for line in self._lines)
        up = f"\x1b[{len(self._lines) - 1}A" if len(self._lines) > 1 else ""
        return f"{_HIDE}{_NO_BREAKS}{body}{_REST_OF_SCREEN}\r{up}{_BREAKS}"
