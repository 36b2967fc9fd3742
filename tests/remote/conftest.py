"""The manifest that most of these tests begin with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.projects import Project


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
