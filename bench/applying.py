"""What applying and destroying thousands of members costs in CPU of our own, beside Terraform.

In virtual time: the whole run as a library, from the look at the account to the last proof, against the local Lium in
the same process. The server, the network and the machines behind SSH (a model: no key exchange, no shell) are measured
step by step, and what they take is subtracted. Terraform creates and destroys as many `terraform_data`, which touch
nothing but its own state.

APPLYING_SIZES="1000 10000" chooses other sizes than a thousand and four thousand: ten thousand take five minutes or
more, half of it the local Lium's.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.growing.peers import BLOCK
from bench.measure import Sample, run_once, table
from bench.rehearsing.stage import Ran, Stage, on_stage
from lium_plan.sim.settings import Settings as ServerSettings

SIZES = (1_000, 4_000)
LARGEST = 10_000
PEER_SIZE = 1_000
MOST_GROWTH = 1.2
"""So many times their share may more members take: 12 times as much for ten times as many."""
LEAST_LEAD = 2.0
ELSEWHERE = {"apply": 22.0, "destroy": 43.3}
"""Wall seconds of Terraform 1.11.4 for a thousand, measured on another machine with two cores."""
VERBS = ("apply", "destroy")
NOTES = """\
Ours: what the process took less the server, the network and the machines, which are in it too; without the work of a
real SSH connection, for which a model stands in. Virtual: from the yes to the end of the run."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One apply or destroy of a fleet."""

    cpu_s: float
    """Ours."""
    world_cpu_s: float
    """The local Lium's, subtracted."""
    virtual_s: float
    requests: int


def measure(size: int, *, seed: int = 1) -> Mapping[str, Cost]:
    """Apply a fleet of so many members, then destroy it."""

    async def story(stage: Stage) -> Mapping[str, Cost]:
        costs: dict[str, Cost] = {}
        for verb in VERBS:
            gc.collect()
            before = stage.network.reads + len(stage.network.writes)
            ran: Ran = await (stage.apply() if verb == "apply" else stage.destroy())
            after = stage.network.reads + len(stage.network.writes)
            costs[verb] = Cost(ran.cpu_s, ran.world_cpu_s, ran.took_s, after - before)
        return costs

    return on_stage(seed, _manifest(size), story, market={"RTX 4090": size}, server=_server(), shapes_pods=False)


def _manifest(size: int) -> str:
    return (
        "version: 1\nproject: applying\ntemplates: {torch: {image: 'limsim/torch:2.4'}}\nfleets:\n  trainers: "
        f'{{nodes: {size}, resources: {{gpu: "RTX4090:1"}}, max_price: 1.0, template: torch, ttl: 48h}}\n'
    )


def _server() -> ServerSettings:
    return ServerSettings(spent_budget_removes_pods=False)


def main() -> int:
    sizes = [int(size) for size in os.environ.get("APPLYING_SIZES", " ".join(map(str, SIZES))).split()]
    found = {size: measure(size) for size in sizes}
    rows = [
        (
            f"{verb} {size}",
            f"{cost.cpu_s:.2f}",
            f"{1000 * cost.cpu_s / size:.2f}",
            f"{cost.world_cpu_s:.2f}",
            f"{cost.virtual_s:.0f}",
            f"{cost.requests / size:.1f}",
        )
        for size, costs in found.items()
        for verb, cost in costs.items()
    ]
    head = ("one fleet", "our CPU s", "ms a member", "the local Lium's s", "virtual s", "requests a member")
    print(table(head, rows))
    print(NOTES)
    if max(sizes) < LARGEST:
        print(f'{LARGEST} members are left out, since they take minutes: APPLYING_SIZES="1000 {LARGEST}" has them')
    grown = len(sizes) == 1 or _judge_growth(found, min(sizes), max(sizes))
    return int(not (_judge_lead(found) and grown))


def _judge_growth(found: Mapping[int, Mapping[str, Cost]], small: int, large: int) -> bool:
    times, good = large / small, True
    for verb in VERBS:
        grown = found[large][verb].cpu_s / found[small][verb].cpu_s
        limit = times * MOST_GROWTH
        good &= grown <= limit
        missed = "" if grown <= limit else ": MISSED"
        print(
            f"{verb}: {times:.0f} times as many members take {grown:.1f} times as much CPU (limit {limit:.0f}{missed})"
        )
    return good


def _judge_lead(found: Mapping[int, Mapping[str, Cost]]) -> bool:
    if PEER_SIZE not in found:
        print(f"Terraform is compared at {PEER_SIZE}, which was not measured")
        return True
    peer, good = terraform(PEER_SIZE), True
    for verb in VERBS:
        ours = found[PEER_SIZE][verb].cpu_s
        if peer is None:
            theirs = ELSEWHERE[verb]
            words = f"{theirs:.1f} s (Terraform 1.11.4, wall, a figure measured elsewhere: terraform is not on PATH)"
        else:
            theirs = min(peer[verb].wall_s, peer[verb].cpu_s)
            words = f"{peer[verb].wall_s:.1f} s wall, {peer[verb].cpu_s:.1f} s CPU, beside it"
        good &= ours * LEAST_LEAD < theirs
        missed = "" if ours * LEAST_LEAD < theirs else ": MISSED"
        print(
            f"{verb} of {PEER_SIZE}: ours {ours:.1f} s CPU, Terraform {words}: "
            f"{ours / theirs:.2f} of the lesser (limit {1 / LEAST_LEAD:.2f}{missed})"
        )
    return good


def terraform(size: int) -> Mapping[str, Sample] | None:
    """Apply and destroy of as many `terraform_data`; None without the program."""
    program = shutil.which("terraform")
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "main.tf").write_text("".join(BLOCK.format(number=number) for number in range(size)))
        environ = {**os.environ, "HOME": scratch, "TF_CLI_CONFIG_FILE": "/dev/null"}
        found: dict[str, Sample] = {}
        for verb in ("init", *VERBS):
            options = ("-input=false", "-no-color", *(() if verb == "init" else ("-auto-approve",)))
            found[verb] = run_once((program, verb, *options), env=environ, cwd=folder)
            if found[verb].status:
                raise SystemExit(f"terraform {verb}: exit {found[verb].status}")
        return found


if __name__ == "__main__":
    sys.exit(main())
