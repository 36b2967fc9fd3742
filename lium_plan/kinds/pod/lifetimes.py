"""When a pod ends by itself: from its creation, anew with every apply (`ttl_renew`), or later (`extend`). Pure.

Within `TTL_TOLERANCE` two deadlines are the same: the server may count from another moment than we do.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lium_plan.kinds.protocol import Json, Record

if TYPE_CHECKING:
    from lium_plan.kinds.pod.spec import PodSpec

TTL_TOLERANCE = timedelta(minutes=5)
EXTEND = "extend"
"""The name of the effect; its begin holds the pod's `id` and the end that it is to get, `until`."""
TTL_CHANGED = "ttl-changed"
"""The drift of a pod that has another end than it should have."""
EXTENDED = "extended_until"
"""The attribute in which `extend` keeps the end that it gave a pod."""


def ttl_end(record: Record, ttl_s: int) -> datetime | None:
    """When the pod's time to live ends: it counts from the pod's creation; None before that is known."""
    created = moment(record.attributes.get("created_at"))
    return None if created is None else created + timedelta(seconds=ttl_s)


def deadline(record: Record, spec: PodSpec, now: datetime) -> datetime | None:
    """When the pod is to end. None: it has no time to live, or its creation is not known yet."""
    if spec.ttl_s is None:
        return None
    if spec.ttl_renew:
        return now + timedelta(seconds=spec.ttl_s)
    return extension(record, spec) or ttl_end(record, spec.ttl_s)


def extension(record: Record, spec: PodSpec) -> datetime | None:
    """What `extend` recorded; it holds until the manifest says another `ttl` than the one that was extended."""
    return moment(record.attributes.get(EXTENDED)) if record.inputs.get("ttl_s") == spec.ttl_s else None


def moment(value: Json) -> datetime | None:
    """What a record says, aware; None for nothing, and for a year that no time to live can be added to."""
    at = datetime.fromisoformat(value) if isinstance(value, str) and value else None
    return at if at is not None and 2000 <= at.year < 2200 else None


def shown_moment(at: datetime) -> str:
    """`2026-03-01 18:00Z`."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}Z"


def shown_duration(seconds: Json) -> str | None:
    """`6h`, `90m`."""
    if not isinstance(seconds, int):
        return None
    return f"{seconds // 3600}h" if seconds % 3600 == 0 else f"{seconds // 60}m"
