"""SIGKILL at every step of a bootstrap and of a task's start: the next apply is right (case G10).

Right means: never taken for ready or for started when it is not; every command has run; no task runs twice; nothing is
rented twice. The points are those of `tests.support.crash_launcher`; the SSH ones are spread over a whole run of it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from remote_looks import BOOT, TASK, log_of, nothing_to_do

from tests.support.projects import Project, new_project
from tests.support.sims import Row, Sim

AT_ONCE = 3
MANIFEST = """\
version: 1
project: killed
fleets:
  x:
    resources: {gpu: "RTX4090:1"}
    max_price: 2.00
    ttl: 2h
    image: ubuntu:22.04
    bootstrap:
      files: [{source: setup.sh, target: work/setup.sh}]
      commands:
        - sh ~/work/setup.sh one
        - sleep 0.2; sh ~/work/setup.sh two
        - sh ~/work/setup.sh three
      ready: {command: test -e ~/three}
tasks:
  t:
    fleet: x
    files: [{source: setup.sh, target: work/task.sh}]
    commands: ['echo run >> ~/runs; for i in 1 2 3; do echo line $i; sleep 0.3; done']
"""
SETUP = "set -eu\necho $1 >> ~/trace\ntouch ~/$1\n"
# A whole run has 17 journal writes, and about 58 writes and 67 reads of SSH; the bootstrap begins with the ninth.
JOURNAL = [f"{'after' if number % 2 else 'before'} journal #{number}" for number in range(9, 18)]
TORN = ["torn journal #8", "torn journal #12"]
WRITES = [f"ssh-write #{number}" for number in range(15, 58, 9)]
READS = [f"ssh-read #{number}" for number in (18, 34, 50)]
POINTS = (*JOURNAL, *TORN, *WRITES, *READS)


@pytest.mark.timeout(900)
def test_g10_a_kill_at_any_step_is_followed_by_a_correct_run(sim: Sim, tmp_path: Path) -> None:
    killed: list[str] = []

    def trial(point: str) -> str | None:
        project = new_project(sim, f"k{POINTS.index(point)}", tmp_path)
        project.write(MANIFEST)
        project.write(SETUP, "setup.sh")
        try:
            if judge(project, point):
                killed.append(point)
        except AssertionError as fault:
            return f"--- killed at {point}: {fault}"
        return None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        wrong = [fault for fault in pool.map(trial, POINTS) if fault is not None]
    assert not wrong, "\n".join(wrong)
    assert len(killed) >= len(POINTS) * 0.9, f"never reached: {sorted(set(POINTS) - set(killed))}"


def judge(project: Project, point: str) -> bool:
    """Whether it was killed there; fails with what is wrong after the next apply."""
    code = project.crash("apply", "--auto-approve", at=point).code
    assert code in (-9, 0), code
    if code == -9:
        found = rows(project)
        if found.get(BOOT, {}).get("status") == "ready":
            assert on_pod(project, found, "ls ~/three").endswith("three\n"), "taken for ready"
        if found.get(TASK, {}).get("status") == "completed":
            assert on_pod(project, found, "cat ~/runs") == "run\n", "taken for completed"
    project.apply()
    found = rows(project)
    assert (found[BOOT]["status"], found[TASK]["status"]) == ("ready", "completed")
    ran, _, task_runs = on_pod(project, found, "cat ~/trace; echo --; cat ~/runs").partition("--\n")
    trace = ran.split()
    # In order, each at most twice: begun again, or gone on with.
    assert [name for name in ("one", "two", "three") if name in trace] == ["one", "two", "three"], trace
    assert trace[-1] == "three"
    assert all(trace.count(name) <= 2 for name in trace), trace
    assert task_runs == "run\n", "the task ran once"
    assert log_of(project, TASK).splitlines()[1:] == ["line 1", "line 2", "line 3"]
    assert {row["id"] for row in project.ledger("pod", open_only=True)} == {found["fleet.x[0]"]["id"]}
    nothing_to_do(project)
    return code == -9


def rows(project: Project) -> dict[str, Row]:
    if not (project.folder / "state" / "default.json").exists():
        return {}
    return {row["address"]: row for row in project.state()["resources"]}


def on_pod(project: Project, found: dict[str, Row], command: str) -> str:
    return project.on_pod(found["fleet.x[0]"], command).stdout
