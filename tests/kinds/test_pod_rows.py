"""Which row of a list is a record's: its id counts only under its own name."""

from __future__ import annotations

import pytest

from lium_plan.addresses import parse
from lium_plan.kinds.pod.rows import misnamed, own_row, row_of
from lium_plan.kinds.protocol import Record
from lium_plan.lium.models import Pod

NAMES = {"1": "mine", "2": "theirs", "3": "twins", "4": "twins", "5": ""}
PODS = {id: Pod(id, name=name) for id, name in NAMES.items()}


def record(id: str | None, name: str | None) -> Record:
    return Record(parse("fleet.a[0]"), id, "ready", {}, {} if name is None else {"pod_name": name})


@pytest.mark.parametrize(
    ("id", "name", "own", "row"),
    [
        ("1", "mine", "1", "1"),
        ("2", "mine", None, "1"),
        (None, "mine", None, "1"),
        ("gone", "mine", None, "1"),
        ("3", "twins", "3", "3"),
        ("4", "twins", "4", "4"),
        ("1", "twins", None, None),
        ("gone", "gone", None, None),
        ("1", None, "1", "1"),
        ("5", "mine", "5", "5"),
    ],
)
def test_a_row_is_found_by_id_and_name(id: str | None, name: str | None, own: str | None, row: str | None) -> None:
    it = record(id, name)
    assert own_row(it, PODS) == PODS.get(str(own))
    assert row_of(it, PODS) == PODS.get(str(row))


@pytest.mark.parametrize(
    ("id", "name", "why"),
    [
        ("1", "mine", None),
        ("2", "mine", None),
        ("gone", "gone", None),
        ("2", None, None),
        ("2", "gone", "its rent was answered with the id of pod theirs, and no list shows gone"),
        (None, "gone", "its rent was answered with another pod's id, and no list shows gone"),
    ],
)
def test_what_bears_another_name_is_told_from_what_is_missing(
    id: str | None, name: str | None, why: str | None
) -> None:
    assert misnamed(record(id, name), PODS) == why
