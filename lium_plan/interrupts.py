"""Interrupt: how a run learns that it should end.

Owns the counting of signals (SIGINT, SIGTERM, SIGHUP). Decides nothing: the first one asks a run to start nothing new
and to save, the second one to stop now. Until `arm` is called nothing has been sent, so a signal simply ends the task.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Two events that are set by the first and by the second signal."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.count = 0
        self._armed = False
        self._cancel: Callable[[], object] | None = None

    @property
    def armed(self) -> bool:
        return self._armed

    def arm(self) -> None:
        """From here on a signal must not tear the run down: there may be something to save."""
        self._armed = True

    def trigger(self) -> None:
        """Count one signal. Call on the event loop's thread."""
        self.count += 1
        self.first.set()
        if self.count > 1:
            self.second.set()
        if (not self._armed or self.count > 2) and self._cancel is not None:
            # A third one: whatever should have stopped did not.
            self._cancel()

    @contextmanager
    def listening(self, cancel: Callable[[], object], *, to_the_end: bool = False) -> Iterator[Interrupt]:
        """Take over the signals of the running loop; `cancel` ends the task while the interrupt is not armed.

        Afterwards they mean what they meant before. `to_the_end`: but once one has come, the process is ending, and is
        left to do so.
        """
        loop = asyncio.get_running_loop()
        self._cancel = cancel
        # What was ignored when we were started stays ignored: `nohup` means it.
        taken = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in taken:
            loop.add_signal_handler(number, self.trigger)
        try:
            yield self
        finally:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, taken)
            try:
                for number in taken:
                    loop.remove_signal_handler(number)
                if to_the_end and self.count:
                    ignore_signals()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._cancel = None


def ignore_signals() -> None:
    """From here on the process only ends: an impatient Ctrl-C must not take its exit code and its last words away."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
