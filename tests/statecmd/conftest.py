"""Commands that run within the test's own process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.statecmd.commands import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    """An empty directory without a key, and nobody at home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("LIUM_API_KEY", "LIUM_API_API_KEY", "LIUM_BASE_URL", "LIUM_PLAN_STATE", "LIUM_PLAN_STACK"):
        monkeypatch.delenv(name, raising=False)
    return Desk(tmp_path, capsys)
