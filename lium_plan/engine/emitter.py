"""Gives events their number and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic
from lium_plan.engine.events import Event, EventType
from lium_plan.kinds.protocol import Json, Verb


class Emitter:
    def __init__(self, on_event: Callable[[Event], None], now: Callable[[], datetime]) -> None:
        self._on_event = on_event
        self._now = now
        self._seq = 0

    def emit(
        self,
        type: EventType,
        *,
        address: Address | None = None,
        verb: Verb | None = None,
        phase: str | None = None,
        price_per_hour_usd: Decimal | None = None,
        message: str | None = None,
        diagnostic: Diagnostic | None = None,
        details: Mapping[str, Json] | None = None,
    ) -> None:
        self._seq += 1
        self._on_event(
            Event(
                type,
                self._now(),
                self._seq,
                address,
                verb,
                phase,
                price_per_hour_usd,
                message,
                diagnostic,
                dict(details or {}),
            )
        )
