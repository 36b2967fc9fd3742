"""Rows of a list that is asked for again and again: what has not changed by a byte is not read again.

Owns the memory of the last list. Refuses to know what rows mean. The first list is not remembered, since most commands
ask for one alone and thousands of rows are worth their memory only to who comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

_Row = TypeVar("_Row")
_HEAD = 64
"""So many characters find a row again: they hold its id in every answer that was seen. Equal ones cost time alone."""


class RowMemory(Generic[_Row]):
    """One list's rows, by their text. `read` makes a row of a parsed value; equal text gives the very same row."""

    def __init__(self, read: Callable[[object], _Row]) -> None:
        self._read = read
        self._lists = 0
        self._known: dict[str, tuple[str, _Row]] = {}
        self._seen: dict[str, tuple[str, _Row]] = {}

    def begin(self) -> None:
        """Another list is about to be read."""
        self._lists += 1
        self._seen = {}

    def end(self) -> None:
        """It was read to its end: what it lacks is forgotten. One that broke off changes nothing."""
        self._known, self._seen = self._seen, {}

    def find(self, text: str, index: int) -> tuple[_Row, int] | None:
        """The row whose text stands at `index`, and where that ends."""
        head = text[index : index + _HEAD]
        known = self._known.get(head)
        # An object's text is whole by itself: no other value begins with it.
        if known is None or not text.startswith(known[0], index):
            return None
        self._seen[head] = known
        return known[1], index + len(known[0])

    def keep(self, text: str, index: int, end: int, value: object) -> _Row:
        """The row that was parsed from `text[index:end]`."""
        row = self._read(value)
        if self._lists > 1 and isinstance(value, dict):
            self._seen[text[index : index + _HEAD]] = (text[index:end], row)
        return row
