"""A user's directory, home and account, and `lium-plan` run there as a command."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lium_plan.ssh.keys import make_key
from tests.support import crash_launcher
from tests.support.nursery import MAIN, Process, Started, nursery
from tests.support.sims import COMMAND, Row, Sim

ROOT = Path(__file__).parents[2]
WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Row]:
        """Of a command that writes one JSON document a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    def __str__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


@dataclass(frozen=True, slots=True)
class Project:
    """Nothing of it is shared with another project but the server; `account` is its account there."""

    sim: Sim
    account: str
    folder: Path
    home: Path
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        """All that a command sees of ours; what `more` makes empty is left out."""
        environ = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self.home),
            "LIUM_BASE_URL": self.sim.base_url,
            "LIUM_API_KEY": f"sk_sim_{self.account}",
            "REG_USER": "demo",
            "REG_PASS": "demo",
            **self.more,
        }
        return {name: value for name, value in environ.items() if value}

    @property
    def key_path(self) -> Path:
        return self.home / ".ssh" / "id_ed25519"

    def write(self, manifest: str, name: str = "lium.yaml") -> None:
        (self.folder / name).write_text(manifest)

    # --- commands ------------------------------------------------------------------------------------------------

    def run(self, *arguments: str, expect: int | None = None, within_s: float = WITHIN_S) -> Done:
        """Run to its end. With `expect`, any other exit code fails with all that was said."""
        with self.start(*arguments) as process:
            done = stop(process, within_s=within_s)
        assert expect is None or done.code == expect, f"{' '.join(arguments)}: wanted {expect}, {done}"
        return done

    def crash(self, *arguments: str, at: str) -> Done:
        """Run, and be killed at a site of `crash_launcher`; the code is -9 when the site was reached."""
        environ = {**self.environ, "CRASH_AT": at}
        with nursery().start(crash_launcher.__name__, arguments, cwd=self.folder, env=environ) as process:
            return stop(process, within_s=WITHIN_S)

    def start(self, *arguments: str) -> Started:
        return nursery().start(MAIN, arguments, cwd=self.folder, env=self.environ)

    def start_fresh(self, *arguments: str) -> subprocess.Popen[str]:
        """As a shell starts it: with an interpreter and memory of its own."""
        return subprocess.Popen(
            [str(COMMAND), *arguments],
            cwd=self.folder,
            env=self.environ,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def apply(self, *arguments: str, expect: int = 0) -> Done:
        return self.run("apply", "--auto-approve", *arguments, expect=expect)

    def destroy(self, *arguments: str, expect: int = 0) -> Done:
        return self.run("destroy", "--auto-approve", *arguments, expect=expect)

    # --- what there is -------------------------------------------------------------------------------------------

    def state(self) -> Row:
        shown: Row = self.run("show", "--json", expect=0).json
        return shown

    def resources(self, kind: str) -> dict[str, Row]:
        """Address -> row of `show --json`."""
        return {row["address"]: row for row in self.state()["resources"] if row["kind"] == kind}

    def ledger(self, kind: str | None = None, *, open_only: bool = False) -> list[Row]:
        """What the server bills, or ever billed, to this project's account."""
        rows = self.sim.ledger(self.account, open_only=open_only)
        return [row for row in rows if kind in (None, row["kind"])]

    def on_pod(self, pod: Row, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a pod of `resources("pod")` with OpenSSH's client, as a user would."""
        where = pod["attributes"]
        options = ("BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
        return subprocess.run(
            [
                *("ssh", "-i", str(self.key_path), "-p", str(where["ssh_port"])),
                *(part for option in options for part in ("-o", option)),
                *(f"root@{where['host']}", command),
            ],
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=60,
        )


def stop(process: Process, *, within_s: float) -> Done:
    """What a started command says until it ends; it is killed when that takes longer."""
    try:
        out, err = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {within_s:g} s\n{Done(-9, out, err)}") from None
    return Done(process.returncode, out, err)


def new_project(sim: Sim, account: str, under: Path, **more: str) -> Project:
    """An empty project with a home of its own that has an SSH key."""
    folder, home = under / account / "project", under / account / "home"
    folder.mkdir(parents=True)
    make_key(home / ".ssh" / "id_ed25519")
    return Project(sim, account, folder, home, more)
