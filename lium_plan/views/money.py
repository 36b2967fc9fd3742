"""Money for machines: in the core it is Decimal; a document holds JSON numbers in USD."""

from __future__ import annotations

from decimal import Decimal


def number(usd: Decimal) -> float:
    """The shortest number that reads back as the same decimal."""
    return float(usd)


def optional_number(usd: Decimal | None) -> float | None:
    return None if usd is None else float(usd)
