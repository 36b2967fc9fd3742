"""A process on a terminal of its own."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

DEADLINE_S = 20.0


class Terminal:
    """Runs a command on a pseudo-terminal; `wait_for` reads what it shows until a text appears."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: str | os.PathLike[str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            tuple(command), stdin=theirs, stdout=theirs, stderr=theirs, env=dict(env), cwd=cwd, start_new_session=True
        )
        os.close(theirs)
        self.shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._ours >= 0:
            os.close(self._ours)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def hang_up(self) -> None:
        """Close the terminal under the process."""
        os.close(self._ours)
        self._ours = -1

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.shown:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} never appeared in:\n{self.shown}")

    def end(self) -> int:
        """Everything that it still shows, and its exit code."""
        deadline = time.monotonic() + DEADLINE_S
        while self._ours >= 0 and self._read(deadline):
            pass
        return self.process.wait(timeout=DEADLINE_S)

    def _read(self, deadline: float) -> bool:
        readable, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._ours, 65536) if readable else b""
        except OSError:
            # Linux's way to say that nobody has the other end open any more.
            data = b""
        self.shown += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)
