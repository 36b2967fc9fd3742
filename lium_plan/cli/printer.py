"""Printer: the one object that decides what is printed, where, and in which colours.

stdout is data, stderr is talk. A stream that cannot be written any more is given up: whatever runs goes on, and saves.
A reader that has gone (EPIPE) and a closed terminal wanted no more; any other loss on stdout is told at the end.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from lium_plan.views.paint import Paint

COLOUR_CHOICES = ("auto", "always", "never")


def wants_colours(choice: str, environ: Mapping[str, str], *, terminal: bool) -> bool:
    """`--color`, then NO_COLOR, FORCE_COLOR, TERM=dumb, then whether it is a terminal."""
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return terminal and environ.get("TERM") != "dumb"


class Printer:
    """Two streams, each with its paint. `quiet` leaves out what `talk` says."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._dead: set[str] = set()
        # Asked now: a terminal that is gone no longer says that it was one.
        self._terminals = {name for name in ("stdout", "stderr") if getattr(sys, name).isatty()}
        self.lost: str | None = None
        """Why stdout is not complete, when that is an error."""
        self.quiet = False
        self.logging = False
        """Log lines go to stderr, which therefore cannot be redrawn."""
        self.above: Callable[[str], None] | None = None
        """Writes above what is being redrawn on stderr, while something is."""
        self.on_closed_terminal: Callable[[], None] | None = None
        """Called once when a terminal that we write to is gone."""
        self.set_colours("auto")

    def set_colours(self, choice: str) -> None:
        self._out_colours = wants_colours(choice, self._environ, terminal=sys.stdout.isatty())
        self.err_paint = Paint(wants_colours(choice, self._environ, terminal=sys.stderr.isatty()))

    @property
    def out_paint(self) -> Paint:
        """As wide as the terminal is now."""
        return Paint(self._out_colours, self.out_width)

    @property
    def out_width(self) -> int | None:
        """The terminal's width when stdout is one."""
        if not sys.stdout.isatty():
            return None
        from shutil import get_terminal_size

        return get_terminal_size().columns

    @property
    def live(self) -> bool:
        """Whether stderr is a terminal on which lines can be redrawn."""
        usable = "stderr" in self._terminals and self._environ.get("TERM") != "dumb"
        return usable and not self.quiet and not self.logging

    @property
    def interactive(self) -> bool:
        """Whether a question can be asked and answered."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    @property
    def unread(self) -> bool:
        """Whether what is printed on stdout reaches nobody any more, as far as can be told without printing."""
        if "stdout" in self._dead:
            return True
        try:
            poll = select.poll()
            poll.register(sys.stdout.fileno(), 0)
            return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
        except (OSError, ValueError):
            return False  # no descriptor, or none that can be asked: the next write tells

    def out(self, text: str) -> None:
        """Data: exactly this text on stdout."""
        self._write("stdout", text)

    def out_bytes(self, content: bytes) -> None:
        """Data of somebody else's: exactly these bytes on stdout."""
        if "stdout" in self._dead or not content:
            return
        try:
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        except (OSError, ValueError) as fault:
            self._give_up("stdout", sys.stdout, fault)

    def json(self, document: object, *, indent: int | None = 2) -> None:
        """One document (or, without indent, one line) on stdout."""
        import json

        self.out(json.dumps(document, indent=indent, ensure_ascii=False) + "\n")

    def err(self, text: str) -> None:
        """What must be read: diagnostics, questions."""
        self._write("stderr", text)

    def notice(self, text: str) -> None:
        """As `talk`, whatever is on the screen."""
        if self.above is None:
            self.talk(text)
        elif not self.quiet:
            self.above(text)

    def talk(self, text: str) -> None:
        """What may be left out with `-q`: progress and advice."""
        if not self.quiet:
            self._write("stderr", text)

    def _write(self, name: str, text: str) -> None:
        if name in self._dead or not text:
            return
        stream: TextIO = getattr(sys, name)
        try:
            stream.write(text)
            stream.flush()
        except UnicodeEncodeError:
            plain = text.encode(stream.encoding or "ascii", "backslashreplace").decode(stream.encoding or "ascii")
            self._write(name, plain)
        except (OSError, ValueError) as fault:
            self._give_up(name, stream, fault)

    def _give_up(self, name: str, stream: TextIO, fault: OSError | ValueError) -> None:
        self._dead.add(name)
        unwanted = isinstance(fault, BrokenPipeError) or name in self._terminals
        if name == "stdout" and not unwanted:
            self.lost = os.strerror(fault.errno or errno.EIO) if isinstance(fault, OSError) else "it is closed"
        try:
            # The interpreter flushes at exit: what is left in the buffer must go somewhere that takes it.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        except (OSError, ValueError):
            self._dead.update(("stdout", "stderr"))
        if name in self._terminals and self.on_closed_terminal is not None:
            tell, self.on_closed_terminal = self.on_closed_terminal, None
            tell()
