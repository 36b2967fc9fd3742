"""The makespan benchmark with few plans, and its bound on jobs that can be worked out by hand."""

from __future__ import annotations

import pytest

from bench.makespan import MEDIAN_LIMIT, WORST_LIMIT, measure
from bench.rehearsing.bounds import Job, Work, bound, earliest, fixed_parallelism
from bench.rehearsing.plans import random_manifest

SEEDS = (3, 8, 10, 14, 25)


def test_an_apply_takes_little_more_than_the_shortest_possible_and_never_less() -> None:
    measured = tuple(map(measure, SEEDS))
    ratios = sorted(item.ratio for item in measured)
    assert ratios[len(ratios) // 2] <= MEDIAN_LIMIT
    assert ratios[-1] <= WORST_LIMIT
    assert all(item.told_ratio >= 1.0 for item in measured)
    assert all(item.ten_ratio >= 0.999 for item in measured)
    assert measure(SEEDS[-1]) == measured[-1], "one seed is one history"


def test_every_kind_of_resource_is_in_the_plans() -> None:
    written = "".join(map(random_manifest, range(1, 40)))
    for part in ("registry_auth", "volumes", "bootstrap", '"wait": "completed"', '"wait": "started"', "[0].host"):
        assert part in written


# --- the bound -------------------------------------------------------------------------------------------------


def job(**work: tuple[Work, str]) -> Job:
    return Job(
        {name: item for name, (item, _) in work.items()}, {name: tuple(after) for name, (_, after) in work.items()}
    )


TEMPLATE = Work(0.1, 0.1, limited=True)


def test_the_windows_are_the_servers() -> None:
    assert earliest(7) == [0, 5, 10, 15, 20, 60, 65]
    assert earliest(21)[-1] == 3600


def test_the_longest_path_counts() -> None:
    found = bound(job(a=(Work(3), ""), b=(Work(4), "a"), c=(Work(5), "")))
    assert found.seconds == found.path_s == 7
    assert found.limits_s == 0


def test_what_the_limits_hold_back_comes_after_them() -> None:
    """Three templates, ten seconds from the first to the last: at best that is the one with the least behind it."""
    found = bound(
        job(
            a=(TEMPLATE, ""),
            b=(TEMPLATE, ""),
            c=(TEMPLATE, ""),
            x=(Work(20), "a"),
            y=(Work(18), "b"),
            z=(Work(1), "c"),
        )
    )
    assert found.path_s == pytest.approx(20.2)
    assert found.limits_s == pytest.approx(0.1 + 5 + 0.1 + 18)


def test_ten_at_a_time_first_come_first_served() -> None:
    alike = {f"n{number}": (Work(2), "") for number in range(25)}
    assert fixed_parallelism(job(**alike), 10) == 6
    assert fixed_parallelism(job(**alike), 25) == 2
    assert bound(job(**alike)).seconds == 2
