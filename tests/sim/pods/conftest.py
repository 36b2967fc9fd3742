"""Both modes for what must hold in both; namespaces alone for what only they give."""

from __future__ import annotations

import asyncio
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lium_plan.sim.pods import open_runtime


@cache
def why_no_namespaces() -> str:
    """Empty where they work, else what the runtime says about it."""
    said: list[str] = []
    with TemporaryDirectory() as directory:
        runtime = open_runtime(Path(directory), confined=False, say=said.append)
        asyncio.run(runtime.close())
        return "" if runtime.mode == "namespaces" else " ".join(said)


@pytest.fixture
def namespaces() -> None:
    if reason := why_no_namespaces():
        pytest.skip(reason)


@pytest.fixture(params=["namespaces", "confined"])
def confined(request: pytest.FixtureRequest) -> bool:
    if request.param == "namespaces" and (reason := why_no_namespaces()):
        pytest.skip(reason)
    return bool(request.param == "confined")
