"""What must be the same wherever the tests are started from, how many of them run at once, and what they share."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:  # most directories do without, and begin sooner
    from tests.support.projects import Project
    from tests.support.sims import Sim

# Under `nohup`, in a shell's background and under some job runners these are ignored, and children inherit that.
# lium-plan respects it, so the tests of a closed terminal and of Ctrl-C would wait for nothing.
for _number, _usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# How fast a machine is that has other things to do as well says nothing of what is tested.
settings.register_profile("any pace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any pace")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More than there are cores: the long tests mostly wait for pods, which wait for their clocks."""
    return (os.cpu_count() or 1) + 4


FIRST = (
    "test_kill.py", "test_remote_kill.py", "test_market.py", "test_schemathesis.py", "test_quickstart.py",
    "test_remote_verbs.py",
)  # fmt: skip
"""They take a minute and more, most of it for answers that never come, or share a server within their file."""
LONG = ("e2e", "remote", "statecmd", "contract", "cli", "simulation")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first, so that nobody waits for them at the end; of those, what waits beside what computes."""
    directories: dict[str, list[pytest.Item]] = {}
    for item in items:
        directories.setdefault(item.path.parent.name, []).append(item)
    evenly = {item: nth / len(them) for them in directories.values() for nth, item in enumerate(them)}

    def place(item: pytest.Item) -> tuple[int, float]:
        if item.path.name in FIRST:
            return 0, 0.0
        return (1, evenly[item]) if item.path.parent.name in LONG else (2, 0.0)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What has been loaded stays: the collector need not look at it again and again."""
    gc.freeze()


_numbers = count(1)


@pytest.fixture(scope="session")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    """One local Lium for all tests of a worker."""
    from tests.support.sims import serving

    with serving(tmp_path_factory.mktemp("sim"), "--nodes", "200") as running:
        yield running


@pytest.fixture
def project(sim: Sim, tmp_path: Path) -> Iterator[Project]:
    """A project with an account of its own."""
    from tests.support.projects import new_project

    account = f"p{next(_numbers)}"
    yield new_project(sim, account, tmp_path)
    sim.give_back(account)  # the nodes are everybody's
