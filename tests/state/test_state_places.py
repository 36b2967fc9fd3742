"""What may lie in a state's place besides its files: pipes, directories, junk; and files that are taken away in use."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from state_samples import address, blank, fill, local, owner, record, writing

from lium_plan.diagnostics import Diagnostic, ExitCode, Failure
from lium_plan.state.codec import Unreadable, decode_snapshot, encode_snapshot
from lium_plan.state.local import LocalStore
from lium_plan.state.lock import read_owner

FILES = ("json", "journal.jsonl", "lock", "hold", "events.jsonl")


def work(store: LocalStore) -> None:
    with writing(store) as ledger:
        fill(ledger)
        ledger.compact()


def refused(act: Callable[[], object]) -> Diagnostic:
    with pytest.raises(Failure) as caught:
        act()
    assert caught.value.exit_code is ExitCode.ERROR
    return caught.value.diagnostics[0]


@pytest.mark.parametrize("suffix", FILES)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "directory"])
def test_what_is_no_file_is_named_and_never_waited_for(
    tmp_path: Path, suffix: str, make: Callable[[Path], None]
) -> None:
    store = local(tmp_path / "state")
    store.directory.mkdir()
    make(store.path(suffix))
    found = refused(lambda: work(store))
    assert found.code == "state-not-a-file"
    assert str(store.path(suffix)) in found.message
    assert found.hint is not None
    assert "move it away" in found.hint
    store.path(suffix).rmdir() if make is os.mkdir else store.path(suffix).unlink()
    work(store)


def test_a_lock_by_hand_that_is_a_directory_can_not_be_lifted_and_that_is_said(tmp_path: Path) -> None:
    store = local(tmp_path)
    store.path("hold").mkdir()
    assert str(store.path("hold")) in refused(store.unhold).message


def test_a_directory_in_the_place_of_an_earlier_snapshot_is_named(tmp_path: Path) -> None:
    store = local(tmp_path)
    work(store)
    store.path("json.9").write_bytes(store.path("json").read_bytes())
    (store.path("json.10") / "x").mkdir(parents=True)
    with writing(store) as ledger:
        ledger.put(record("volume.more", "more-1"))
        found = refused(ledger.compact)
    assert str(store.path("json.10")) in found.message
    assert found.hint is not None
    assert "in the way" in found.hint
    assert "space" not in found.hint


# --- taken away in use ---------------------------------------------------------------------------------------


def test_nothing_is_begun_when_the_directory_is_gone(tmp_path: Path) -> None:
    store = local(tmp_path / "state")
    with writing(store) as ledger:
        effect = ledger.begin(address("fleet.x[0]"), "rent", {})
        shutil.rmtree(store.directory)
        assert refused(lambda: ledger.begin(address("fleet.x[1]"), "rent", {})).code == "lock-lost"
        # What can't be read again must not count as written down.
        found = refused(lambda: ledger.done(effect, record("fleet.x[0]", "pod-0")))
        assert str(store.path("journal.jsonl")) in found.message


def test_who_has_lost_the_lock_begins_nothing_and_overwrites_nothing(tmp_path: Path) -> None:
    first, second = local(tmp_path), local(tmp_path)
    work(first)
    with writing(first) as ledger:
        effect = ledger.begin(address("fleet.x[7]"), "rent", {})
        first.path("lock").unlink()  # as people do who take it for a stale one
        ledger.done(effect, record("fleet.x[7]", "pod-7"))  # what is under way is still written down
        with writing(second) as other:
            assert refused(lambda: ledger.begin(address("fleet.x[8]"), "rent", {})).code == "lock-lost"
            other.put(record("volume.new", "new-1"))
            other.compact()
            before = second.path("json").read_bytes()
            assert refused(ledger.compact).code == "lock-lost"
            assert second.path("json").read_bytes() == before


def test_a_journal_that_was_replaced_takes_no_more(tmp_path: Path) -> None:
    store = local(tmp_path)
    work(store)
    with writing(store) as ledger:
        ledger.put(record("volume.a", "a"))
        store.path("journal.jsonl").rename(tmp_path / "away")
        store.path("journal.jsonl").write_bytes(b"")
        assert "journal" in refused(lambda: ledger.put(record("volume.b", "b"))).message


# --- junk ----------------------------------------------------------------------------------------------------

JUNK = [b"\0\xff\n" * 9, b"[" * 100_000 + b"\n", b"null\n[]\n1e999\n", b'{"at": 7}\n', b"no end"]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_junk_in_the_audit_log_stops_nobody(tmp_path: Path, junk: bytes) -> None:
    store = local(tmp_path)
    work(store)
    events = store.events()[:-1]  # the last is still open
    log = store.path("events.jsonl")
    log.write_bytes(junk.rstrip(b"\n") + b"\n" + log.read_bytes() + junk)
    assert store.events()[:-1] == events
    with writing(store) as ledger:
        ledger.put(record("volume.more", "more-1"))
        ledger.remove("volume.more", "gone")
        ledger.compact()
    assert store.events()[: len(events)] == events
    assert [event.action for event in store.events()[len(events) :]] == ["forget", "rent"]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_junk_in_lock_and_hold_is_no_crash(tmp_path: Path, junk: bytes) -> None:
    store = local(tmp_path)
    store.path("lock").write_bytes(junk)
    assert read_owner(store.path("lock")) is None
    store.path("hold").write_bytes(junk)
    with pytest.raises(Failure) as caught:
        asyncio.run(store.lock(owner(), timeout_s=0))
    assert caught.value.exit_code is ExitCode.LOCKED
    assert store.unhold()


@pytest.mark.parametrize("depth", [300, 900, 5000])
def test_what_is_pushed_is_not_nested_without_end(depth: int) -> None:
    document = json.loads(encode_snapshot(blank()))
    text = json.dumps({**document, "outputs": {"x": "DEEP"}})
    with pytest.raises(Unreadable, match="nested too deeply"):
        decode_snapshot(text.replace('"DEEP"', '{"a":' * depth + "1" + "}" * depth).encode(), file="f", edited=True)


@pytest.mark.parametrize("member", ["serial", "sequence"])
@pytest.mark.parametrize("number", [-1, 10**15 + 1, 10**400])
def test_numbers_that_could_not_be_counted_on_are_refused(member: str, number: int) -> None:
    document = {**json.loads(encode_snapshot(blank())), member: number}
    with pytest.raises(Unreadable, match=f"`{member}` must be a number"):
        decode_snapshot(json.dumps(document).encode(), file="f", edited=True)


def test_new_directories_are_the_owners_alone_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        work(local(tmp_path / "a" / "b" / "state"))
    finally:
        os.umask(before)
    for folder in ("a", "a/b", "a/b/state"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
