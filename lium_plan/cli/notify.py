"""Notify: a command of the user's own that is told when an apply or destroy has ended.

It gets one JSON document on stdin, and its output goes to stderr. Whatever becomes of it changes nothing about the run.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping

from lium_plan.cli.printer import Printer
from lium_plan.diagnostics import Diagnostic, warning

WITHIN_S = 30.0


def notify(command: str, document: Mapping[str, object], printer: Printer) -> Diagnostic | None:
    """Run it with `sh -c` and wait for it. What went wrong, if anything did."""
    try:
        done = subprocess.run(
            ("sh", "-c", command),
            input=json.dumps(document, ensure_ascii=False) + "\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return warning("notify", f"--notify: the command had not ended after {WITHIN_S:.0f} s, and was stopped")
    except OSError as fault:
        return warning("notify", f"--notify: the command could not be started: {fault.strerror}")
    except KeyboardInterrupt:
        return warning("notify", "--notify: the command was interrupted")
    printer.talk(done.stdout)
    return warning("notify", f"--notify: the command ended with {done.returncode}") if done.returncode else None
