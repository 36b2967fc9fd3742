"""Money for people and for machines. In the core it is Decimal; a document holds JSON numbers in USD."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

CENT = Decimal("0.01")
DIME = Decimal("0.1")
SMALL = Decimal("0.0001")
SHOWN = Decimal("0.00001")


def rate(price_per_hour_usd: Decimal) -> str:
    """`$1.99/h`, with more digits (at most five) only where they are needed: a ceiling is exact."""
    return f"{price(price_per_hour_usd)}/h"


def price(usd: Decimal) -> str:
    """`$1.99`, `$0.23517`: never rounded to less than what is compared."""
    exact = usd.quantize(SHOWN, ROUND_HALF_UP)
    cents = exact.quantize(CENT, ROUND_HALF_UP)
    text = f"{cents:f}" if cents == exact else f"{exact.normalize():f}"
    return f"-${text[1:]}" if text.startswith("-") else f"${text}"


def amount(usd: Decimal) -> str:
    """`$26.76`: a sum, to the cent; below ten cents with more digits, so that it is seen to grow: `$0.0042`."""
    small = 0 < abs(usd) < DIME
    text = f"{usd.quantize(SMALL if small else CENT, ROUND_HALF_UP):f}"
    return f"-${text[1:]}" if text.startswith("-") else f"${text}"


def number(usd: Decimal) -> float:
    """For JSON: the shortest number that reads back as the same decimal."""
    return float(usd)


def optional_number(usd: Decimal | None) -> float | None:
    return None if usd is None else float(usd)
