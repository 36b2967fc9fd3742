"""The ledger that drivers write to: what it answers, and what it writes down and what it knows already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from state_samples import NOW, address, fill, local, record, writing

from lium_plan.state.entries import Completion, Put, Released
from lium_plan.state.journal import JournaledLedger

V = record("volume.v", "v1")
POD = record("fleet.x[0]", "pod-0")
TASK = address("task.t[0]")


def test_it_answers_as_state_and_journal_stand(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        rows = ledger.records()
        ledger.put(POD)
        ledger.put(replace(POD, id="pod-1", deposed=True))
        assert ledger.record(address("fleet.x[0]")) == ledger.record_by_key("fleet.x[0]") == POD
        assert ledger.record_by_key("fleet.x[0]#pod-1") == replace(POD, id="pod-1", deposed=True)
        assert ledger.record_by_key("fleet.x[1]") is None
        assert ledger.record(address("fleet.x[1]")) is None
        assert set(rows) == {"fleet.x[0]", "fleet.x[0]#pod-1"}, "a view: it follows what is written"
        assert rows == ledger.state.records
        assert ledger.salt == ledger.state.salt
        assert local(tmp_path).load().state == ledger.state


def test_it_shows_what_is_open_and_which_rows_it_has_touched(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        open_now, touched = ledger.open, ledger.touched
        effect = ledger.begin(V.address, "create", {})
        assert dict(open_now) == {effect.number: effect}, "a view: it follows what is written"
        assert list(touched) == []
        ledger.done(effect, V)
        assert dict(open_now) == {}
        assert list(touched) == ["volume.v"]
        ledger.put(POD)
        ledger.remove("volume.v", "gone")
        assert list(touched) == ["volume.v", "fleet.x[0]", "volume.v"]


def test_what_it_is_told_changes_nothing_and_stands_in_the_audit_log(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        ledger.put(POD)
        before = ledger.state
        ledger.tell("fleet.x[0]", "update", "done: protected")
        assert (ledger.state.serial, ledger.state.records) == (before.serial, before.records)
        assert [(event.action, event.result) for event in local(tmp_path).events()] == [("update", "done: protected")]


def test_what_is_taken_back_is_released_no_more(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        ledger.put(V)
        ledger.release(Released("volume", "v1", "v", NOW), key="volume.v")
        ledger.release(Released("template", "t1", "t", NOW))
        ledger.put(record("volume.v", "t1"))
        assert [item.id for item in ledger.state.released] == ["t1", "v1"], "another kind, whatever its id"
        ledger.put(V)
        assert [item.id for item in ledger.state.released] == ["t1"]
        assert local(tmp_path).load().state == ledger.state


CHANGES: dict[str, tuple[Callable[[JournaledLedger], None], Callable[[JournaledLedger], object]]] = {
    "put": (lambda ledger: ledger.put(V), lambda ledger: ledger.record(V.address)),
    "complete": (lambda ledger: ledger.complete(TASK, Completion("cafe", 0, NOW)), lambda ledger: ledger.state.completions),
    "outputs": (lambda ledger: ledger.set_outputs({"a": [1]}), lambda ledger: ledger.state.outputs),
    "bind": (lambda ledger: ledger.bind("acc", "work"), lambda ledger: ledger.state.workspace_id),
    "rename": (lambda ledger: ledger.rename("other"), lambda ledger: ledger.state.project == "other"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_known_is_not_written_again(tmp_path: Path, name: str) -> None:
    change, shown = CHANGES[name]
    with writing(local(tmp_path)) as ledger:
        assert not shown(ledger)
        change(ledger)
        assert shown(ledger)
        before = ledger.state.sequence
        change(ledger)
        assert ledger.state.sequence == before
        assert local(tmp_path).load().state == ledger.state


ENDS: dict[str, tuple[Callable[[JournaledLedger], None], Callable[[JournaledLedger], object]]] = {
    "remove": (lambda ledger: ledger.remove("fleet.x[1]", "gone"), lambda ledger: ledger.record(address("fleet.x[1]"))),
    "reclaim": (lambda ledger: ledger.reclaim("vol-1"), lambda ledger: ledger.state.released),
    "unwatch": (
        lambda ledger: ledger.unwatch("lp-000000-a1b2c3-aaaaaaaa-x-3"),
        lambda ledger: ledger.state.watched,
    ),
    "uncomplete": (lambda ledger: ledger.uncomplete(address("task.train[0]")), lambda ledger: ledger.state.completions),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_ends_ends_once(tmp_path: Path, name: str) -> None:
    end, shown = ENDS[name]
    with writing(local(tmp_path)) as ledger:
        fill(ledger)
        assert shown(ledger)
        end(ledger)
        assert not shown(ledger)
        before = ledger.state.sequence
        end(ledger)
        assert ledger.state.sequence == before
        assert local(tmp_path).load().state == ledger.state


def test_another_account_or_workspace_alone_is_written(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        ledger.bind("acc", None)
        ledger.bind("acc", "work")
        assert (ledger.state.account_id, ledger.state.workspace_id) == ("acc", "work")


def test_a_record_gets_another_address_unless_that_is_taken(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        ledger.put(POD)
        ledger.put(record("fleet.x[1]", "pod-1"))
        old = replace(POD, id="old", deposed=True)
        ledger.put(old)
        before = ledger.state
        for key, to in (("fleet.x[0]", "fleet.x[1]"), ("fleet.x[7]", "fleet.x[8]")):
            with pytest.raises(ValueError, match="can't become"):
                ledger.move(key, address(to))
        assert ledger.state == before
        ledger.move("fleet.x[0]", address("fleet.y[0]"))
        ledger.move("fleet.x[0]#old", address("fleet.x[1]"))  # beside the living one
        assert set(ledger.state.records) == {"fleet.y[0]", "fleet.x[1]", "fleet.x[1]#old"}


def test_what_is_given_up_leaves_its_record_and_is_listed(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        ledger.put(V)
        ledger.release(Released("volume", "v1", "v", NOW), key="volume.v")
        ledger.release(Released("volume", "v0", "older", NOW))
        assert [item.id for item in ledger.state.released] == ["v0", "v1"]
        assert not ledger.state.records


def test_facts_that_were_worked_out_are_written_one_by_one(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        ledger.take([Put(V), Put(POD)])
        assert set(ledger.state.records) == {"volume.v", "fleet.x[0]"}
        assert local(tmp_path).load().state == ledger.state


def test_only_names_whose_time_is_over_go(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        ledger.watch("over", address("fleet.x[0]"), NOW)
        ledger.watch("waiting", address("fleet.x[0]"), NOW + timedelta(seconds=1))
        assert [item.name for item in ledger.compact().watched] == ["waiting"]
        assert local(tmp_path).load().state == ledger.state


def test_an_effect_that_is_not_open_is_a_defect_of_the_caller(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        effect = ledger.begin(V.address, "create", {})
        ledger.failed(effect, "no")
        before = ledger.state
        with pytest.raises(ValueError, match=r"effect 2 \(create volume.v\) is not open"):
            ledger.failed(effect, "no")
        with pytest.raises(ValueError, match="is not open"):
            ledger.done(effect, V)
        assert ledger.state == before


def test_what_was_deposed_stands_at_its_address_again_in_one_step(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        ledger.put(replace(POD, deposed=True))
        ledger.reinstate(replace(POD, deposed=True).key)
        assert dict(ledger.records()) == {POD.key: POD}
        assert not ledger.open
        for key in (POD.key, "fleet.x[7]#gone"):
            with pytest.raises(ValueError, match="can't be reinstated"):
                ledger.reinstate(key)
        ledger.put(replace(POD, id="older", deposed=True))
        with pytest.raises(ValueError, match="can't be reinstated"):
            ledger.reinstate(f"{POD.address}#older")
        assert local(tmp_path).load().state == ledger.state
