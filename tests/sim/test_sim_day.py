"""The first hours of a day of fifty pods with faults, in virtual time; the benchmark lives through the whole day."""

from __future__ import annotations

from bench.simday import a_day


def test_one_seed_is_one_history_to_the_byte() -> None:
    first, again = a_day(hours=3), a_day(hours=3)
    assert first.digest == again.digest
    assert first.requests == again.requests > 180
    assert {"200", "429", "500", "502", "lost"} <= set(first.statuses)
