"""Finding and ending processes that no namespace holds together, by a mark in their environment.

Every confined process starts with `LIUM_SIM_POD=<mark>`; children inherit it. A program that wipes its environment
is still found as long as its parent is; one that also left its parent is not. Only Linux shows other processes'
environments: elsewhere the callers' process groups are all there is.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection

VARIABLE = "LIUM_SIM_POD"


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when it is gone or the system does not say."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    # The command's name, in parentheses, may hold anything; fields are counted after it.
    return text.rpartition(")")[2].split()


def others_run(firsts: Collection[int], mark: str) -> bool:
    """Whether anything runs in containers whose first processes are `firsts` that isn't of a first one's own session.

    Looks into their pid namespaces, and for processes marked `mark` where they share the host's. Everything that comes
    in over SSH begins a session of its own; a finished process that nobody reaped does not run.
    """
    host = _namespace("self")
    namespaces = {_namespace(pid) for pid in firsts} - {host, None}
    marked = _marked(mark)
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit() and (int(name) in marked or _namespace(name) in namespaces):
            fields = _stat(int(name))
            if fields is not None and fields[0] not in "ZX" and int(fields[3]) not in firsts:
                return True
    return False


def _namespace(pid: int | str) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return None


def end_marked(mark: str) -> None:
    """Kill every process whose mark starts with `mark`, and their descendants, until none is left."""
    spared = {os.getpid(), os.getppid()}
    for _ in range(20):  # a process may fork while we look; one that outruns 20 looks means to
        found = _marked(mark) - spared
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _marked(mark: str) -> set[int]:
    wanted = f"{VARIABLE}={mark}".encode()
    parents: dict[int, int] = {}
    marked: set[int] = set()
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return set()
    for pid in pids:
        fields = _stat(pid)
        if fields is None or fields[0] in "ZX":
            continue
        parents[pid] = int(fields[1])
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if any(entry.startswith(wanted) for entry in file.read().split(b"\0")):
                marked.add(pid)
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in marked} - marked
        grown = bool(children)
        marked |= children
    return marked
