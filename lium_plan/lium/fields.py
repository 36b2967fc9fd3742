"""Tolerant reading of single wire values. Total but for `row_of` and `identity`, which refuse what can't be a row."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from types import MappingProxyType

_MAX_DIGITS = 40
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
MOST = 10**18
"""Whole numbers below it need no second look."""
MOST_USD = Decimal(10) ** 12
_NOTHING: Mapping[str, object] = MappingProxyType({})


class RowError(ValueError):
    """A value that can't be a row of its kind. Its text never quotes the value."""


def row_of(value: object, kind: str) -> Mapping[str, object]:
    """The row itself; RowError for anything that isn't an object."""
    if not isinstance(value, dict):
        raise RowError(f"a {kind} should be an object, not {json_type(value)}")
    return value


def identity(row: Mapping[str, object], kind: str, *, key: str = "id") -> str:
    """The row's id; RowError without one, because a row that can't be told apart must not be taken for absent."""
    found = as_text(row.get(key))
    if not found:
        raise RowError(f"a {kind} without `{key}`")
    return found


def json_type(value: object) -> str:
    """What a parsed JSON value is, in JSON's words."""
    if value is None:
        return "null"
    for kind, name in ((bool, "a boolean"), (str, "a string"), (list, "a list"), (dict, "an object")):
        if isinstance(value, kind):
            return name
    return "a number"


def as_text(value: object) -> str | None:
    """A non-empty string that can be encoded; numbers are written out, the rest is None."""
    if isinstance(value, str):
        # An escape of half a character (`\ud800`) is JSON, and no text: nothing could be written with it in it.
        return (value if value.isascii() else value.encode("utf-8", "replace").decode()) or None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return None


def as_uuid(value: object) -> str | None:
    """An id that can be one of the server's; None for every other text."""
    text = as_text(value)
    return text if text is not None and _UUID.fullmatch(text) else None


def as_strings(value: object) -> tuple[str, ...]:
    """The strings of a list; a single string is a list of one."""
    items = value if isinstance(value, list) else [value]
    return tuple(text for item in items if (text := as_text(item)) is not None)


def as_bool(value: object) -> bool | None:
    """A JSON boolean, or its name as a string."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower())
    return None


def as_decimal(value: object) -> Decimal | None:
    """A finite number, also from a string, with the digits that were sent."""
    number = _finite(value)
    return number if number is not None and abs(number.adjusted()) <= _MAX_DIGITS else None


def as_usd(value: object) -> Decimal | None:
    """An amount of money; more than `MOST_USD` is so much: still too dear for anybody, and can be reckoned with."""
    number = _finite(value)
    return None if number is None else max(-MOST_USD, min(number, MOST_USD))


def _finite(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    text = value.strip() if isinstance(value, str) else _digits(value)
    if not text or len(text) > _MAX_DIGITS:
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _digits(value: float) -> str:
    # repr of an int beyond the interpreter's digit limit raises; such a number is no amount of anything.
    if isinstance(value, int) and value.bit_length() > 128:
        return ""
    return repr(value)


def as_int(value: object) -> int | None:
    """A whole number, also `"1"` and `1.0`; a fraction is None."""
    if type(value) is int and -MOST < value < MOST:
        return value
    if type(value) is str and len(value) < 16 and value.isascii() and value.isdigit():
        return int(value)
    number = as_decimal(value)
    if number is None or number != number.to_integral_value():
        return None
    return int(number)


def as_time(value: object) -> datetime | None:
    """An ISO-8601 moment as aware UTC; naive ones mean UTC (contract §0.2).

    None outside 2000 to 2199, as with the `Date` of an answer: year 1 or 9999 means that there is none, and nothing
    could be added to it.
    """
    if not isinstance(value, str) or not value.strip() or len(value) > 64:
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return moment if 2000 <= moment.year < 2200 else None


def as_mapping(value: object) -> Mapping[str, object]:
    """An object, or an empty one."""
    return value if isinstance(value, dict) else _NOTHING


def as_ports(value: object) -> Mapping[int, int]:
    """Container port -> external port, from an object or a JSON string of one (contract §3.2)."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    pairs = ((as_int(inner), as_int(outer)) for inner, outer in as_mapping(value).items())
    return {
        inner: outer
        for inner, outer in pairs
        if inner is not None and outer is not None and 0 < inner < 65536 and 0 < outer < 65536
    }
