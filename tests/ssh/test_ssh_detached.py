"""Detached commands, in every kind of shell; the scripts are the same over SSH, which the last tests use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_servers import Server, asyncssh_server, session_on
from ssh_shells import LocalSession, Shell

from lium_plan.ssh import detached
from lium_plan.ssh.detached import DetachedCommand, Ending, Probe, TaskState
from lium_plan.ssh.errors import SshError
from lium_plan.ssh.protocol import Session
from tests.support.sims import until

TASK = ".lium-plan/tasks/a b"


def _session(shell: Shell) -> LocalSession:
    return shell.session(environment={"LIUM_SIM_CONFINED": "1"})


async def _finished(session: Session, task_dir: str = TASK) -> tuple[Probe, bytes]:
    out = bytearray()
    reached = await detached.follow_log(session, task_dir, on_output=out.extend, timeout_s=30)
    assert reached == len(out)
    return await detached.probe(session, task_dir, timeout_s=10), bytes(out)


def test_a_command_lives_without_its_caller_and_leaves_its_status(shell: Shell) -> None:
    command = DetachedCommand(
        ['echo "$TOKEN"; pwd', "cat", "while [ ! -e go ]; do sleep 0.05; done", "echo err >&2; exit 3"],
        env={"TOKEN": "it's\n$HOME"},
    )

    async def scenario() -> None:
        session = _session(shell)
        assert await detached.probe(session, TASK, timeout_s=10) == Probe(TaskState.NEVER_STARTED)
        assert await detached.start(session, command, TASK, timeout_s=10)
        assert (await detached.probe(session, TASK, timeout_s=10)).state is TaskState.RUNNING
        (shell.home / "go").touch()
        expected = f"it's\n$HOME\n{shell.home}\nerr\n".encode()
        assert await _finished(session) == (
            Probe(TaskState.EXITED, 3, Ending.BY_ITSELF, len(expected)),
            expected,
        )

    asyncio.run(scenario())


def test_it_starts_once_however_often_it_is_sent(shell: Shell) -> None:
    command = DetachedCommand(["echo ran >>runs"])

    async def scenario() -> None:
        sent = [detached.start(_session(shell), command, TASK, timeout_s=20) for _ in range(4)]
        assert sorted(await asyncio.gather(*sent)) == [False, False, False, True]
        probe, _ = await _finished(_session(shell))
        assert probe.exit_status == 0
        assert not await detached.start(_session(shell), command, TASK, timeout_s=10)
        assert (shell.home / "runs").read_text() == "ran\n"

    asyncio.run(scenario())


def test_stop_ends_the_whole_group_and_is_recorded(shell: Shell) -> None:
    command = DetachedCommand(["trap 'echo bye; exit 9' TERM", "echo on; sleep 300 & wait"])

    async def scenario() -> None:
        session = _session(shell)
        assert await detached.stop(session, TASK, timeout_s=30) == Probe(TaskState.NEVER_STARTED)
        await detached.start(session, command, TASK, timeout_s=10)
        await _until_log(session, 3)
        stopped = await detached.stop(session, TASK, timeout_s=30)
        assert stopped == Probe(TaskState.EXITED, 9, Ending.STOPPED, len("on\nbye\n"))
        assert await detached.stop(session, TASK, timeout_s=30) == stopped

    asyncio.run(scenario())


async def _until_log(session: Session, size: int) -> None:
    async with asyncio.timeout(10):
        while (await detached.probe(session, TASK, timeout_s=10)).log_bytes < size:
            pass


def test_the_longest_duration_is_kept_without_anybody_connected(shell: Shell) -> None:
    command = DetachedCommand(["echo on; sleep 300"], max_duration_s=0.5)

    async def scenario() -> None:
        session = _session(shell)
        await detached.start(session, command, TASK, timeout_s=10)
        probe, log = await _finished(session)
        assert (probe.state, probe.ending, log) == (TaskState.EXITED, Ending.TIMED_OUT, b"on\n")
        assert probe.exit_status not in (0, None)

    asyncio.run(scenario())


STUBBORN = "sh -c 'trap \"\" TERM; echo $$ >.pid; mv .pid pid; while :; do sleep 0.1; done'"
"""Takes no notice of TERM. Its shell does, and ends at once."""


def _stubborn(home: Path) -> str:
    """Its pid, once it takes no notice."""
    until(lambda: (home / "pid").exists(), what="the program")
    return (home / "pid").read_text().strip()


def test_stop_ends_what_does_not_heed_term(shell: Shell) -> None:
    async def scenario() -> None:
        session = _session(shell)
        await detached.start(session, DetachedCommand([STUBBORN]), TASK, timeout_s=10)
        pid = _stubborn(shell.home)
        stopped = await detached.stop(session, TASK, grace_s=0.4, timeout_s=30)
        assert (stopped.state, stopped.ending) == (TaskState.EXITED, Ending.STOPPED)
        assert _has_ended(pid)

    asyncio.run(scenario())


def test_the_longest_duration_is_that_of_all_that_was_started(shell: Shell) -> None:
    async def scenario() -> None:
        session = _session(shell)
        await detached.start(session, DetachedCommand([STUBBORN], max_duration_s=1, grace_s=0.4), TASK, timeout_s=10)
        probe, _ = await _finished(session)
        assert (probe.state, probe.ending) == (TaskState.EXITED, Ending.TIMED_OUT)
        assert _has_ended(_stubborn(shell.home)), "before its end is told"

    asyncio.run(scenario())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("shell", ["dash"], indirect=True)
@pytest.mark.parametrize("tool", ["setpriv", "chroot", "su"])
def test_stop_reaches_what_runs_as_another_user(shell: Shell, tool: str) -> None:
    """Also by util-linux's su, which begins a session of its own where it can."""
    shell.home.chmod(0o777)
    tools = ["setpriv", "chroot", "su"]
    lacking = shell.home / "lacking"
    lacking.mkdir()
    for name in tools[: tools.index(tool)]:
        (lacking / name).write_text("#!/bin/sh\nexit 1\n")
        (lacking / name).chmod(0o755)

    async def scenario() -> None:
        session = shell.session()
        command = DetachedCommand(
            ["id -un", STUBBORN], env={"PATH": f"{lacking}:{shell.path}"}, cwd=str(shell.home), user="nobody"
        )
        await detached.start(session, command, TASK, timeout_s=10)
        pid = _stubborn(shell.home)
        await detached.stop(session, TASK, grace_s=0.4, timeout_s=30)
        assert _has_ended(pid)
        assert (shell.home / TASK / "log").read_text().startswith("nobody\n")

    asyncio.run(scenario())


def test_what_a_command_left_behind_is_stopped_when_asked_for_alone(dash: Shell) -> None:
    async def scenario() -> None:
        session = _session(dash)
        await detached.start(session, DetachedCommand([f"{STUBBORN} & exit 4"], max_duration_s=60), TASK, timeout_s=10)
        pid = _stubborn(dash.home)
        ended, _ = await _finished(session)
        assert (ended.exit_status, ended.ending) == (4, Ending.BY_ITSELF)
        assert not _has_ended(pid)
        assert await detached.stop(session, TASK, grace_s=0.4, timeout_s=30) == ended
        assert _has_ended(pid)

    asyncio.run(scenario())


def test_a_group_of_which_nothing_is_left_is_nobodys(dash: Shell) -> None:
    """Its number may be another group's by now."""

    async def scenario() -> None:
        session = _session(dash)
        await detached.start(session, DetachedCommand(["true"]), TASK, timeout_s=10)
        ended, _ = await _finished(session)
        assert not (dash.home / TASK / "group").exists()
        assert await detached.stop(session, TASK, timeout_s=30) == ended

    asyncio.run(scenario())


def test_a_number_that_another_process_has_by_now_is_let_alone(dash: Shell) -> None:
    async def scenario(other: int) -> None:
        session = _session(dash)
        await detached.start(session, DetachedCommand(["sleep 300"]), TASK, timeout_s=10)
        file = dash.home / TASK / "group"
        until(file.exists, what="the commands")
        _, rest = file.read_text().split(maxsplit=1)
        await detached.stop(session, TASK, timeout_s=30)
        file.write_text(f"{other} {rest}")
        assert (await detached.stop(session, TASK, timeout_s=30)).state is TaskState.EXITED

    with subprocess.Popen(["sleep", "300"], start_new_session=True) as other:
        try:
            asyncio.run(scenario(other.pid))
            assert other.poll() is None
        finally:
            other.kill()


def test_without_its_runner_it_runs_for_as_long_as_anything_of_it_lives(shell: Shell) -> None:
    async def scenario() -> None:
        session = _session(shell)
        await detached.start(session, DetachedCommand([f"echo on; {STUBBORN}"]), TASK, timeout_s=10)
        pid = _stubborn(shell.home)
        runner = (shell.home / TASK / "run").read_text().split()[0]
        os.kill(int(runner), signal.SIGKILL)
        until(lambda: _has_ended(runner), what="the runner's end")
        assert (await detached.probe(session, TASK, timeout_s=10)).state is TaskState.RUNNING
        following = asyncio.ensure_future(_finished(session))
        assert not (await asyncio.wait((following,), timeout=0.7))[0]
        assert (await detached.stop(session, TASK, grace_s=0.4, timeout_s=30)).state is TaskState.LOST
        assert _has_ended(pid)
        assert await following == (Probe(TaskState.LOST, log_bytes=3), b"on\n")

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["rebooted", "claimed-only"])
def test_what_ended_without_a_status_is_lost_and_never_done(dash: Shell, how: str) -> None:
    async def scenario() -> None:
        session = _session(dash)
        await detached.start(session, DetachedCommand(["sleep 300"]), TASK, timeout_s=10)
        files = [dash.home / TASK / name for name in ("run", "group")]
        until(lambda: all(file.exists() for file in files), what="the commands")
        pids = [int(file.read_text().split()[0]) for file in files]
        try:
            for file in files:
                pid, started, boot, leads = file.read_text().split()
                if how == "rebooted":
                    file.write_text(f"{pid} {started} another-{boot} {leads}\n")
                else:
                    file.unlink()
            assert (await detached.probe(session, TASK, timeout_s=10)).state is TaskState.LOST
            assert not await detached.start(session, DetachedCommand(["true"]), TASK, timeout_s=10)
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    asyncio.run(scenario())


def _has_ended(pid: str) -> bool:
    """Also when nobody has reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True


def test_a_command_that_cannot_start_says_why_and_is_not_claimed(dash: Shell) -> None:
    async def scenario() -> None:
        with pytest.raises(SshError, match="/no/such"):
            await detached.start(_session(dash), DetachedCommand(["true"], cwd="/no/such"), TASK, timeout_s=10)
        assert await detached.probe(_session(dash), TASK, timeout_s=10) == Probe(TaskState.NEVER_STARTED)
        assert await detached.start(_session(dash), DetachedCommand(["true"]), TASK, timeout_s=10)
        assert (await _finished(_session(dash)))[0].exit_status == 0

    asyncio.run(scenario())


def test_a_useless_path_is_the_commands_alone(shell: Shell) -> None:
    async def scenario() -> None:
        command = DetachedCommand(["echo $PATH"], env={"PATH": "/nowhere"})
        await detached.start(_session(shell), command, TASK, timeout_s=10)
        assert await _finished(_session(shell)) == (
            Probe(TaskState.EXITED, 0, Ending.BY_ITSELF, 9),
            b"/nowhere\n",
        )

    asyncio.run(scenario())


def test_secrets_are_in_no_process_list_and_no_file(dash: Shell) -> None:
    look = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\000' ' ' >seen || :"

    async def scenario() -> None:
        command = DetachedCommand([look], env={"TOKEN": "canary-5521"})
        await detached.start(_session(dash), command, TASK, timeout_s=10)
        assert (await _finished(_session(dash)))[0].exit_status == 0

    asyncio.run(scenario())
    files = [file for file in dash.home.rglob("*") if file.is_file()]
    assert dash.home / "seen" in files
    assert not [file for file in files if b"canary-5521" in file.read_bytes()]


@pytest.fixture
def small(shell: Shell) -> Iterator[Shell]:
    """A home on a disk of 128 KiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k,mode=755", "none", str(shell.home)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        yield shell
    finally:
        subprocess.run(["umount", "--lazy", str(shell.home)], check=True)


def test_a_full_disk_hides_no_ending(small: Shell) -> None:
    session = _session(small)

    fills = "cat /dev/zero >fill 2>/dev/null || "

    async def by_itself() -> None:
        await detached.start(session, DetachedCommand([fills + "exit 5", "echo never"]), "by-itself", timeout_s=10)
        found, _ = await _finished(session, "by-itself")
        assert (found.state, found.exit_status, found.ending) == (TaskState.EXITED, 5, Ending.BY_ITSELF)
        (small.home / "fill").unlink()
        waits = DetachedCommand([fills + ": >filled; while :; do sleep 0.1; done"])
        await detached.start(session, waits, "stopped", timeout_s=10)

    async def stopped() -> None:
        with pytest.raises(SshError, match=r"third.* can't be (made|written)"):
            await detached.start(session, DetachedCommand(["true"]), "third", timeout_s=10)
        found = await detached.stop(session, "stopped", timeout_s=30)
        assert (found.state, found.ending) == (TaskState.EXITED, Ending.STOPPED)

    asyncio.run(by_itself())
    until(lambda: (small.home / "filled").exists(), what="a full disk")
    asyncio.run(stopped())


def test_a_log_is_followed_from_an_offset(shell: Shell) -> None:
    async def scenario() -> None:
        await detached.start(_session(shell), DetachedCommand(["printf 0123456789"]), TASK, timeout_s=10)
        await _finished(_session(shell))
        out = bytearray()
        reached = await detached.follow_log(_session(shell), TASK, offset_bytes=4, on_output=out.extend, timeout_s=10)
        assert (reached, bytes(out)) == (10, b"456789")

    asyncio.run(scenario())


async def _survives_its_connection(server: Server) -> None:
    async with session_on(server) as session:
        command = DetachedCommand(["while [ ! -e lp-go ]; do sleep 0.05; done; rm lp-go; exit 6"], cwd=str(server.home))
        assert await detached.start(session, command, "lp-task", timeout_s=20)
    async with session_on(server) as session:
        assert (await detached.probe(session, "lp-task", timeout_s=10)).state is TaskState.RUNNING
        await session.run(f": >'{server.home}/lp-go'", timeout_s=10)
        assert (await _finished(session, "lp-task"))[0].exit_status == 6


def test_it_outlives_its_connection(tmp_path: Path, key_path: Path) -> None:
    async def scenario() -> None:
        async with asyncssh_server(tmp_path, key_path) as server:
            await _survives_its_connection(server)

    asyncio.run(scenario())


def test_it_outlives_its_connection_to_openssh(openssh: Server) -> None:
    asyncio.run(_survives_its_connection(openssh))


def test_stop_ends_what_does_not_heed_term_under_openssh(openssh: Server) -> None:
    async def scenario() -> None:
        async with session_on(openssh) as session:
            command = DetachedCommand([STUBBORN], cwd=str(openssh.home))
            await detached.start(session, command, "lp-stubborn", timeout_s=20)
            pid = _stubborn(openssh.home)
            stopped = await detached.stop(session, "lp-stubborn", grace_s=0.4, timeout_s=30)
            assert (stopped.state, stopped.ending) == (TaskState.EXITED, Ending.STOPPED)
            assert _has_ended(pid)

    asyncio.run(scenario())
