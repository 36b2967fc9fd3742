"""A part of a manifest as YAML, in the plain subset that every reader understands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from lium_plan.kinds.protocol import Json

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9/_-]*(?: ?[A-Za-z0-9/._-]+)*")
_NOT_STRINGS = frozenset("true false null yes no on off y n".split())


def stanza_text(sections: Mapping[str, Mapping[str, Mapping[str, Json]]]) -> str:
    """Block style; texts are quoted wherever another reader might see something else in them."""
    return "".join(f"{line}\n" for name in sections for line in _lines(name, sections[name], 0))


def _lines(key: str, value: Json, depth: int) -> Iterator[str]:
    lead = "  " * depth + f"{key}:"
    if isinstance(value, Mapping) and value:
        yield lead
        for name, inner in value.items():
            yield from _lines(name, inner, depth + 1)
    else:
        yield f"{lead} {_flow(value)}"


def _flow(value: Json) -> str:
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) is not None and value.lower() not in _NOT_STRINGS
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Sequence):
        return f"[{', '.join(_flow(item) for item in value)}]"
    return json.dumps(value)
