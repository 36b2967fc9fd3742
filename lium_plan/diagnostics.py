"""Diagnostics are data: what is wrong, where, and what to do about it. Rendering is the views' job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


class ExitCode(IntEnum):
    """Exit codes of the command line; the numbers are fixed, scripts rely on them."""

    OK = 0
    ERROR = 1
    CHANGES = 2
    PARTIAL = 3
    STALE = 4
    LOCKED = 5
    UNSAFE = 6
    INTERRUPTED = 7
    UNKNOWN_OUTCOME = 8
    USAGE = 64
    BUG = 70


NOTHING_CHANGED = frozenset((ExitCode.ERROR, ExitCode.STALE, ExitCode.LOCKED, ExitCode.UNSAFE))
"""Codes that say that a run has changed nothing."""

NEW_RENTS_ONLY = "constraint-binds-new-rents"
"""Code of the note about a living pod that no longer meets what new ones must: a plan shows it with `!`."""

# "Highest that applies": which code wins when several things happened in one run.
_PRECEDENCE = (
    ExitCode.BUG,
    ExitCode.UNKNOWN_OUTCOME,
    ExitCode.INTERRUPTED,
    ExitCode.LOCKED,
    ExitCode.UNSAFE,
    ExitCode.STALE,
    ExitCode.PARTIAL,
    ExitCode.ERROR,
    ExitCode.CHANGES,
    ExitCode.OK,
)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """The code a run ends with when each of `codes` applies; OK for none."""
    found = set(codes)
    return next((code for code in _PRECEDENCE if code in found), ExitCode.OK)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `code` is a stable slug for scripts (`unknown-key`, `lock-held`), `message` is for people."""

    severity: Severity
    code: str
    message: str
    address: str | None = None
    position: Position | None = None
    hint: str | None = None
    source_line: str | None = None
    """The text of the line at `position`, for showing under the message."""


def error(
    code: str,
    message: str,
    *,
    address: str | None = None,
    position: Position | None = None,
    hint: str | None = None,
    source_line: str | None = None,
) -> Diagnostic:
    return Diagnostic(Severity.ERROR, code, message, address, position, hint, source_line)


def warning(
    code: str,
    message: str,
    *,
    address: str | None = None,
    position: Position | None = None,
    hint: str | None = None,
    source_line: str | None = None,
) -> Diagnostic:
    return Diagnostic(Severity.WARNING, code, message, address, position, hint, source_line)


class Diagnostics:
    """An ordered collection in which each finding appears once."""

    def __init__(self, items: Iterable[Diagnostic] = ()) -> None:
        self._items: dict[Diagnostic, None] = dict.fromkeys(items)

    def add(self, item: Diagnostic) -> None:
        self._items.setdefault(item)

    def extend(self, items: Iterable[Diagnostic]) -> None:
        for item in items:
            self.add(item)

    def __iter__(self) -> Iterator[Diagnostic]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(item for item in self._items if item.severity is Severity.ERROR)

    def raise_errors(self) -> None:
        """Raise `Failure` (exit 1) carrying every finding when one of them is an error."""
        if self.errors:
            raise Failure(ExitCode.ERROR, tuple(self))


class Failure(Exception):
    """A run that ends with `exit_code`, and why. The only exception that crosses from the library to the CLI."""

    def __init__(self, exit_code: ExitCode, diagnostics: Iterable[Diagnostic]) -> None:
        self.exit_code = exit_code
        self.diagnostics = tuple(diagnostics)
        super().__init__("; ".join(item.message for item in self.diagnostics))


def in_words(failure: BaseException) -> str:
    """What went wrong, for people: of the operating system's errors its words and the file, no class and no number."""
    if not isinstance(failure, OSError) or not failure.strerror:
        return str(failure)
    return f"{failure.strerror}: {failure.filename}" if failure.filename else failure.strerror


def counted(number: int, noun: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
