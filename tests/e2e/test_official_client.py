"""The official client (`lium.io`, from PyPI) sees in the account what lium-plan put there, and works on its pods.

It lives in a virtual environment of its own under `build/clients`, made once; without a package index to take it from
these tests are skipped.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.projects import ROOT, Project

RELEASE = "lium.io==0.32.0"
PLACE = ROOT / "build" / "clients" / "lium-0.32.0"

MANIFEST = """\
version: 1
project: seen

volumes:
  data: {description: what outlives the machines}

templates:
  base:
    image: ubuntu:22.04

fleets:
  store:
    resources: {gpu: "RTX4090:1"}
    max_price: 2.00
    template: base
    volume: data
    ttl: 2h
    bootstrap:
      commands:
        - echo left by the bootstrap > ~/note
  workers:
    nodes: 2
    resources: {gpu: "RTX4090:1"}
    max_price: 2.00
    template: base
    ttl: 2h
"""


@pytest.fixture(scope="session")
def lium() -> Path:
    """The client's program; made when it is not there yet, by one worker while the others wait."""
    program = PLACE / "bin" / "lium"
    PLACE.parent.mkdir(parents=True, exist_ok=True)
    with PLACE.with_name(f".{PLACE.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _works(program):
            _install()
    assert _works(program), f"{program} doesn't run"
    return program


def _works(program: Path) -> bool:
    if not program.exists():
        return False
    environ = {"PATH": os.environ["PATH"], "HOME": str(PLACE), "LIUM_SELF_UPDATE_DISABLE": "1"}
    return subprocess.run([program, "--version"], env=environ, capture_output=True, check=False).returncode == 0


def _install() -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", PLACE], check=True, capture_output=True)
    pip = [PLACE / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "--retries", "1", RELEASE], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no index to install {RELEASE} from: {done.stderr.strip().splitlines()[-1]}")


def ask(lium: Path, project: Project, *arguments: str) -> str:
    """What the client prints; it must end well."""
    environ = {**project.environ, "LIUM_SELF_UPDATE_DISABLE": "1", "COLUMNS": "200"}
    command = [str(lium), *arguments]
    done = subprocess.run(
        command, env=environ, cwd=project.home, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def asked(lium: Path, project: Project, *arguments: str) -> Any:
    return json.loads(ask(lium, project, *arguments, "--format", "json"))


@pytest.mark.timeout(300)
def test_it_lists_what_we_made_runs_commands_there_and_lists_nothing_afterwards(lium: Path, project: Project) -> None:
    project.write(MANIFEST)
    project.apply()
    pods = project.resources("pod")
    assert len(pods) == 3
    names = {pod["attributes"]["pod_name"] for pod in pods.values()}
    volume = project.resources("volume")["volume.data"]
    template = project.resources("template")["template.base"]

    listed = asked(lium, project, "ps")
    assert {pod["name"] for pod in listed} == names
    assert {pod["id"] for pod in listed} == {pod["id"] for pod in pods.values()}
    assert {pod["status"] for pod in listed} == {"RUNNING"}
    assert template["id"] in {row["id"] for row in asked(lium, project, "templates")}
    assert volume["attributes"]["remote_name"] in ask(lium, project, "volumes", "list")

    store = pods["fleet.store[0]"]["id"]
    assert "left by the bootstrap" in ask(lium, project, "exec", store, "cat ~/note").splitlines()
    assert ask(lium, project, "exec", store, "nvidia-smi -L").count("GPU 0: ") == 1

    project.destroy()
    assert asked(lium, project, "ps") == []
    assert template["id"] not in {row["id"] for row in asked(lium, project, "templates")}
    assert volume["attributes"]["remote_name"] not in ask(lium, project, "volumes", "list")
    assert project.ledger(open_only=True) == []
