"""Projects at a server of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.support.projects import Project, new_project
from tests.support.sims import Sim

_numbers = count(1)


@pytest.fixture
def another(tmp_path: Path) -> Callable[[Sim], Project]:
    return lambda own: new_project(own, f"own{next(_numbers)}", tmp_path)
