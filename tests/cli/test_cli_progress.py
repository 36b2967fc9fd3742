"""Progress: lines, JSON, `--json-into`; and nothing of it ever stops a run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lium_plan.addresses import parse
from lium_plan.cli.printer import Printer
from lium_plan.cli.progress import JsonFile, Progress
from lium_plan.diagnostics import Failure
from lium_plan.engine.events import Event, EventType
from lium_plan.interrupts import Interrupt
from lium_plan.kinds.protocol import Verb
from tests.support.virtual import run_virtual

AT = datetime(2026, 9, 10, 10, 41, 7, tzinfo=UTC)
START = Event(EventType.APPLY_START, AT, 1, parse("fleet.a[0]"), Verb.CREATE)
EVENTS = (
    START,
    replace(START, type=EventType.PHASE, seq=2, phase="ssh"),
    replace(START, type=EventType.PHASE, seq=3, phase="ssh"),
)


def show(progress: Progress) -> None:
    async def run() -> None:
        for event in EVENTS:
            progress.take(event)

    asyncio.run(run())
    progress.close(0)


def test_lines_on_stderr_once_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    show(Progress(Printer(os.environ), as_json=False, into=None))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "10:41:07Z + fleet.a[0]: started\n10:41:07Z + fleet.a[0]: ssh\n"


def test_time_is_the_servers_however_this_machines_clock_stands() -> None:
    progress = Progress(Printer(os.environ), as_json=True, into=None)

    async def since(event: Event) -> timedelta:
        progress.take(event)
        return progress.now - event.at

    for years in (-1, 1):
        event = replace(START, at=datetime.now(UTC) + timedelta(days=365 * years))
        assert timedelta(0) <= asyncio.run(since(event)) < timedelta(days=1)


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(os.environ)
    printer.quiet = True
    show(Progress(printer, as_json=False, into=None))
    assert capsys.readouterr().err == ""


def watched(*, quiet: bool, seconds: float) -> None:
    """A pod that is deleted for so long, in virtual time."""
    printer = Printer(os.environ)
    printer.quiet = quiet
    progress = Progress(printer, as_json=False, into=None)

    async def run() -> None:
        interrupt = Interrupt()
        progress.take(replace(START, verb=Verb.DESTROY))
        progress.take(replace(START, type=EventType.PHASE, seq=2, phase="deleting", verb=Verb.DESTROY))
        watching = asyncio.create_task(progress.watch(interrupt))
        await asyncio.sleep(seconds)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    run_virtual(run())


def test_what_takes_unusually_long_shows_that_it_lives_even_when_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    watched(quiet=True, seconds=110)
    assert capsys.readouterr().err == ""
    watched(quiet=True, seconds=910)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 7
    assert shown[0].endswith("0 of 1 done, 1 working: fleet.a[0] deleting (2m 00s)")
    watched(quiet=False, seconds=100)
    assert sum("1 working" in line for line in capsys.readouterr().err.splitlines()) == 3


def test_json_on_stdout_and_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(Progress(Printer(os.environ), as_json=True, into=JsonFile(str(tmp_path / "e"))))
    shown = capsys.readouterr()
    assert shown.err == ""
    assert [json.loads(line)["type"] for line in shown.out.splitlines()] == [
        "version",
        "apply_start",
        "phase",
        "phase",
        "change_summary",
    ]
    assert (tmp_path / "e").read_text(encoding="utf-8") == shown.out


def test_a_full_disk_under_json_into_is_told_and_stops_nothing() -> None:
    file = JsonFile("/dev/full")
    file.write("line\n")
    file.write("line\n")
    file.close()
    assert file.lost is not None
    assert "not complete" in file.lost.message


def test_half_a_character_is_written_as_json_writes_it(tmp_path: Path) -> None:
    file = JsonFile(str(tmp_path / "e"))
    file.write('"\ud800 é"\n')
    file.close()
    text = (tmp_path / "e").read_text(encoding="utf-8")
    assert (text, json.loads(text)) == ('"\\ud800 é"\n', "\ud800 é")


def test_a_place_that_cannot_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    with pytest.raises(Failure):
        JsonFile(str(tmp_path / "no" / "e"))
