"""`kill -9` with rents in flight, then apply again: what `python -m bench killed` shows with forty pods (case A1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.killed import rehearse, shown


@pytest.mark.timeout(120)
def test_every_name_has_one_bootstrapped_pod_after_a_kill_with_rents_in_flight(tmp_path: Path) -> None:
    figures = rehearse(tmp_path, pods=12, in_flight=6, held_s=10)
    assert all(figure.good for figure in figures), shown(figures)
