"""Who may write: a lock that the kernel frees when its owner dies, a record of who that is, and holds set by hand.

The record is for people's eyes: the lock itself never depends on it, so a stale one blocks nobody. A hold is the
opposite: a record alone, honoured without a living owner until it is lifted or ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from lium_plan.diagnostics import ExitCode, Failure, error
from lium_plan.state.files import is_at, open_file, read_file, write_all, write_file
from lium_plan.state.shape import ShapeError, shape_of
from lium_plan.state.values import moment


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that holds a lock, and for whom."""

    who: str
    host: str
    pid: int
    process_started: str | None
    """The kernel's word for when the process was started, so that a reused pid is recognised; None: not known."""
    since: datetime
    command: str
    run: str


@dataclass(frozen=True, slots=True)
class Hold:
    """A lock set by hand."""

    who: str
    reason: str
    since: datetime
    until: datetime | None
    """None: until somebody lifts it."""


class Liveness(StrEnum):
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """On another host."""


def process_started(pid: int) -> str | None:
    """Boot and clock tick at which a process of this host was started; None when the system doesn't say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # The process' name, in brackets, may hold spaces and brackets itself.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return f"{boot}:{fields[19]}"


def this_process(*, who: str, command: str, run: str, since: datetime) -> Owner:
    """The owner record of the calling process."""
    pid = os.getpid()
    return Owner(who, socket.gethostname(), pid, process_started(pid), since, command, run)


def liveness(owner: Owner) -> Liveness:
    """Whether the process that a record names still runs."""
    if owner.host != socket.gethostname():
        return Liveness.UNKNOWN
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return Liveness.DEAD
    except PermissionError:
        pass
    started = process_started(owner.pid)
    reused = started is not None and owner.process_started is not None and started != owner.process_started
    return Liveness.DEAD if reused else Liveness.ALIVE


_OWNER, _HOLD = shape_of(Owner), shape_of(Hold)


class FileLock:
    """A held lock. Releasing it twice is harmless."""

    def __init__(self, handle: int, path: Path, previous: Owner | None, on_release: Callable[[], None]) -> None:
        self._handle: int | None = handle
        self._path = path
        self.previous = previous
        """Whose record was found: a run that ended without releasing."""
        self._on_release = on_release

    @property
    def stands(self) -> bool:
        """False when the file was deleted or replaced: then others can take a lock of their own beside this one."""
        return self._handle is not None and is_at(self._handle, self._path)

    def release(self) -> None:
        if self._handle is None:
            return
        self._on_release()
        handle, self._handle = self._handle, None
        try:
            os.ftruncate(handle, 0)
        except OSError:
            # A disk that refuses: the kernel's lock goes with the descriptor, and only our record stays.
            pass
        finally:
            os.close(handle)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def try_lock(path: Path, owner: Owner, on_release: Callable[[], None]) -> FileLock | None:
    """Take the lock, or None when somebody has it. Raises `OSError`; `Failure` where locks don't exist."""
    handle = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError as fault:
            if fault.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                message = f"{path}: this file system has no locks ({fault.strerror}): nothing keeps two runs apart"
                hint = "keep the state on a local disk: --state file:DIR"
                raise Failure(ExitCode.ERROR, (error("lock-unsupported", message, hint=hint),)) from None
            raise
    except BaseException:
        os.close(handle)
        raise
    if not is_at(handle, path):
        # Deleted between the two calls: whoever looks for the lock now finds another file, and so do we next time.
        os.close(handle)
        return None
    previous = read_owner(path)
    try:
        os.ftruncate(handle, 0)
        write_all(handle, json.dumps(_OWNER.encode(owner), indent=1).encode() + b"\n", 0)
    except OSError:
        # A full disk: the kernel's lock holds without the record, others only see less of who has it.
        pass
    return FileLock(handle, path, previous, on_release)


def read_owner(path: Path) -> Owner | None:
    """The record in a lock file; None when there is none, or it is being written."""
    try:
        content = read_file(path)
        return None if content is None else _OWNER.decode(json.loads(content[0]), ())
    except (OSError, ValueError, RecursionError):
        return None


def to_second(at: datetime) -> str:
    """For people."""
    return moment(at.replace(microsecond=0))


def lock_held(stack: str, path: Path, owner: Owner | None) -> Failure:
    """Exit 5: who, where, since when, alive or not."""
    hint = "wait for it with --lock-timeout 5m; the lock frees itself when its process ends"
    if owner is None:
        message = f"the state of stack {stack} is locked by a process that left no record in {path}"
    else:
        lives = liveness(owner)
        if owner.command == "lium-plan apply" and lives is not Liveness.DEAD:
            hint += (
                f". If it only waits for tasks: Ctrl-C there (kill -INT {owner.pid} on {owner.host}) leaves them "
                "running, and the next apply attaches to them"
            )
        alive = {
            Liveness.ALIVE: "that process is running",
            Liveness.DEAD: "that process is gone, but a child of it still holds the lock",
            Liveness.UNKNOWN: "whether it still runs can't be seen from here",
        }[lives]
        message = (
            f"the state of stack {stack} is locked by {owner.who} since {to_second(owner.since)}: `{owner.command}`, "
            f"run {owner.run}, pid {owner.pid} on {owner.host}; {alive}"
        )
    return Failure(ExitCode.LOCKED, (error("lock-held", message, hint=hint),))


# --- holds ---------------------------------------------------------------------------------------------------


def write_hold(path: Path, hold: Hold) -> None:
    write_file(path, json.dumps(_HOLD.encode(hold), indent=1).encode() + b"\n")


def read_hold(path: Path, now: datetime) -> Hold | None:
    """The hold in force at `now`. An unreadable one raises `Failure` (exit 5): it was set to stop everybody."""
    content = read_file(path)
    if content is None:
        return None
    try:
        hold: Hold = _HOLD.decode(json.loads(content[0]), ())
    except (ShapeError, ValueError, RecursionError):
        message = f"{path} is a lock set by hand, and can't be read"
        hint = "look at it, then lift it with `lium-plan state unlock`"
        raise Failure(ExitCode.LOCKED, (error("lock-held", message, hint=hint),)) from None
    return hold if hold.until is None or hold.until > now else None


def held_by_hand(stack: str, hold: Hold) -> Failure:
    until = "until it is lifted" if hold.until is None else f"until {to_second(hold.until)}"
    who = f"by {hold.who} since {to_second(hold.since)}"
    message = f"the state of stack {stack} is locked by hand {who}, {until}: {hold.reason}"
    hint = "lift it with `lium-plan state unlock`"
    return Failure(ExitCode.LOCKED, (error("lock-held", message, hint=hint),))
