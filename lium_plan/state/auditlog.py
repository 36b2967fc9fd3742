"""The audit log as a file: lines are appended, never changed, and never twice.

Kept apart from the journal because it outlives snapshots. No command acts on it, so damage to it stops nobody.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from lium_plan.state.events import AuditEvent, decode_events, encode_event
from lium_plan.state.files import open_file, read_file, sync, write_all

_TAIL = 256 * 1024


def append_events(path: Path, told: Sequence[AuditEvent]) -> None:
    """Add what is not there yet, durably. A crash may have written it just before. Raises `OSError`."""
    if not told:
        return
    lines = b"".join(map(encode_event, told))
    handle = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        size = os.fstat(handle).st_size
        # The end of the log is enough to know what the last attempt had written.
        start = max(0, size - _TAIL - len(lines))
        logged, used = decode_events(os.pread(handle, size - start, start))
        fresh = without(told, logged)
        os.ftruncate(handle, start + used)
        write_all(handle, b"".join(map(encode_event, fresh)), start + used)
        sync(handle)
    finally:
        os.close(handle)


def read_events(path: Path) -> tuple[AuditEvent, ...]:
    """Everything in the log, oldest first. Raises `OSError`."""
    content = read_file(path)
    return () if content is None else decode_events(content[0])[0]


def without(told: Sequence[AuditEvent], logged: Sequence[AuditEvent]) -> tuple[AuditEvent, ...]:
    """The events of `told` that are not among `logged`."""
    known = {_identity(event) for event in logged}
    return tuple(event for event in told if _identity(event) not in known)


def _identity(event: AuditEvent) -> tuple[str, int, datetime]:
    """With the time: a state put in place of another may count anew."""
    return event.lineage, event.number, event.at
