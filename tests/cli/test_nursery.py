"""A command of `tests.support.nursery`, which most tests run, and one that a shell starts do and say the same."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.nursery import ROOT
from tests.support.projects import Done, Project, new_project, stop

MANIFEST = """\
version: 1
project: both
volumes: {data: {description: "${{ var.word }}"}}
variables: {word: {type: string, default: kept}}
outputs: {word: "${{ var.word }}"}
"""
STORY = (
    ("--version",),
    ("plan", "--help"),
    ("pln",),
    ("plan", "--nonsense"),
    ("show",),
    ("validate", "--json"),
    ("plan", "--detailed-exitcode"),
    ("apply",),
    ("apply", "--auto-approve"),
    ("output", "word"),
    ("show", "--json"),
    ("state", "list"),
    ("plan", "--detailed-exitcode", "--color", "always"),
    ("plan", "--var", "word=other", "-v", "-v"),
    ("destroy", "--auto-approve"),
    ("validate", "--chdir", "/nowhere"),
)
CHANGING = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|\+00:00)?|\d\d:\d\d:\d\dZ|lp-[0-9a-f-]+|[\d.]+ ?(?:m?s|bytes)\b"
    r"|[0-9a-f]{6,}|\b\d+ ago"
)


def fresh(project: Project, *arguments: str) -> Done:
    with project.start_fresh(*arguments) as process:
        return stop(process, within_s=60)


def plain(text: str, project: Project) -> Sequence[str]:
    """The lines without what no two runs have in common; a log's lines have no order."""
    return sorted(CHANGING.sub("#", text.replace(str(project.folder.parent), "HERE")).splitlines())


@pytest.fixture
def another(project: Project, tmp_path: Path) -> Project:
    return new_project(project.sim, f"{project.account}-fresh", tmp_path)


def test_both_end_and_speak_alike(project: Project, another: Project) -> None:
    for one in (project, another):
        one.write(MANIFEST)
    for arguments in STORY:
        ready, slow = project.run(*arguments), fresh(another, *arguments)
        assert ready.code == slow.code, (arguments, ready, slow)
        assert plain(ready.out, project) == plain(slow.out, another), arguments
        assert plain(ready.err, project) == plain(slow.err, another), arguments
    assert {path.name for path in (project.folder / "state").iterdir()} == {
        path.name for path in (another.folder / "state").iterdir()
    }


ORPHANING = """
from tests.support.nursery import SIM, nursery
running = nursery().start(SIM, ["--no-machines"])
running.stdout.readline()
print(nursery()._process.pid, running.pid, flush=True)
running.wait()
"""


def test_nothing_outlives_whoever_started_it() -> None:
    """Killed, nobody ends the process that forks, nor what it has started."""
    with subprocess.Popen([sys.executable, "-c", ORPHANING], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        others = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    try:
        for other in others:
            assert select.select([other], [], [], 20)[0], "it still runs"
    finally:
        for other in others:
            os.close(other)
