"""The state under its lock, for commands that change it without a plan: opened, changed through the journal, saved.

Owns the backup: what lies there is saved as a snapshot of its own first, so that `.json.1` is exactly the state before
the change. Refuses without a state; talks to no server.
"""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from lium_plan.operations.applying import without_values
from lium_plan.operations.outside import REAL, Outside
from lium_plan.operations.states import require_state
from lium_plan.settings import Settings
from lium_plan.state.events import AuditEvent, events_of_replacement
from lium_plan.state.journal import JournaledLedger, RunIdentity
from lium_plan.state.lock import Owner, this_process
from lium_plan.state.model import State
from lium_plan.state.store import Store


@dataclass(frozen=True, slots=True)
class Editing:
    """A state whose lock is held."""

    store: Store
    ledger: JournaledLedger

    @property
    def state(self) -> State:
        return self.ledger.state


def owner_of(command: str, outside: Outside = REAL) -> Owner:
    """Who holds the lock, for others to read."""
    run = outside.random_bytes(6).hex()
    return this_process(who=user(), command=f"lium-plan {command}", run=run, since=outside.now())


def told_of(action: str, owner: Owner, before: State | None, after: State) -> tuple[AuditEvent, ...]:
    """For the audit log: one state in place of another."""
    who = f"{owner.who}@{owner.host}"
    return tuple(events_of_replacement(before, after, at=owner.since, run=owner.run, who=who, action=action))


@asynccontextmanager
async def editing(
    settings: Settings,
    command: str,
    *,
    lock_timeout_s: float = 0,
    now: Callable[[], datetime] | None = None,
    unborn: State | None = None,
    outside: Outside = REAL,
) -> AsyncIterator[Editing]:
    """Whatever was written is kept, also when the body fails. `unborn` is what a missing state begins as.

    Raises `Failure`: 5 when the lock is held, 1 without a state or when it can't be read.
    """
    store = outside.open_store(settings)
    owner = owner_of(command, outside)
    with await store.lock(owner, timeout_s=lock_timeout_s):
        found = store.load().state
        state = found if found is not None else unborn if unborn is not None else require_state(settings, found)
        ledger = open_ledger(store, state, owner, born=found is not None, now=now or outside.now)
        ledger.compact()
        try:
            yield Editing(store, ledger)
        finally:
            ledger.compact()


def open_ledger(
    store: Store, state: State, owner: Owner, *, born: bool, now: Callable[[], datetime]
) -> JournaledLedger:
    command = " ".join(("lium-plan", *without_values(sys.argv[1:])))
    identity = RunIdentity(owner.run, f"{owner.who}@{socket.gethostname()}", command)
    return JournaledLedger(store, state, run=identity, now=now, born=born)


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
