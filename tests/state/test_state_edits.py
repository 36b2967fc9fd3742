"""What `state mv` and `state rm` write: facts that leave a sound state, and lose no id (pure)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_samples import NOW, address, blank, entries, record

from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.kinds.protocol import Record
from lium_plan.state.edits import move, release
from lium_plan.state.entries import Began, Fact, Put, Released, Watch, Watched
from lium_plan.state.model import State, check, replay


def after(state: State, facts: tuple[Fact, ...]) -> State:
    return replay(state, entries(*facts, start=state.sequence + 1))


def holding(*rows: Record, more: tuple[Fact, ...] = ()) -> State:
    return after(blank(), (*(Put(row) for row in rows), *more))


POD = replace(
    record("fleet.x[0]", "p0", "template.t", price_per_hour_usd="1.5", pod_name="lp-0"),
    inputs={"template": "template.t", "volume": None},
)
ROWS = (record("template.t", "t1"), POD, record("fleet.x[0].bootstrap", None, "fleet.x[0]", pod_id="p0"))


def test_moving_there_and_back_changes_nothing_but_the_count() -> None:
    state = holding(*ROWS)
    there = after(state, move(state, "fleet.x", "fleet.y").facts)
    back = after(there, move(there, "fleet.y", "fleet.x").facts)
    assert back.records == state.records
    assert back.serial == state.serial + 4


def test_a_renamed_template_is_named_anew_by_what_uses_it() -> None:
    login = replace(
        record("template.u", "t2"), inputs={"registry_auth": {"credential": "credential.u", "username": "x"}}
    )
    state = holding(*ROWS, record("credential.u", "c1"), replace(login, depends_on=(address("credential.u"),)))
    moved = after(state, move(state, "template.t", "template.new").facts)
    assert moved.records["fleet.x[0]"].inputs == {"template": "template.new", "volume": None}
    moved = after(state, move(state, "credential.u", "credential.w").facts)
    assert moved.records["template.u"].inputs["registry_auth"] == {"credential": "credential.w", "username": "x"}


def test_swapping_through_a_third_address_is_possible() -> None:
    state = holding(record("fleet.x[0]", "p0"), record("fleet.x[1]", "p1"))
    for source, target in (("fleet.x[0]", "fleet.x[2]"), ("fleet.x[1]", "fleet.x[0]"), ("fleet.x[2]", "fleet.x[1]")):
        state = after(state, move(state, source, target).facts)
    assert {key: row.id for key, row in state.records.items()} == {"fleet.x[0]": "p1", "fleet.x[1]": "p0"}


@pytest.mark.parametrize("op", ["rent", "create", "delete", "update"])
def test_nothing_moves_from_or_onto_an_open_effect(op: str) -> None:
    state = holding(*ROWS, more=(Began(address("fleet.y[0]"), op, {}),))
    with pytest.raises(Failure) as caught:
        move(state, "fleet.x[0]", "fleet.y[0]")
    assert caught.value.exit_code is ExitCode.ERROR
    assert caught.value.diagnostics[0].address == "fleet.y[0]"


def test_what_is_released_keeps_its_id_and_its_price() -> None:
    state = holding(*ROWS)
    edit = release(state, ["fleet.x[0]"], now=NOW)
    assert after(state, edit.facts).released == (Released("pod", "p0", "lp-0", NOW, "1.5"),)
    assert [note.code for note in edit.notes] == ["still-used"]
    assert "lium-plan state rm template.t" in str(edit.notes[0].hint)


def test_a_name_that_is_watched_is_watched_no_more_once_its_pod_is_released() -> None:
    watched = Watched("lp-0", address("fleet.x[0]"), NOW)
    state = holding(*ROWS, more=(Watch(watched),))
    assert after(state, release(state, ["fleet.x"], now=NOW).facts).watched == ()


ADDRESSES = ("volume.v", "template.t", "fleet.a[0]", "fleet.a[1]", "fleet.b[0]", "fleet.b[x]", "task.w[0]")


@given(st.sets(st.sampled_from(ADDRESSES), min_size=1), st.sampled_from(ADDRESSES), st.data())
def test_any_edit_leaves_a_sound_state_and_loses_no_id(present: set[str], chosen: str, data: st.DataObject) -> None:
    state = holding(*(record(item, f"id-{item}") for item in sorted(present)))
    source, target = chosen, data.draw(st.sampled_from(ADDRESSES))
    for work in (lambda: move(state, source, target), lambda: release(state, [source], now=NOW)):
        try:
            result = after(state, work().facts)
        except Failure:
            continue  # nothing is there, or it can't stand there
        assert check(result) == ()
        hosted = {row.id for row in state.records.values() if row.kind == "task"}
        kept = {row.id for row in result.records.values()} | {item.id for item in result.released}
        assert kept | hosted == {row.id for row in state.records.values()} | hosted
        assert result.serial > state.serial
