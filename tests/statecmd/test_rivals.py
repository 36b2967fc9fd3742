"""Two processes at once never fork the state, and one that was killed blocks nobody (cases C1, C2, C7, D1).

`LIUM_PLAN_ROUNDS=50` makes it the long run.
"""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from lium_plan.state.codec import decode_snapshot
from tests.support.projects import Done, Project
from tests.support.sims import until

ROUNDS = int(os.environ.get("LIUM_PLAN_ROUNDS", "3"))

VOLUMES = """\
version: 1
project: rivals
variables: {who: {type: string, default: nobody}}
volumes:
  a: {description: "${{ var.who }}"}
  b: {description: "${{ var.who }}"}
"""


def snapshots(project: Project) -> list[tuple[int, int, str]]:
    """(serial, last entry, lineage) of the snapshot and of those before it, newest first."""
    folder = project.folder / "state"
    paths = [folder / "default.json", *(folder / f"default.json.{number}" for number in range(1, 11))]
    states = [decode_snapshot(path.read_bytes(), file=str(path)) for path in paths if path.exists()]
    return [(state.serial, state.sequence, state.lineage) for state in states]


@pytest.mark.timeout(120 + 40 * ROUNDS)
def test_two_that_plan_and_apply_at_once_never_fork_the_serial(project: Project) -> None:
    project.write(VOLUMES)
    project.apply()

    def one(number: int, who: str) -> Done:
        given = ("--var", f"who={who}{number}")
        if number % 2:
            return project.run("apply", "--auto-approve", *given, "--lock-timeout", "30s")
        project.run("plan", "--out", f"{who}.plan", *given, expect=0)
        return project.run("apply", f"{who}.plan", *given, "--lock-timeout", "30s")

    before = snapshots(project)[0]
    for number in range(ROUNDS):
        with ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(one, (number, number), ("ann", "bob")))
        codes = sorted(done.code for done in ended)
        # Of two saved plans made of one state at most one is carried out; whoever plans under the lock does both.
        assert codes in ([0, 0], [0, 4]), ended
        found = snapshots(project)
        assert {lineage for _, _, lineage in found} == {before[2]}
        serials = [serial for serial, _, _ in found]
        assert serials == sorted(set(serials), reverse=True), serials
        assert found[0] > before
        before = found[0]
    told = [row for row in project.run("events", "--json", expect=0).json["events"] if row["action"] == "update"]
    assert all(row["result"] == "done" for row in told)
    log = (project.folder / "state" / "default.events.jsonl").read_text()
    numbers = [int(number) for number in re.findall(r'"number":(\d+)', log)]
    assert numbers == sorted(set(numbers)), "an entry was written twice"
    shown = [row["attributes"]["description"] for row in project.resources("volume").values()]
    assert shown[0] == shown[1]
    assert len(project.ledger("volume")) == 2


@pytest.mark.parametrize("at", ["before POST /volumes #1", "answered POST /volumes #1", "after journal #2"])
def test_a_killed_owner_blocks_nobody(project: Project, at: str) -> None:
    project.write(VOLUMES)
    assert project.crash("apply", "--auto-approve", at=at).code == -signal.SIGKILL
    project.run("state", "list", expect=0)
    project.run("state", "lock", "--ttl", "0", expect=0)
    project.apply()
    assert len(project.ledger("volume", open_only=True)) == 2
    assert len(project.ledger("volume")) == 2


def test_readers_work_while_an_apply_runs_and_writers_are_told_who_it_is(project: Project) -> None:
    project.write(VOLUMES)
    project.apply()
    stuck = {"do": "delay", "seconds": 600}
    project.sim.fault(stuck, match={"method": "PUT", "path": "/volumes/*", "account": project.account, "times": None})
    with project.start("apply", "--auto-approve", "--var", "who=slow") as running:
        journal = project.folder / "state" / "default.journal.jsonl"
        until(lambda: b'"op":"update"' in journal.read_bytes(), running, what="an update is under way")
        for command in READING:
            project.run(*command.split(), expect=0)
        assert len(project.state()["open"]) == 2
        for command in ("state mv volume.a volume.c", "state rm volume.a", "extend fleet.x[0] 1h", "state unlock"):
            done = project.run(*command.split(), expect=5)
            assert "lium-plan apply" in done.err
            assert "that process is running" in done.err
        running.kill()
        running.communicate()
    # Its effects are open for ever as far as anybody knows, but for whoever gives the resource up.
    project.run("state", "mv", "volume.a", "volume.c", expect=1)
    project.run("state", "rm", "volume.a", expect=0)
    assert [entry["address"] for entry in project.state()["open"]] == ["volume.b"]


READING = ("show", "state list", "state show volume.a", "state pull", "output", "events", "validate", "plan", "orphans")
