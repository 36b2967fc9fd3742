"""The standard streams, there whatever we were started with.

A descriptor that was closed for us (`>&-`) would go to the next file that is opened, the journal perhaps, and what is
printed would be written into it.
"""

from __future__ import annotations

import os
import sys

# What is read from a closed stdin or written to a closed stdout is an error, as it would be without us: these two are
# opened for the opposite. What can't be said on stderr is not said.
_STREAMS = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))


def open_missing_streams() -> None:
    """Call it before any file is opened."""
    for number, (name, flags, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
