"""What PID 1 prints: the last part of it, in lines."""

from __future__ import annotations

from collections import deque

_KEPT_BYTES = 1 << 20
_LONGEST_LINE = 16 << 10


class Output:
    """The last mebibyte of lines. A line longer than 16 KiB is cut into several."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._open = b""

    def add(self, data: bytes) -> None:
        *complete, self._open = (self._open + data).split(b"\n")
        for line in complete:
            self._keep(line)
        while len(self._open) > _LONGEST_LINE:
            self._keep(self._open[:_LONGEST_LINE])
            self._open = self._open[_LONGEST_LINE:]

    def note(self, text: str) -> None:
        """A line of the simulator's own."""
        self.add(f"[simulator] {text}\n".encode())

    def tail(self, count: int) -> tuple[str, ...]:
        lines = [*self._lines, self._open] if self._open else list(self._lines)
        return tuple(line.decode("utf-8", "replace").rstrip("\r") for line in lines[-count:]) if count > 0 else ()

    def _keep(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line) + 1
        while self._size > _KEPT_BYTES:
            self._size -= len(self._lines.popleft()) + 1
