"""A recovered state, for people."""

from __future__ import annotations

from decimal import Decimal

from lium_plan.answers import Recovered
from lium_plan.money import rate
from lium_plan.views.columns import columns
from lium_plan.views.paint import PLAIN, Paint


def recovered_text(found: Recovered, paint: Paint = PLAIN) -> str:
    """What was taken at which address, and what was left for want of one."""
    rows = [
        (
            item.key,
            item.status,
            item.id,
            rate(item.price_per_hour_usd).removesuffix("/h") if item.price_per_hour_usd is not None else "",
        )
        for item in found.taken
    ]
    table = columns(("ADDRESS", "STATUS", "ID", "$/H"), rows, right=(3,), paint=paint) if rows else "Nothing fits.\n"
    left = sum((item.price_per_hour_usd or Decimal(0) for item in found.left), Decimal(0))
    total = sum((item.price_per_hour_usd or Decimal(0) for item in found.taken), Decimal(0))
    words = f"{len(found.taken)} recovered under lineage {found.lineage[:8]}, {rate(total)}"
    return f"{table}\n{words}" + (f"; {len(found.left)} left, {rate(left)}" if found.left else "") + ".\n"
