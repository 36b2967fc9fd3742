"""Values and changes of fields for people: short, on one line, without a secret."""

from __future__ import annotations

import json
from collections.abc import Mapping

from lium_plan.kinds.protocol import FieldChange, Json
from lium_plan.views.paint import one_line, printable

KNOWN_AFTER_APPLY = "(known after apply)"
SENSITIVE = "(sensitive)"
_LIST_SHOWN = 4
_VALUE_WIDTH = 72


def value_words(value: Json) -> str:
    """`4h`, `[a, b, … 7 more]`, `{HF_HOME: /root/hf}`; stand-ins of secrets and unknowns in words."""
    return one_line(_words(value), _VALUE_WIDTH)


def full_value_words(value: object) -> str:
    """An output's value in full: text as it is, everything else as JSON."""
    return printable(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=list)


def _words(value: Json) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, str):
        return value if value and value == value.strip() else json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, Mapping):
        if "$sensitive" in value:
            return SENSITIVE
        if "$unknown" in value:
            return KNOWN_AFTER_APPLY
        pairs = [f"{key}: {_words(item)}" for key, item in value.items()]
        return "{" + _folded(pairs) + "}"
    return "[" + _folded([_words(item) for item in value]) + "]"


def _folded(words: list[str]) -> str:
    if len(words) <= _LIST_SHOWN + 1:
        return ", ".join(words)
    return ", ".join(words[:_LIST_SHOWN]) + f", … {len(words) - _LIST_SHOWN} more"


def change_words(change: FieldChange) -> str:
    """`ttl: 4h -> 6h`, `env.TOKEN: (sensitive, changed)`, `endpoint: (known after apply)  # forces replacement`."""
    if change.sensitive:
        words = f"{change.path}: (sensitive, changed)"
    elif change.unknown:
        before = "" if change.before is None else f"{value_words(change.before)} -> "
        words = f"{change.path}: {before}{KNOWN_AFTER_APPLY}"
    else:
        words = f"{change.path}: {value_words(change.before)} -> {value_words(change.after)}"
    if change.forces:
        words += "  # forces replacement" if change.forces == "replace" else f"  # forces a {change.forces}"
    return words
