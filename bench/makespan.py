"""How long an apply takes beside the shortest that anything could take, over random plans in virtual time.

Two hundred random manifests, each on a local Lium with its real rate limits (one template in 5 s, five in 60 s, twenty
in an hour; sixty lists of pods a minute), with random latencies of requests and of SSH, random times to boot and random
times that commands take. MAKESPAN_PLANS=50 chooses how many, MAKESPAN_SEED=1000 where the seeds begin.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.measure import table
from bench.rehearsing.bounds import Bound, bound, chain, fixed_parallelism, job_of
from bench.rehearsing.plans import MARKET, random_manifest
from bench.rehearsing.stage import Stage, on_stage

PLANS = 200
SLOTS = 10
MEDIAN_LIMIT, WORST_LIMIT = 1.05, 1.20
NOTES = """\
Tick: one interval of polling for each thing that is waited for. Images to pull: a fleet in eight boots for a minute or
more longer, which no plan tells and the bound knows; not judged. Ten at a time: a model of Terraform's walk."""
Link = tuple[str, float, float, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """One plan."""

    seed: int
    actions: int
    took_s: float
    least: Bound
    least_told_s: float
    """The bound if nothing had to be polled for."""
    ten_s: float
    """The same work ten at a time."""
    chain: Sequence[Link]

    @property
    def ratio(self) -> float:
        return self.took_s / self.least.seconds

    @property
    def told_ratio(self) -> float:
        return self.took_s / self.least_told_s

    @property
    def ten_ratio(self) -> float:
        return self.ten_s / self.least.seconds


def measure(seed: int, *, pulls: bool = False) -> Measured:
    """Apply one random plan; with `pulls` a fleet in eight has an image that takes long to arrive."""

    async def story(stage: Stage) -> Measured:
        ran = await stage.apply()
        job = job_of(stage, ran)
        return Measured(
            seed,
            len(job.work),
            ran.took_s,
            bound(job),
            bound(job_of(stage, ran, ticks=False)).seconds,
            fixed_parallelism(job, SLOTS),
            chain(job, ran),
        )

    return on_stage(seed, random_manifest(seed), story, market=MARKET, pulls=pulls)


def main() -> int:
    count, first = int(os.environ.get("MAKESPAN_PLANS", PLANS)), int(os.environ.get("MAKESPAN_SEED", "1"))
    found = [measure(seed) for seed in range(first, first + count)]
    pulling = [measure(seed, pulls=True) for seed in range(first, first + max(1, count // 5))]
    sizes = [item.actions for item in found]
    limited = sum(item.least.limits_s > item.least.path_s for item in found)
    print(
        f"{count} random plans of {min(sizes)} to {max(sizes)} actions (median {statistics.median(sizes):.0f}), "
        f"in virtual time; the bound is set by the rate limits in {limited} of them, by the longest path in the others"
    )
    rows = [
        ("lium-plan", *_row(item.ratio for item in found)),
        ("lium-plan, bound without a tick", *_row(item.told_ratio for item in found)),
        (f"lium-plan, images to pull ({len(pulling)} plans)", *_row(item.ratio for item in pulling)),
        (f"{SLOTS} at a time, first come first served", *_row(item.ten_ratio for item in found)),
    ]
    print(table(("time of apply / lower bound", "least", "median", "90 %", "worst"), rows))
    print(NOTES)
    ratios = [item.ratio for item in found]
    missed = False
    for what, value, limit in (
        ("median", statistics.median(ratios), MEDIAN_LIMIT),
        ("worst", max(ratios), WORST_LIMIT),
    ):
        missed |= value > limit
        print(f"{what}: {value:.3f} (limit {limit:.2f}{'' if value <= limit else ': MISSED'})")
    print(_story(max(found, key=lambda item: item.ratio)))
    return int(missed)


def _row(ratios: Iterable[float]) -> tuple[str, ...]:
    ordered = sorted(ratios)
    ninety = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return tuple(f"{value:.3f}" for value in (ordered[0], statistics.median(ordered), ninety, ordered[-1]))


def _story(worst: Measured) -> str:
    lines = [
        f"worst: seed {worst.seed}, {worst.took_s:.1f} s; longest path {worst.least.path_s:.1f} s, limits "
        f"{worst.least.limits_s:.1f} s. What its end waited for:"
    ]
    end = 0.0
    for name, started, ended, least in worst.chain:
        pause = f", {started - end:.1f} s after what it waits for" if started - end > 0.05 else ""
        lines.append(
            f"  {name}: {started:.1f} to {ended:.1f} s, {ended - started:.1f} s{pause}; {least:.1f} s at least"
        )
        end = ended
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
