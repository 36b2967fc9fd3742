"""A local Lium as a process, and its control routes as a test uses them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx

from tests.support.nursery import MAIN, Process, nursery

COMMAND = Path(sys.executable).with_name("lium-plan")
SPEED = 30.0
READY_WITHIN_S = 60.0
PACE_S = 0.05

Row = dict[str, Any]


class Sim:
    """One running `lium-plan sim serve`. A key `sk_sim_NAME` opens the account NAME."""

    def __init__(self, base_url: str, speed: float) -> None:
        self.base_url = base_url
        self.speed = speed
        self._control = httpx.Client(base_url=base_url.removesuffix("/api") + "/_sim", timeout=30)

    def close(self) -> None:
        self._control.close()

    def control(self, method: str, route: str, /, body: object = None, **params: str) -> Any:
        answer = self._control.request(method, route, json=body, params=params)
        assert answer.status_code == 200, (method, route, answer.status_code, answer.text)
        return answer.json()

    def ledger(self, account: str, *, open_only: bool = False) -> list[Row]:
        """Everything that the account ever had, or what is billed now, as the server counts it."""
        rows: list[Row] = self.control("GET", "/ledger", account=account, open_only=str(open_only).lower())
        return rows

    def give_back(self, account: str) -> None:
        """Delete the account's pods as a renter would, so that others find the nodes free."""
        for row in self.ledger(account, open_only=True):
            if row["kind"] == "pod":
                httpx.delete(f"{self.base_url}/pods/{row['id']}", headers={"X-API-KEY": f"sk_sim_{account}"})

    def requests(self, account: str, method: str = "*", path: str = "**") -> list[Row]:
        """What the account asked for, oldest first."""
        params = {"path": path, **({} if method == "*" else {"method": method})}
        return [row for row in self.control("GET", "/requests", **params) if row["account"] == account]

    def fault(self, effect: Row, **rest: object) -> None:
        self.control("POST", "/faults", {"effect": effect, **rest})

    def configure(self, **settings: object) -> None:
        self.control("POST", "/config", settings)

    def world(self) -> Row:
        found: Row = self.control("GET", "/world")
        return found


@contextmanager
def serving(scratch: Path, *options: str, speed: float = SPEED, niceness: int = 0) -> Iterator[Sim]:
    """A server with its own world, ended with SIGTERM; what it says goes to a file in `scratch`."""
    scratch.mkdir(parents=True, exist_ok=True)
    talk = scratch / "sim.log"
    arguments = ["sim", "serve", "--speed", f"{speed:g}", *options]
    with talk.open("w") as log, nursery().start(MAIN, arguments, stderr=log) as process:
        try:
            if niceness:
                os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first.startswith("LIUM_BASE_URL=http://127.0.0.1:"), (first, talk.read_text())
            process.stdout.readline()
            sim = Sim(first.removeprefix("LIUM_BASE_URL=").strip(), speed)
            yield sim
            sim.close()
        finally:
            process.terminate()
            try:
                code = process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
    said = talk.read_text()
    assert code == 0, said
    # A route that raised is named there; a traceback alone is uvicorn's about a request that the end cut off.
    assert " failed: " not in said, said


def until(found: Callable[[], bool], process: Process | None = None, *, within_s: float = 60.0, what: str) -> None:
    """Ask again and again; fails when the time is up, or when `process` ended before it was so."""
    deadline = monotonic() + within_s
    while not found():
        assert monotonic() < deadline, f"not within {within_s:g} s: {what}"
        if process is None:
            sleep(PACE_S)
            continue
        try:
            process.wait(PACE_S)
        except subprocess.TimeoutExpired:
            continue
        assert found(), f"it ended with {process.returncode} before: {what}"
        return
