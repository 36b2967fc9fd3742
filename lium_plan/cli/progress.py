"""Progress: shows a run's events as they come: JSON lines, plain lines with a heartbeat, or a live table.

Never raises into the run: what cannot be shown is dropped, what cannot be written to `--json-into` is told at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TextIO

from lium_plan.cli.printer import Printer
from lium_plan.cli.redrawing import Redrawn
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error
from lium_plan.views.board import Board
from lium_plan.views.events_json import EventStream
from lium_plan.views.events_text import event_text, heartbeat_text

if TYPE_CHECKING:
    from lium_plan.engine.events import Event
    from lium_plan.interrupts import Interrupt
    from lium_plan.views.documents import Document

HEARTBEAT_S = 30.0
QUIET_HEARTBEAT_S = 120.0
"""With `-q`: what takes unusually long must not look dead."""
REDRAW_S = 0.25


class JsonFile:
    """`--json-into FILE` of a run. Raises `Failure` when it cannot be opened, and never afterwards."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            # Half a character, which JSON may hold and UTF-8 may not, is written as JSON writes it: `\ud800`.
            self._file: TextIO | None = open(  # noqa: SIM115 - closed by close()
                path, "w", encoding="utf-8", errors="backslashreplace"
            )
        except OSError as fault:
            raise Failure(ExitCode.ERROR, (error("cannot-write", f"cannot write {path}: {fault.strerror}"),)) from None
        self.lost: Diagnostic | None = None

    def write(self, line: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as fault:
            self.lost = error("json-into-incomplete", f"{self._path} is not complete: {fault.strerror}")
            self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as fault:
                self.lost = self.lost or error(
                    "json-into-incomplete", f"{self._path} is not complete: {fault.strerror}"
                )


class Progress:
    """Feed it events with `take`. `watch` runs beside the work and redraws, or keeps the heart beating.

    `typed` completes the commands that a text names.
    """

    def __init__(
        self,
        printer: Printer,
        *,
        as_json: bool,
        into: JsonFile | None,
        typed: Callable[[str], str] = lambda text: text,
    ) -> None:
        self._printer = printer
        self._as_json = as_json
        self._into = into
        self._typed = typed
        self._board = Board()
        self._stream = EventStream()
        self._live: Redrawn | None = None
        self._last_line = 0.0
        self._heard: tuple[datetime, float] | None = None
        """The server's time of the last event, and the loop's when it came."""

    @property
    def now(self) -> datetime:
        """By the clock that events are stamped with, which is the server's: this machine's may be hours off."""
        if self._heard is None:
            return datetime.now(UTC)
        at, then = self._heard
        return at + timedelta(seconds=asyncio.get_running_loop().time() - then)

    def take(self, event: Event) -> None:
        self._heard = event.at, asyncio.get_running_loop().time()
        changed = self._board.take(event)
        if self._as_json or self._into is not None:
            self._write(self._stream.lines(event))
        if self._as_json:
            return
        text = self._typed(event_text(event, self._board, self._printer.err_paint))
        if self._live is not None:
            # The table shows phases itself; what it can't show stands above it.
            if event.type.value in ("apply_errored", "apply_skipped", "substitution"):
                self._printer_above(text)
        elif changed or event.type.value == "substitution":
            self._printer.talk(text)
            if not self._printer.quiet:
                self._last_line = asyncio.get_running_loop().time()

    def close(self, exit_code: int, diagnostics: Iterable[Diagnostic] = ()) -> None:
        """The stream's last lines."""
        if self._as_json or self._into is not None:
            self._write(self._stream.closing(datetime.now(UTC), exit_code, tuple(diagnostics)))
        if self._into is not None:
            self._into.close()

    async def watch(self, interrupt: Interrupt) -> None:
        """Until cancelled."""
        if self._as_json:
            return
        self._last_line = asyncio.get_running_loop().time()
        if self._printer.live:
            self._open_live()
        try:
            while not await _within(interrupt.first, REDRAW_S):
                self._beat()
            self._tell_interrupted()
            while True:
                self._beat()
                await asyncio.sleep(REDRAW_S)
        finally:
            self._close_live()

    def _tell_interrupted(self) -> None:
        count = len(self._board.working())
        answers = "1 answer" if count == 1 else f"{count} answers"
        waiting = f"waiting for {answers}" if count else "saving"
        self._printer_above(f"Interrupted: starting nothing new, {waiting}; again to stop at once.\n")

    def _beat(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._live is not None:
            self._redraw()
        elif now - self._last_line >= self._heartbeat_s and self._board.working():
            self._printer.err(heartbeat_text(self._board, self.now, self._printer.err_paint))
            self._last_line = now

    @property
    def _heartbeat_s(self) -> float:
        return QUIET_HEARTBEAT_S if self._printer.quiet else HEARTBEAT_S

    def _write(self, documents: Iterable[Document]) -> None:
        for document in documents:
            # `default`: an event with an odd detail must not end the run that it tells of.
            line = json.dumps(document, ensure_ascii=False, default=str) + "\n"
            if self._as_json:
                self._printer.out(line)
            if self._into is not None:
                self._into.write(line)

    # --- the live table ------------------------------------------------------------------------------------------

    def _open_live(self) -> None:
        self._live = Redrawn(self._printer.err)
        self._printer.above = self._printer_above
        self._redraw()

    def _redraw(self) -> None:
        from lium_plan.views.events_live import live_lines

        if self._live is not None and len(self._board):
            columns, lines = shutil.get_terminal_size()
            paint = replace(self._printer.err_paint, width=columns)
            self._live.draw(live_lines(self._board, self.now, height=lines - 1, paint=paint))

    def _close_live(self) -> None:
        self._printer.above = None
        live, self._live = self._live, None
        if live is not None:
            live.close()

    def _printer_above(self, text: str) -> None:
        if self._live is None:
            self._printer.err(text)
        else:
            self._live.above(text)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Whether it comes to be set in that time."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
