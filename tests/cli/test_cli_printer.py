"""What is printed, and what happens when it can't be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from terminals import Terminal

from lium_plan.cli.printer import wants_colours


@pytest.mark.parametrize(
    ("choice", "environ", "terminal", "expected"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colours(choice: str, environ: Mapping[str, str], terminal: bool, expected: bool) -> None:
    assert wants_colours(choice, environ, terminal=terminal) is expected


TALKER = """
import os, sys
from pathlib import Path
from lium_plan.cli.printer import Printer
printer = Printer(os.environ)
printer.on_closed_terminal = lambda: Path("closed").write_text("yes")
for number in range(20000):
    printer.out(f"line {number}\\n")
    printer.talk("talk\\n")
Path("saved").write_text("yes")
"""


def test_a_reader_that_leaves_does_not_stop_the_work(tmp_path: Path) -> None:
    process = subprocess.Popen(
        (sys.executable, "-c", TALKER), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"line 0\n"
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / "closed").exists()


def test_a_full_disk_under_stdout_does_not_stop_the_work(tmp_path: Path) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            (sys.executable, "-c", TALKER), stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, check=False
        )
    assert done.returncode == 0
    assert (tmp_path / "saved").exists()
    assert set(done.stderr.splitlines()) == {b"talk"}


def test_a_closed_terminal_is_told_once_and_does_not_stop_the_work(tmp_path: Path) -> None:
    # SIGHUP is ignored here, as under nohup: only the write fails.
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + TALKER
    with Terminal((sys.executable, "-c", code), env=os.environ, cwd=tmp_path) as terminal:
        terminal.wait_for("line 0\n")
        terminal.hang_up()
        assert terminal.process.wait(timeout=60) == 0
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "closed").exists()


def test_a_terminal_without_unicode_gets_something(tmp_path: Path) -> None:
    code = "import os\nfrom lium_plan.cli.printer import Printer\nPrinter(os.environ).out('» ± x\\n')"
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, env=environ, cwd=tmp_path, check=True)
    assert done.stdout == b"\\xbb \\xb1 x\n"
