"""One shape for JSON values in the core, so that what was replayed equals what was read back.

Mappings become plain dicts, sequences tuples; what `codec` parses has that shape from the start. Refuses what JSON
can't say: other types, and numbers that are not finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

from lium_plan.kinds.protocol import Json, Record

MAX_DEPTH = 100


def moment(value: datetime) -> str:
    """RFC 3339 with `Z`. Raises `ValueError` for a naive time."""
    if value.tzinfo is None:
        raise ValueError(f"{value.isoformat()} has no time zone")
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def freeze(value: object, depth: int = 0) -> Json:
    """`value` in its one shape. Money (`Decimal`) and aware times become strings: JSON has no exact number.

    Raises `TypeError` for what is no JSON, `ValueError` for a number that is not finite or nesting beyond 100 levels.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        if any(type(key) is not str for key in value):
            raise TypeError("every key must be a string")
        return {key: freeze(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return tuple(freeze(item, depth + 1) for item in value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is no JSON number")
        return value
    if isinstance(value, Decimal) and value.is_finite():
        return format(value, "f")
    if isinstance(value, datetime):
        return moment(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def freeze_mapping(value: Mapping[str, Json]) -> Mapping[str, Json]:
    frozen = freeze(value)
    assert isinstance(frozen, Mapping)
    return frozen


def freeze_record(record: Record) -> Record:
    return replace(record, inputs=freeze_mapping(record.inputs), attributes=freeze_mapping(record.attributes))
