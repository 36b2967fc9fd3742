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
    account = f"r{next(_numbers)}"
    yield new_project(sim, account, tmp_path)
    sim.give_back(account)  # the nodes are everybody's


@pytest.fixture
def fleet_of(project: Project) -> Callable[..., Project]:
    """Writes a manifest with one fleet `x`; `bootstrap`, `tasks` and `more` are YAML, indented as in the manifest."""

    def write(bootstrap: str = "", *, tasks: str = "", image: str = "ubuntu:22.04", more: str = "") -> Project:
        parts = [
            "version: 1\nproject: remote\nfleets:\n  x:\n    resources: {gpu: 'RTX4090:1'}\n    max_price: 2.00\n",
            f"    ttl: 2h\n    image: {image}\n{more}",
            f"    bootstrap:\n{bootstrap}" if bootstrap else "",
            f"tasks:\n{tasks}" if tasks else "",
        ]
        project.write("".join(parts))
        return project

    return write
