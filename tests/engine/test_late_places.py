"""Pods that turn up late, once their addresses have moved."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from lium_plan.addresses import parse
from lium_plan.kinds.desired import Move
from lium_plan.kinds.protocol import Observation, Presence, Record
from lium_plan.planning.late import at_their_places
from lium_plan.planning.observed import Late
from lium_plan.state.model import State, new_state

MOVED = (Move("fleet.a", "fleet.b"),)


def pod(key: str) -> Record:
    """`ADDRESS`, or `ADDRESS#ID` for a deposed one."""
    address, _, identity = key.partition("#")
    return Record(parse(address), identity or f"id-{address}", "pending", {}, {}, deposed=bool(identity))


def state(*keys: str) -> State:
    born = new_state("lab", "default", lineage="11111111-1111-4111-8111-111111111111", salt=b"salt")
    return replace(born, records={key: pod(key) for key in keys})


def late(key: str) -> Late:
    return Late("lp", pod(key), Observation(Presence.PRESENT), datetime(2026, 3, 1, tzinfo=UTC), "which came late")


@pytest.mark.parametrize(
    ("there", "came", "places"),
    [
        ([], ["fleet.a[0]"], ["fleet.b[0]"]),
        ([], ["fleet.c[0]"], ["fleet.c[0]"]),
        (["fleet.b[0]"], ["fleet.a[0]"], ["fleet.b[0]#id-fleet.a[0]"]),
        (["fleet.a[0]"], ["fleet.b[0]"], ["fleet.b[0]#id-fleet.b[0]"]),
        (["fleet.b[0]#old"], ["fleet.a[0]"], ["fleet.b[0]"]),
        ([], ["fleet.a[0]", "fleet.b[0]"], ["fleet.b[0]", "fleet.b[0]#id-fleet.b[0]"]),
        (["fleet.a[0]"], ["fleet.a[0]"], ["fleet.a[0]"]),  # known by a wrong id: it moves with its record
        (["fleet.a[0]"], ["fleet.a[0]#new"], ["fleet.a[0]#new"]),
    ],
)
def test_a_late_pod_has_the_address_of_now_unless_that_is_taken(
    there: list[str], came: list[str], places: list[str]
) -> None:
    found = at_their_places(tuple(late(key) for key in came), state(*there), MOVED)
    assert [item.record.key for item in found] == places
