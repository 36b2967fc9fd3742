"""The background local Lium: one for a state directory, whoever starts it; ends when told to."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lium_plan.cli.main import main
from lium_plan.diagnostics import Failure
from lium_plan.sim import background

STARTER = """
import sys
from pathlib import Path
from lium_plan.sim.background import start_or_join
sys.stdin.readline()
local = start_or_join(Path("state"))
print(local.pid, local.base_url, local.started)
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "state"
    background.stop(tmp_path / "state")


def test_commands_that_start_at_once_share_one(state: Path) -> None:
    starters = [
        subprocess.Popen((sys.executable, "-c", STARTER), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("go\n")
        starter.stdin.flush()
    answers = [starter.communicate(timeout=120)[0].split() for starter in starters]
    assert len({(pid, url) for pid, url, _ in answers}) == 1
    assert sorted(started for _, _, started in answers) == ["False", "False", "True"]
    found = background.find(state)
    assert found is not None
    assert str(found.pid) == answers[0][0]
    assert f"http://127.0.0.1:{found.port}/api" == answers[0][1]


def test_its_life(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = background.start_or_join(state)
    assert first.started
    assert not background.start_or_join(state).started
    assert stat.S_IMODE(first.directory.stat().st_mode) == 0o700
    for name in ("server.json", "log", "lock"):
        assert stat.S_IMODE((first.directory / name).stat().st_mode) == 0o600, name
    assert main(["sim", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["base_url"] == first.base_url
    with pytest.raises(Failure):
        background.forget_world(state)
    assert main(["sim", "reset", "-q"]) == 0
    assert main(["sim", "stop"]) == 0
    assert "has ended" in capsys.readouterr().err
    assert background.find(state) is None
    assert main(["sim", "stop"]) == 0
    assert main(["sim", "status"]) == 0
    assert "No local Lium is running" in capsys.readouterr().out
    # The world outlives the server, until it is reset.
    again = background.start_or_join(state)
    assert again.started
    assert background.stop(state)
    assert background.forget_world(state)
    assert not background.forget_world(state)


def test_a_note_about_somebody_elses_process_is_not_believed(state: Path) -> None:
    directory = background.directory_of(state)
    directory.mkdir(parents=True)
    note = {"port": 1, "pid": os.getpid(), "started_at": "12345"}
    (directory / "server.json").write_text(json.dumps(note), encoding="utf-8")
    assert background.find(state) is None
    assert background.stop(state) is False


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": "x"}', "null"])
def test_an_unreadable_note_is_no_server(state: Path, text: str) -> None:
    directory = background.directory_of(state)
    directory.mkdir(parents=True)
    (directory / "server.json").write_text(text, encoding="utf-8")
    assert background.find(state) is None


def test_a_server_that_does_not_start_says_why(state: Path) -> None:
    directory = background.directory_of(state)
    directory.mkdir(parents=True)
    (directory / "world.jsonl").write_text("no world\n", encoding="utf-8")
    with pytest.raises(Failure) as caught:
        background.start_or_join(state)
    assert "did not start" in str(caught.value)
    assert "log" in (caught.value.diagnostics[0].hint or "")
