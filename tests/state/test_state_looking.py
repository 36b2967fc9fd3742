"""Looking at files that change meanwhile, and what a writer keeps in mind between two looks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from state_samples import address, fill, local, owner, record, writing

from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.state.codec import Unreadable
from lium_plan.state.journal import JournaledLedger
from lium_plan.state.local import LocalStore

V = record("volume.v", "v1")


def before_each_reading(monkeypatch: pytest.MonkeyPatch, path: Path, do: Callable[[int], None]) -> None:
    """Call `do` with 1, 2, … each time before somebody opens `path`."""
    real, times = os.open, [0]

    def opening(name: str | os.PathLike[str], flags: int, mode: int = 0o777) -> int:
        if os.fspath(name) == str(path):
            times[0] += 1
            do(times[0])
        return real(name, flags, mode)

    monkeypatch.setattr(os, "open", opening)


def refuse(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, call, fail)


def test_what_is_damaged_for_an_instant_only_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader takes no lock: it may look while somebody writes."""
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
    journal = store.path("journal.jsonl")
    whole = journal.read_bytes()
    journal.write_bytes(whole.replace(b'"k1"', b'"k9"'))

    def write_on(time: int) -> None:
        if time == 2:
            journal.write_bytes(whole)

    with monkeypatch.context() as busy:
        before_each_reading(busy, journal, write_on)
        assert local(tmp_path).load().state == ledger.state
    # Whoever holds the lock is alone: what it sees stays so.
    journal.write_bytes(whole.replace(b'"k1"', b'"k9"'))
    asyncio.run(store.lock(owner(), timeout_s=0))
    before_each_reading(monkeypatch, journal, write_on)
    with pytest.raises(Unreadable):
        store.load()
    store.close()


def test_a_state_that_never_stands_still_is_not_guessed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
    before_each_reading(
        monkeypatch, store.path("journal.jsonl"), lambda time: os.utime(store.path("json"), (time, time))
    )
    with pytest.raises(Failure, match="changes faster than it can be read") as caught:
        store.load()
    assert (caught.value.exit_code, caught.value.diagnostics[0].code) == (ExitCode.ERROR, "state-read")


def test_what_can_not_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "open")
    with pytest.raises(Failure, match="can't be read: Input/output error"):
        local(tmp_path).load()


def test_a_new_stack_is_nothing_to_be_warned_of(tmp_path: Path) -> None:
    assert local(tmp_path).load().diagnostics == ()


def test_a_disk_that_refuses_already_when_the_journal_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
    asyncio.run(store.lock(owner(), timeout_s=0))
    with monkeypatch.context() as broken:
        refuse(broken, "fdatasync")
        with pytest.raises(Failure, match="can't be written") as caught:
            store.load()
    assert caught.value.diagnostics[0].code == "state-write"
    assert "run the command again" in (caught.value.diagnostics[0].hint or "")
    assert store.load().state == ledger.state
    store.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalStore, JournaledLedger]:
    """A writer whose disk refused a line, and works again."""
    store = local(tmp_path)
    with writing(store) as ledger:
        ledger.put(V)
        ledger.compact()
        ledger.begin(address("fleet.x[0]"), "rent", {})
    asyncio.run(store.lock(owner(), timeout_s=0))
    state = store.load().state
    assert state is not None
    ledger = JournaledLedger(store, state, run=ledger._run, now=ledger._now)
    with monkeypatch.context() as broken:
        refuse(broken, "fdatasync")
        with pytest.raises(Failure, match="Input/output error"):
            ledger.put(record("volume.w", "w1"))
    return store, ledger


def test_after_a_failed_write_nothing_begins_though_the_files_were_changed_and_read_again(
    failed: tuple[LocalStore, JournaledLedger],
) -> None:
    store, ledger = failed
    store.path("journal.jsonl").write_bytes(b"")  # by hand, under the lock
    files = open_files()
    state = store.load().state
    assert state is not None
    assert not state.open
    assert open_files() == files, "the journal that it had open is closed"
    again = JournaledLedger(store, state, run=ledger._run, now=ledger._now)
    with pytest.raises(Failure, match="nothing new is started"):
        again.begin(address("fleet.x[1]"), "rent", {})
    again.put(record("volume.w", "w1"))
    store.close()


def test_the_lock_is_released_though_the_disk_takes_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only room was to be given back; the next load does it."""
    store, other = local(tmp_path), local(tmp_path)
    with monkeypatch.context() as broken, writing(store) as ledger:
        effect = ledger.begin(address("fleet.x[0]"), "rent", {})
        refuse(broken, "ftruncate")
    with writing(other) as after:
        assert after.state == ledger.state
        after.failed(effect, "no")
        assert local(tmp_path).load().state == after.state


def test_the_room_that_is_kept_is_for_what_is_open_not_for_what_was(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        for member in range(40):
            effect = ledger.begin(address(f"fleet.x[{member}]"), "rent", {})
            if member % 2:
                ledger.failed(effect, "no")
            else:
                ledger.done(effect, record(f"fleet.x[{member}]", f"pod-{member}"))
        journal = store.path("journal.jsonl")
        used = len(journal.read_bytes().rstrip(b"\0"))
        assert journal.stat().st_size < used + 100 * 1024


def test_a_journal_that_was_taken_away_takes_no_begin_any_more_though_it_is_put_back(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        ledger.put(V)
        journal = store.path("journal.jsonl")
        journal.rename(tmp_path / "away")
        with pytest.raises(Failure, match="deleted or replaced"):
            ledger.put(record("volume.w", "w1"))
        (tmp_path / "away").rename(journal)
        with pytest.raises(Failure, match="nothing new is started"):
            ledger.begin(address("fleet.x[0]"), "rent", {})
        ledger.put(record("volume.w", "w1"))
        assert local(tmp_path).load().state == ledger.state


def test_an_interrupt_stays_one_though_the_disk_refuses_to_be_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        effect = ledger.begin(address("fleet.x[0]"), "rent", {})

        def interrupted(handle: int) -> None:
            refuse(monkeypatch, "pwrite")
            raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ledger.failed(effect, "no")
            broken.undo()
        monkeypatch.undo()
        assert list(ledger.state.open) == [effect.number]
        ledger.failed(effect, "no")
        assert local(tmp_path).load().state == ledger.state


# --- snapshots -----------------------------------------------------------------------------------------------


def test_without_changes_no_file_is_touched(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
        ledger.compact()
        before = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
        ledger.compact()
        assert {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before


def test_a_snapshot_that_can_not_be_read_pushes_no_good_one_out(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        for number in range(3):
            ledger.put(record(f"volume.v{number}", f"v{number}"))
            ledger.compact()
    good = store.path("json.1").read_bytes()
    store.path("json").write_bytes(b"{")
    asyncio.run(store.lock(owner(), timeout_s=0))
    (aside, *_) = store.replace(ledger.state)
    store.close()
    assert (tmp_path / aside).read_bytes() == b"{"
    assert store.path("json.1").read_bytes() == good
    assert local(tmp_path).load().state == ledger.state


def test_a_state_of_another_stack_is_not_written(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        ledger.put(V)
        with pytest.raises(ValueError, match="can't be written as default"):
            store.replace(replace(ledger.state, stack="prod"))
    assert local(tmp_path).load().state == ledger.state


def test_what_a_snapshot_contains_is_told_once_however_long_its_writer_goes_on(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        for number in range(3):
            effect = ledger.begin(address(f"volume.v{number}"), "create", {})
            ledger.done(effect, record(f"volume.v{number}", f"v{number}"))
            ledger.compact()
    told = store.path("events.jsonl").read_text().splitlines()
    assert len(told) == 3
    assert [event.address for event in store.events()] == ["volume.v0", "volume.v1", "volume.v2"]


def test_a_journal_that_can_not_be_emptied_is_said_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot is in place: its lines are skipped."""
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
        real = os.ftruncate

        def refuse_to_empty(handle: int, size: int) -> None:
            if os.readlink(f"/proc/self/fd/{handle}").endswith(".journal.jsonl"):
                raise OSError(5, "Input/output error")
            real(handle, size)

        with monkeypatch.context() as broken:
            broken.setattr(os, "ftruncate", refuse_to_empty)
            with pytest.raises(Failure, match="can't be emptied; the snapshot is written") as caught:
                ledger.compact()
        assert caught.value.diagnostics[0].code == "journal-write"
        loaded = local(tmp_path).load()
        assert (loaded.state, loaded.pending) == (ledger.state, 0)
        ledger.put(V)
        assert ledger.compact() == local(tmp_path).load().state


def test_a_first_snapshot_that_can_not_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writing(local(tmp_path)) as ledger:
        before = ledger.state
        with monkeypatch.context() as broken:
            refuse(broken, "fdatasync")
            with pytest.raises(Failure, match="can't be written") as caught:
                ledger.begin(address("fleet.x[0]"), "rent", {})
        assert caught.value.diagnostics[0].code == "snapshot-write"
        assert (ledger.state, ledger.born) == (before, False)
        ledger.put(V)
        assert local(tmp_path).load().state == ledger.state
