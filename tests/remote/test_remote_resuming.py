"""Where a bootstrap begins again: after what has finished only when nothing but files can matter to the rest."""

from __future__ import annotations

import pytest

from lium_plan.kinds.bootstrap.resuming import first_command
from lium_plan.ssh.markers import Markers, RunState

THREE = ("pip install torch", "make -j2 2>&1 | tee log && echo ok", "sh train.sh")


def markers(finished: int, *, status: int | None = 1, state: RunState = RunState.EXITED, **more: bool) -> Markers:
    facts = {"shell_as_before": True, **more}
    return Markers(state, tuple(range(finished)), status, **facts)


@pytest.mark.parametrize(
    ("found", "first"),
    [
        (markers(0), 0),
        (markers(2), 2),
        (markers(2, status=None, state=RunState.LOST), 2),
        (markers(3, status=0), 3),
        (markers(3, status=None, state=RunState.LOST), 0),  # whether its last moment went well nobody knows
        (markers(2, shell_as_before=False), 0),
        (markers(2, restarted=True), 0),
        (markers(3, status=0, restarted=True), 0),
        (markers(0, status=None, state=RunState.NEVER_STARTED), 0),
    ],
)
def test_the_first_command_of_a_retry(found: Markers, first: int) -> None:
    assert first_command(THREE, found) == first


@pytest.mark.parametrize(
    "command",
    [
        "redis-server &",
        "redis-server &> log",
        "redis-server >log 2>&1&",
        "(sleep 1; run) & wait",
        "greet() { echo hi; }",
        "greet () { echo hi; }",
        "function greet { echo hi; }",
        ". /opt/conda/etc/profile.d/conda.sh",
        "source venv/bin/activate",
        "true; . ./env",
        "exec >/tmp/log",
        "exec>log",
        "trap 'rm -f x' EXIT",
        "alias ll=ls",
        'eval "$(ssh-agent)"',
        "nohup serve >log",
        "if true\nthen\nexec 3<x\nfi",
    ],
)
def test_a_command_that_may_leave_something_in_the_shell_is_done_again(command: str) -> None:
    assert first_command((command, "true", "false"), markers(2)) == 0
    assert first_command(("true", "true", command), markers(2)) == 2, "the one that is run again may do as it likes"


@pytest.mark.parametrize(
    "command",
    ["make >log 2>&1", "a && b", "a 2>&1 | b", "cp ./a .", "ls ..", "echo x >&2", "echo 'a.b'"],
)
def test_ordinary_commands_are_not_taken_for_such(command: str) -> None:
    assert first_command((command, "false"), markers(1)) == 1
