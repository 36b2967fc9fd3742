"""What must be the same wherever the tests are started from, and how many of them run at once."""

from __future__ import annotations

import os
import signal

import pytest

# Under `nohup` and some job runners SIGHUP is ignored, and children inherit that. lium-plan respects it, so the tests
# of a closed terminal would wait for nothing.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More than there are cores: the long tests mostly wait for pods, which wait for their clocks."""
    return (os.cpu_count() or 1) + 3


WAITING = ("test_kill.py", "test_remote_kill.py", "test_rivals.py", "test_market.py", "test_schemathesis.py")
"""They take a minute and more, most of it for answers that never come."""
LONG = ("e2e", "remote", "statecmd", "contract", "cli", "simulation")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first, so that nobody waits for them at the end."""

    def place(item: pytest.Item) -> int:
        return 0 if item.path.name in WAITING else 1 if item.path.parent.name in LONG else 2

    items.sort(key=place)
