"""Notices: what a command waits for, said on stderr, each once."""

from __future__ import annotations

import logging
from collections.abc import Callable


class NoticeHandler(logging.Handler):
    """Of a logger whose lines are meant for people."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._said:
            self._said.add(text)
            self._say(f"{text[:1].upper()}{text[1:]}.\n")
