"""Commands that need no server, run in this process, on states that were written by the store itself."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lium_plan.addresses import parse
from lium_plan.cli.main import main
from lium_plan.kinds.protocol import Json, Record
from lium_plan.state.journal import JournaledLedger, RunIdentity
from lium_plan.state.local import LocalStore
from lium_plan.state.lock import this_process
from lium_plan.state.model import State, new_state
from tests.support.projects import WITHIN_S, Done, Project

LINEAGE = "a1b2c3d4-0000-4000-8000-000000000001"
SALT = bytes(range(32))
NOW = datetime(2026, 10, 5, 12, 0, tzinfo=UTC)


def store(directory: Path, stack: str = "default") -> LocalStore:
    return LocalStore(directory / "state", stack, now=lambda: datetime.now(UTC))


def record(where: str, id: str | None, *needs: str, status: str = "ready", **attributes: Json) -> Record:
    return Record(parse(where), id, status, {}, attributes, tuple(parse(need) for need in needs))


def pod(where: str, id: str, **attributes: Json) -> Record:
    inputs: Mapping[str, Json] = {"template": "template.base", "volume": None, "ttl_s": 7200}
    facts: Mapping[str, Json] = {"pod_name": f"lp-000000-a1b2c3-aaaaaaaa-{id}", "price_per_hour_usd": "0.5"}
    return Record(parse(where), id, "ready", inputs, {**facts, **attributes}, (parse("template.base"),))


@dataclass(frozen=True, slots=True)
class Here(Project):
    """A project whose commands run in this process, with its directory and environment: a start costs a second."""

    def run(self, *arguments: str, expect: int | None = None, within_s: float = WITHIN_S) -> Done:
        out, err = io.StringIO(), io.StringIO()
        before, folder, given = dict(os.environ), Path.cwd(), self.environ
        try:
            os.environ.clear()
            os.environ.update(given)
            os.chdir(self.folder)
            with redirect_stdout(out), redirect_stderr(err):
                code = main(arguments)
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(before)
        done = Done(code, out.getvalue(), err.getvalue())
        assert expect is None or code == expect, f"{' '.join(arguments)}: wanted {expect}, {done}"
        return done


def here(project: Project) -> Here:
    return Here(project.sim, project.account, project.folder, project.home, project.more)


@dataclass(frozen=True, slots=True)
class Desk:
    """A directory that commands work in."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, *arguments: str, expect: int | None = 0) -> Done:
        code = main(arguments)
        out, err = self.capsys.readouterr()
        done = Done(code, out, err)
        assert expect is None or code == expect, f"{arguments}: wanted {expect}, {done}"
        return done

    def write(self, manifest: str, name: str = "lium.yaml") -> None:
        (self.folder / name).write_text(manifest, encoding="utf-8")

    def state(self, stack: str = "default") -> State:
        found = store(self.folder, stack).load().state
        assert found is not None
        return found

    def files(self) -> dict[str, bytes]:
        """Everything in the state directory, but for the lock: whoever holds it writes its name there."""
        return {
            path.name: path.read_bytes()
            for path in (self.folder / "state").iterdir()
            if path.is_file() and path.suffix != ".lock"
        }

    def fill(self, *records: Record, stack: str = "default", compact: bool = True) -> None:
        """A state with these records; without `compact` they are in the journal alone."""
        with self.writing(stack, compact=compact) as ledger:
            for item in records:
                ledger.put(item)

    @contextmanager
    def writing(self, stack: str = "default", *, compact: bool = True) -> Iterator[JournaledLedger]:
        """The ledger of a run by ann, under the lock."""
        place = store(self.folder, stack)
        with self.locked(place, "ann"):
            state = place.load().state
            fresh = new_state("demo", stack, lineage=LINEAGE, salt=SALT)
            run = RunIdentity("r", "ann@box", "test")
            ledger = JournaledLedger(place, state or fresh, run=run, now=lambda: NOW, born=state is not None)
            yield ledger
            if compact:
                ledger.compact()

    @contextmanager
    def locked(self, place: LocalStore, who: str) -> Iterator[None]:
        owner = this_process(who=who, command="lium-plan apply", run="x", since=NOW)
        with asyncio.run(place.lock(owner, timeout_s=0)):
            yield


FLEET = (
    record("template.base", "t1", remote_name="lp-a1b2c3-000000000000"),
    record("volume.data", "v1", remote_name="data-lp-000000-a1b2c3"),
    pod("fleet.workers[0]", "p0"),
    record("fleet.workers[0].bootstrap", None, "fleet.workers[0]", pod_id="p0"),
    pod("fleet.workers[1]", "p1"),
    record("task.train[0]", None, "fleet.workers[0]", status="running", pod_id="p0"),
)
