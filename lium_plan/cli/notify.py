"""Notify: a command of the user's own that is told when an apply or destroy has ended.

It gets one JSON document on stdin, and its output goes to stderr. Whatever becomes of it changes nothing about the run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress

from lium_plan.cli.printer import Printer
from lium_plan.diagnostics import Diagnostic, warning

WITHIN_S = 30.0


def notify(
    command: str, document: Mapping[str, object], printer: Printer, *, within_s: float = WITHIN_S
) -> Diagnostic | None:
    """Run it with `sh -c` and wait for it. What went wrong, if anything did.

    Files rather than pipes: it need not read what it is told, and what it leaves in the background holds up nobody.
    """
    try:
        with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as said:
            told.write((json.dumps(document, ensure_ascii=False) + "\n").encode("utf-8", "surrogateescape"))
            told.seek(0)
            why = _run(command, told.fileno(), said.fileno(), within_s)
            said.seek(0)
            printer.talk(said.read().decode(errors="replace"))
    except OSError as fault:
        why = f"could not be started: {fault.strerror}"
    return None if why is None else warning("notify", f"--notify: the command {why}")


def _run(command: str, told: int, said: int, within_s: float) -> str | None:
    """What became of it, unless it ended well."""
    process = subprocess.Popen(("sh", "-c", command), stdin=told, stdout=said, stderr=said, start_new_session=True)
    try:
        status = process.wait(within_s)
    except subprocess.TimeoutExpired:
        why = f"had not ended after {within_s:.0f} s, and was stopped"
    except KeyboardInterrupt:
        why = "was interrupted"
    else:
        return f"ended with {status}" if status else None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return why
