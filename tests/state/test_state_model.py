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


def test_an_end_takes_records_away_and_puts_others_at_once() -> None:
    old, new = record("fleet.x[0]", "p0"), record("fleet.x[0]", "p1")
    gone = after(Put(old), Put(record("volume.v", "v1")), Began(X0, "delete"), Ended(3, (), ("fleet.x[0]",)))
    assert set(gone.records) == {"volume.v"}
    assert not gone.open
    deposed = replace(old, deposed=True)
    replaced = after(Put(old), Began(X0, "rent"), Ended(2, (deposed, new), ("fleet.x[0]",)))
    assert dict(replaced.records) == {"fleet.x[0]": new, "fleet.x[0]#p0": deposed}


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
    with pytest.raises(ReplayError, match=r"^entry 2 follows entry 0: what lies between them is missing$") as gap:
        replay(blank(), log[1:])
    assert gap.value.number == 2
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


def test_check_lets_alone_what_has_no_id_or_shares_it_by_right() -> None:
    unborn = after(Put(record("fleet.x[0]", None)), Put(record("fleet.x[1]", None)))
    assert check(unborn) == ()
    hosted = after(
        Put(record("fleet.x[0]", "p", "template.t")),
        Put(record("fleet.x[0].bootstrap", "p", "fleet.x[0]")),
        Put(record("template.t", "p")),
    )
    assert check(hosted) == ()


def test_check_finds_a_deposed_record_that_nothing_could_delete() -> None:
    row = replace(record("fleet.x[0]", None), deposed=True)
    found = check(replace(blank(), records={row.key: row}))
    assert [(item.code, item.address) for item in found] == [("state-key", "fleet.x[0]")]
    assert "has no id" in found[0].message


def test_every_finding_says_how_to_mend_it() -> None:
    row = record("fleet.x[0]", "p", "template.t")
    router = replace(row, address=Address.of("router", "r"))
    state = replace(blank(), records={"fleet.x[1]": row, "fleet.x[0]": row, "router.r": router})
    found = check(state)
    assert {item.code for item in found} == {"state-key", "duplicate-id", "unknown-kind", "dangling-dependency"}
    assert all("state repair" in str(item.hint) for item in found)


def test_inputs_that_name_what_moved_name_it_where_it_is_now() -> None:
    """Nothing is shown as changed then."""
    user = replace(
        record("fleet.x[0]", "p0", "template.old"),
        inputs={"template": "template.old", "env": {"template": "template.old", "NOTE": "template.old"}, "ttl_s": 60},
    )
    state = after(
        Put(record("template.old", "t1")),
        Put(user),
        Put(record("fleet.x[1]", "p1", "volume.v")),
        Moved("template.old", address("template.new")),
    )
    assert state.records["fleet.x[0]"].inputs == {
        "template": "template.new",
        "env": {"template": "template.new", "NOTE": "template.old"},
        "ttl_s": 60,
    }
    assert state.records["fleet.x[0]"].depends_on == (address("template.new"),)
    assert state.records["fleet.x[1]"].depends_on == (address("volume.v"),)


def test_a_deposed_record_moves_alone() -> None:
    state = after(
        Put(record("fleet.x[0]", "p0")),
        Put(replace(record("fleet.x[0]", "old"), deposed=True)),
        Put(record("fleet.x[0].bootstrap", None, "fleet.x[0]")),
        Began(X0, "update"),
        Moved("fleet.x[0]#old", address("fleet.y[0]")),
    )
    assert set(state.records) == {"fleet.x[0]", "fleet.y[0]#old", "fleet.x[0].bootstrap"}
    assert state.open[4].address == X0
    assert state.records["fleet.x[0].bootstrap"].depends_on == (X0,)


def test_a_move_leaves_other_open_effects_where_they_are() -> None:
    state = after(
        Put(record("fleet.x[0]", "p0")),
        Began(address("fleet.x[1]"), "rent"),
        Moved("fleet.x[0]", address("fleet.y[0]")),
    )
    assert state.open[2].address == address("fleet.x[1]")
    with pytest.raises(ReplayError, match="not in the state"):
        replay(state, entries(Moved("fleet.x[0]", address("fleet.z[0]")), start=4))


def test_an_entry_of_a_later_version_is_refused_and_nothing_of_it_is_taken() -> None:
    fold = Fold(after(Put(record("volume.v", "v1"))))
    with pytest.raises(ReplayError, match="unknown fact object") as caught:
        fold.apply(Entry(2, NOW, "r", object()))  # type: ignore[arg-type]
    assert caught.value.number == 2
    assert (fold.sequence, fold.state) == (1, after(Put(record("volume.v", "v1"))))


def test_a_fold_answers_as_its_state_does() -> None:
    fold = Fold(blank())
    rows = fold.records
    for entry in entries(Began(X0, "rent"), Put(record("fleet.x[0]", "p0")), Put(record("volume.v", "v1"))):
        fold.apply(entry)
    assert fold.salt == blank().salt
    assert fold.record(X0) == fold.by_key("fleet.x[0]") == fold.state.record(X0)
    assert dict(rows) == dict(fold.state.records)
    assert fold.effect(1) == fold.state.open[1]
    assert fold.effect(2) is None
    assert fold.state is fold.state


INDEXED = (Put(record("volume.first", "v0")), Removed("volume.first", "so that a fold knows who depends on whom"))
T, X = record("template.t", "t1"), record("fleet.x[0]", "p0", "template.t")


@pytest.mark.parametrize(
    "facts",
    [
        (Put(T), Put(X), Put(replace(X, depends_on=())), Removed(X.key, ""), Removed(T.key, "")),
        (Put(T), Put(X), Removed(T.key, ""), Removed(X.key, ""), Put(T), Removed(T.key, "")),
        (Put(T), Put(X), Moved(T.key, address("template.u")), Removed(X.key, ""), Put(replace(T, id="t2")),
         Removed(T.key, ""), Removed("template.u", "")),
        (Put(T), Put(X), Moved(X.key, address("fleet.y[0]")), Removed("fleet.y[0]", ""), Removed(T.key, "")),
    ],
    ids=["it needs it no more", "it went first", "it moved", "the one that needs it moved"],
)  # fmt: skip
def test_nobody_is_remembered_to_depend_on_what_they_no_longer_need(facts: tuple[Fact, ...]) -> None:
    assert after(*INDEXED, *facts).records == {}


def test_what_is_put_can_not_be_changed_afterwards() -> None:
    written: list[Json] = [1]
    state = after(Put(replace(T, attributes={"a": written})))
    written.append(2)
    assert state.records["template.t"].attributes == {"a": (1,)}


def test_rows_are_kept_in_order_whatever_came_first() -> None:
    state = after(
        Put(record("volume.v", "v1")),
        Put(record("fleet.x[0]", "p0")),
        Release(Released("volume", "b", "b", NOW)),
        Release(Released("volume", "a", "a", NOW)),
        Watch(Watched("n", X0, NOW)),
        Watch(Watched("m", X0, NOW)),
        Completed(address("task.t[1]"), Completion("cafe", 0, NOW)),
        Completed(address("task.t[0]"), Completion("cafe", 0, NOW)),
    )
    assert list(state.records) == ["fleet.x[0]", "volume.v"]
    assert [item.id for item in state.released] == ["a", "b"]
    assert [item.name for item in state.watched] == ["m", "n"]
    assert list(state.completions) == ["task.t[0]", "task.t[1]"]


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
