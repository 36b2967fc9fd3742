"""`--notify`: a command is told how a run ended, and changes nothing about it."""

from __future__ import annotations

import json
import os
import signal
from decimal import Decimal
from pathlib import Path

import pytest

from lium_plan.addresses import parse
from lium_plan.cli.main import main
from lium_plan.cli.notify import notify
from lium_plan.cli.printer import Printer
from lium_plan.engine.events import ActionResult, ResultKind, RunReport
from lium_plan.kinds.protocol import Verb
from lium_plan.views.events_json import ending_json

REPORT = RunReport(
    "r1", (ActionResult(parse("fleet.a[0]"), Verb.CREATE, ResultKind.FAILED, 1.0),), Decimal("3.98"), 2, exit_code=3
)


def test_it_gets_how_the_run_ended_on_stdin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ending_json("apply", "prod", 3, REPORT)
    assert notify(f"cat > {tmp_path}/told; echo sent", told, Printer(os.environ)) is None
    assert json.loads((tmp_path / "told").read_text()) == {
        "format_version": "1.0", "command": "apply", "stack": "prod", "run": "r1", "exit_code": 3, "running_pods": 2,
        "running_per_hour_usd": 3.98, "done": 0, "failed": 1, "skipped": 0, "unknown": 0, "interrupted": 0,
    }  # fmt: skip
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "sent\n")


@pytest.mark.parametrize(("command", "word"), [("exit 7", "ended with 7"), ("no-such-command-here", "ended with 127")])
def test_its_failure_is_a_warning(command: str, word: str) -> None:
    found = notify(command, {}, Printer(os.environ))
    assert found is not None
    assert found.severity == "warning"
    assert word in found.message


def test_what_it_leaves_in_the_background_holds_up_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert notify("sleep 20 & echo $!", {}, Printer(os.environ)) is None
    os.kill(int(capsys.readouterr().err), signal.SIGKILL)  # it lives on, as it was meant to


def test_one_that_does_not_end_is_stopped_with_all_that_it_began(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "held")
    reader = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    command = f"exec 3>{tmp_path}/held; sleep 300 & sleep 300; echo never"
    found = notify(command, {}, Printer(os.environ), within_s=0.5)
    assert found is not None
    assert "was stopped" in found.message
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b"", "the end of the pipe: nobody holds it any more"
    os.close(reader)


def test_a_run_that_fails_at_once_is_told_too_and_keeps_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIUM_API_KEY", "sk_sim_nobody")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "lium.yaml").write_text("project: [", encoding="utf-8")
    assert main(["apply", "--auto-approve", "--stack", "prod", "--notify", f"cat > {tmp_path}/told; exit 5"]) == 1
    told = json.loads((tmp_path / "told").read_text())
    assert (told["command"], told["stack"], told["exit_code"], told["run"], told["done"]) == (
        "apply",
        "prod",
        1,
        None,
        None,
    )
    assert "ended with 5" in capsys.readouterr().err
