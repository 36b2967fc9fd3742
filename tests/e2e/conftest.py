"""One local Lium for all tests of a worker; each project has its own account there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.support.projects import Project, new_project
from tests.support.sims import Sim, serving

_numbers = count(1)


@pytest.fixture(scope="session")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    with serving(tmp_path_factory.mktemp("sim"), "--nodes", "200") as running:
        yield running


@pytest.fixture
def project(sim: Sim, tmp_path: Path) -> Iterator[Project]:
    account = f"p{next(_numbers)}"
    yield new_project(sim, account, tmp_path)
    sim.give_back(account)  # the nodes are everybody's


@pytest.fixture
def another(tmp_path: Path) -> Callable[[Sim], Project]:
    """Projects at a server of the test's own."""
    return lambda own: new_project(own, f"p{next(_numbers)}", tmp_path)
