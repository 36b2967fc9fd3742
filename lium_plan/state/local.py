"""State in a local directory: `<stack>.json`, its journal, its lock, its audit log.

Owns the order of writes that keeps every crash harmless: events, then the snapshot's rename, then the emptying of the
journal. Refuses to write over anything it can't read, and to write at all without the lock.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lium_plan.diagnostics import ExitCode, Failure, Severity, error, warning
from lium_plan.state import codec
from lium_plan.state.auditlog import append_events, read_events, without
from lium_plan.state.entries import Began, Entry
from lium_plan.state.events import AuditEvent, Trail
from lium_plan.state.files import (
    Identity,
    identity_of,
    keep,
    make_directory,
    read_file,
    sync_directory,
    takes_files,
    write_temporary,
)
from lium_plan.state.journalfile import IntentRefused, JournalFile, Parsed, parse_journal
from lium_plan.state.lock import (
    FileLock,
    Hold,
    Owner,
    held_by_hand,
    lock_held,
    read_hold,
    read_owner,
    try_lock,
    write_hold,
)
from lium_plan.state.model import ReplayError, State, check, replay
from lium_plan.state.repair import Salvage, salvage
from lium_plan.state.store import Loaded

KEPT = 10
"""How many earlier snapshots stay."""
_EARLIER = tuple(f"json.{number}" for number in range(1, KEPT + 1))
POLL_S = 0.2
_ATTEMPTS = 200
_STACK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class _Look:
    """Snapshot and journal as they lay there at one instant."""

    snapshot: bytes | None
    journal: bytes


@dataclass(slots=True)
class _Session:
    """What a writer knows of the files between load and release."""

    base: State
    """What the snapshot contains."""
    journal: JournalFile
    trail: Trail
    """Has taken in the journal's entries that the snapshot does not contain."""

    @property
    def last(self) -> int:
        return self.trail.sequence


def _line(entry: Entry, lineage: str) -> bytes:
    """A journal line, proven readable: one that isn't would lock everybody out of the state."""
    line = codec.encode_entry(entry, lineage)
    try:
        back = codec.decode_entry(line[:-1], lineage, file="journal", number=entry.number)
    except codec.Unreadable as fault:
        raise ValueError(f"entry {entry.number} could not be read back: {fault.diagnostic.message}") from fault
    if back != entry:
        raise ValueError(f"entry {entry.number} reads back as something else")
    return line


def stacks_in(directory: Path) -> tuple[str, ...]:
    """The stacks that have a state in a directory, by name; one whose snapshot is missing counts by its journal."""
    names = {
        path.name.removesuffix(suffix)
        for suffix in (".json", ".journal.jsonl")
        for path in (directory.glob(f"*{suffix}") if directory.is_dir() else ())
    }
    return tuple(sorted(name for name in names if _STACK.fullmatch(name)))


class LocalStore:
    """A `Store` in a directory. `now` decides whether a hold is over."""

    def __init__(self, directory: Path, stack: str, *, now: Callable[[], datetime], poll_s: float = POLL_S) -> None:
        """Touches nothing yet. Raises `Failure` (64) for a stack that can't be part of a file's name."""
        if _STACK.fullmatch(stack) is None:
            message = f"'{stack}' is no stack name: letters, digits, - and _ only, at most 64"
            raise Failure(ExitCode.USAGE, (error("stack-name", message),))
        self._directory = directory
        self._stack = stack
        self._now = now
        self._poll_s = poll_s
        self._lock: FileLock | None = None
        self._session: _Session | None = None
        self._looked = False
        self._fault: OSError | None = None
        """Why this process may begin nothing more."""

    @property
    def stack(self) -> str:
        return self._stack

    @property
    def directory(self) -> Path:
        return self._directory

    def path(self, suffix: str) -> Path:
        """`path("json")` is the snapshot; others: journal.jsonl, lock, hold, events.jsonl, json.1."""
        return self._directory / f"{self._stack}.{suffix}"

    # --- reading ---------------------------------------------------------------------------------------------

    def load(self) -> Loaded:
        """See `Store.load`. While the lock is held this also prepares for appending."""
        look = self._look()
        while True:
            try:
                return self._interpret(look)
            except codec.Unreadable:
                # A reader may have looked in the middle of somebody's write: damage is what stays the same.
                again = self._look()
                if self._lock is not None or again == look:
                    raise
                look = again
            except OSError as fault:
                raise self._failure("state-write", "can't be written", fault) from fault

    def _look(self) -> _Look:
        """A compaction renames the snapshot before it empties the journal, so the two fit when the first stayed."""
        try:
            for _ in range(_ATTEMPTS):
                snapshot = read_file(self.path("json"))
                journal = read_file(self.path("journal.jsonl"))
                before: Identity | None = None if snapshot is None else snapshot[1]
                if identity_of(self.path("json")) == before:
                    return _Look(snapshot and snapshot[0], journal[0] if journal else b"")
        except OSError as fault:
            raise self._failure("state-read", "can't be read", fault) from fault
        message = f"{self.path('json')} changes faster than it can be read"
        raise Failure(ExitCode.ERROR, (error("state-read", message),))

    def _interpret(self, look: _Look) -> Loaded:
        journal_name = str(self.path("journal.jsonl"))
        if look.snapshot is None:
            return self._without_snapshot(parse_journal(look.journal, None, file=journal_name))
        base = codec.decode_snapshot(look.snapshot, file=str(self.path("json")))
        parsed = parse_journal(look.journal, base.lineage, file=journal_name)
        try:
            state = replay(base, parsed.entries)
        except ReplayError as fault:
            line = next(n for n, entry in enumerate(parsed.entries, 1) if entry.number == fault.number)
            raise codec.Unreadable("journal-replay", str(fault), file=journal_name, line=line) from None
        found = check(state)
        unsound = [item for item in found if item.severity is Severity.ERROR]
        if unsound:
            raise codec.Unreadable(unsound[0].code, unsound[0].message, file=str(self.path("json")))
        if state.stack != self._stack:
            message = f"is the state of stack {state.stack}, not of {self._stack}: it was copied or renamed"
            raise codec.Unreadable("state-stack", message, file=str(self.path("json")))
        since = [entry for entry in parsed.entries if entry.number > base.sequence]
        if self._lock is not None:
            self._open_session(base, parsed, since)
        return Loaded(state, len(since), parsed.torn, found)

    def _without_snapshot(self, parsed: Parsed) -> Loaded:
        if parsed.entries:
            message = "has entries, but the snapshot that they follow is missing"
            raise codec.Unreadable("snapshot-missing", message, file=str(self.path("journal.jsonl")))
        self._looked = self._lock is not None
        if self.path("json.1").exists():
            message = f"{self.path('json')} is missing, but earlier snapshots of stack {self._stack} lie beside it"
            hint = "if it was deleted by mistake, copy the newest (.json.1) back before you apply"
            return Loaded(None, torn_bytes=parsed.torn, diagnostics=(warning("state-missing", message, hint=hint),))
        return Loaded(None, torn_bytes=parsed.torn)

    def _open_session(self, base: State, parsed: Parsed, since: Sequence[Entry]) -> None:
        session, last = self._session, since[-1].number if since else base.sequence
        if session is not None and (session.journal.used, session.last) == (parsed.used, last):
            return  # looked at again by its own writer: what is preallocated for effects in flight stays
        self._end_session()
        journal = JournalFile(self.path("journal.jsonl"), parsed.used, fault=self._fault)
        self._session = _Session(base, journal, Trail(base, since))

    # --- locking ---------------------------------------------------------------------------------------------

    async def lock(self, owner: Owner, *, timeout_s: float) -> FileLock:
        """See `Store.lock`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            refusal = self._try_lock(owner)
            if isinstance(refusal, FileLock):
                return refusal
            remaining_s = deadline - loop.time()
            if remaining_s <= 0:
                raise refusal
            await asyncio.sleep(min(self._poll_s, remaining_s))

    def _try_lock(self, owner: Owner) -> FileLock | Failure:
        path = self.path("lock")
        # Each snapshot is a new file: that it can't be made must not turn up when something is rented already.
        self.require_writable()
        try:
            make_directory(self._directory)
            taken = try_lock(path, owner, self._released)
            if taken is None:
                return lock_held(self._stack, path, read_owner(path))
            try:
                hold = self.held(self._now())
            except BaseException:
                taken.release()
                raise
        except OSError as fault:
            raise self._failure("state-lock", "can't be locked", fault) from fault
        if hold is not None:
            taken.release()
            return held_by_hand(self._stack, hold)
        self._lock = taken
        return taken

    def require_writable(self) -> None:
        """Raises `Failure` (1) when the directory takes no new file."""
        if not takes_files(self._directory):
            message = f"no file can be made in {self._directory}: no command can change the state"
            hint = "mend its permissions or its mount, or keep the state elsewhere: --state file:DIR"
            raise Failure(ExitCode.ERROR, (error("state-write", message, hint=hint),))

    def _released(self) -> None:
        self._end_session()
        lock, self._lock = self._lock, None
        try:
            if lock is not None and lock.stands and identity_of(self.path("json")) is None:
                # Nothing is left of a stack that never came to be; whoever waits for the lock sees that its file went.
                self.path("lock").unlink(missing_ok=True)
        except OSError:
            pass  # one file more

    def _end_session(self) -> None:
        session, self._session, self._looked = self._session, None, False
        if session is not None:
            self._fault = session.journal.fault
            try:
                session.journal.close()
            except OSError:
                # Only the preallocated space was to be given back; the next load does it.
                pass

    def hold(self, hold: Hold) -> None:
        self._require_lock()
        try:
            write_hold(self.path("hold"), hold)
        except OSError as fault:
            raise self._failure("state-write", "can't be locked by hand", fault) from fault

    def held(self, now: datetime) -> Hold | None:
        return read_hold(self.path("hold"), now)

    def unhold(self) -> bool:
        try:
            self.path("hold").unlink()
            sync_directory(self._directory)
        except FileNotFoundError:
            return False
        except OSError as fault:
            raise self._failure("state-write", "can't be lifted", fault) from fault
        return True

    # --- writing ---------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        """See `Store.append`. Raises `ValueError` for numbers that don't follow, and for unreadable content."""
        session = self._require_session()
        numbers = [entry.number for entry in entries]
        if numbers != list(range(session.last + 1, session.last + 1 + len(entries))):
            raise ValueError(f"entries {numbers} don't follow entry {session.last}")
        begun = {entry.number for entry in entries if isinstance(entry.fact, Began)}
        if begun:
            self._require_standing_lock()
        data = b"".join(_line(entry, session.base.lineage) for entry in entries)
        try:
            session.journal.append(data, intents=len(begun), open_effects=len(session.trail.open) + len(begun))
        except IntentRefused as fault:
            raise self._failure(
                "journal-write", "could not be written before, so nothing new is started", fault
            ) from fault
        except OSError as fault:
            raise self._failure("journal-write", "can't be written", fault) from fault
        for entry in entries:
            session.trail.take(entry)

    def compact(self, state: State) -> None:
        """See `Store.compact`. A state without changes is not written again."""
        session = self._session
        if session is None:
            if not self._looked:
                raise RuntimeError("load before compacting: the files may hold what this state doesn't")
            self._start(state)
            return
        if (state.lineage, state.sequence) != (session.base.lineage, session.last):
            raise ValueError("this is not the state that was loaded and appended to")
        if session.last == session.base.sequence:
            return
        try:
            append_events(self.path("events.jsonl"), session.trail.told)
            self._write_snapshot(state)
        except OSError as fault:
            raise self._failure("snapshot-write", "can't be written; the journal holds everything", fault) from fault
        session.base, session.trail = state, Trail(state)
        try:
            session.journal.reset()
        except OSError as fault:
            raise self._failure("journal-write", "can't be emptied; the snapshot is written", fault) from fault

    def _start(self, state: State) -> None:
        try:
            self._write_snapshot(state)
            journal = JournalFile(self.path("journal.jsonl"), 0, fault=self._fault)
        except OSError as fault:
            raise self._failure("snapshot-write", "can't be written", fault) from fault
        self._session = _Session(state, journal, Trail(state))

    def replace(self, state: State, told: Sequence[AuditEvent] = ()) -> tuple[str, ...]:
        """See `Store.replace`. Load again afterwards."""
        self._require_lock()
        self._require_sound(state)
        kept: list[str] = []
        journal = self.path("journal.jsonl")
        try:
            loaded = self.load()
        except codec.Unreadable:
            self._end_session()
            kept += self._set_aside()
        else:
            if loaded.state is not None:
                self.compact(loaded.state)
                kept.append(self.path("json.1").name)
            self._end_session()
        try:
            self._write_snapshot(state, rotate=bool(kept) and kept[0].endswith(".json.1"))
            # Only now: a crash before it leaves a journal that belongs to another state, and that is refused.
            journal.unlink(missing_ok=True)
            sync_directory(self._directory)
            append_events(self.path("events.jsonl"), told)
        except OSError as fault:
            raise self._failure("snapshot-write", "can't be written", fault) from fault
        return tuple(kept)

    def salvage(self) -> Salvage:
        """See `Store.salvage`."""
        try:
            found = ((self.path(suffix), read_file(self.path(suffix))) for suffix in ("json", *_EARLIER))
            snapshots = [(str(path), content[0]) for path, content in found if content is not None]
            journal = read_file(self.path("journal.jsonl"))
        except OSError as fault:
            raise self._failure("state-read", "can't be read", fault) from fault
        lines = (str(self.path("journal.jsonl")), b"" if journal is None else journal[0])
        return salvage(snapshots, lines, stack=self._stack, now=self._now())

    def newest_readable(self) -> tuple[Path, State] | None:
        """The newest snapshot, earlier ones included, that can be read; its journal is not looked at."""
        for suffix in ("json", *_EARLIER):
            path = self.path(suffix)
            try:
                content = read_file(path)
                state = None if content is None else codec.decode_snapshot(content[0], file=str(path))
                if state is not None and not any(item.severity is Severity.ERROR for item in check(state)):
                    return path, state
            except codec.Unreadable:
                continue
            except OSError as fault:
                raise self._failure("state-read", "can't be read", fault) from fault
        return None

    def _set_aside(self) -> list[str]:
        """Second names for files that can't be read, before anything else takes theirs."""
        names = []
        try:
            for suffix in ("json", "journal.jsonl"):
                if identity_of(self.path(suffix)) is None:
                    continue
                number = 1
                while identity_of(self.path(f"{suffix}.unreadable-{number}")) is not None:
                    number += 1
                aside = self.path(f"{suffix}.unreadable-{number}")
                keep(self.path(suffix), aside)
                names.append(aside.name)
            sync_directory(self._directory)
        except OSError as fault:
            raise self._failure("snapshot-write", "can't be set aside", fault) from fault
        return names

    def _write_snapshot(self, state: State, *, rotate: bool = True) -> None:
        self._require_sound(state)
        if state.stack != self._stack:
            raise ValueError(f"a state of stack {state.stack} can't be written as {self._stack}")
        self._require_standing_lock()
        path = self.path("json")
        temporary = write_temporary(path, codec.encode_snapshot(state))
        if rotate and identity_of(path) is not None:
            for number in range(KEPT - 1, 0, -1):
                if identity_of(self.path(f"json.{number}")) is not None:
                    os.replace(self.path(f"json.{number}"), self.path(f"json.{number + 1}"))
            keep(path, self.path("json.1"))
        os.replace(temporary, path)
        sync_directory(self._directory)

    def _require_sound(self, state: State) -> None:
        unsound = tuple(item for item in check(state) if item.severity is Severity.ERROR)
        if unsound:
            # The entries stay in the journal, where `state repair` finds them: a snapshot would set them in stone.
            raise Failure(ExitCode.ERROR, unsound)

    def _require_lock(self) -> None:
        if self._lock is None:
            raise RuntimeError("the state's lock is not held")

    def _require_standing_lock(self) -> None:
        """Raises `Failure` when somebody has done away with the lock under us: another run may have begun."""
        if self._lock is not None and not self._lock.stands:
            path = self.path("lock")
            message = f"{path} was deleted or replaced while this command held the lock: another one may have begun"
            hint = "nothing more is started or overwritten; when no other command runs, run it again"
            raise Failure(ExitCode.ERROR, (error("lock-lost", message, hint=hint),))

    def _require_session(self) -> _Session:
        if self._session is None:
            raise RuntimeError("load the state, or write its first snapshot, before appending")
        return self._session

    # --- audit log -------------------------------------------------------------------------------------------

    def events(self) -> tuple[AuditEvent, ...]:
        """See `Store.events`."""
        look = self._look()
        try:
            logged = read_events(self.path("events.jsonl"))
        except OSError as fault:
            raise self._failure("events-read", "can't be read", fault) from fault
        if look.snapshot is None:
            return logged
        base = codec.decode_snapshot(look.snapshot, file=str(self.path("json")))
        parsed = parse_journal(look.journal, base.lineage, file=str(self.path("journal.jsonl")))
        since = (entry for entry in parsed.entries if entry.number > base.sequence)
        try:
            trail = Trail(base, since)
        except ReplayError as fault:
            raise codec.Unreadable("journal-replay", str(fault), file=str(self.path("journal.jsonl"))) from None
        return logged + without((*trail.told, *trail.still_open()), logged)

    def close(self) -> None:
        """Release what is held."""
        if self._lock is not None:
            self._lock.release()

    def _failure(self, code: str, what: str, fault: OSError) -> Failure:
        # A write to an open file does not say which. Of a rename it is the target that people know.
        named = fault.filename2 or fault.filename
        path = named or self.path("journal.jsonl" if code.startswith("journal") else "json")
        cure = _CURES.get(fault.errno or 0, "mend that")
        hint = f"{cure}, then run the command again: it goes on where this one stopped"
        return Failure(ExitCode.ERROR, (error(code, f"{path} {what}: {fault.strerror or fault}", hint=hint),))


_CURES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "mend the permissions"),
    **dict.fromkeys((errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY), "move away what is in the way"),
    errno.ENOENT: "look what became of the state's directory (`lium-plan state recover` builds a lost one)",
}
