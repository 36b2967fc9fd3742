"""`state repair`: it explains, mends, never writes over what it can't read, and forgets no id (B4, B7)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from state_samples import LINEAGE, NOW, address, blank, entries, fill, local, record, writing
from test_state_codec import DAMAGE
from test_state_local import content, damaged_journals, journal_of, store_locked

from lium_plan.diagnostics import Severity
from lium_plan.state.codec import Unreadable, encode_entry, encode_snapshot
from lium_plan.state.entries import Began, Ended, Entry, Failed, Put, Released
from lium_plan.state.local import LocalStore
from lium_plan.state.model import State, check, replay
from lium_plan.state.repair import Salvage, salvage


def save(data: bytes, journal: bytes = b"", *earlier: bytes) -> Salvage:
    names = [("f", data), *((f"f.{number}", text) for number, text in enumerate(earlier, 1))]
    return salvage(names, ("j", journal), stack="default", now=NOW)


def lines(*log: Entry) -> bytes:
    return b"".join(encode_entry(entry, LINEAGE) for entry in log)


def test_a_sound_state_needs_nothing() -> None:
    log = entries(Put(record("volume.v", "v1")))
    assert save(encode_snapshot(blank()), lines(*log)) == Salvage(replay(blank(), log), ())


SOUND = replay(blank(), entries(Put(record("volume.v", "v1")), Put(record("volume.w", "w1"))))


@pytest.mark.parametrize("name", ["trailing comma", "byte order mark", "NUL tail"])
def test_harmless_damage_is_mended_whole(name: str) -> None:
    saved = save(DAMAGE[name][0])
    assert saved.state == replace(SOUND, serial=SOUND.serial + 1)
    assert len(saved.findings) == 1


@pytest.mark.parametrize("name", ["number for text", "unknown kind", "no address"])
def test_a_record_that_can_not_stay_is_released_or_reported(name: str) -> None:
    saved = save(DAMAGE[name][0])
    assert saved.state is not None
    assert list(saved.state.records) == ["volume.w"]
    if name == "number for text":
        assert saved.state.released == ()
        assert [item.code for item in saved.findings] == ["state-shape", "repair-lost"]
    else:
        key = "router.v" if name == "unknown kind" else "Volume V"
        assert saved.state.released == (Released(key.partition(".")[0], "v1", key, NOW),)
        assert check(saved.state) == ()


def test_a_record_under_another_key_gets_its_own() -> None:
    saved = save(DAMAGE["key of another"][0])
    assert saved.state is not None
    assert sorted(saved.state.records) == ["volume.v", "volume.w"]


@pytest.mark.parametrize("name", sorted(set(DAMAGE) - {"trailing comma", "byte order mark", "NUL tail"}))
def test_the_result_is_always_sound(name: str) -> None:
    saved = save(DAMAGE[name][0])
    assert saved.findings
    assert saved.state is None or check(saved.state) == ()


@pytest.mark.parametrize("name", ["truncated", "conflict marks", "duplicate key", "empty"])
def test_an_earlier_snapshot_stands_in(name: str) -> None:
    earlier = replay(blank(), entries(Put(record("volume.v", "v1"))))
    log = (Entry(4, NOW, "r", Put(record("volume.x", "x1"))),)
    saved = save(DAMAGE[name][0], lines(*log), b"{", encode_snapshot(earlier))
    assert saved.state is not None
    assert sorted(saved.state.records) == ["volume.v", "volume.x"]
    assert saved.state.sequence == 4
    codes = [item.code for item in saved.findings if item.severity is Severity.ERROR]
    assert codes[-2:] == ["repair-older", "repair-gap"]
    assert any("orphans" in (item.hint or "") for item in saved.findings)


def test_a_newer_format_is_not_repaired() -> None:
    saved = save(DAMAGE["newer format"][0], b"", encode_snapshot(SOUND))
    assert saved.state is None
    assert [item.code for item in saved.findings] == ["state-format"]


def test_without_any_snapshot_the_ids_are_named() -> None:
    saved = save(b"", lines(*entries(Began(address("fleet.x[0]"), "rent"), Ended(1, (record("fleet.x[0]", "p0"),)))))
    assert saved.state is None
    assert [item.message for item in saved.findings if item.code == "repair-seen"] == ["j: fleet.x[0] was p0"]


def test_a_lost_begin_does_not_lose_what_it_made() -> None:
    log = entries(
        Began(address("fleet.x[0]"), "rent"),
        Ended(1, (record("fleet.x[0]", "p0"), record("fleet.x[0].bootstrap", None)), ("volume.v",)),
        Began(address("fleet.x[1]"), "rent"),
        Failed(3, "no"),
        Put(record("volume.z", "z")),
        start=3,
    )
    saved = save(encode_snapshot(SOUND), lines(log[1], log[3], log[4]))
    assert saved.state is not None
    assert sorted(saved.state.records) == ["fleet.x[0]", "fleet.x[0].bootstrap", "volume.w", "volume.z"]
    assert saved.state.sequence == 7
    assert not saved.state.open


def test_two_addresses_with_one_id_and_dangling_dependencies() -> None:
    rows = [
        record("fleet.x[0]", "p"),
        record("fleet.x[1]", "p"),
        record("fleet.x[1].bootstrap", None, "fleet.x[1]"),
    ]
    bad = replace(SOUND, records={row.key: row for row in rows})
    saved = save(encode_snapshot(bad))
    assert saved.state is not None
    assert sorted(saved.state.records) == ["fleet.x[0]", "fleet.x[1].bootstrap"]
    assert check(saved.state) == ()
    assert {item.code for item in saved.findings} >= {"duplicate-id", "repair-duplicate", "repair-dependency"}


@pytest.mark.parametrize(
    ("name", "change"), list(damaged_journals()), ids=lambda value: value if type(value) is str else ""
)
def test_repairing_a_stack_in_place(tmp_path: Path, name: str, change: object) -> None:
    assert callable(change)
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
        before = ledger.state
    damaged = change(journal_of(store))
    store.path("journal.jsonl").write_bytes(damaged)
    files = content(tmp_path)
    with store_locked(store):
        saved = store.salvage()
        assert content(tmp_path) == files
        assert saved.state is not None
        assert saved.findings
        kept = store.replace(saved.state)
    assert (tmp_path / kept[1]).read_bytes() == damaged
    assert store.load().state == saved.state
    whole = ("other line ends", "conflict marks", "byte order mark", "no JSON", "an empty line")
    if name in whole:
        assert saved.state == replace(before, serial=before.serial + 1)


def test_a_state_of_another_stack_can_be_taken_over(tmp_path: Path) -> None:
    (tmp_path / "prod.json").write_bytes(encode_snapshot(SOUND))
    store = LocalStore(tmp_path, "prod", now=lambda: NOW)
    with pytest.raises(Unreadable):
        store.load()
    with store_locked(store):
        saved = store.salvage().state
        assert saved == replace(SOUND, stack="prod", serial=SOUND.serial + 1)
        assert isinstance(saved, State)
        store.replace(saved)
    assert store.load().state == saved


def test_nothing_there_is_nothing_saved(tmp_path: Path) -> None:
    assert local(tmp_path).salvage() == Salvage(None, ())
