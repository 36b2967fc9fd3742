"""Money as people read it: dollars with cents, and more digits only where cents would hide something.

In the core money is Decimal, USD. A price is rounded to the nearest cent; a ceiling and a minimum are rounded up, so
that nobody pays more than was shown, and what was asked for is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_HALF_UP, Decimal

DIME = Decimal("0.1")
FINEST = 5
"""Decimals that the server counts to."""
FINE_UP_TO = Decimal(10) ** 20
"""A number as large as that has no decimals to round to."""


def rate(price_per_hour_usd: Decimal, *beside: Decimal) -> str:
    """`$1.99/h`; see `price`."""
    return f"{price(price_per_hour_usd, *beside)}/h"


def price(usd: Decimal, *beside: Decimal) -> str:
    """`$1.99`, `$0.052`: to the cent; finer below a dime, and where it would look like another one of `beside`."""
    return _text(usd, ROUND_HALF_UP, _digits(usd, beside, ROUND_HALF_UP), 2)


def most(usd: Decimal, *beside: Decimal) -> str:
    """A ceiling: `$0.48` of 0.473, never less than what it allows; `beside` as for `price`."""
    return _text(usd, ROUND_CEILING, _digits(usd, beside, ROUND_CEILING), 2)


def amount(usd: Decimal) -> str:
    """`$26.76`: a sum, to the cent; below ten cents with more digits, so that it is seen to grow: `$0.0042`."""
    digits = 4 if 0 < abs(usd) < DIME else 2
    return _text(usd, ROUND_HALF_UP, digits, digits)


def summed(amounts: Sequence[Decimal]) -> tuple[tuple[str, ...], str]:
    """A column and its sum, all with the same digits, as few as it takes for the sum to be that of what is shown."""
    total = sum(amounts, Decimal(0))
    digits = next((digits for digits in range(2, FINEST) if _adds_up(amounts, total, digits)), FINEST)
    shown = [_rounded(usd, ROUND_HALF_UP, digits) for usd in amounts]
    texts = tuple(_text(usd, ROUND_HALF_UP, digits, digits) for usd in shown)
    return texts, _text(sum(shown, Decimal(0)), ROUND_HALF_UP, digits, digits)


def balance_and_minimum(balance_usd: Decimal, minimum_usd: Decimal) -> tuple[str, str]:
    """Both as text, from which the same follows as from the figures: whether the balance is more than the minimum."""
    enough = balance_usd > minimum_usd
    for digits in range(3 if 0 < minimum_usd < DIME else 2, FINEST + 1):
        held, least = _rounded(balance_usd, ROUND_DOWN, digits), _rounded(minimum_usd, ROUND_CEILING, digits)
        if (held > least) == enough:
            break
    return _text(balance_usd, ROUND_DOWN, digits, 2), _text(minimum_usd, ROUND_CEILING, digits, 2)


def _digits(usd: Decimal, beside: Sequence[Decimal], rounding: str) -> int:
    for digits in range(3 if 0 < abs(usd) < DIME else 2, FINEST):
        shown = _rounded(usd, rounding, digits)
        others = (_rounded(other, way, digits) for other in beside if other != usd for way in (ROUND_HALF_UP, rounding))
        if bool(shown) == bool(usd) and shown not in others:
            return digits
    return FINEST


def _adds_up(amounts: Sequence[Decimal], total: Decimal, digits: int) -> bool:
    """Whether rounded amounts sum up to the rounded sum, and none under a dime loses more than it may."""
    if digits < 4 and any(0 < abs(usd) < DIME for usd in amounts):
        return False
    shown = [_rounded(usd, ROUND_HALF_UP, digits) for usd in amounts]
    return sum(shown, Decimal(0)) == _rounded(total, ROUND_HALF_UP, digits)


def _rounded(usd: Decimal, rounding: str, digits: int) -> Decimal:
    if abs(usd) >= FINE_UP_TO:
        return usd
    return usd.quantize(Decimal(1).scaleb(-digits), rounding)


def _text(usd: Decimal, rounding: str, digits: int, fewest: int) -> str:
    """`$1,234.50` without the comma, zeros at the end left out down to `fewest` decimals."""
    whole, _, decimals = f"{_rounded(abs(usd), rounding, digits):f}".partition(".")
    shown = decimals.rstrip("0").ljust(fewest, "0")
    return f"{'-' if usd < 0 else ''}${whole}.{shown}"
