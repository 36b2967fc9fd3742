"""The benchmark of applying with few members: what it counts, and that nothing of ours grows faster than they do."""

from __future__ import annotations

import cProfile
import pstats
from collections import Counter
from pathlib import Path

import lium_plan
from bench.applying import VERBS, measure

OURS = str(Path(lium_plan.__file__).parent)
SIMULATOR = str(Path(OURS) / "sim")
SMALL, LARGE = 20, 80
SLACK = 1.5
FEW = 100
"""Calls that don't count: some happen once or twice a list, and there may be one list more."""


def calls(size: int) -> Counter[tuple[str, int, str]]:
    """How often each function of ours was called while so many members were applied and destroyed."""
    profile = cProfile.Profile()
    profile.runcall(measure, size)
    found = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    return Counter(
        {where: told[1] for where, told in found.items() if where[0].startswith(OURS) and SIMULATOR not in where[0]}
    )


def test_no_function_of_ours_is_called_out_of_proportion() -> None:
    small, large = calls(SMALL), calls(LARGE)
    times = LARGE / SMALL
    grown = {
        where: (small[where], count)
        for where, count in large.items()
        if count > SLACK * times * max(small[where], 1) + FEW
    }
    assert grown == {}


def test_the_server_is_not_counted_as_ours() -> None:
    costs = measure(10)
    assert tuple(costs) == VERBS
    for cost in costs.values():
        assert cost.cpu_s > 0
        assert cost.world_cpu_s > 0
        assert 10 < cost.virtual_s < 200
    assert costs["apply"].requests < 100
    assert costs["destroy"].requests < 100
