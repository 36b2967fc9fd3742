"""The contract that every store keeps; `STORES` lists them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from state_samples import LINEAGE, NOW, RUN, address, blank, entries, fill, local, now, owner, record

from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.state.entries import Began, Ended, Entry, Put
from lium_plan.state.journal import JournaledLedger, RunIdentity
from lium_plan.state.lock import Hold
from lium_plan.state.model import replay
from lium_plan.state.store import Store

Opener = Callable[[], Store]
STORES: Mapping[str, Callable[[Path], Store]] = {"local": local}

V = record("volume.v", "v1")


@pytest.fixture(params=sorted(STORES))
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Makes further handles on one and the same stack."""
    return lambda: STORES[request.param](tmp_path / "state")


def take(store: Store, run: str = "run-1", timeout_s: float = 0) -> None:
    asyncio.run(store.lock(owner(run), timeout_s=timeout_s))


def started(opener: Opener) -> Store:
    store = opener()
    take(store)
    store.load()
    store.compact(blank())
    return store


def test_a_new_stack_is_empty(opener: Opener) -> None:
    assert opener().load().state is None
    assert opener().events() == ()


def test_what_was_appended_is_read_by_everybody(opener: Opener) -> None:
    store = started(opener)
    log = entries(Began(address("volume.v"), "create"), Ended(1, (V,)), Put(replace(V, status="deleting")))
    for index, entry in enumerate(log, 1):
        store.append([entry])
        loaded = opener().load()
        assert loaded.state == replay(blank(), log[:index])
        assert loaded.pending == index
    store.compact(replay(blank(), log))
    assert opener().load().state == replay(blank(), log)
    assert opener().load().pending == 0


def test_writing_goes_on_after_a_reload(opener: Opener) -> None:
    store = started(opener)
    store.append(entries(Put(V)))
    store.close()
    again = opener()
    take(again)
    loaded = again.load()
    assert loaded.state is not None
    again.append(entries(Put(replace(V, status="deleting")), start=2))
    state = opener().load().state
    assert state is not None
    assert (state.serial, state.records["volume.v"].status) == (2, "deleting")


def test_nothing_is_written_without_the_lock(opener: Opener) -> None:
    store = started(opener)
    store.close()
    for write in (
        lambda: store.append(entries(Put(V))),
        lambda: store.compact(blank()),
        lambda: store.replace(blank()),
        lambda: store.hold(Hold("ann", "why", NOW, None)),
    ):
        with pytest.raises(RuntimeError):
            write()


def test_writing_needs_a_look_under_the_lock(opener: Opener) -> None:
    started(opener).close()
    store = opener()
    store.load()
    take(store)
    with pytest.raises(RuntimeError):
        store.append(entries(Put(V)))
    with pytest.raises(RuntimeError):
        store.compact(blank())


def test_numbers_must_follow(opener: Opener) -> None:
    store = started(opener)
    with pytest.raises(ValueError, match="follow"):
        store.append(entries(Put(V), start=2))
    assert opener().load().state == blank(), "nothing of it was written"
    with pytest.raises(ValueError, match="not the state"):
        store.compact(replay(blank(), entries(Put(V))))
    with pytest.raises(ValueError, match="not the state"):
        store.compact(replace(blank(), lineage=LINEAGE.replace("a", "b")))


def test_what_could_not_be_read_back_is_not_written(opener: Opener) -> None:
    store = started(opener)
    for wrong in (replace(V, status=7), replace(V, attributes={"a": [1]})):  # type: ignore[arg-type]
        with pytest.raises((ValueError, TypeError)):
            store.append(entries(Put(wrong)))
    assert opener().load().state == blank()


def test_an_unsound_state_is_not_made_a_snapshot(opener: Opener) -> None:
    store = started(opener)
    log = entries(Put(record("fleet.x[0]", "p")), Put(record("fleet.x[1]", "p")))
    store.append(log)
    with pytest.raises(Failure, match="both hold p"):
        store.compact(replay(blank(), log))
    with pytest.raises(Failure, match="both hold p"):
        opener().load()


def test_a_snapshot_without_changes_is_not_written_again(opener: Opener) -> None:
    store = started(opener)
    before = opener().load()
    store.compact(blank())
    assert opener().load() == before


def test_replacing_keeps_what_was_there(opener: Opener) -> None:
    store = started(opener)
    store.append(entries(Put(V)))
    other = replace(blank(), lineage="bbbbbbbb-0000-4000-8000-000000000002", serial=7, sequence=0)
    kept = store.replace(other)
    assert kept
    assert opener().load().state == other
    with pytest.raises(RuntimeError):
        store.append(entries(Put(V)))
    store.load()
    store.append(entries(Put(V)))
    state = opener().load().state
    assert state is not None
    assert state.serial == 8


# --- locks ---------------------------------------------------------------------------------------------------


def test_one_owner_at_a_time(opener: Opener) -> None:
    first, second = opener(), opener()
    take(first, "run-1")
    with pytest.raises(Failure) as caught:
        take(second, "run-2")
    assert caught.value.exit_code is ExitCode.LOCKED
    message = str(caught.value)
    for word in ("ann@box", "lium-plan apply", "run-1", "2026-10-05T12:00:00Z", "is running"):
        assert word in message
    assert "--lock-timeout" in (caught.value.diagnostics[0].hint or "")
    first.close()
    take(second, "run-2")
    second.close()


def test_waiting_ends_when_the_lock_is_free(opener: Opener) -> None:
    async def scenario() -> None:
        first, second = opener(), opener()
        held = await first.lock(owner("run-1"), timeout_s=0)
        waiter = asyncio.create_task(second.lock(owner("run-2"), timeout_s=60))
        await asyncio.sleep(0)
        assert not waiter.done()
        held.release()
        held.release()
        taken = await asyncio.wait_for(waiter, 30)
        assert taken.previous is None  # the first was released in good order
        taken.release()

    asyncio.run(scenario())


def test_waiting_can_be_interrupted_and_ends_at_its_time(opener: Opener) -> None:
    async def scenario() -> None:
        first, second = opener(), opener()
        with await first.lock(owner(), timeout_s=0):
            waiter = asyncio.create_task(second.lock(owner("run-2"), timeout_s=3600))
            await asyncio.sleep(0)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            with pytest.raises(Failure):
                await second.lock(owner("run-2"), timeout_s=0.02)

    asyncio.run(scenario())


def test_a_hold_is_honoured_until_its_end(opener: Opener) -> None:
    store = opener()
    take(store)
    hold = Hold("bob@desk", "audit", NOW - timedelta(hours=1), NOW + timedelta(hours=1))
    store.hold(hold)
    store.close()
    assert store.held(NOW) == hold
    with pytest.raises(Failure) as caught:
        take(opener())
    assert caught.value.exit_code is ExitCode.LOCKED
    for word in ("bob@desk", "audit", "2026-10-05T13:00:00Z"):
        assert word in str(caught.value)
    assert "state unlock" in (caught.value.diagnostics[0].hint or "")
    assert opener().unhold()
    assert not opener().unhold()
    take(store)
    store.hold(replace(hold, until=NOW))
    store.close()
    assert store.held(NOW) is None
    take(store)
    store.close()


def test_a_hold_without_end(opener: Opener) -> None:
    store = opener()
    take(store)
    store.hold(Hold("bob@desk", "audit", NOW, None))
    store.close()
    with pytest.raises(Failure, match="until it is lifted"):
        take(opener())


# --- the ledger over a store ---------------------------------------------------------------------------------


def test_a_run_without_changes_leaves_no_trace(opener: Opener) -> None:
    store = opener()
    take(store)
    store.load()
    ledger = JournaledLedger(store, blank(), run=RUN, now=now, born=False)
    ledger.remove("volume.v", "not there")
    ledger.unwatch("nothing")
    ledger.uncomplete(address("task.t[0]"))
    ledger.reclaim("nothing")
    ledger.bind(None, None)
    ledger.rename("demo")
    assert ledger.compact() == blank()
    assert not ledger.born
    assert opener().load().state is None


def test_a_second_run_with_nothing_to_do_keeps_the_serial(opener: Opener) -> None:
    store = opener()
    take(store)
    store.load()
    ledger = JournaledLedger(store, blank(), run=RUN, now=now, born=False)
    fill(ledger)
    state = ledger.compact()
    assert opener().load().state == state == replay(state, ())
    again = JournaledLedger(store, state, run=RunIdentity("run-2", "bob", "apply"), now=now)
    for row in state.records.values():
        again.put(row)
    again.bind("acc-1", None)
    again.set_outputs({"hosts": ["a", "b"]})
    again.compact()
    assert opener().load().state == state


def test_the_state_follows_every_entry_and_survives_without_compaction(opener: Opener) -> None:
    heard: list[Entry] = []
    store = opener()
    take(store)
    store.load()
    ledger = JournaledLedger(store, blank(), run=RUN, now=now, born=False, heard=heard.append)
    fill(ledger)
    store.close()
    assert opener().load().state == ledger.state == replay(blank(), heard)
    assert [effect.op for effect in ledger.state.open.values()] == ["rent"]


def test_an_effect_ends_once(opener: Opener) -> None:
    store = started(opener)
    ledger = JournaledLedger(store, blank(), run=RUN, now=now)
    effect = ledger.begin(address("volume.v"), "create", {"a": [1]})
    assert effect.data == {"a": (1,)}
    ledger.done(effect, V)
    with pytest.raises(ValueError, match="not open"):
        ledger.done(effect, V)
    with pytest.raises(ValueError, match="not open"):
        ledger.failed(effect, "no")
    assert ledger.record(address("volume.v")) == V
    with pytest.raises(ValueError, match="can't become"):
        ledger.move("volume.q", address("volume.r"))
    ledger.move("volume.v", address("volume.w"))
    assert opener().load().state == ledger.state


def test_watched_names_go_when_their_time_is_over(opener: Opener) -> None:
    store = started(opener)
    clock, wall = [NOW], [NOW]
    ledger = JournaledLedger(store, blank(), run=RUN, now=lambda: clock[0], wall=lambda: wall[0])
    ledger.watch("lp-x", address("fleet.x[0]"), NOW + timedelta(hours=24))
    assert [item.name for item in ledger.compact().watched] == ["lp-x"]
    clock[0] += timedelta(hours=25)
    wall[0] += timedelta(hours=25)
    assert ledger.compact().watched  # nothing else changed: a run without changes writes nothing
    ledger.put(V)
    assert ledger.compact().watched == ()


@pytest.mark.parametrize("later_h", [(48, 1), (1, 48), (48, None)])
def test_one_clock_that_has_jumped_lets_no_watched_name_go(opener: Opener, later_h: tuple[int, int | None]) -> None:
    store = started(opener)
    now, wall = (None if hours is None else NOW + timedelta(hours=hours) for hours in later_h)
    asked = None if wall is None else lambda: wall
    ledger = JournaledLedger(store, blank(), run=RUN, now=lambda: now or NOW, wall=asked)
    ledger.watch("lp-x", address("fleet.x[0]"), NOW + timedelta(hours=24))
    assert ledger.compact().watched


def test_the_audit_log_says_who_did_what_at_what_price(opener: Opener) -> None:
    store = started(opener)
    ledger = JournaledLedger(store, blank(), run=RUN, now=now)
    fill(ledger)
    told = opener().events()
    assert [(event.address, event.action, event.id, event.price_per_hour_usd, event.result) for event in told] == [
        ("template.torch", "create", "tpl-1", None, "done"),
        ("fleet.x[0]", "rent", "pod-0", "1.99", "done"),
        ("fleet.x[1]", "rent", "pod-1", "1.99", "done"),
        ("fleet.x[2]", "rent", "pod-2", "1.99", "done"),
        ("fleet.x[3]", "rent", None, None, "failed: node_unavailable"),
        ("fleet.x[2]", "delete", "pod-2", "1.99", "done"),
        ("volume.data", "release", "vol-1", None, "done: vol-1 stays"),
        ("task.train[0]", "complete", None, None, "done: exit code 0"),
        ("fleet.x[4]", "rent", None, None, "open"),
    ]
    assert {(event.who, event.run) for event in told} == {("ann@box", "run-1")}
    ledger.compact()
    after = opener().events()
    assert after[:-1] == told[:-1]
    assert (after[-1].address, after[-1].result) == ("fleet.x[4]", "open")
    ledger.remove("fleet.x[0].bootstrap", "went with its pod")
    ledger.compact()
    assert [event.who for event in opener().events()] == ["ann@box"] * 9 + [""]  # who opened it lies further back
    # A later run settles it; the log names that run, and who ran it.
    later = JournaledLedger(store, ledger.state, run=RunIdentity("run-2", "bob@desk", "apply"), now=now)
    later.failed(next(iter(ledger.state.open.values())), "settled as not rented")
    later.remove("fleet.x[1]", "went by its TTL")
    later.compact()
    last = opener().events()[-2:]
    assert [(event.who, event.run, event.action) for event in last] == [
        ("bob@desk", "run-2", "rent"),
        ("bob@desk", "run-2", "forget"),
    ]
    assert opener().events()[:8] == told[:8]
