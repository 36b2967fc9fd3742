"""Board: what the events so far add up to: a row per address, and the dollars that went since this run began.

A fold over events. Has no clock: whoever asks says what time it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from lium_plan.addresses import Address
from lium_plan.engine.events import Event, EventType
from lium_plan.kinds.protocol import Verb

_HOUR = Decimal(3600)
UNTOUCHED = "untouched_per_hour_usd"
"""The detail of a plan's summary that says what runs of the stack without an action of the plan."""
_ENDING = (Verb.DESTROY, Verb.FORGET)


def stage(phase: str) -> str:
    """A phase without what counts down or repeats within it: `pulling image` of `pulling image ~40 s`."""
    return without_steps(phase).partition(" ~")[0]


def without_steps(phase: str) -> str:
    """`ssh` of `ssh: banner`, whose steps come again with every try. What stands behind another colon is a reason."""
    return "ssh" if phase.startswith("ssh: ") else phase


class RowState(StrEnum):
    WAITING = "waiting"
    WORKING = "working"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


_ENDS = {
    EventType.APPLY_COMPLETE: RowState.DONE,
    EventType.APPLY_ERRORED: RowState.FAILED,
    EventType.APPLY_SKIPPED: RowState.SKIPPED,
}


@dataclass(slots=True)
class Row:
    address: Address
    verb: Verb | None = None
    state: RowState = RowState.WAITING
    phase: str = ""
    started: datetime | None = None
    ended: datetime | None = None
    price_per_hour_usd: Decimal | None = None
    billed_from: datetime | None = None
    billed_to: datetime | None = None

    def seconds(self, now: datetime) -> float:
        """How long it has been worked on, or took."""
        return 0.0 if self.started is None else max(0.0, ((self.ended or now) - self.started).total_seconds())

    def spent_usd(self, now: datetime) -> Decimal:
        """What it has cost since this run saw its price."""
        if self.price_per_hour_usd is None or self.billed_from is None:
            return Decimal(0)
        seconds = max(0.0, ((self.billed_to or now) - self.billed_from).total_seconds())
        return self.price_per_hour_usd * Decimal(str(round(seconds, 3))) / _HOUR


class Board:
    """Rows in the order in which their addresses were first heard of."""

    def __init__(self) -> None:
        self._rows: dict[Address, Row] = {}
        self._untouched_per_hour_usd = Decimal(0)
        self._untouched_from: datetime | None = None

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, address: Address) -> Row | None:
        return self._rows.get(address)

    def take(self, event: Event) -> bool:
        """Fold one event in. True when its address entered another state, or another stage of its work."""
        untouched = event.details.get(UNTOUCHED)
        if event.type is EventType.CHANGE_SUMMARY and isinstance(untouched, int | float):
            self._untouched_per_hour_usd = Decimal(str(untouched))
            self._untouched_from = event.at
        if event.address is None:
            return False
        row = self._rows.setdefault(event.address, Row(event.address))
        before = (row.state, stage(row.phase))
        row.verb = event.verb or row.verb
        # A planned price is not spent: money runs from when a rent's price is known to be real.
        if event.price_per_hour_usd is not None and event.type is not EventType.PLANNED_CHANGE:
            row.price_per_hour_usd = event.price_per_hour_usd
            row.billed_from = row.billed_from or event.at
        if event.type in (EventType.APPLY_START, EventType.PHASE):
            row.state = RowState.WORKING
            row.started = row.started or event.at
            row.phase = event.phase or row.phase
        elif event.type in _ENDS:
            row.state = _ENDS[event.type]
            row.ended = event.at
            row.phase = event.phase or row.state.value
            if row.state is RowState.DONE and row.verb in _ENDING:
                row.billed_to = event.at
        return before != (row.state, stage(row.phase))

    def working(self) -> tuple[Row, ...]:
        return tuple(row for row in self if row.state is RowState.WORKING)

    def count(self, state: RowState) -> int:
        return sum(1 for row in self if row.state is state)

    def spent_usd(self, now: datetime) -> Decimal:
        began = self._untouched_from
        seconds = max(0.0, (now - began).total_seconds()) if began is not None else 0.0
        beside = self._untouched_per_hour_usd * Decimal(str(round(seconds, 3))) / _HOUR
        return sum((row.spent_usd(now) for row in self), beside)

    def per_hour_usd(self) -> Decimal:
        """What the stack costs now: the things of this run that exist, and what runs beside them."""
        prices = (row.price_per_hour_usd for row in self if row.billed_from is not None and row.billed_to is None)
        return sum((price for price in prices if price is not None), self._untouched_per_hour_usd)
