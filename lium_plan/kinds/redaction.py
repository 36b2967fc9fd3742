"""How a written value becomes one that may be stored, shown and compared. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lium_plan.expressions import Text
from lium_plan.kinds.protocol import Comparison, Json
from lium_plan.marks import keyed_hash


def redact(text: Text, comparison: Comparison) -> Json:
    """The text itself; for a secret its keyed hash; for what depends on things that do not exist yet its expression."""
    filled = text.fill(comparison.resolve)
    if not filled.known:
        return {"$unknown": text.source}
    if text.sensitive:
        return {"$sensitive": keyed_hash(comparison.salt, filled.reveal())}
    return filled.reveal()


def redact_all(texts: Mapping[str, Text], comparison: Comparison) -> Mapping[str, Json]:
    return {name: redact(text, comparison) for name, text in sorted(texts.items())}


def is_unknown(value: Json) -> bool:
    """Whether any part of the value is known only after apply."""
    if isinstance(value, Mapping):
        return "$unknown" in value or any(is_unknown(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(is_unknown(item) for item in value)
    return False


def normalise_image(reference: str) -> str:
    """One spelling per image: `ubuntu` is `docker.io/library/ubuntu:latest`, written `ubuntu:latest`."""
    name, at, digest = reference.partition("@")
    name = re.sub(r"^(?:index\.)?docker\.io/(?:library/)?", "", name)
    if not at and ":" not in name.rpartition("/")[2]:
        name += ":latest"
    return f"{name}@{digest}" if at else name
