"""`kill -9` while a fleet is being rented, then apply again: each name gets one pod, all are bootstrapped, none twice.

    python -m bench killed

Against a local Lium with real HTTP, real SSH and a server that holds back the answers of the last rents: half of them
it has carried out, a quarter it is working on, the rest it has not looked at yet when the process dies, and it goes on
with all of them afterwards. Everything in the table is counted in the server's ledger and on the pods themselves.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.measure import table
from lium_plan.marks import parse_pod_name
from tests.support.projects import Project, new_project, stop
from tests.support.sims import Row, serving, until

PODS = 40
IN_FLIGHT = 10
HELD_S = 15.0
"""How long the server keeps the client waiting; less than the 30 s after which the client stops waiting."""
READERS = 4

MANIFEST = """\
version: 1
project: killed

templates:
  base:
    image: ubuntu:22.04

fleets:
  workers:
    nodes: PODS
    resources: {gpu: {count: 1}}
    template: base
    ttl: 2h
    bootstrap:
      commands:
        - sleep 1
        - echo bootstrapped >> ~/marker
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    what: str
    wanted: int
    found: int
    at_least: bool = False

    @property
    def good(self) -> bool:
        return self.found >= self.wanted if self.at_least else self.found == self.wanted

    def row(self) -> tuple[str, str, str, str]:
        wanted = f"{'at least ' if self.at_least else ''}{self.wanted}"
        return self.what, wanted, str(self.found), "" if self.good else "WRONG"


def rehearse(
    scratch: Path, *, pods: int = PODS, in_flight: int = IN_FLIGHT, held_s: float = HELD_S
) -> tuple[Figure, ...]:
    """Rent `pods`, kill the apply with `in_flight` rents unanswered, apply again, destroy. Raises AssertionError when
    a command fails or the moment to kill never comes."""
    with serving(scratch / "sim", "--nodes", str(10 * pods), "--balance", "100000") as sim:
        project = new_project(sim, "killed", scratch)
        project.write(MANIFEST.replace("PODS", str(pods)))
        _hold_back(project, after=pods - in_flight, count=in_flight, seconds=held_s)
        unanswered = _kill(project, pods=pods, in_flight=in_flight)
        then = _billed(project)
        project.apply()
        return (
            Figure("rents unanswered at the kill", in_flight, unanswered, at_least=True),
            *_standing(project, then, pods),
            *_ending(project, pods),
        )


def _hold_back(project: Project, *, after: int, count: int, seconds: float) -> None:
    """The answers to the last `count` rents: carried out and kept back, begun, or not even looked at."""
    halves = {"after": count - count // 2, "inside": count // 2 - count // 4, "before": count // 4}
    for where, times in halves.items():
        if times:
            match: Row = {"method": "POST", "path": "/executors/*/rent", "after": after, "times": times}
            project.sim.fault({"do": "delay", "seconds": seconds, "where": where}, match=match)
            after += times


def _kill(project: Project, *, pods: int, in_flight: int) -> int:
    """SIGKILL an apply with so many rents in flight and the first machines in use; how many were unanswered."""
    with project.start("apply", "--auto-approve") as process:
        until(
            lambda: _unanswered(project) >= in_flight and _running(project) >= pods // 4,
            process,
            what=f"{in_flight} rents in flight and {pods // 4} pods running",
        )
        process.kill()
        assert stop(process, within_s=30).code == -9
    return _unanswered(project)


def _unanswered(project: Project) -> int:
    rents = project.sim.requests(project.account, "POST", "/executors/*/rent")
    return sum(row["status"] is None for row in rents)


def _running(project: Project) -> int:
    pods = project.sim.world()["pods"]
    return sum(pod["account"] == project.account and pod["status"] == "RUNNING" for pod in pods)


def _billed(project: Project) -> set[str]:
    return {row["id"] for row in project.ledger("pod", open_only=True)}


def _standing(project: Project, then: set[str], pods: int) -> tuple[Figure, ...]:
    """What there is after the second apply. `then` was billed when the first one died."""
    names = Counter(_tail(row) for row in project.ledger("pod", open_only=True))
    known = project.state()["resources"]
    ready = sum(row["kind"] == "bootstrap" and row["status"] == "ready" for row in known)
    machines = [row for row in known if row["kind"] == "pod"]
    with ThreadPoolExecutor(READERS) as readers:
        marks = list(readers.map(lambda pod: _bootstrapped(project, pod), machines))
    return (
        Figure("pods billed at the kill that were kept", len(then), len(then & _billed(project))),
        Figure("names with a pod", pods, len(names)),
        Figure("names with two pods", 0, sum(count > 1 for count in names.values())),
        Figure("pods rented in all", pods, len({row["id"] for row in project.ledger("pod")})),
        Figure("pods with the bootstrap's mark on them", pods, sum(marks)),
        Figure("bootstraps called ready", pods, ready),
    )


def _ending(project: Project, pods: int) -> tuple[Figure, ...]:
    said = re.search(r"(\d+) of \d+ gone", project.destroy().out)
    return (
        Figure("pods proved gone by destroy", pods, int(said[1]) if said is not None else 0),
        Figure("still billed after destroy", 0, len(project.ledger(open_only=True))),
    )


def _tail(row: Row) -> str:
    name = parse_pod_name(row["name"])
    return row["name"] if name is None else name.tail


def _bootstrapped(project: Project, pod: Row) -> bool:
    try:
        return "bootstrapped" in project.on_pod(pod, "cat ~/marker").stdout.splitlines()
    except subprocess.TimeoutExpired:
        return False


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="lium-plan-killed-") as scratch:
        figures = rehearse(Path(scratch))
    print(f"{PODS} pods, the apply killed with {IN_FLIGHT} rents in flight, then applied again and destroyed\n")
    print(shown(figures))
    return 0 if all(figure.good for figure in figures) else 1


def shown(figures: Sequence[Figure]) -> str:
    return table(("", "wanted", "found", ""), [figure.row() for figure in figures])


if __name__ == "__main__":
    sys.exit(main())
