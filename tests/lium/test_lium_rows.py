"""A list that is asked for again and again: unchanged rows are the very same, and nothing else is taken for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lium_plan.lium.calls import parsed_rows
from lium_plan.lium.errors import LiumError
from lium_plan.lium.requests import read
from lium_plan.lium.rows import RowMemory

CALL = read("pods")


class Row:
    """Told apart by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value


def listed(memory: RowMemory[Row], *rows: object, text: str | None = None) -> list[Row]:
    body = (json.dumps(rows) if text is None else text).encode()
    return list(parsed_rows(CALL, body, 200, memory))


def pod(number: int, **fields: object) -> dict[str, object]:
    return {"id": f"0b6f2a7e-4c1d-4e0f-9a3b-{number:012x}", "status": "RUNNING", **fields}


def test_an_unchanged_row_is_read_once_wherever_it_stands() -> None:
    memory = RowMemory(Row)
    listed(memory)
    first = listed(memory, pod(1), pod(2), pod(3))
    again = listed(memory, pod(4), pod(3), pod(1))
    assert again[1] is first[2]
    assert again[2] is first[0]
    assert [row.value["id"][-1] for row in again] == ["4", "3", "1"]


def test_a_changed_row_is_read_again() -> None:
    memory = RowMemory(Row)
    listed(memory)
    before = listed(memory, pod(1, price=1.5), pod(2))
    after = listed(memory, pod(1, price=1.51), pod(2))
    assert after[0].value["price"] == 1.51
    assert after[1] is before[1]


def test_a_longer_row_that_begins_alike_is_another() -> None:
    memory = RowMemory(Row)
    listed(memory)
    listed(memory, pod(1))
    (row,) = listed(memory, {**pod(1), "more": {"a": [1, 2]}})
    assert row.value["more"] == {"a": [1, 2]}


def test_what_was_gone_for_a_while_is_read_again() -> None:
    memory = RowMemory(Row)
    listed(memory)
    (before,) = listed(memory, pod(1))
    listed(memory, pod(2))
    (after,) = listed(memory, pod(1))
    assert after is not before
    assert after.value == before.value


def test_a_list_that_breaks_off_is_an_error_and_forgets_nothing() -> None:
    memory = RowMemory(Row)
    listed(memory)
    before = listed(memory, pod(1), pod(2))
    with pytest.raises(LiumError, match="not JSON"):
        listed(memory, text=json.dumps([pod(1), pod(2)])[:-5])
    with pytest.raises(LiumError, match="not JSON"):
        listed(memory, text=json.dumps([pod(1)])[:-1] + " x]")
    assert listed(memory, pod(2), pod(1)) == before[::-1]


def test_a_list_that_is_asked_for_once_is_not_remembered() -> None:
    memory = RowMemory(Row)
    (first,) = listed(memory, pod(1))
    (second,) = listed(memory, pod(1))
    (third,) = listed(memory, pod(1))
    assert first is not second
    assert second is third
