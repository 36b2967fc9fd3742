"""What a resource was written as, as one digest that does not change with what exists. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from lium_plan.kinds.protocol import Comparison, Json, Resource
from lium_plan.kinds.registry import kind
from lium_plan.marks import canonical, keyed_hash

_EPOCH = datetime.fromtimestamp(0, UTC)


def content_digest(resource: Resource, salt: bytes) -> str:
    """References stay expressions in it, so it is the same before and after what they refer to exists."""
    return keyed_hash(salt, canonical(written_inputs(resource, salt)))


def written_inputs(resource: Resource, salt: bytes) -> Mapping[str, Json]:
    """Its inputs as far as the manifest alone says; references stay expressions."""
    nothing_known = Comparison(now=_EPOCH, salt=salt, resolve=lambda _reference: None, verbs={}, records={})
    return kind(resource.kind).inputs(resource.spec, nothing_known)
