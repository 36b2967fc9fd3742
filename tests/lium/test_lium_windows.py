"""The arithmetic of rate limits."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lium_plan.lium.windows import KNOWN_WINDOWS, Family, Window, earliest_s, estimate_s, schedule_s

windows_lists = st.lists(
    st.builds(Window, st.integers(1, 6), st.floats(0.5, 50.0, allow_nan=False)), min_size=1, max_size=3
)


@settings(deadline=None, max_examples=100)
@given(
    windows=windows_lists,
    count=st.integers(0, 25),
    before=st.lists(st.floats(0, 100), max_size=8).map(sorted),
)
def test_a_schedule_keeps_every_window_and_wastes_nothing(
    windows: list[Window], count: int, before: list[float]
) -> None:
    sent = schedule_s(windows, count, stamps=before, now=100.0)
    assert len(sent) == count
    assert list(sent) == sorted(sent)
    everything = [*before, *sent]
    for window in windows:
        for first, beyond in zip(everything, everything[window.count :], strict=False):
            if beyond in sent:
                assert beyond - first >= window.period_s
    for index, moment in enumerate(sent):
        earlier = everything[: len(before) + index]
        tight = [earlier[-w.count] + w.clear_s for w in windows if len(earlier) >= w.count]
        start = sent[index - 1] if index else 100.0
        assert moment in (start, *tight)


def test_f1_twenty_five_templates_take_an_hour() -> None:
    assert estimate_s(Family.TEMPLATE_CREATE, 0) == 0
    assert estimate_s(Family.TEMPLATE_CREATE, 1) == 0
    assert estimate_s(Family.TEMPLATE_CREATE, 2) == pytest.approx(5, abs=0.1)
    assert estimate_s(Family.TEMPLATE_CREATE, 6) == pytest.approx(60, abs=0.1)
    assert estimate_s(Family.TEMPLATE_CREATE, 21) == pytest.approx(3600, abs=2)
    assert 3600 < estimate_s(Family.TEMPLATE_CREATE, 25) < 3630


def test_earlier_requests_count() -> None:
    assert estimate_s(Family.TEMPLATE_CREATE, 1, stamps=(98.0,), now=100.0) == pytest.approx(3, abs=0.1)
    assert estimate_s(Family.TEMPLATE_CREATE, 1, stamps=(0.0,), now=100.0) == 0


def test_a_family_without_a_known_limit_takes_no_time() -> None:
    assert estimate_s(Family.RENT, 1000) == 0
    assert estimate_s("GET /volumes", 3) == 0


def test_the_limits_of_the_contract() -> None:
    limits = {family: [(w.count, w.period_s) for w in windows] for family, windows in KNOWN_WINDOWS.items()}
    assert limits[Family.TEMPLATE_CREATE] == [(1, 5.0), (5, 60.0), (20, 3600.0)]
    assert limits[Family.POD_LIST] == [(60, 60.0)]


@pytest.mark.parametrize(("count", "period_s"), [(0, 5.0), (-1, 5.0), (1, 0.0), (1, -2.0)])
def test_a_window_that_cannot_be(count: int, period_s: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Window(count, period_s)


def test_nothing_taken_means_now() -> None:
    assert earliest_s((Window(1, 5.0),), (), 7.0) == 7.0


@pytest.mark.parametrize("module", ["windows", "errors", "envelope", "models", "limits", "poller"])
def test_only_the_transport_loads_the_http_library(module: str) -> None:
    code = f"import sys, lium_plan.lium.{module}; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
