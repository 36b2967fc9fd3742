"""When a pod ends, from what a record says."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lium_plan.addresses import parse
from lium_plan.kinds.pod.lifetimes import ttl_end
from lium_plan.kinds.protocol import Record


@pytest.mark.parametrize(
    ("created_at", "end"),
    [
        ("2026-11-30T12:00:00+00:00", datetime(2026, 11, 30, 13, tzinfo=UTC)),
        ("0001-01-01T00:00:00+00:00", None),
        ("9999-12-31T23:59:59+00:00", None),
        (None, None),
    ],
)
def test_a_time_to_live_counts_from_a_creation_that_can_be_one(created_at: str | None, end: datetime | None) -> None:
    assert ttl_end(Record(parse("fleet.a[0]"), "1", "ready", {}, {"created_at": created_at}), 3600) == end
