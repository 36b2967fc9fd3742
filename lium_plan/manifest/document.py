"""What a file's text becomes: mappings and sequences that know where everything in them was written."""

from __future__ import annotations

import re
from pathlib import Path

from lium_plan.diagnostics import Diagnostic, Position, error
from lium_plan.kinds.values import printable

Place = tuple[int, int]
"""Line and column, from 0 as the parser counts."""

BREAK = re.compile(r"\r\n|\r|\n")


class Map(dict[str, object]):
    """A mapping as written; `places` gives each key's and value's place, each with the document that it is in."""

    __slots__ = ("at", "document", "places")

    def __init__(self, document: Document, at: Place) -> None:
        super().__init__()
        self.document = document
        self.at = at
        self.places: dict[str, tuple[Document, Place, Place]] = {}


class Seq(list[object]):
    """A sequence as written, with its items' places."""

    __slots__ = ("at", "document", "places")

    def __init__(self, document: Document, at: Place) -> None:
        super().__init__()
        self.document = document
        self.at = at
        self.places: list[tuple[Document, Place]] = []


class Document:
    """One file: its name as shown to people, where it lies, and its lines."""

    def __init__(self, name: str, path: Path, text: str, *, private: bool = False) -> None:
        self.name = name
        self.path = path
        self.text = text
        self.private = private
        """A file of values, which may be secrets: its lines are never shown."""
        self.root: object = None
        self._lines: list[str] | None = None

    def line(self, number: int) -> str:
        """The text of a line, from 0."""
        if self._lines is None:
            self._lines = BREAK.split(self.text)
        return self._lines[number] if 0 <= number < len(self._lines) else ""

    def shown_line(self, place: Place) -> str | None:
        """The line for showing under a message: cut well behind the place, nothing in it that steers a terminal."""
        if self.private:
            return None
        line = self.line(place[0])[: place[1] + 200]
        return "".join(char if char.isprintable() or char == "\t" else "\ufffd" for char in line)

    def position(self, place: Place) -> Position:
        return Position(self.name, place[0] + 1, place[1] + 1)

    def error(self, code: str, message: str, place: Place, *, hint: str | None = None) -> Diagnostic:
        line = self.shown_line(place)
        return error(code, printable(message), position=self.position(place), hint=hint, source_line=line)


def place_of(text: str, index: int) -> Place:
    """Line and column of a character of a text."""
    starts = [0, *(match.end() for match in BREAK.finditer(text, 0, index))]
    return len(starts) - 1, index - starts[-1]
