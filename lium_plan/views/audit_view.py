"""The audit log, for people and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from lium_plan.money import rate
from lium_plan.state.events import AuditEvent
from lium_plan.views.columns import columns
from lium_plan.views.diagnostics_json import document
from lium_plan.views.documents import Document
from lium_plan.views.money import optional_number
from lium_plan.views.paint import PLAIN, Paint, one_line
from lium_plan.views.times import stamp


def audit_text(events: Sequence[AuditEvent], paint: Paint = PLAIN) -> str:
    if not events:
        return "Nothing was done yet.\n"
    headers = ("AT", "ADDRESS", "ACTION", "RESULT", "$/H", "ID", "WHO", "RUN")
    return columns(headers, [_row(event) for event in events], right=(4,), paint=paint, least=(7, 6, 5, 4))


def _row(event: AuditEvent) -> tuple[str, ...]:
    price = _price(event)
    return (
        stamp(event.at.replace(microsecond=0)),
        event.address,
        event.action,
        one_line(event.result, 60),
        rate(price).removesuffix("/h") if price is not None else "",
        event.id or "",
        one_line(event.who, 40),
        event.run,
    )


def audit_json(events: Sequence[AuditEvent]) -> Document:
    return document({"events": [_json(event) for event in events]}, ())


def _json(event: AuditEvent) -> Document:
    return {
        "at": stamp(event.at),
        "run": event.run,
        "who": event.who,
        "address": event.address,
        "action": event.action,
        "id": event.id,
        "price_per_hour_usd": optional_number(_price(event)),
        "result": event.result,
    }


def _price(event: AuditEvent) -> Decimal | None:
    return Decimal(event.price_per_hour_usd) if event.price_per_hour_usd is not None else None
