"""Sliding-window rate limits (contract §1.6). Kept in memory only: a restarted server has forgotten them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Window:
    calls: int
    seconds: float


@dataclass(slots=True)
class Limits:
    """Past calls by (who, what)."""

    _calls: dict[tuple[str, str], deque[datetime]] = field(default_factory=dict)

    def wait(self, who: str, what: str, windows: Sequence[Window], *, now: datetime, speed: float) -> timedelta | None:
        """How long until one more call fits; None when it fits now. Counts nothing."""
        calls = self._calls.get((who, what))
        if not calls:
            return None
        longest = max(window.seconds for window in windows) / speed
        while calls and (now - calls[0]).total_seconds() >= longest:
            calls.popleft()
        waits = []
        for window in windows:
            if len(calls) >= window.calls:
                free_at = calls[-window.calls] + timedelta(seconds=window.seconds / speed)
                if free_at > now:
                    waits.append(free_at - now)
        return max(waits, default=None)

    def count(self, who: str, what: str, *, now: datetime) -> None:
        self._calls.setdefault((who, what), deque(maxlen=4096)).append(now)
