"""What is acknowledged is on the disk itself: watched where the interpreter asks the kernel, without a crash."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from state_samples import address, blank, fill, local, now, owner, record, writing

from lium_plan.diagnostics import Failure
from lium_plan.state.journal import JournaledLedger, RunIdentity
from lium_plan.state.journalfile import JournalFile

V = record("volume.v", "v1")


class Kernel:
    """What has been changed and not been made durable yet: files by their content, directories by their names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dirty: set[str] = set()
        self.emptied_over: list[set[str]] = []
        """What was not durable when a journal was emptied."""
        self._real = {
            name: getattr(os, name)
            for name in ("open", "pwrite", "ftruncate", "fdatasync", "fsync", "replace", "link", "posix_fallocate")
        }
        for name in self._real:
            monkeypatch.setattr(os, name, getattr(self, name))

    @staticmethod
    def _path(handle: int) -> str:
        return os.readlink(f"/proc/self/fd/{handle}")

    def open(self, path: str | Path, flags: int, *rest: int) -> int:
        new = flags & os.O_CREAT and not os.path.exists(path)
        handle: int = self._real["open"](path, flags, *rest)
        if new:
            self.dirty.add(os.path.dirname(self._path(handle)))
        return handle

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        self.dirty.add(self._path(handle))
        written: int = self._real["pwrite"](handle, data, offset)
        return written

    def ftruncate(self, handle: int, size: int) -> None:
        if size == 0 and os.fstat(handle).st_size and self._path(handle).endswith("journal.jsonl"):
            self.emptied_over.append(set(self.dirty))
        self.dirty.add(self._path(handle))
        self._real["ftruncate"](handle, size)

    def posix_fallocate(self, handle: int, offset: int, length: int) -> None:
        self.dirty.add(self._path(handle))
        self._real["posix_fallocate"](handle, offset, length)

    def fdatasync(self, handle: int) -> None:
        self._real["fdatasync"](handle)
        self.dirty.discard(self._path(handle))

    def fsync(self, handle: int) -> None:
        self._real["fsync"](handle)
        self.dirty.discard(self._path(handle))

    def replace(self, source: str | Path, target: str | Path) -> None:
        assert str(source) not in self.dirty, f"{source} is renamed, and its content is not durable"
        self._real["replace"](source, target)
        self.dirty.add(os.path.dirname(target))

    def link(self, source: str | Path, target: str | Path, **rest: bool) -> None:
        self._real["link"](source, target, **rest)
        self.dirty.add(os.path.dirname(target))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    yield Kernel(monkeypatch)
    monkeypatch.undo()


def test_whatever_returns_has_made_its_writes_durable(tmp_path: Path, kernel: Kernel) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        steps = [
            lambda: ledger.put(V),
            lambda: ledger.begin(address("fleet.x[0]"), "rent", {"body": "b" * 50_000}),
            lambda: ledger.done(next(iter(ledger.state.open.values())), record("fleet.x[0]", "pod-0")),
            lambda: ledger.compact(),
            lambda: ledger.put(replace(V, status="deleting")),
            lambda: ledger.compact(),
        ]
        for step in steps:
            kernel.dirty -= {path for path in kernel.dirty if path.endswith(".lock") or path == str(tmp_path.parent)}
            step()
            assert not {path for path in kernel.dirty if not path.endswith((".lock", "events.jsonl"))}
    assert kernel.emptied_over
    for dirty in kernel.emptied_over:
        assert not {path for path in dirty if not path.endswith(".lock")}, "the snapshot is durable before"


def test_a_torn_tail_is_durably_cut_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writing(local(tmp_path)) as ledger:
        fill(ledger)
    journal = tmp_path / "default.journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"torn')
    kernel = Kernel(monkeypatch)
    with writing(local(tmp_path)):
        assert str(journal) not in kernel.dirty
        assert journal.read_bytes() == whole


@pytest.mark.parametrize("system", ["Linux", "without posix_fallocate"])
def test_an_intent_has_room_for_its_end_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    if system != "Linux":
        monkeypatch.delattr(os, "posix_fallocate")
    store = local(tmp_path)
    with writing(store) as ledger:
        ledger.put(V)
        journal = store.path("journal.jsonl")
        for member in range(20):
            ledger.begin(address(f"fleet.x[{member}]"), "rent", {"body": "b" * 2000})
            used = len(journal.read_bytes().rstrip(b"\0"))
            assert journal.stat().st_blocks * 512 >= used + 8 * 1024 * (member + 1)
    assert journal.stat().st_size == used, "what was not needed is given back"


def test_the_room_stays_when_its_own_writer_looks_again(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        ledger.begin(address("fleet.x[0]"), "rent", {})
        journal = store.path("journal.jsonl")
        before = journal.stat().st_blocks
        assert store.load().state == ledger.state
        assert journal.stat().st_blocks == before


def test_a_journal_is_made_private_whatever_it_was(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        fill(ledger)
    journal = tmp_path / "default.journal.jsonl"
    journal.chmod(0o644)
    with writing(local(tmp_path)):
        assert journal.stat().st_mode & 0o777 == 0o600


def test_a_shorter_line_is_not_followed_by_the_rest_of_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes the bytes and then says that it could not keep them; some are more than the room that was kept."""
    store = local(tmp_path)
    with writing(store) as ledger:
        effect = ledger.begin(address("fleet.x[0]"), "rent", {})
        room = store.path("journal.jsonl").stat()
        real = os.fdatasync
        failing = [OSError(5, "Input/output error"), KeyboardInterrupt()]
        for fault in failing:

            def fail(handle: int, fault: BaseException = fault) -> None:
                raise fault

            monkeypatch.setattr(os, "fdatasync", fail)
            for length in (200_000, 3_000):
                with pytest.raises((Failure, KeyboardInterrupt)):
                    ledger.done(effect, record("fleet.x[0]", "pod-0", notes="n" * length))
                left = store.path("journal.jsonl").stat()
                assert (left.st_size, left.st_blocks) == (room.st_size, room.st_blocks), "the room for ends stays"
            monkeypatch.setattr(os, "fdatasync", real)
            assert local(tmp_path).load().state == ledger.state
            assert list(ledger.state.open) == [effect.number]
        ledger.failed(effect, "no")
        assert local(tmp_path).load().state == ledger.state
        assert not ledger.state.open


def test_a_disk_that_refuses_everything_is_one_failure_and_the_next_line_writes_over_what_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(5, "Input/output error")

    store = local(tmp_path)
    with writing(store) as ledger:
        effect = ledger.begin(address("fleet.x[0]"), "rent", {})
        before = ledger.state
        with monkeypatch.context() as broken:
            broken.setattr(os, "pwrite", fail)
            with pytest.raises(Failure, match="Input/output error"):
                ledger.done(effect, record("fleet.x[0]", "pod-0", notes="n" * 3000))
        assert local(tmp_path).load().state == ledger.state == before
        ledger.failed(effect, "no")
        assert local(tmp_path).load().state == ledger.state


def test_a_journal_that_can_not_be_prepared_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError(5, "Input/output error")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "fdatasync", fail)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            JournalFile(tmp_path / "journal", 0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_gives_the_descriptor_back_also_when_the_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int, size: int) -> None:
        raise OSError(5, "Input/output error")

    journal = JournalFile(tmp_path / "journal", 0)
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(OSError, match="Input/output"):
        journal.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_ledger_says_who_runs_with_the_first_entry_after_each_snapshot(tmp_path: Path) -> None:
    """The audit log takes it from what lies between two snapshots."""
    heard: list[str] = []
    store = local(tmp_path)
    with asyncio.run(store.lock(owner(), timeout_s=0)):
        store.load()
        ledger = JournaledLedger(
            store,
            blank(),
            run=RunIdentity("run-9", "eve@desk", "lium-plan apply"),
            now=now,
            born=False,
            heard=lambda entry: heard.append(type(entry.fact).__name__),
        )
        assert not ledger.born
        ledger.put(V)
        assert ledger.born
        ledger.put(replace(V, status="x"))
        ledger.compact()
        ledger.put(V)
        ledger.compact()
    assert heard == ["RunStarted", "Put", "Put", "RunStarted", "Put"]
