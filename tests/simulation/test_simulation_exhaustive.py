"""A bounded sample of the crashes at every point; `make simulate` runs them all."""

from __future__ import annotations

from functools import lru_cache

import pytest

from tests.simulation.exhaustive import COMMANDS, Class, classes, jobs_of, passed, try_crash
from tests.support.world_process import Point

SAMPLE = 6
"""Crashes of each command; each takes about a second."""


@lru_cache
def _groups(command: str) -> tuple[tuple[Class, ...], tuple[Point, ...]]:
    found = passed(command)
    return tuple(classes(command, found)), tuple(point for point, _ in found)


def test_there_are_enough_points() -> None:
    points = [point for command in COMMANDS for point in _groups(command)[1]]
    assert len(points) > 1000
    assert len({(point.site, point.phase) for point in points}) >= 150


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("part", range(4))
def test_a_sample_of_crashes_is_mended_by_one_plain_re_run(command: str, part: int) -> None:
    groups = _groups(command)[0]
    step = max(1, len(groups) // SAMPLE)
    chosen = [groups[index] for index in range(0, len(groups), step)][part::4]
    for verb, number, then in jobs_of(chosen):
        outcome = try_crash(verb, number, then=then)
        assert not outcome.broken, str(outcome)


@pytest.mark.parametrize("phase", ["torn", "unsynced"])
def test_half_written_and_unsynced_lines(phase: str) -> None:
    """One of each kind of journal line."""
    points = [point for point in _groups("apply")[1] if point.phase == phase]
    kinds = {point.site: point for point in points}
    for point in list(kinds.values())[:: max(1, len(kinds) // 6)]:
        outcome = try_crash("apply", point.number, then="apply")
        assert not outcome.broken, str(outcome)
