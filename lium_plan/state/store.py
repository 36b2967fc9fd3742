"""What every place that keeps states can do. One contract suite (`tests/state/`) holds for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from lium_plan.diagnostics import Diagnostic
from lium_plan.state.entries import Entry
from lium_plan.state.events import AuditEvent
from lium_plan.state.lock import Hold, Owner
from lium_plan.state.model import State
from lium_plan.state.repair import Salvage


@dataclass(frozen=True, slots=True)
class Loaded:
    """A consistent look at a stack."""

    state: State | None
    """Snapshot and journal together; None: nothing was ever applied."""
    pending: int = 0
    """Journal entries that no snapshot contains yet."""
    torn_bytes: int = 0
    """A line that a crash left unfinished; cut off before the first append."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """Warnings."""


class Lock(Protocol):
    """A held lock."""

    @property
    def previous(self) -> Owner | None:
        """The run before, when it ended without releasing."""
        ...

    def release(self) -> None: ...

    def __enter__(self) -> Lock: ...

    def __exit__(self, *_: object) -> None: ...


class Store(Protocol):
    """One stack's state. Reading needs no lock; everything that writes raises `RuntimeError` without it."""

    @property
    def stack(self) -> str: ...

    def load(self) -> Loaded:
        """Right at any time, also while another process appends or compacts. Raises `Unreadable` (exit 1)."""
        ...

    async def lock(self, owner: Owner, *, timeout_s: float) -> Lock:
        """Wait up to `timeout_s` (0: not at all), interruptibly. Raises `Failure` (exit 5) that says who has it.

        `load` again once it is held: what was read before may be old.
        """
        ...

    def append(self, entries: Sequence[Entry]) -> None:
        """Durable on return. Raises `Failure` (exit 1) when not, and then nothing of `entries` was written."""
        ...

    def compact(self, state: State) -> None:
        """Write a snapshot of what was loaded and appended, and empty the journal. The first one starts the state.

        Raises `Failure`; the journal then still holds everything.
        """
        ...

    def replace(self, state: State, told: Sequence[AuditEvent] = ()) -> tuple[str, ...]:
        """Put another state in place (push, recover, repair). What was there is kept; the names it got are returned.

        `told`: what the audit log says of it.
        """
        ...

    def salvage(self) -> Salvage:
        """What can be saved of a state that `load` refuses. Changes nothing; `replace` puts it in place."""
        ...

    def hold(self, hold: Hold) -> None:
        """Lock by hand. The lock must be held."""
        ...

    def held(self, now: datetime) -> Hold | None:
        """The hold in force. Raises `Failure` (exit 5) for one that can't be read."""
        ...

    def unhold(self) -> bool:
        """Lift a hold, also an unreadable one; False when there was none. Needs no lock."""
        ...

    def events(self) -> tuple[AuditEvent, ...]:
        """The audit log, oldest first, with what is in the journal and what is still open."""
        ...

    def close(self) -> None: ...
