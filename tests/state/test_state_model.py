"""What entries do to a state, and what a sound state is (B7, D2)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_samples import NOW, address, blank, entries, record

from lium_plan.addresses import Address
from lium_plan.diagnostics import Severity
from lium_plan.kinds.protocol import Json, Record
from lium_plan.state.entries import (
    Began,
    Bound,
    Completed,
    Completion,
    Ended,
    Entry,
    Fact,
    Failed,
    Moved,
    OutputsSet,
    Put,
    Reclaim,
    Release,
    Released,
    Removed,
    Renamed,
    RunStarted,
    Uncompleted,
    Unwatch,
    Watch,
    Watched,
)
from lium_plan.state.model import Fold, ReplayError, State, check, replay

X0 = address("fleet.x[0]")


def after(*facts: Fact) -> State:
    return replay(blank(), entries(*facts))


def test_a_begin_is_open_until_it_is_done() -> None:
    open_state = after(Began(X0, "rent", {"key": "k"}))
    assert open_state.open[1].op == "rent"
    assert open_state.open[1].run == "run-1"
    done = after(Began(X0, "rent"), Ended(1, (record("fleet.x[0]"),)))
    assert not done.open
    assert done.record(X0) == record("fleet.x[0]")
    assert after(Began(X0, "rent"), Failed(1, "no")).records == {}


def test_every_change_raises_the_serial_and_nothing_else_does() -> None:
    row = record("fleet.x[0]")
    assert after(RunStarted("me", "apply")).serial == 0
    assert after(RunStarted("me", "apply")).sequence == 1
    assert after(Began(X0, "rent")).serial == 1
    assert after(Began(X0, "rent"), Ended(1, (row,))).serial == 2
    assert after(Began(X0, "rent"), Failed(1, "no")).serial == 2
    assert after(Put(row), Put(row)).serial == 1
    assert after(Put(row), Put(replace(row, status="broken"))).serial == 2
    assert after(Removed("fleet.x[0]", "gone")).serial == 0
    assert after(Bound("a", None), Bound("a", None)).serial == 1
    assert after(Renamed("other"), Renamed("other")).serial == 1


def test_replay_skips_what_the_state_contains_and_refuses_gaps() -> None:
    log = entries(Began(X0, "rent"), Ended(1, (record("fleet.x[0]"),)), Put(record("volume.v", "v1")))
    half = replay(blank(), log[:2])
    assert replay(half, log) == replay(blank(), log)
    with pytest.raises(ReplayError, match="missing"):
        replay(blank(), log[1:])
    with pytest.raises(ReplayError, match="not open"):
        replay(blank(), entries(Ended(7)))


def test_a_removed_dependency_does_not_dangle() -> None:
    state = after(
        Put(record("template.t", "t1")),
        Put(record("fleet.x[0]", "p0", "template.t")),
        Removed("template.t", "deleted by hand"),
    )
    assert state.records["fleet.x[0]"].depends_on == ()
    assert check(state) == ()


def test_a_dependency_stays_while_a_deposed_record_holds_the_address() -> None:
    old = record("template.t", "t1")
    state = after(
        Put(old),
        Put(record("fleet.x[0]", "p0", "template.t")),
        Put(record("template.t", "t2")),
        Put(replace(old, deposed=True)),
        Removed("template.t", "test"),
    )
    assert state.records["fleet.x[0]"].depends_on == (address("template.t"),)
    assert [row.id for row in state.deposed()] == ["t1"]


def test_deposing_moves_a_record_out_of_its_address() -> None:
    row = record("fleet.x[0]", "p0")
    state = after(Put(row), Put(replace(row, deposed=True)))
    assert list(state.records) == ["fleet.x[0]#p0"]
    assert state.record(X0) is None
    assert list(after(Put(replace(row, deposed=True)), Put(row)).records) == ["fleet.x[0]"]


def test_a_move_takes_dependents_and_open_effects_along() -> None:
    state = after(
        Put(record("fleet.x[0]", "p0")),
        Put(record("fleet.x[0].bootstrap", None, "fleet.x[0]")),
        Began(X0, "update"),
        Moved("fleet.x[0]", address("fleet.y[7]")),
    )
    assert state.record(address("fleet.y[7]")) is not None
    assert state.open[3].address == address("fleet.y[7]")
    assert state.records["fleet.x[0].bootstrap"].depends_on == (address("fleet.y[7]"),)
    with pytest.raises(ReplayError, match="taken"):
        after(
            Put(record("fleet.x[0]", "a")),
            Put(record("fleet.x[1]", "b")),
            Moved("fleet.x[0]", address("fleet.x[1]")),
        )


def test_lists_beside_the_records() -> None:
    released = Released("volume", "v1", "data", NOW)
    watched = Watched("lp-x", X0, NOW + timedelta(hours=24))
    completion = Completion("cafe", 0, NOW)
    full = after(
        Put(record("volume.data", "v1")),
        Release(released, "volume.data"),
        Watch(watched),
        Completed(address("task.t[0]"), completion),
    )
    assert (full.released, full.watched, full.records) == ((released,), (watched,), {})
    assert full.completions == {"task.t[0]": completion}
    empty = replay(full, entries(Reclaim("v1"), Unwatch("lp-x"), Uncompleted(address("task.t[0]")), start=5))
    assert (empty.released, empty.watched, empty.completions) == ((), (), {})


def test_check_finds_two_addresses_with_one_id() -> None:
    found = check(after(Put(record("fleet.x[0]", "p")), Put(record("fleet.x[1]", "p"))))
    assert [(item.code, item.severity) for item in found] == [("duplicate-id", Severity.ERROR)]
    # Equal templates of one state are one object on the server.
    assert check(after(Put(record("template.a", "t")), Put(record("template.b", "t")))) == ()


def test_check_finds_dangling_dependencies_unknown_kinds_and_wrong_keys() -> None:
    dangling = after(Put(record("fleet.x[0]", "p", "template.t")))
    assert [(item.code, item.severity) for item in check(dangling)] == [("dangling-dependency", Severity.WARNING)]
    row = record("fleet.x[0]", "p")
    router = replace(row, address=Address.of("router", "r"))
    assert [item.code for item in check(replace(blank(), records={"router.r": router}))] == ["unknown-kind"]
    assert [item.code for item in check(replace(blank(), records={"fleet.x[1]": row}))] == ["state-key"]


# --- replay in pieces equals replay at once ------------------------------------------------------------------

ADDRESSES = ("template.t", "volume.v", "fleet.x[0]", "fleet.x[1]", "fleet.x[0].bootstrap", "task.t[0]")
VALUES: tuple[Json, ...] = (None, 0, 1.5, True, "é", (1, (2,)), {"k": ("v",)})


def some_record(random: Random) -> Record:
    row = record(random.choice(ADDRESSES), random.choice("abc"), *random.sample(ADDRESSES, random.randint(0, 2)))
    return replace(row, attributes={"v": random.choice(VALUES)}, deposed=random.random() < 0.3)


def some_fact(random: Random, state: State) -> Fact:
    keys, where = sorted(state.records), address(random.choice(ADDRESSES))
    facts: list[Fact] = [
        Began(where, "rent", {"v": random.choice(VALUES)}),
        Put(some_record(random)),
        Put(some_record(random)),
        RunStarted("ann", "apply"),
        Watch(Watched(random.choice("nm"), where, NOW)),
        Unwatch("n"),
        Release(Released("volume", random.choice("ab"), "data", NOW)),
        Reclaim("a"),
        Bound(random.choice(("acc", None)), None),
        Completed(where, Completion("cafe", random.randint(0, 1), NOW)),
        Uncompleted(where),
        OutputsSet({"v": random.choice(VALUES)}),
    ]
    if keys:
        facts += [Removed(random.choice(keys), "why"), Moved(random.choice(keys), where)]
    if state.open:
        made = tuple(some_record(random) for _ in range(random.randint(0, 2)))
        gone = tuple(random.sample(keys, min(len(keys), random.randint(0, 2))))
        facts += [
            Ended(random.choice(list(state.open)), made, gone),
            Failed(random.choice(list(state.open)), "no"),
        ]
    return random.choice(facts)


def history(seed: int, length: int) -> tuple[Entry, ...]:
    """Up to `length` entries that follow from each other, whatever they are."""
    random, fold, log = Random(seed), Fold(blank()), []
    for _ in range(length):
        entry = Entry(fold.sequence + 1, NOW, "r", some_fact(random, fold.state))
        try:
            fold.apply(entry)
        except ReplayError:  # a move onto a taken address: refused, and nothing of it was taken
            continue
        log.append(entry)
    return tuple(log)


histories = st.builds(history, st.integers(0, 2**32), st.integers(0, 40))


@given(histories, st.data())
def test_replay_in_pieces_equals_replay_at_once(log: tuple[Entry, ...], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    whole = replay(blank(), log)
    assert replay(replay(blank(), log[:cut]), log) == whole
    step = blank()
    for entry in log:
        later = replay(step, (entry,))
        assert later.serial - step.serial in (0, 1)
        assert (later.serial == step.serial) == (replace(later, sequence=step.sequence) == step)
        step = later
    assert step == whole
    assert all(key == row.key for key, row in whole.records.items())
