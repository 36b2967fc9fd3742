"""Commands run as the image would run them, in every kind of shell."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from ssh_servers import asyncssh_server, session_on
from ssh_shells import LocalSession, Shell, namespaces_allowed
from ssh_sim import ENVIRONMENT, sim_pod

from lium_plan.ssh.errors import BadScript, TimedOut
from lium_plan.ssh.image_env import IMAGE_USER, LAUNCHER_FAILED, run_in_image, run_script
from lium_plan.ssh.markers import Markers, RunState, read_markers
from lium_plan.ssh.protocol import Session

needs_namespaces = pytest.mark.skipif(not namespaces_allowed(), reason="pid namespaces are not allowed here")
CONFINED = {"LIUM_SIM_CONFINED": "1"}
IMAGE = {b"PATH": b"/usr/local/bin:/usr/bin:/bin", b"HOME": b"/root"}
WEIRD = {
    "QUOTES": "a'b\"c\\d$HOME`id`$(id)!*?~#",
    "LINES": "\n one\n\ttwo\n\n",
    "BYTES": bytes(range(1, 256)).decode("utf-8", "surrogateescape"),
    "EMPTY": "",
    "LONG": "x" * 200_000,
}


async def _run(session: Session, commands: Sequence[str], **kwargs: object) -> tuple[int, bytes]:
    out = bytearray()
    kwargs = {"env": {}, "on_output": out.extend, **kwargs}
    done = await run_in_image(session, commands, timeout_s=20, **kwargs)  # type: ignore[arg-type]
    return done.exit_status, bytes(out)


def _show(*names: str) -> list[str]:
    """Commands that print variables exactly, with tools that every shell here has."""
    return [f"printf '%s' \"${{{name}-unset}}\" >{name}" for name in names]


def test_any_value_arrives_as_it_is(shell: Shell) -> None:
    values = WEIRD
    status, out = asyncio.run(_run(shell.session(environment=CONFINED), _show(*values), env=values))
    assert (status, out) == (0, b"")
    for name, value in values.items():
        assert (shell.home / name).read_bytes() == value.encode("utf-8", "surrogateescape")


def test_one_strict_shell_with_nothing_on_stdin(shell: Shell) -> None:
    session = shell.session(environment=CONFINED)

    def outcome(*commands: str) -> tuple[int, bytes]:
        return asyncio.run(_run(session, commands))

    assert outcome("A=1; f() { echo $A; }", "A=2", "f") == (0, b"2\n")
    assert outcome("cat", "echo after") == (0, b"after\n")
    assert outcome("read x || echo none") == (0, b"none\n")
    assert outcome("false && true", "echo on") == (0, b"on\n")
    assert outcome("echo a", "false", "echo b") == (1, b"a\n")
    assert outcome("sh -c 'exit 9'", "echo b")[0] == 9
    assert outcome("exit 7") == (7, b"")
    assert outcome("echo $unset_variable")[0] != 0
    assert outcome("echo a \\", "echo b") == (0, b"a\nb\n")
    assert outcome("cat <<X\n'quoted' $((1+1))\nX", "# note", "echo b") == (0, b"'quoted' 2\nb\n")
    # What one leaves open ends with it: nothing is left out, and what is wrong is the second.
    status, out = outcome("cat <<X >open\n$((1+1))", "echo b")
    assert (status, out[-2:], (shell.home / "open").read_bytes()[:2]) == (0, b"b\n", b"2\n")
    assert outcome("echo a", "echo 'unclosed", "echo c")[1].startswith(b"a\n")
    assert outcome("alias hi='echo hi'", "hi") == (0, b"hi\n") or shell.name == "bash"
    assert outcome("echo 'unclosed")[0] not in (0, LAUNCHER_FAILED)
    assert outcome("echo out; echo err >&2; echo out") == (0, b"out\nerr\nout\n")
    assert outcome("exec cat /dev/null", "echo never") == (0, b"")
    assert outcome() == (0, b"")
    assert outcome(": " + "x" * 300_000, "echo big") == (0, b"big\n")


@needs_namespaces
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {b"ML": b"one\ntwo\n\n", b"Q": b"a'b\"c\\$HOME`id`"},
        {b"PS1": b"\x01bold\x02$ "},
        {b"ML": b"one\ntwo", b"PS1": b"\x01$ "},
        {b"ML": b"one\ntwo", b"PS1": b"\x02$ "},
        {b"EMPTY": b"", b"EQ": b"a=b=c", b"LATIN": b"\xe4\xff"},
    ],
)
def test_the_images_environment_is_rebuilt(shell: Shell, extra: Mapping[bytes, bytes]) -> None:
    image = {**IMAGE, b"PATH": str(shell.path).encode(), **extra, b"not-a-name": b"1", b"UID": b"7", b"IFS": b"x"}
    names = [name.decode() for name in extra]
    session = LocalSession(shell, image=image, image_cwd=shell.home)
    commands = [*_show(*names, "SSH_CLIENT", "HOME", "OVER"), "echo a b | tr ' ' '\\n'"]
    status, out = asyncio.run(_run(session, commands, env={"OVER": "mine"}))
    assert (status, out) == (0, b"a\nb\n")
    for name, value in extra.items():
        assert (shell.home / name.decode()).read_bytes() == value
    assert (shell.home / "SSH_CLIENT").read_bytes() == b"unset"
    assert (shell.home / "HOME").read_bytes() == b"/root"
    assert (shell.home / "OVER").read_bytes() == b"mine"


@needs_namespaces
def test_what_cannot_be_told_apart_is_refused(dash: Shell) -> None:
    image = {**IMAGE, b"PATH": str(dash.path).encode(), b"A": b"\x01\n\x02"}
    status, out = asyncio.run(_run(LocalSession(dash, image=image), ["echo ran"]))
    assert status == LAUNCHER_FAILED
    assert b"can't be told apart" in out
    assert b"ran" not in out


@needs_namespaces
def test_the_working_directory_is_the_images_or_one_seen_from_there(shell: Shell) -> None:
    (shell.home / "-sub dir").mkdir()
    image = {**IMAGE, b"PATH": str(shell.path).encode()}
    session = LocalSession(shell, image=image, image_cwd=shell.home)
    assert asyncio.run(_run(session, ["pwd"])) == (0, f"{shell.home}\n".encode())
    assert asyncio.run(_run(session, ["pwd"], cwd="/")) == (0, b"/\n")
    assert asyncio.run(_run(session, ["pwd"], cwd="-sub dir")) == (0, f"{shell.home}/-sub dir\n".encode())
    status, out = asyncio.run(_run(session, ["echo ran"], cwd="/no/such"))
    assert (status, b"/no/such" in out, b"ran" in out) == (LAUNCHER_FAILED, True, False)


@needs_namespaces
@pytest.mark.parametrize("user", ["65534", "65534:1", "nobody"])
def test_another_user(shell: Shell, user: str) -> None:
    image = {**IMAGE, b"PATH": str(shell.path).encode()}
    session = LocalSession(shell, image=image)
    steps = shell.home / "m.steps"
    status, out = asyncio.run(
        _run(session, ["id -u", "cat; echo $SECRET; exit 3"], user=user, env={"SECRET": "s"}, markers="m")
    )
    if shell.name == "bare":
        assert status == LAUNCHER_FAILED
        assert b"setpriv" in out
    else:
        assert (status, out) == (3, b"65534\ns\n")
        assert steps.read_text() == "", "the records are root's"
    status, out = asyncio.run(_run(session, ["echo ran"], user="no-such-user"))
    assert (status, out) == (LAUNCHER_FAILED, b"lium-plan: the image has no user no-such-user\n")


def test_without_a_container_the_session_is_used_and_says_so(shell: Shell) -> None:
    confined = asyncio.run(_run(shell.session(environment=CONFINED), ["pwd; echo $SSH_CLIENT"]))
    assert confined == (0, f"{shell.home}\nx\n".encode())
    status, out = asyncio.run(_run(shell.session(environment=CONFINED), ["echo ran"], user="nobody"))
    assert status == 0
    assert out.endswith(b"own user instead of nobody\nran\n")


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "ä", "UID", "IFS", "__lp_x", "A\n"])
def test_a_name_that_no_shell_can_carry_is_refused(name: str) -> None:
    with pytest.raises(BadScript):
        run_script(["true"], env={name: "v"}, cwd=None, user="root", markers=None)


def test_a_nul_is_refused_without_showing_the_value() -> None:
    for arguments in ({"env": {"TOKEN": "secret\0"}}, {"commands": ["secret\0"]}, {"cwd": "secret\0"}):
        given: dict[str, object] = {"commands": [], "env": {}, "cwd": None, **arguments}
        with pytest.raises(BadScript) as caught:
            run_script(user="root", markers=None, **given)  # type: ignore[arg-type]
        assert "secret" not in str(caught.value)


def test_a_torn_script_runs_nothing(dash: Shell) -> None:
    whole = run_script(["echo ran"], env={}, cwd=None, user="root", markers="m")

    async def scenario(cut: int) -> bytes:
        out = bytearray()
        await dash.session(environment=CONFINED).run(
            "exec sh -s", stdin=whole[:cut], on_output=out.extend, timeout_s=10
        )
        return bytes(out)

    for cut in (len(whole) // 3, len(whole) // 2, len(whole) - len("__lp_main; exit $?\n") - 1):
        assert b"ran" not in asyncio.run(scenario(cut))
    assert list(dash.home.glob("m*")) == []


def test_secrets_are_in_no_process_list(dash: Shell) -> None:
    look = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\000' ' ' >seen || :"
    status, _ = asyncio.run(_run(dash.session(environment=CONFINED), [look], env={"TOKEN": "canary-9217"}))
    assert status == 0
    assert b"canary-9217" not in (dash.home / "seen").read_bytes()
    assert (dash.home / "seen").stat().st_size > 0


def test_a_commands_125_is_told_from_a_shell_that_never_began(shell: Shell) -> None:
    session = shell.session(environment=CONFINED)

    async def begun(*commands: str, **more: str) -> bool:
        done = await run_in_image(session, commands, env={}, markers="m", timeout_s=20, **more)  # type: ignore[arg-type]
        assert done.exit_status == LAUNCHER_FAILED
        return (await read_markers(session, "m", timeout_s=10)).begun

    assert asyncio.run(begun("exit 125"))
    assert not asyncio.run(begun("true", cwd="/no/such"))


def test_markers_tell_what_has_finished(shell: Shell) -> None:
    session = shell.session(environment=CONFINED)

    async def scenario() -> list[Markers]:
        seen = [await read_markers(session, ".lium-plan/b 1", timeout_s=10)]
        during: list[Markers] = []
        commands = ["true", "echo ready; while [ ! -e go ]; do sleep 0.05; done", "exit 4", "echo never"]
        ready = asyncio.Event()
        running = asyncio.create_task(
            run_in_image(
                session,
                commands,
                env={},
                markers=".lium-plan/b 1",
                on_output=lambda _: ready.set(),
                timeout_s=20,
            )
        )
        await ready.wait()
        during.append(await read_markers(shell.session(), ".lium-plan/b 1", timeout_s=10))
        again = await _run(shell.session(environment=CONFINED), ["echo twice"], markers=".lium-plan/b 1")
        assert again[0] == LAUNCHER_FAILED
        assert b"still goes on" in again[1]
        (shell.home / "go").touch()
        assert (await running).exit_status == 4
        return [*seen, *during, await read_markers(session, ".lium-plan/b 1", timeout_s=10)]

    assert asyncio.run(scenario()) == [
        Markers(RunState.NEVER_STARTED, (), None),
        Markers(RunState.RUNNING, (0,), None, shell_as_before=True, begun=True),
        Markers(RunState.EXITED, (0, 1), 4, shell_as_before=True, begun=True),
    ]
    assert (shell.home / ".lium-plan").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("command", "as_before"),
    [
        ("echo x >file; (cd /; A=1); sh -c 'cd /; export A=1'", True),
        ("export B; umask $(umask)", True),
        ("set --; true | cat; : ${RANDOM-} ${SECONDS-} ${EPOCHREALTIME-} ${BASHPID-} ${BASH_COMMAND-}", True),
        ("cd /", False),
        ("A=1", False),
        ("OPTS=-j4", False),
        ("EPOCHS=10", False),
        ("BASH_X=1", False),
        ("A='two\nlines'", False),
        ("unset HOME", False),
        ("PATH=/nowhere:$PATH", False),
        ("umask 077", False),
        ("set +e", False),
        ("set -f", False),
        ("set -- one two", False),
        ("if (set -o pipefail) 2>/dev/null; then set -o pipefail; else set -f; fi", False),
        ("shopt -s nullglob 2>/dev/null || set -f", False),
    ],
)
def test_markers_tell_whether_a_command_changed_the_shell(shell: Shell, command: str, as_before: bool) -> None:
    session = shell.session(environment={**CONFINED, "TOKEN": "a\nb'c"})
    env = {"B": "1", "SECRET": "canary-9f2\nsecond"}

    async def scenario() -> Markers:
        await run_in_image(session, [command, "exit 3"], env=env, markers="m", timeout_s=20)
        return await read_markers(session, "m", timeout_s=10)

    found = asyncio.run(scenario())
    assert found.finished_steps == (0,)
    assert found.shell_as_before is as_before
    left = [path for path in shell.home.glob("m.*") if b"canary" in path.read_bytes()]
    assert left == [], "what the shell held must not stay on the disk"


def test_every_descriptor_is_the_commands_own(shell: Shell) -> None:
    session = shell.session(environment=CONFINED)

    def outcome(*commands: str) -> tuple[int, bytes, tuple[int, ...]]:
        status, out = asyncio.run(_run(session, commands, markers="m"))
        return status, out, asyncio.run(read_markers(session, "m", timeout_s=10)).finished_steps

    opened = "exec 3>file 4>&3 5>&3 6>&3 7>&3 8>&3 9>&3"
    assert outcome(opened, "echo mine >&9", "exec 3>&- 7>&- 9>&-", "echo end") == (0, b"end\n", (0, 1, 2, 3))
    assert (shell.home / "file").read_bytes() == b"mine\n"
    # What can't be recorded is no fault of theirs.
    assert outcome("rm m.steps; mkdir m.steps", "echo $?", "echo end") == (0, b"0\nend\n", ())


def test_commands_end_when_their_caller_leaves(shell: Shell) -> None:
    """The pod's own shells are the witnesses: one waits for the end of the other."""

    async def scenario() -> Markers:
        await _left_behind(shell, "sleep 300 & echo $!; wait")
        return await _over(shell)

    assert asyncio.run(scenario()) == Markers(RunState.LOST, (), None, begun=True)


def test_a_run_goes_on_as_long_as_what_does_not_end_at_once(shell: Shell) -> None:
    async def scenario() -> None:
        stays = 'trap "" TERM; echo begun; exec >/dev/null 2>&1; while [ ! -e go ]; do sleep 0.05; done'
        await _left_behind(shell, f"sh -c '{stays}'")
        assert (await read_markers(shell.session(), "m", timeout_s=10)).state is RunState.RUNNING
        status, out = await _run(shell.session(environment=CONFINED), ["echo twice"], markers="m")
        assert (status, b"still goes on" in out) == (LAUNCHER_FAILED, True)
        (shell.home / "go").touch()
        assert (await _over(shell)).state is RunState.LOST

    asyncio.run(scenario())


def test_a_run_that_has_ended_does_not_go_on_with_what_it_left(shell: Shell) -> None:
    async def scenario() -> None:
        for _ in range(2):
            status, _ = await _run(
                shell.session(environment=CONFINED),
                ["sleep 300 >/dev/null 2>&1 & echo $! >>pids"],
                markers="m",
            )
            assert status == 0
            assert (await read_markers(shell.session(), "m", timeout_s=10)).state is RunState.EXITED

    asyncio.run(scenario())
    for pid in (shell.home / "pids").read_text().split():
        os.kill(int(pid), signal.SIGKILL)


async def _left_behind(shell: Shell, command: str) -> None:
    """The caller leaves a run when it has said something."""
    begun = asyncio.Event()
    session = shell.session(environment=CONFINED)
    running = asyncio.create_task(_run(session, [command], markers="m", on_output=lambda _: begun.set()))
    await begun.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def _over(shell: Shell) -> Markers:
    while (found := await read_markers(shell.session(), "m", timeout_s=10)).state is RunState.RUNNING:
        pass
    return found


def test_over_ssh_a_run_that_is_given_up_ends_on_the_machine(tmp_path: Path, key_path: Path) -> None:
    async def scenario() -> None:
        async with asyncssh_server(tmp_path, key_path) as server, session_on(server) as session:
            with pytest.raises(TimedOut):
                await run_in_image(session, ["sleep 300 & echo $! >pid; wait"], env={}, markers="m", timeout_s=0.5)
            async with asyncio.timeout(9):
                while (found := await read_markers(session, "m", timeout_s=5)).state is RunState.RUNNING:
                    pass
            assert found.state is RunState.LOST

    asyncio.run(scenario())


def test_on_a_simulated_pod(tmp_path: Path, key_path: Path) -> None:
    async def scenario() -> None:
        async with (
            sim_pod(tmp_path, key_path, confined=False, image="limsim/uid1000:1") as server,
            session_on(server) as session,
        ):
            names = list(ENVIRONMENT)
            commands = [f"printf '%s' \"${name}\" | base64 -w0; echo" for name in names]
            status, out = await _run(session, [*commands, "pwd", "id -u"], user=IMAGE_USER)
            assert status == 0
            lines = out.decode().splitlines()
            assert [base64.b64decode(line).decode() for line in lines[: len(names)]] == list(ENVIRONMENT.values())
            assert lines[len(names) :] == ["/home/user", "1000"]

    asyncio.run(scenario())
