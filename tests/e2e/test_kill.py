"""SIGKILL at chosen points of an apply and of a destroy: the next run leaves exactly what is wanted, and pays for
nothing else (promise 1; cases A1, B1, C1, G10).

The points are those of `tests.support.crash_launcher`: before a request leaves, with half of it sent, when the server
has acted and nobody has read its answer, at the n-th write to the journal (before, after, in the middle of the line),
around the rename of a snapshot, in the middle of SSH. Each has an account and a node of its own on one
local Lium: a rent that
was never sent can be repeated at once while its node is free, and has to be waited out for six minutes when it is not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.projects import Project, new_project
from tests.support.sims import Row, Sim, serving

AT_ONCE = 4
SECOND_PLANS = 4
"""Of so many points one also plans again: everything is as the manifest says."""

FIVE = """\
version: 1
project: killed

volumes:
  data: {}

templates:
  base:
    image: ubuntu:22.04

fleets:
  workers:
    nodes: 4
    resources: {gpu: "RTX4090:1"}
    node_ids: [NODE]
    max_price: 2.00
    template: base
    ttl: 2h
    bootstrap:
      files:
        - {source: setup.sh, target: work/setup.sh}
      commands:
        - sh ~/work/setup.sh
  store:
    resources: {gpu: "RTX4090:1"}
    node_ids: [NODE]
    max_price: 2.00
    template: base
    volume: data
    ttl: 2h
    bootstrap:
      commands:
        - echo bootstrapped >> ~/marker
"""
SETUP = "echo bootstrapped >> ~/marker\n"
WANTED = ["fleet.store[0]", *(f"fleet.workers[{number}]" for number in range(4))]

RENT = "POST /executors/*/rent"
APPLY_POINTS = (
    *("before POST /volumes #1", "answered POST /volumes #1"),
    *("before POST /templates #1", "answered POST /templates #1"),
    *(f"before {RENT} #{number}" for number in (1, 3, 5)),
    f"half {RENT} #3",
    *(f"answered {RENT} #{number}" for number in (1, 3, 5)),
    *("before journal #1", "before journal #13", "before journal #30"),
    *("after journal #4", "after journal #9", "after journal #16"),
    *("torn journal #3", "torn journal #7", "torn journal #12", "torn journal #25"),
    *("before snapshot #1", "after snapshot #1", "before snapshot #2"),
    *("ssh-write #1", "ssh-write #120", "ssh-read #40"),
)
DESTROY_POINTS = (
    "before DELETE /pods/* #1",
    "answered DELETE /pods/* #3",
    "answered DELETE /pods/* #5",
    "before DELETE /volumes/* #1",
    "answered DELETE /templates/* #1",
    "torn journal #6",
    "after journal #12",
    "answered GET /pods/*/statement #2",
    "before snapshot #1",
)


@dataclass(slots=True)
class Trial:
    """One point: what was billed when the process died, and how it went on."""

    point: str
    code: int = 0
    billed: int = 0
    found: int = 0
    """How many of them are still rented after the next apply."""
    extra: int = 0
    complaint: str | None = None

    def row(self) -> str:
        verdict = "ok" if self.complaint is None else "WRONG"
        return f"{self.point:<40} {self.code:>5} {self.billed:>7} {self.found:>6} {self.extra:>6}  {verdict}"


HEADER = f"{'KILLED AT':<40} {'EXIT':>5} {'BILLED':>7} {'KEPT':>6} {'EXTRA':>6}"


def run_trials(points: Sequence[str], trial: Callable[[Trial], None]) -> None:
    """Run them side by side, print the table, and fail with whatever went wrong."""

    def attempt(point: str) -> Trial:
        one = Trial(point)
        try:
            trial(one)
        except (AssertionError, subprocess.TimeoutExpired) as fault:
            one.complaint = str(fault)
        return one

    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = list(pool.map(attempt, points))
    table = "\n".join((HEADER, *(one.row() for one in done)))
    sys.stdout.write(f"\n{table}\n")
    wrong = [f"--- killed at {one.point}: {one.complaint}" for one in done if one.complaint is not None]
    assert not wrong, "\n".join((table, *wrong))


def node(number: int) -> Row:
    """A row of the public feed: a node that one trial has for itself, with a GPU for each pod and none to spare."""
    return {
        "id": f"00000000-0000-4000-8000-{number:012x}",
        "gpu_model": "RTX 4090",
        "gpu_count": 5,
        "available_gpu_count": 5,
        "min_rentable_gpu_count": 1,
        "price_per_gpu_hour": 0.5,
        "gpu_memory_gb": 24,
        "cpu_count": 96,
        "ram_gb": 503,
        "disk_gb": 3500,
        "disk_free_gb": 3000,
        "tier": "secure",
        "country": "United States",
        "country_code": "US",
        "region": "VA",
        "city": "Ashburn",
    }


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    """A local Lium with a node for each point."""
    scratch = tmp_path_factory.mktemp("roomy")
    feed = scratch / "feed.json"
    rows = [node(number) for number in range(len(APPLY_POINTS) + len(DESTROY_POINTS))]
    feed.write_text(json.dumps({"nodes": rows}))
    with serving(scratch, "--feed", str(feed)) as running:
        yield running


@pytest.fixture
def five(roomy: Sim, tmp_path: Path) -> Callable[[int], Project]:
    def make(number: int) -> Project:
        project = new_project(roomy, f"p{number}", tmp_path)
        project.write(FIVE.replace("NODE", str(node(number)["id"])))
        project.write(SETUP, "setup.sh")
        return project

    return make


@pytest.mark.timeout(900)
def test_an_apply_killed_anywhere_is_finished_by_the_next(five: Callable[[int], Project]) -> None:
    assert len(APPLY_POINTS) >= 24

    def trial(one: Trial) -> None:
        number = APPLY_POINTS.index(one.point)
        project = five(number)
        one.code = project.crash("apply", "--auto-approve", at=one.point).code
        assert one.code == -9, "the point was never reached"
        then = project.ledger("pod", open_only=True)
        one.billed = len(then)
        assert_all_known(project)

        again = project.apply()

        state = project.state()["resources"]
        pods = {row["address"]: row for row in state if row["kind"] == "pod"}
        billed = project.ledger("pod", open_only=True)
        one.found = len({row["id"] for row in then} & {row["id"] for row in billed})
        assert sorted(pods) == WANTED, (again, list(pods))
        assert {row["id"] for row in billed} == {pod["id"] for pod in pods.values()}
        assert len(billed) == 5, billed
        others = {row["id"] for row in project.ledger(open_only=True) if row["kind"] != "pod"}
        assert others == {row["id"] for row in state if row["kind"] in ("volume", "template")}
        assert len(others) == 2
        one.extra = assert_extras_explained(project)
        assert_bootstrapped(project, state)
        if number % SECOND_PLANS == 0:
            project.run("plan", "--detailed-exitcode", expect=0)

        project.destroy()
        assert project.ledger(open_only=True) == []
        assert kept(project) == {}

    run_trials(APPLY_POINTS, trial)


@pytest.mark.timeout(600)
def test_a_destroy_killed_anywhere_is_finished_by_the_next(five: Callable[[int], Project]) -> None:
    def trial(one: Trial) -> None:
        project = five(len(APPLY_POINTS) + DESTROY_POINTS.index(one.point))
        project.apply()
        one.code = project.crash("destroy", "--auto-approve", at=one.point).code
        assert one.code == -9, "the point was never reached"
        one.billed = len(project.ledger("pod", open_only=True))
        assert_all_known(project)

        project.destroy()

        assert project.ledger(open_only=True) == []
        assert kept(project) == {}
        assert len(project.ledger("pod")) == 5
        one.extra = assert_extras_explained(project)

    run_trials(DESTROY_POINTS, trial)


def assert_all_known(project: Project) -> None:
    """O1: whatever is billed is in the state by its id, or in an open journal entry by its name."""
    billed = project.ledger(open_only=True)
    state = project.state() if (project.folder / "state" / "default.json").exists() else {"resources": [], "open": []}
    ids = {row["id"] for row in state["resources"]}
    data = [entry["entry"]["data"] for entry in state["open"]]
    names = {item.get("pod_name") or item.get("name") for item in data}
    unknown = [row for row in billed if row["id"] not in ids and row["name"] not in names]
    assert unknown == [], (unknown, ids, names)


def kept(project: Project) -> Row:
    """The records of the snapshot, as they lie there when everything has ended."""
    snapshot: Row = json.loads((project.folder / "state" / "default.json").read_text())
    assert snapshot["open"] == {}
    return dict(snapshot["records"])


def assert_extras_explained(project: Project) -> int:
    """Every pod that was billed and is no more was deleted by us, and the audit log says so; returns how many."""
    closed = [row for row in project.ledger("pod") if row["to"] is not None]
    if not closed:
        return 0
    events: list[Row] = project.run("events", "--json", expect=0).json["events"]
    deleted = {event["id"] for event in events if event["action"] == "delete"}
    unexplained = [row for row in closed if row["id"] not in deleted]
    assert unexplained == [], (unexplained, events)
    return len(closed)


def assert_bootstrapped(project: Project, state: list[Row]) -> None:
    pods = {row["address"]: row for row in state if row["kind"] == "pod"}
    bootstraps = {row["address"]: row for row in state if row["kind"] == "bootstrap"}
    assert {address: row["status"] for address, row in bootstraps.items()} == {
        f"{address}.bootstrap": "ready" for address in pods
    }
    for address, pod in pods.items():
        seen = project.on_pod(pod, "cat ~/marker")
        assert "bootstrapped" in seen.stdout.splitlines(), (address, seen)
        log = project.folder / bootstraps[f"{address}.bootstrap"]["attributes"]["log"]
        assert log.is_file(), log
