"""Two hundred pods in real time against a local Lium: how often they are listed, memory, and stalls of the event loop.

    python -m bench manypods

The server runs at the pace of the real one, with a machine and an SSH server behind every pod. The fleet has no
bootstrap: each pod is rented, waited for, logged into, and its GPUs are counted. Then all are destroyed, and proved so.
Stalls are judged from the first change on: before it, while modules are loaded, nobody waits for anything. The two
hundred machines live on the same cores as the process that is measured; they give way to it (nice 10), as if they were
elsewhere. The slowest steps are named with their own CPU time beside the time on the wall.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.measure import table
from tests.support.projects import ROOT, Project, new_project, stop
from tests.support.sims import Row, serving

PODS = int(os.environ.get("MANY_PODS", "200"))
LONGEST_RUN_S = 600.0
LIMIT_MIB = 150.0
LIMIT_STALL_S = 0.1
TICK_S = 1.0
"""The shortest time between two lists of a waiting run."""
SLOW_SHOWN = 5

MANIFEST = """\
version: 1
project: many

templates:
  base:
    image: ubuntu:22.04

fleets:
  workers:
    nodes: PODS
    resources: {gpu: {count: 1}}
    template: base
    ttl: 2h
"""


@dataclass(frozen=True, slots=True)
class Watched:
    """One command: what the watch in it found, and what the server was asked for meanwhile."""

    command: str
    wall_s: float
    found: dict[str, Any]
    requests: tuple[Row, ...]

    @property
    def lists(self) -> list[datetime]:
        return [datetime.fromisoformat(row["at"]) for row in self.requests if _is_list(row)]

    @property
    def least_gap_s(self) -> float:
        """Between two lists; the first is the plan's own."""
        return min(((after - before).total_seconds() for before, after in pairwise(self.lists[1:])), default=0.0)

    @property
    def changes_from(self) -> float:
        """When the first change was sent, in seconds since the epoch."""
        return min(datetime.fromisoformat(row["at"]).timestamp() for row in self.requests if row["method"] != "GET")

    @property
    def longest_stall_s(self) -> float:
        return max((late for late, at in self.found["stalls"] if at >= self.changes_from), default=0.0)

    @property
    def stalls(self) -> list[tuple[float, float]]:
        """(s late, seconds after the first change), the worst first."""
        begun = self.changes_from
        return [(late, at - begun) for late, at in self.found["stalls"] if at >= begun]

    @property
    def slow_steps(self) -> list[tuple[float, float, float, str]]:
        """(wall s, CPU s, seconds after the first change, what)."""
        begun = self.changes_from
        return [(wall, cpu, at - begun, what) for wall, cpu, at, what in self.found["slow"] if at >= begun]

    def row(self) -> tuple[str, ...]:
        found = self.found
        return (
            self.command,
            f"{self.wall_s:.1f}",
            f"{found['cpu_s']:.1f}",
            f"{found['peak_mib']:.0f}",
            f"{1000 * self.longest_stall_s:.0f}",
            f"{1000 * max((cpu for _, cpu, _, _ in self.slow_steps), default=0.0):.0f}",
            str(len(self.lists)),
            f"{self.least_gap_s:.2f}",
            str(len(self.requests)),
        )

    def complaints(self) -> Iterator[str]:
        if self.found["peak_mib"] > LIMIT_MIB:
            yield f"{self.command}: {self.found['peak_mib']:.0f} MiB, at most {LIMIT_MIB:.0f} are allowed"
        if self.longest_stall_s > LIMIT_STALL_S:
            yield f"{self.command}: the loop stood for {1000 * self.longest_stall_s:.0f} ms"
        if len(self.lists) > self.wall_s / TICK_S + 2:
            yield f"{self.command}: {len(self.lists)} lists in {self.wall_s:.0f} s"


def _is_list(row: Row) -> bool:
    return row["method"] == "GET" and row["path"] == "/pods"


def watched(project: Project, command: str) -> Watched:
    """Run a command to its end with a watch in it."""
    into = project.folder.parent / f"{command}.json"
    before = len(project.sim.requests(project.account))
    started = time.monotonic()
    launcher = [sys.executable, "-m", "bench.watched", command, "--auto-approve"]
    environ = {**project.environ, "WATCH_INTO": str(into), "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(launcher, cwd=project.folder, env=environ, text=True, **pipes) as process:
        done = stop(process, within_s=LONGEST_RUN_S)
    assert done.code == 0, done
    requests = tuple(project.sim.requests(project.account)[before:])
    return Watched(command, time.monotonic() - started, json.loads(into.read_text()), requests)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="lium-plan-many-") as folder:
        scratch = Path(folder)
        with serving(scratch / "sim", "--nodes", str(2 * PODS), "--balance", "1000000", speed=1, niceness=10) as sim:
            project = new_project(sim, "many", scratch)
            project.write(MANIFEST.replace("PODS", str(PODS)))
            made = watched(project, "apply")
            assert len(project.ledger("pod", open_only=True)) == PODS
            gone = watched(project, "destroy")
            assert project.ledger(open_only=True) == []
    head = ("", "wall s", "cpu s", "peak MiB", "stall ms", "longest step cpu ms", "lists", "least gap s", "requests")
    load, cores = os.getloadavg()[0], os.cpu_count()
    print(f"{PODS} pods, a local Lium in real time, an SSH server behind each; load {load:.0f} on {cores} cores\n")
    print(table(head, [made.row(), gone.row()]))
    for one in (made, gone):
        worst = ", ".join(f"{1000 * late:.0f} ms at {at_s:.1f} s" for late, at_s in one.stalls[:SLOW_SHOWN])
        print(f"{one.command}: the loop stood longest for {worst}")
        for wall_s, cpu_s, at_s, what in one.slow_steps[:SLOW_SHOWN]:
            print(f"{one.command} at {at_s:6.1f} s: {1000 * wall_s:4.0f} ms ({1000 * cpu_s:.0f} ms of CPU) in {what}")
    complaints = [text for one in (made, gone) for text in one.complaints()]
    print("\n".join(complaints) if complaints else "within all limits")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
