"""Crash reports: what we need to mend our bug, without anything of the user's.

A report holds types, files, lines and functions. Values stay out of it, messages of exceptions too: either may quote
a secret.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from lium_plan import __version__


def report_crash(fault: BaseException, arguments: Sequence[str]) -> str:
    """Write the report, and return the line that tells the user."""
    where = _place(fault)
    kind = type(fault).__name__
    try:
        handle, path = tempfile.mkstemp(prefix="lium-plan-crash-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(crash_text(fault, arguments))
    except OSError:
        return f"error: a bug in lium-plan: {kind} at {where}; the report could not be written\n"
    return f"error: a bug in lium-plan: {kind} at {where}; what we need to mend it is in {path} (no secrets in it)\n"


def crash_text(fault: BaseException, arguments: Sequence[str]) -> str:
    from lium_plan.cli.main import COMMANDS

    given = [word.partition("=")[0] for word in arguments if word.startswith("-") and word != "--"]
    # A short option may carry its value: `-fFILE`.
    options = [word if word.startswith("--") else word[:2] for word in given]
    command = next((word for word in arguments if word in COMMANDS), "")
    lines = [
        f"lium-plan {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        f"at {datetime.now(UTC).isoformat(timespec='seconds')}",
        f"command: {command}  options: {' '.join(options)}",
        "",
        *_chain(fault),
    ]
    return "\n".join(lines) + "\n"


def _chain(fault: BaseException) -> Iterator[str]:
    seen: set[int] = set()
    current: BaseException | None = fault
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        missing = f" ({current.name})" if isinstance(current, ImportError) else ""
        yield f"{type(current).__module__}.{type(current).__qualname__}{missing}"
        for frame in traceback.extract_tb(current.__traceback__):
            yield f"  {_short(frame.filename)}:{frame.lineno} in {frame.name}"
        if isinstance(current, BaseExceptionGroup):
            for index, member in enumerate(current.exceptions):
                yield f"  member {index}:"
                yield from (f"    {line}" for line in _chain(member))
        current = current.__cause__ or current.__context__
        if current is not None:
            yield "caused by, or while handling:"


def _place(fault: BaseException) -> str:
    frames = traceback.extract_tb(fault.__traceback__)
    ours = [frame for frame in frames if "lium_plan" in frame.filename] or list(frames)
    return f"{_short(ours[-1].filename)}:{ours[-1].lineno}" if ours else "an unknown place"


def _short(path: str) -> str:
    """The path from its import root: no home directory in a report."""
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    roots = sorted((root for root in (ours, *sys.path) if root), key=len, reverse=True)
    for root in roots:
        if path.startswith(root + os.sep):
            return path[len(root) + 1 :]
    return os.path.basename(path)
