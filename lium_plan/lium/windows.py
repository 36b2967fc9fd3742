"""The arithmetic of rate limits: pure functions over numbers, without a clock, a loop or the network.

Owns the limits that are known beforehand (contract §1.6) and the question "when may the next one be sent?". Refuses to
wait: that is `limits.py`. Planning's caller uses it to say how long the limits alone will take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Family(StrEnum):
    """Requests that the server counts together. Families that have no known limit are named by method and route."""

    TEMPLATE_CREATE = "POST /templates"
    VOLUME_CREATE = "POST /volumes"
    CREDENTIAL_CREATE = "POST /docker-credentials"
    RENT = "POST /executors/{id}/rent"
    POD_LIST = "GET /pods"
    FEED = "GET /public/v1/nodes"


@dataclass(frozen=True, slots=True)
class Window:
    """At most `count` requests in any `period_s` seconds."""

    count: int
    period_s: float

    def __post_init__(self) -> None:
        if self.count < 1 or self.period_s <= 0:
            raise ValueError(f"a window needs a positive count and period, not {self.count} in {self.period_s} s")

    @property
    def clear_s(self) -> float:
        """When a request leaves the window, with a margin for the two clocks' different rates."""
        return self.period_s + max(0.05, self.period_s * 0.0002)


KNOWN_WINDOWS: Mapping[str, tuple[Window, ...]] = MappingProxyType(
    {
        Family.TEMPLATE_CREATE: (Window(1, 5.0), Window(5, 60.0), Window(20, 3600.0)),
        Family.POD_LIST: (Window(60, 60.0),),
        Family.FEED: (Window(60, 60.0),),
    }
)
"""Limits known beforehand (contract §1.6). Others are learned from 429s."""


def earliest_s(windows: Sequence[Window], stamps: Sequence[float], now: float) -> float:
    """The first moment, not before `now`, at which one more request fits every window.

    `stamps` are the times of earlier requests in rising order, on the clock of `now`.
    """
    moment = now
    for window in windows:
        if len(stamps) >= window.count:
            moment = max(moment, stamps[-window.count] + window.clear_s)
    return moment


def schedule_s(
    windows: Sequence[Window], count: int, *, stamps: Sequence[float] = (), now: float = 0.0
) -> tuple[float, ...]:
    """When each of `count` further requests can leave if each is sent as soon as it may and answered at once."""
    taken = list(stamps)
    moment = now
    sent: list[float] = []
    for _ in range(count):
        moment = earliest_s(windows, taken, moment)
        taken.append(moment)
        sent.append(moment)
    return tuple(sent)


def estimate_s(family: str, count: int, *, stamps: Sequence[float] = (), now: float = 0.0) -> float:
    """Seconds from `now` until the last of `count` requests of a family has left; 0 where no limit is known.

    >>> round(estimate_s(Family.TEMPLATE_CREATE, 2))
    5
    """
    sent = schedule_s(KNOWN_WINDOWS.get(family, ()), count, stamps=stamps, now=now)
    return max(0.0, sent[-1] - now) if sent else 0.0


def longest_period_s(windows: Sequence[Window]) -> float:
    """The longest period among the windows, 0 without any: older stamps can be forgotten."""
    return max((window.clear_s for window in windows), default=0.0)
