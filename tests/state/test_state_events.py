"""The audit log as a pure function of entries, and of two states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from state_samples import LINEAGE, NOW, address, blank, entries, local, owner, record

from lium_plan.operations.editing import told_of
from lium_plan.state.entries import Began, Ended, Fact, Failed, Put, Removed, Told
from lium_plan.state.events import AuditEvent, Trail
from lium_plan.state.model import State

POD = record("fleet.x[0]", "pod-0", price_per_hour_usd="1.99", removal_at="2026-10-06T12:00:00+00:00")


def holding(*rows: object) -> State:
    return replace(blank(), records={row.key: row for row in rows})  # type: ignore[attr-defined]


def told(state: State, *facts: Fact) -> list[tuple[str, str, str | None, str | None, str]]:
    events = Trail(state, entries(*facts)).told
    return [(event.address, event.action, event.id, event.price_per_hour_usd, event.result) for event in events]


def test_what_is_told_has_the_id_and_price_of_its_record() -> None:
    facts = (Put(POD), Told("fleet.x[0]", "update", "done: ends 2026-10-06 12:00Z"), Told("fleet.y[0]", "update", "no"))
    assert told(blank(), *facts) == [
        ("fleet.x[0]", "update", "pod-0", "1.99", "done: ends 2026-10-06 12:00Z"),
    ]


def test_what_is_learnt_is_no_news() -> None:
    learnt = replace(
        POD, status="running", attributes={**POD.attributes, "host": "203.0.113.4", "ports": {"22": 40022}}
    )
    assert told(holding(POD), Put(learnt), Put(record("fleet.x[0].bootstrap", None))) == []


def test_what_a_replacement_left_goes_under_its_own_id_and_price() -> None:
    old = replace(POD, deposed=True)
    new = record("fleet.x[0]", "pod-1", price_per_hour_usd="2.50")
    begun = Began(address("fleet.x[0]"), "delete", {"id": "pod-0", "key": old.key})
    leaving = replace(old, status="deleting")
    assert told(holding(old, new), begun, Ended(1, (leaving,)), Removed(old.key, "gone")) == [
        ("fleet.x[0]", "delete", "pod-0", "1.99", "done"),
        ("fleet.x[0]", "forget", "pod-0", "1.99", "gone"),
    ]
    assert told(holding(old, new), begun, Ended(1, (), (old.key,)))[0][2:4] == ("pod-0", "1.99")
    assert told(holding(old, new), begun, Failed(1, "busy"))[0][2:] == ("pod-0", "1.99", "failed: busy")


def replaced(before: State | None, after: State) -> list[str]:
    events = told_of("push", owner(), before, after)
    assert {(event.run, event.lineage) for event in events} == {("run-1", LINEAGE[:6])}
    return [f"{event.action} {event.address} {event.id}: {event.result}" for event in events]


def test_a_state_in_place_of_another_is_told_with_what_went_and_came() -> None:
    other = record("volume.v", "vol-1")
    before, after = replace(holding(POD), serial=4), replace(holding(other, record("task.t[0]", "x")), serial=5)
    assert replaced(before, after) == [
        "push state None: done: serial 5 in place of serial 4",
        "forget fleet.x[0] pod-0: by state push",
        "adopt volume.v vol-1: done: by state push",
    ]
    assert replaced(None, after) == ["push state None: done: serial 5 in place of one that can't be read"]


def test_it_stands_in_the_log_once_the_state_is_in_place(tmp_path: Path) -> None:
    import asyncio

    store = local(tmp_path / "state")
    asyncio.run(store.lock(owner(), timeout_s=0))
    store.load()
    store.compact(blank())
    after = replace(holding(POD), serial=1)
    store.replace(after, told_of("push", owner(), blank(), after))
    expected: list[AuditEvent] = [*told_of("push", owner(), blank(), after)]
    assert list(local(tmp_path / "state").events()) == expected
    assert expected[0].at == NOW
