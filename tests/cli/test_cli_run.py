"""The commands against a local Lium, as a person and as a script use them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from terminals import Terminal

from lium_plan.ssh.keys import make_key
from tests.support.nursery import MAIN, nursery
from tests.support.projects import Done, stop

LIUM_PLAN = (sys.executable, "-m", "lium_plan")


@contextmanager
def local_lium(directory: Path, speed: int) -> Iterator[Mapping[str, str]]:
    """A local Lium, and an environment in which it is the server."""
    make_key(directory / "key")
    base = {name: value for name, value in os.environ.items() if not name.startswith("LIUM_")}
    base.update(HOME=str(directory), LIUM_SSH_KEY_PATH=str(directory / "key"), TERM="xterm", COLUMNS="120", LINES="40")
    options = ("sim", "serve", "--speed", str(speed), "--confined")
    server = nursery().start(MAIN, options, cwd=directory, env=base, stderr=subprocess.DEVNULL)
    assert server.stdout is not None
    given = dict(server.stdout.readline().strip().split("=", 1) for _ in range(2))
    yield {**base, **given}
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=60) == 0
    server.stdout.close()


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    with local_lium(tmp_path, 40) as given:
        yield given


def run(environ: Mapping[str, str], cwd: Path, *arguments: str) -> Done:
    with nursery().start(MAIN, arguments, cwd=cwd, env=environ) as process:
        return stop(process, within_s=60)


def test_from_nothing_to_nothing(environ: Mapping[str, str], tmp_path: Path) -> None:
    work = tmp_path / "work"
    assert run(environ, tmp_path, "init", "work").code == 0
    planned = run(environ, work, "plan", "--detailed-exitcode", "--out", "saved.json")
    assert planned.code == 2, planned.err
    assert "+ fleet.box[0]" in planned.out
    assert planned.out == run(environ, work, "show", "saved.json").out

    refused = run(environ, work, "apply")
    assert refused.code == 1
    assert "--auto-approve" in refused.err
    assert not (work / "state" / "default.json").exists()

    with Terminal((*LIUM_PLAN, "apply"), env=environ, cwd=work) as terminal:
        terminal.wait_for("Only 'yes' goes on: ")
        terminal.type("no\n")
        assert terminal.end() == 1
        assert "Nothing was changed." in terminal.shown

    with Terminal((*LIUM_PLAN, "apply"), env=environ, cwd=work) as terminal:
        terminal.wait_for("Only 'yes' goes on: ")
        terminal.type("yes\n")
        assert terminal.end() == 0, terminal.shown
        assert "1 pod runs now" in terminal.shown

    shown = json.loads(run(environ, work, "show", "--json").out)
    statuses = {row["address"]: row["status"] for row in shown["resources"]}
    assert (statuses["fleet.box[0]"], statuses["task.hello[0]"]) == ("ready", "completed")
    assert run(environ, work, "plan", "--detailed-exitcode").code == 0
    assert run(environ, work, "apply", "saved.json").code == 4
    assert json.loads(run(environ, work, "status", "--json").out)["pods"][0]["phase"] == "RUNNING"

    with Terminal((*LIUM_PLAN, "destroy"), env=environ, cwd=work) as terminal:
        terminal.wait_for("Type the project's name (quickstart) to go on: ")
        terminal.type("quickstart\n")
        assert terminal.end() == 0, terminal.shown
        assert re.search(r"1 of 1 gone, \$[0-9.]+ in all", terminal.shown)
        assert "Nothing of stack default runs, nothing of it is billed." in terminal.shown


def test_apply_as_a_stream_whose_reader_leaves(environ: Mapping[str, str], tmp_path: Path) -> None:
    work = tmp_path / "work"
    run(environ, tmp_path, "init", "work")
    options = ("apply", "--auto-approve", "--json", "--json-into", "events.jsonl")
    process = nursery().start(MAIN, options, cwd=work, env=environ, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["type"] == "version"
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    rows = [json.loads(line) for line in (work / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert (rows[-1]["type"], rows[-1]["exit_code"]) == ("change_summary", 0)
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
    assert run(environ, work, "state", "list").out.splitlines()[0] == "fleet.box[0]"
    destroyed = run(environ, work, "destroy", "--auto-approve", "--json")
    assert destroyed.code == 0
    assert any(json.loads(line)["type"] == "proof" for line in destroyed.out.splitlines())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, "closed terminal"])
def test_an_interrupted_apply_ends_soon_and_knows_its_pod(tmp_path: Path, how: signal.Signals | str) -> None:
    work = tmp_path / "work"
    with local_lium(tmp_path, 1) as environ:
        run(environ, tmp_path, "init", "work")
        with Terminal((*LIUM_PLAN, "apply", "--auto-approve"), env=environ, cwd=work) as terminal:
            terminal.wait_for("pulling image")
            if isinstance(how, signal.Signals):
                terminal.process.send_signal(how)
            else:
                terminal.hang_up()
            assert terminal.process.wait(timeout=10) == 7
        shown = json.loads(run(environ, work, "show", "--json").out)
        pod = next(row for row in shown["resources"] if row["address"] == "fleet.box[0]")
        assert pod["id"]
        assert pod["status"] == "pending"
