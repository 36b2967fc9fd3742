"""What only prints ends when nobody reads any more, also while there is nothing to print."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.statecmd.commands import FLEET, Desk
from tests.support.projects import Project

BOOT = "fleet.workers[0].bootstrap"
RUNNING = [replace(item, status="running") if str(item.address) == BOOT else item for item in FLEET]


@pytest.mark.parametrize(
    "command",
    [
        ("status", "--watch", "--interval", "600s"),
        ("status", "--watch", "--interval", "600s", "--json"),
        ("logs", "-f", BOOT),
    ],
    ids=lambda command: " ".join(command),
)
def test_it_ends_when_its_reader_has_gone(project: Project, desk: Desk, command: tuple[str, ...]) -> None:
    work = replace(project, folder=desk.folder)
    desk.fill(*RUNNING)
    log = desk.folder / "state" / "logs" / "default" / f"{BOOT}.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    with work.start(*command) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=30) == 0


def test_an_interval_without_a_watch_is_usage(desk: Desk) -> None:
    assert "give both" in desk.run("status", "--interval", "5s", expect=64).err


def test_markdown_of_a_state_is_usage(desk: Desk) -> None:
    desk.fill(*FLEET)
    assert "saved plan" in desk.run("show", "--markdown", expect=64).err


def test_the_log_of_what_is_no_longer_in_the_state_is_shown(desk: Desk) -> None:
    desk.fill(*FLEET)
    logs = desk.folder / "state" / "logs" / "default"
    logs.mkdir(parents=True)
    (logs / "fleet.gone[0].bootstrap.log").write_text("it broke\n")
    (logs / "task.gone[0].log").write_text("so did this\n")
    for address, words in (
        ("fleet.gone[0]", "it broke\n"),
        ("fleet.gone[0].bootstrap", "it broke\n"),
        ("task.gone[0]", "so did this\n"),
    ):
        done = desk.run("--sim", "logs", address)
        assert done.out == words
        assert f"{address}: no longer in the state" in done.err
    assert "not in the state" in desk.run("--sim", "logs", "task.never[0]", expect=1).err
    desk.run("sim", "stop", expect=0)


def test_a_host_key_can_be_pinned_by_ssh_itself(desk: Desk) -> None:
    """After `state recover` nobody has logged in, and ssh makes no directory for the file that it is given."""
    desk.fill(*(replace(item, attributes={**item.attributes, "connect_command": "ssh root@h -p 22"}) for item in FLEET))
    pins = desk.folder / "state" / "known_hosts"
    key = desk.folder / "home" / ".ssh" / "id_ed25519"
    key.parent.mkdir(parents=True)
    key.write_text("a key\n")
    assert f"UserKnownHostsFile {pins}/p0\n" in desk.run("ssh-config").out
    assert pins.stat().st_mode & 0o777 == 0o700
