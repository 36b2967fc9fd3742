"""Random histories, a bounded number of them; `make simulate SEEDS=10000` runs as many as are asked for."""

from __future__ import annotations

import os

import pytest

from tests.simulation.seeds import draw, shortened, tell, told

CHUNK = 5
CHUNKS = int(os.environ.get("SIMULATION_SEEDS", "300")) // CHUNK


@pytest.mark.parametrize("first", range(1, CHUNKS * CHUNK, CHUNK))
def test_no_seed_breaks_an_oracle(first: int) -> None:
    for seed in range(first, first + CHUNK):
        verdict = tell(draw(seed))
        if verdict.broken:
            pytest.fail(told(*shortened(verdict, tries=10)))


def test_a_seed_is_one_tale() -> None:
    assert draw(4) == draw(4)
    assert draw(4) != draw(5)
    verdict = tell(draw(4))
    assert tell(draw(4)).log == verdict.log
