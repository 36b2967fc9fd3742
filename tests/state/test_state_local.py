"""Files: torn writes, crashes between any two steps, full disks, damage, links, permissions (B1, B2, B4)."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from state_samples import NOW, RUN, address, blank, entries, fill, local, now, owner, record, writing

from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.state.codec import Unreadable, encode_entry
from lium_plan.state.entries import Put
from lium_plan.state.journal import JournaledLedger
from lium_plan.state.journalfile import parse_journal
from lium_plan.state.local import KEPT, LocalStore
from lium_plan.state.model import State, replay

V = record("volume.v", "v1")


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if not path.name.endswith(".lock")}


def journal_of(store: LocalStore) -> bytes:
    return store.path("journal.jsonl").read_bytes()


# --- torn and damaged journals -------------------------------------------------------------------------------


def test_a_journal_cut_at_any_byte_loses_only_the_line_that_was_cut(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        effect = ledger.begin(address("fleet.x[0]"), "rent", {"key": "k"})
        ledger.done(effect, record("fleet.x[0]", "pod-0"))
        ledger.begin(address("fleet.x[1]"), "rent", {"key": "l"})
    whole = journal_of(store)
    assert b"\0" not in whole  # the preallocated space was given back
    log = parse_journal(whole, blank().lineage, file="j").entries
    for size in range(len(whole) + 1):
        store.path("journal.jsonl").write_bytes(whole[:size] + b"\0" * (5000 * (size % 2)))
        loaded = store.load()
        ends = size < len(whole) and whole[size] == ord("\n")  # all of a line is there, but for its end
        assert loaded.state == replay(blank(), log[: whole[:size].count(b"\n") + ends])
        assert loaded.torn_bytes == (0 if ends else size - (whole[:size].rfind(b"\n") + 1))


def test_a_line_that_lacks_its_end_counts_and_gets_one(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
    whole = journal_of(store)
    for tail in (b"", b"\0", b"\0" * 700):
        store.path("journal.jsonl").write_bytes(whole[:-1] + tail)
        assert store.load().state == ledger.state
        with writing(store) as again:
            assert journal_of(store) == whole
            again.put(V)
            assert store.load().state == again.state
        assert journal_of(store).startswith(whole)


@pytest.mark.parametrize("size", [1, 40, 400, 1000, 1500])
def test_a_torn_tail_is_cut_before_the_first_append(tmp_path: Path, size: int) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
    store.path("journal.jsonl").write_bytes(journal_of(store)[:size] + b"\0" * 64)
    whole = journal_of(store).rpartition(b"\n")[0]
    with writing(store) as ledger:
        assert journal_of(store).removesuffix(b"\n") == whole
        before = ledger.state
        ledger.put(V)
        assert store.load().state == ledger.state
        assert ledger.state.serial == before.serial + 1
    assert parse_journal(journal_of(store), blank().lineage, file="j").torn == 0


def test_a_line_with_holes_at_the_end_was_never_acknowledged(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
    whole = journal_of(store)
    to_go = -len(whole) % 512  # a disk writes whole sectors
    for tail in (
        b"\0" * (to_go + 512) + b'"}}\n',
        b"\0" * to_go + b'"}}\n',
        b'{"sum":'.ljust(to_go, b"x") + b"\0" * 512 + b'"}}\n',
        b"\0" * (to_go + 1024) + b'"}}\n' + b"\0" * 512,
        b'{"sum":'.ljust(to_go, b"x") + b"\0" * 1024 + b'"}}',
    ):
        store.path("journal.jsonl").write_bytes(whole + tail)
        loaded = store.load()
        assert loaded.state == ledger.state
        assert loaded.torn_bytes == len(tail.rstrip(b"\0"))


def damaged_journals() -> Iterator[tuple[str, Callable[[bytes], bytes]]]:
    def line(data: bytes, number: int, change: Callable[[bytes], bytes]) -> bytes:
        lines = data.split(b"\n")
        lines[number] = change(lines[number])
        return b"\n".join(lines)

    yield "changed in the middle", lambda data: line(data, 3, lambda text: text.replace(b"run-1", b"run-2"))
    yield "changed at the end", lambda data: data.replace(b'"k4"', b'"k5"')
    yield "a line lost", lambda data: line(data, 3, lambda text: b"").replace(b"\n\n", b"\n")
    yield "an empty line", lambda data: line(data, 3, lambda text: text + b"\n")
    yield "a line twice", lambda data: line(data, 3, lambda text: text + b"\n" + text)
    yield "other line ends", lambda data: data.replace(b"\n", b"\r\n")
    yield "conflict marks", lambda data: b"<<<<<<< HEAD\n" + data + b">>>>>>> other\n"
    yield "byte order mark", lambda data: b"\xef\xbb\xbf" + data
    yield "a hole in the middle", lambda data: data[:300] + b"\0" * 200 + data[500:]
    yield "the start lost", lambda data: data.partition(b"\n")[2]
    yield "a byte of the last line to NUL", lambda data: data[:-9] + b"\0" + data[-8:]
    yield "its first bytes to NUL", lambda data: line(data, -2, lambda text: b"\0" * 9 + text[9:])
    yield "its last bytes to NUL", lambda data: data[:-9] + b"\0" * 8 + b"\n"
    yield "its end to something else", lambda data: data[:-1] + b"x"
    yield "its end to something else, and NULs", lambda data: data[:-1] + b"\r" + b"\0" * 700
    yield "the end before the last to NUL", lambda data: b"\0".join(data.rsplit(b"\n", 2)[:2]) + b"\n"
    yield "no JSON", lambda data: data + b"hello\n"
    yield (
        "another state's",
        lambda data: encode_entry(entries(Put(V))[0], "f" * 8 + "-0000-4000-8000-000000000000"),
    )


@pytest.mark.parametrize(("name", "change"), list(damaged_journals()), ids=[name for name, _ in damaged_journals()])
def test_a_damaged_journal_stops_everybody_and_is_not_touched(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
    store.path("journal.jsonl").write_bytes(change(journal_of(store)))
    before = content(tmp_path)
    for locked in (False, True):
        if locked:
            asyncio.run(store.lock(owner(), timeout_s=0))
        with pytest.raises(Unreadable) as caught:
            store.load()
        assert caught.value.exit_code is ExitCode.ERROR
        assert "state repair" in (caught.value.diagnostic.hint or "")
        position = caught.value.diagnostic.position
        assert position is not None
        assert position.file == str(store.path("journal.jsonl"))
    with pytest.raises(RuntimeError):
        store.append(entries(Put(V)))
    store.close()
    assert content(tmp_path) == before


def test_the_line_that_was_changed_is_named(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
    whole = journal_of(store)
    for number, line in enumerate(whole.splitlines(keepends=True)[:-1], 1):
        store.path("journal.jsonl").write_bytes(whole.replace(line, line.replace(b"run-1", b"run-2")))
        with pytest.raises(Unreadable, match="was changed") as caught:
            store.load()
        position = caught.value.diagnostic.position
        assert position is not None
        assert position.line == number


def test_a_snapshot_cut_at_any_byte_stops_everybody_and_is_not_touched(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
        ledger.compact()
    whole = store.path("json").read_bytes()
    asyncio.run(store.lock(owner(), timeout_s=0))
    for size in range(len(whole) - 1):
        store.path("json").write_bytes(whole[:size])
        with pytest.raises(Unreadable):
            store.load()
        assert store.path("json").read_bytes() == whole[:size]
    with pytest.raises(RuntimeError):
        store.compact(blank())


def test_a_journal_without_its_snapshot_is_refused(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
    store.path("json").unlink()
    with pytest.raises(Unreadable, match="missing"):
        store.load()


def test_an_older_snapshot_put_back_under_a_newer_journal_is_refused(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
        ledger.compact()
        ledger.put(V)
    shutil.copy(store.path("json.1"), store.path("json"))
    with pytest.raises(Unreadable, match="missing"):
        store.load()


def test_a_missing_snapshot_with_earlier_ones_beside_it_is_mentioned(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
        ledger.compact()
    store.path("json").unlink()
    loaded = store.load()
    assert loaded.state is None
    assert [item.code for item in loaded.diagnostics] == ["state-missing"]


def test_a_state_copied_to_another_stack_is_refused(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
    shutil.copy(store.path("json"), tmp_path / "prod.json")
    with pytest.raises(Unreadable, match="stack default"):
        LocalStore(tmp_path, "prod", now=now).load()


def test_replacing_an_unreadable_state_sets_it_aside(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
    store.path("json").write_bytes(b"{")
    journal = journal_of(store)
    for attempt in ("1", "2"):
        with store_locked(store):
            kept = store.replace(replace(blank(), serial=50))
            assert kept == (
                f"default.json.unreadable-{attempt}",
                f"default.journal.jsonl.unreadable-{attempt}",
            )
            assert (tmp_path / kept[0]).read_bytes() == b"{"
            assert (tmp_path / kept[1]).read_bytes() == journal
            assert store.load().state == replace(blank(), serial=50)
        store.path("json").write_bytes(b"{")
        store.path("journal.jsonl").write_bytes(journal)


@contextmanager
def store_locked(store: LocalStore) -> Iterator[None]:
    with asyncio.run(store.lock(owner(), timeout_s=0)):
        yield


# --- snapshots -----------------------------------------------------------------------------------------------


def test_the_previous_snapshots_are_kept(tmp_path: Path) -> None:
    store = local(tmp_path)
    states: list[State] = []
    with writing(store) as ledger:
        for number in range(KEPT + 3):
            ledger.put(replace(V, status=str(number)))
            states.append(ledger.compact())
    for number in range(1, KEPT + 1):
        assert f'"serial": {states[-1 - number].serial},' in store.path(f"json.{number}").read_text()
    assert not store.path(f"json.{KEPT + 1}").exists()
    assert store.load().state == states[-1]


def test_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    store = local(tmp_path / "a" / "state")
    before = os.umask(0)
    try:
        with writing(store) as ledger:
            fill(ledger)
            ledger.compact()
    finally:
        os.umask(before)
    assert store.directory.stat().st_mode & 0o777 == 0o700
    for path in store.directory.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path


@pytest.mark.parametrize("suffix", ["json", "journal.jsonl", "lock", "hold"])
def test_a_symbolic_link_is_not_followed(tmp_path: Path, suffix: str) -> None:
    store = local(tmp_path / "state")
    with writing(store) as ledger:
        fill(ledger)
    target = tmp_path / "elsewhere"
    target.write_bytes(store.path(suffix).read_bytes() if store.path(suffix).exists() else b"{}")
    store.path(suffix).unlink(missing_ok=True)
    store.path(suffix).symlink_to(target)
    before = target.read_bytes()
    with pytest.raises(Failure, match="symbolic link"), writing(store):
        pass
    assert target.read_bytes() == before


@pytest.mark.parametrize("stack", ["", "../x", "a/b", ".hidden", "a.b", "-x", "a b", "x" * 65])
def test_a_stack_is_no_path(tmp_path: Path, stack: str) -> None:
    with pytest.raises(Failure) as caught:
        LocalStore(tmp_path, stack, now=now)
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_directory_that_is_none_is_explained(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(Failure) as caught:
        local(tmp_path / "state").load()
    assert caught.value.diagnostics[0].code == "state-read"


# --- full disks ----------------------------------------------------------------------------------------------


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes, as on a disk that is full at that point."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 1, 100, 600, *range(16_000, 130_000, 3_001)])
def test_what_began_can_be_ended_on_a_full_disk(tmp_path: Path, size: int) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        ledger.put(V)
        flying, refused = [], []
        with file_size_limit(size):
            for member in range(12):
                try:
                    flying.append(ledger.begin(address(f"fleet.x[{member}]"), "rent", {"body": "b" * 500}))
                except Failure as failure:
                    refused.append(failure)
            for effect in flying:
                row = record(str(effect.address), f"pod-{effect.number}", notes="n" * 3000)
                ledger.done(effect, row)
        assert store.load().state == ledger.state
        assert len(ledger.state.records) == 1 + len(flying)
        assert not ledger.state.open
        assert all(failure.exit_code is ExitCode.ERROR and "journal.jsonl" in str(failure) for failure in refused)
        # Space came back; but after a failure this process begins nothing new, and what is known can still be put.
        if refused:
            with pytest.raises(Failure, match="nothing new is started"):
                ledger.begin(address("fleet.y[0]"), "rent", {})
        ledger.put(replace(V, status="deleting"))
        ledger.compact()
    with writing(local(tmp_path)) as later:  # as the next process does
        later.begin(address("fleet.y[0]"), "rent", {})


@pytest.mark.parametrize(("room", "accepted"), [(1_500, False), (16 * 1024, False), (36 * 1024, True)])
def test_an_intent_is_accepted_when_its_end_will_fit_too_and_only_then(
    tmp_path: Path, room: int, accepted: bool
) -> None:
    """The line itself would fit each time."""
    store = local(tmp_path)
    with writing(store) as ledger:
        ledger.put(V)
        used = len(journal_of(store))
        with file_size_limit(used + room):
            if accepted:
                ledger.begin(address("fleet.x[0]"), "rent", {})
            else:
                with pytest.raises(Failure, match="can't be written"):
                    ledger.begin(address("fleet.x[0]"), "rent", {})
        assert len(ledger.state.open) == accepted
        assert store.load().state == ledger.state


def test_a_write_that_fails_after_a_long_line_takes_nothing_of_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than all the room that was kept."""
    store = local(tmp_path)
    with writing(store) as ledger:
        one, two = (ledger.begin(address(f"fleet.x[{member}]"), "rent", {}) for member in range(2))
        ledger.done(one, record("fleet.x[0]", "pod-0", notes="n" * 200_000))

        def fail(handle: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as broken, pytest.raises(Failure):
            broken.setattr(os, "fdatasync", fail)
            ledger.failed(two, "no")
        assert local(tmp_path).load().state == ledger.state
        assert list(ledger.state.open) == [two.number]
        ledger.failed(two, "no")
        assert local(tmp_path).load().state == ledger.state


def test_after_an_interrupt_a_run_may_go_on_after_a_bad_disk_it_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fault, goes_on in ((KeyboardInterrupt(), True), (OSError(5, "Input/output error"), False)):

        def fail(handle: int, fault: BaseException = fault) -> None:
            raise fault

        store = local(tmp_path / type(fault).__name__)
        with writing(store) as ledger:
            effect = ledger.begin(address("fleet.x[0]"), "rent", {})
            with monkeypatch.context() as broken, pytest.raises((Failure, KeyboardInterrupt)):
                broken.setattr(os, "fdatasync", fail)
                ledger.failed(effect, "no")
            if goes_on:
                ledger.begin(address("fleet.x[1]"), "rent", {})
            else:
                with pytest.raises(Failure, match="nothing new is started"):
                    ledger.begin(address("fleet.x[1]"), "rent", {})
            ledger.failed(effect, "no")
            assert store.load().state == ledger.state


def test_an_end_too_long_for_the_disk_stays_open_and_leaves_room_for_shorter_ones(tmp_path: Path) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        one = ledger.begin(address("fleet.x[0]"), "rent", {})
        two = ledger.begin(address("fleet.x[1]"), "rent", {})
        with file_size_limit(store.path("journal.jsonl").stat().st_size):
            with pytest.raises(Failure):
                ledger.done(one, record("fleet.x[0]", "pod-0", notes="n" * 200_000))
            assert store.load().state == ledger.state
            ledger.done(two, record("fleet.x[1]", "pod-1"))
        assert list(ledger.state.open) == [one.number]
        with pytest.raises(Failure, match="nothing new is started"):
            ledger.begin(address("fleet.x[2]"), "rent", {})
    with writing(store) as again, pytest.raises(Failure, match="nothing new is started"):
        again.begin(address("fleet.x[2]"), "rent", {})
    assert store.load().state == ledger.state


@pytest.mark.parametrize("short", [0, 1, 100, None])
def test_a_snapshot_that_does_not_fit_changes_nothing(tmp_path: Path, short: int | None) -> None:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
        before = content(tmp_path)
        needed = len(before["default.journal.jsonl"].rstrip(b"\0"))
        limit = file_size_limit(needed // 4 if short is None else short)
        with limit, pytest.raises(Failure, match="the journal holds everything"):
            ledger.compact()
        after = content(tmp_path)
        after.pop("default.events.jsonl", None)
        assert after == before
        assert store.load().state == ledger.state
        assert ledger.compact() == store.load().state
        assert len(store.events()) == 9


FULL_DISK = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from lium_plan.diagnostics import Failure
from state_samples import address, local, record, writing
store = local(Path(sys.argv[1]))
with writing(store) as ledger:
    ledger.put(record("volume.v", "v1"))
    flying = [ledger.begin(address(f"fleet.x[{member}]"), "rent", {}) for member in range(3)]
    with open(os.path.join(sys.argv[1], "ballast"), "wb", buffering=0) as ballast:
        for _ in range(2):
            try:
                while ballast.write(b"x" * 512):
                    pass
            except OSError as fault:
                print("full:", fault.strerror)
            store.load()  # looking again gives away nothing that somebody else could take
    for effect in flying:
        ledger.done(effect, record(str(effect.address), f"pod-{effect.number}", notes="n" * 3000))
    try:
        for member in range(3, 50):
            ledger.begin(address(f"fleet.x[{member}]"), "rent", {})
        print("began everything")
    except Failure as failure:
        print("refused:", failure)
    assert store.load().state == ledger.state
    try:
        ledger.compact()
    except Failure as failure:
        print("no snapshot:", failure)
    os.unlink(os.path.join(sys.argv[1], "ballast"))
    ledger.compact()
assert len(store.load().state.records) == 4
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=200k none "$1" && exec "$2" -c "$3" "$1" "$4"'
    unshare = shutil.which("unshare")
    arguments = [str(tmp_path), sys.executable, FULL_DISK, str(Path(__file__).parent)]
    if unshare is None or subprocess.run([unshare, "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    done = subprocess.run(
        [unshare, "-rm", "sh", "-c", script, "sh", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "full: No space left on device" in done.stdout
    assert "refused:" in done.stdout


BAD_SYNC = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from lium_plan.diagnostics import Failure
from state_samples import address, local, record, writing
store = local(Path(sys.argv[1]))
refused = []
with writing(store) as ledger:
    one, two = (ledger.begin(address(f"fleet.x[{member}]"), "rent", {}) for member in range(2))
    for attempt in (
        lambda: ledger.done(one, record("fleet.x[0]", "pod-0", notes="n" * 3000)),
        lambda: ledger.failed(two, "no"),
        lambda: ledger.begin(address("fleet.x[2]"), "rent", {}),
    ):
        try:
            attempt()
        except Failure:
            refused.append("x")
        else:
            refused.append("-")
        assert local(Path(sys.argv[1])).load().state == ledger.state
print("".join(refused))
"""


@pytest.mark.parametrize(("failing", "expected"), [(None, "---"), (-2, "x-x"), (-1, "-xx"), (0, "--x")])
def test_a_failed_fsync_counts_as_not_written(tmp_path: Path, failing: int | None, expected: str) -> None:
    """`failing`: which of the last syncs the disk answers with EIO, counted from the last begin's."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace here")
    command = [sys.executable, "-c", BAD_SYNC, str(tmp_path / "state"), str(Path(__file__).parent)]
    log = tmp_path / "strace"
    counting = subprocess.run(
        [strace, "-f", "-o", str(log), "-e", "trace=fdatasync", *command],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "fdatasync" not in (log.read_text() if log.exists() else ""):
        pytest.skip("strace may not trace here")
    assert counting.stdout == "---\n", counting.stderr
    if failing is None:
        return
    shutil.rmtree(tmp_path / "state")
    when = log.read_text().count("fdatasync(") + failing
    inject = f"inject=fdatasync:error=EIO:when={when}"
    done = subprocess.run(
        [strace, "-f", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", inject, *command],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == f"{expected}\n", done.stderr


# --- a crash between any two steps ---------------------------------------------------------------------------

STEPS = ("open", "os.rename", "os.link", "os.remove", "os.truncate", "os.mkdir", "os.chmod")


def crash_after(steps: int, directory: Path, report: int) -> None:
    """In a forked child: write, compact, write, compact; die before the step number `steps` on the file system."""
    left = [steps]

    def count(event: str, _: object) -> None:
        if event in STEPS:
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1

    store = local(directory)
    with asyncio.run(store.lock(owner(), timeout_s=0)):
        sys.addaudithook(count)
        state = store.load().state
        ledger = JournaledLedger(store, state or blank(), run=RUN, now=now, born=state is not None)
        for number in range(3):
            for name in ("v", "w"):
                ledger.put(record(f"volume.{name}", f"{name}{number}"))
                os.write(report, f"{ledger.state.serial}\n".encode())
            ledger.compact()
    os._exit(0)


def test_a_crash_between_any_two_steps_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    steps, status = 0, 9
    while status == 9:
        directory = tmp_path / str(steps)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                crash_after(steps, directory, writer)
            finally:
                os._exit(1)
        os.close(writer)
        with os.fdopen(reader) as lines:
            acknowledged = [int(line) for line in lines]
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9)
        state = local(directory).load().state
        serial = 0 if state is None else state.serial
        # One more entry may be durable than the child had time to report.
        assert serial - (acknowledged[-1] if acknowledged else 0) in (0, 1)
        with writing(local(directory)) as ledger:
            assert ledger.state.serial == serial
            ledger.put(record("volume.last", "last"))
            final = ledger.compact()
        assert local(directory).load().state == final
        assert len(local(directory).events()) == len(set(local(directory).events()))
        assert not [path.name for path in directory.iterdir() if path.name.endswith(".tmp")] or status == 9
        steps += 1
    assert steps > 30


# --- readers beside a writer, writers beside each other ------------------------------------------------------


def test_a_reader_overtaken_by_a_compaction_looks_again(tmp_path: Path) -> None:
    writer, reader, due = local(tmp_path), local(tmp_path), [False]

    def overtake(event: str, arguments: tuple[object, ...]) -> None:
        # The reader has the old snapshot and opens the journal: now the writer compacts, and the journal is empty.
        if due[0] and event == "open" and str(arguments[0]).endswith(".journal.jsonl"):
            due[0] = False
            ledger.compact()

    sys.addaudithook(overtake)
    with writing(writer) as ledger:
        fill(ledger)
        due[0] = True
        assert reader.load().state == ledger.state
        assert not due[0]


WRITER = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from lium_plan.state.journal import JournaledLedger, RunIdentity
from state_samples import blank, local, now, owner, record
name, rounds = sys.argv[3], int(sys.argv[4])
store = local(Path(sys.argv[1]))
for number in range(rounds):
    with asyncio.run(store.lock(owner(name), timeout_s=100)):
        state = store.load().state
        ledger = JournaledLedger(store, state or blank(), run=RunIdentity(name, name, "w"), now=now, born=bool(state))
        ledger.put(record(f"volume.{name}{number}", f"{name}{number}"))
        ledger.put(record(f"volume.{name}{number}", f"{name}{number}", more="x" * 500))
        if number % 3 != 1:
            ledger.compact()
"""


def start(source: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_writers_and_a_reader(tmp_path: Path) -> None:
    here, rounds = Path(__file__).parent, 25
    writers = [start(WRITER, tmp_path, here, name, rounds) for name in ("a", "b")]
    try:
        store, serial = local(tmp_path), 0
        while any(writer.poll() is None for writer in writers):
            state = store.load().state
            if state is not None:
                assert state.serial >= serial
                serial = state.serial
            store.events()
    finally:
        for writer in writers:
            writer.communicate(timeout=60)
    assert [writer.returncode for writer in writers] == [0, 0]
    state = store.load().state
    assert state is not None
    assert state.serial == 4 * rounds
    assert set(state.records) == {f"volume.{name}{number}" for name in "ab" for number in range(rounds)}


HOLDER = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from state_samples import address, local, writing
with writing(local(Path(sys.argv[1]))) as ledger:
    ledger.begin(address("fleet.x[0]"), "rent", {"key": "k"})
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_killed_owner_blocks_nobody_and_is_named(tmp_path: Path) -> None:
    holder = start(HOLDER, tmp_path, Path(__file__).parent)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(Failure) as caught, writing(local(tmp_path)):
            pass
        assert caught.value.exit_code is ExitCode.LOCKED
        assert f"pid {holder.pid}" in str(caught.value)
        assert "that process is running" in str(caught.value)
        assert local(tmp_path).load().state is not None  # reading goes on
    finally:
        holder.kill()
        holder.communicate(timeout=60)
    store = local(tmp_path)
    with asyncio.run(store.lock(owner("run-2"), timeout_s=0)) as taken:
        assert taken.previous is not None
        assert taken.previous.pid == holder.pid
        state = store.load().state
        assert state is not None
        assert [(effect.op, effect.at) for effect in state.open.values()] == [("rent", NOW)]
