"""One local Lium for all tests of a worker, an account each; and commands run within the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.statecmd.commands import Desk
from tests.support.projects import Project, new_project
from tests.support.sims import Sim, serving

_numbers = count(1)


@pytest.fixture(scope="session")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    with serving(tmp_path_factory.mktemp("sim"), "--nodes", "200") as running:
        yield running


@pytest.fixture
def project(sim: Sim, tmp_path: Path) -> Project:
    return new_project(sim, f"s{next(_numbers)}", tmp_path)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    """An empty directory without a key, and nobody at home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("LIUM_API_KEY", "LIUM_API_API_KEY", "LIUM_BASE_URL", "LIUM_PLAN_STATE", "LIUM_PLAN_STACK"):
        monkeypatch.delenv(name, raising=False)
    return Desk(tmp_path, capsys)
