"""Who holds a lock, as far as that can be seen from here (C1)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from state_samples import NOW, blank, local, owner

from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.operations.checking import _state
from lium_plan.settings import Flags, resolve
from lium_plan.state.lock import Liveness, liveness, lock_held, process_started, read_owner


def ended_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_this_process_lives() -> None:
    assert liveness(owner()) is Liveness.ALIVE


def test_an_ended_process_is_dead() -> None:
    assert liveness(replace(owner(), pid=ended_pid())) is Liveness.DEAD


@pytest.mark.skipif(process_started(1) is None, reason="the system does not say when a process started")
def test_a_reused_pid_is_not_taken_for_the_owner() -> None:
    assert liveness(replace(owner(), process_started="another boot:1")) is Liveness.DEAD


def test_another_host_can_not_be_judged() -> None:
    elsewhere = replace(owner(), host="elsewhere.example")
    assert liveness(elsewhere) is Liveness.UNKNOWN
    message = str(lock_held("prod", Path("prod.lock"), elsewhere))
    assert "elsewhere.example" in message
    assert "can't be seen from here" in message


def test_messages_for_every_owner() -> None:
    assert "is gone" in str(lock_held("prod", Path("prod.lock"), replace(owner(), pid=ended_pid())))
    assert "no record" in str(lock_held("prod", Path("prod.lock"), None))


@pytest.mark.parametrize(
    ("command", "pid", "way_out"),
    [("lium-plan apply", os.getpid(), True), ("lium-plan apply", 0, False), ("lium-plan destroy", os.getpid(), False)],
    ids=("alive", "gone", "a destroy"),  # the same in every process that collects them
)
def test_an_apply_that_waits_for_tasks_may_be_interrupted(command: str, pid: int, way_out: bool) -> None:
    held = lock_held("prod", Path("prod.lock"), replace(owner(), command=command, pid=pid or ended_pid()))
    (found,) = held.diagnostics
    assert (f"kill -INT {pid} on" in str(found.hint)) is way_out
    assert ("leaves them running, and the next apply attaches to them" in str(found.hint)) is way_out


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\0", b'{"who": 1}'])
def test_a_record_that_can_not_be_read_blocks_nobody(tmp_path: Path, content: bytes) -> None:
    store = local(tmp_path)
    store.path("lock").write_bytes(content)
    assert read_owner(store.path("lock")) is None
    with asyncio.run(store.lock(owner(), timeout_s=0)) as taken:
        assert taken.previous is None
        assert read_owner(store.path("lock")) == owner()
    assert not store.path("lock").exists()


def test_a_stack_that_never_came_to_be_leaves_no_lock(tmp_path: Path) -> None:
    store = local(tmp_path)
    with asyncio.run(store.lock(owner(), timeout_s=0)):
        store.load()
    assert list(tmp_path.iterdir()) == []
    with asyncio.run(store.lock(owner(), timeout_s=0)):
        store.load()
        store.compact(blank())
    assert store.path("lock").read_bytes() == b""


def test_a_lock_that_another_has_taken_in_the_meantime_stays(tmp_path: Path) -> None:
    first, second = local(tmp_path), local(tmp_path)
    with asyncio.run(first.lock(owner(), timeout_s=0)):
        first.path("lock").unlink()
        with asyncio.run(second.lock(owner("run-2"), timeout_s=0)) as taken:
            first.close()
            assert taken.stands


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\0", b'{"who": 1}'])
def test_a_hold_that_can_not_be_read_blocks_until_it_is_lifted(tmp_path: Path, content: bytes) -> None:
    store = local(tmp_path)
    store.path("hold").write_bytes(content)
    for _ in range(2):  # the refusal let go of the kernel's lock
        with pytest.raises(Failure) as caught:
            asyncio.run(store.lock(owner(), timeout_s=0))
        assert caught.value.exit_code is ExitCode.LOCKED
    with pytest.raises(Failure):
        store.held(NOW)
    assert store.unhold()
    asyncio.run(store.lock(owner(), timeout_s=0)).release()


@contextmanager
def nobody_special(folder: Path) -> Iterator[None]:
    """For root, who may write everywhere: as somebody else, to whom the folder belongs."""
    if os.geteuid() != 0:
        yield
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_nobody_begins_where_no_snapshot_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock and the journal are there and can be written; a new file beside them can't."""
    monkeypatch.chdir(tmp_path)
    store = local(Path("state"))
    with asyncio.run(store.lock(owner(), timeout_s=0)):
        store.load()
        store.compact(blank())
    settings = resolve(Flags(state="file:state"), {}, tmp_path)
    Path("state").chmod(0o555)
    try:
        with nobody_special(tmp_path), pytest.raises(Failure) as caught:
            asyncio.run(local(Path("state")).lock(owner(), timeout_s=0))
        with nobody_special(tmp_path):
            check = _state(settings)
    finally:
        Path("state").chmod(0o755)
    assert caught.value.exit_code is ExitCode.ERROR
    assert "no file can be made in state" in str(caught.value)
    assert check.ok is False
