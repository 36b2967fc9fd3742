"""A local Lium for your own tests: pytest fixtures, and the same as a context manager.

In a `conftest.py`:

    pytest_plugins = ["lium_plan.sim.testing"]

and in a test:

    def test_my_client(local_lium):
        client = MyClient(local_lium.base_url, local_lium.api_key)
        pod = client.rent(...)
        local_lium.advance(60)                       # a minute passes at once
        assert client.pod(pod).status == "RUNNING"
        local_lium.fault({"do": "lose_reply"}, match={"path": "/executors/*/rent"})
        ...
        assert [row["name"] for row in local_lium.ledger(open_only=True)] == ["p"]

`local_lium` gives every test an account of its own on one server for the session (`local_lium_server`), and takes
back what the test changed there: armed faults and settings. What the server is started with says the fixture
`local_lium_options`, which you may override:

    @pytest.fixture(scope="session")
    def local_lium_options():
        return ("--speed", "30", "--no-machines")    # see `lium-plan sim serve --help`

Programs in processes of their own get `local_lium.environ`. `serve_local_lium()` is the server without pytest's
fixtures. Nothing is loaded by itself: the package registers no plugin.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

import pytest

_READY_WITHIN_S = 30.0
_END_WITHIN_S = 30.0
_ANSWER_WITHIN_S = 60.0
_DIRECT = build_opener(ProxyHandler({}))
"""Past any proxy that the environment names: the server is on loopback."""


@dataclass(frozen=True, slots=True)
class LocalLium:
    """A running local Lium, seen from one account."""

    base_url: str
    """`http://127.0.0.1:PORT/api`."""
    account: str

    @property
    def api_key(self) -> str:
        return f"sk_sim_{self.account}"

    @property
    def environ(self) -> dict[str, str]:
        """What Lium's clients read: `LIUM_BASE_URL` and `LIUM_API_KEY`."""
        return {"LIUM_BASE_URL": self.base_url, "LIUM_API_KEY": self.api_key}

    def as_account(self, name: str) -> LocalLium:
        """The same server for another account, which is opened at its first call."""
        return LocalLium(self.base_url, name)

    def control(self, method: str, path: str, body: object = None, **params: str) -> Any:
        """A control route, `/_sim{path}`; `/_sim/openapi.json` describes them. Raises urllib.error.HTTPError."""
        url = self.base_url.removesuffix("/api") + "/_sim" + path + (f"?{urlencode(params)}" if params else "")
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        with _DIRECT.open(Request(url, data, headers, method=method), timeout=_ANSWER_WITHIN_S) as answer:
            return json.load(answer)

    def fault(self, effect: Mapping[str, object], **rest: object) -> None:
        """Arm a fault, or have it at once: `POST /_sim/faults`. A `match` means this account unless it names one."""
        match = rest.get("match")
        if isinstance(match, Mapping):
            rest["match"] = {"account": self.account, **match}
        self.control("POST", "/faults", {"effect": effect, **rest})

    def configure(self, **settings: object) -> None:
        """Turn knobs of the whole server, e.g. `shared_limiter="refuse"`: `POST /_sim/config`."""
        self.control("POST", "/config", settings)

    def advance(self, seconds: float) -> None:
        """Jump forward in the world's time; everything due on the way happens. All accounts share that time."""
        self.control("POST", "/advance", {"seconds": seconds})

    def ledger(self, *, open_only: bool = False) -> list[dict[str, Any]]:
        """What the account ever had and what it cost, or what exists now."""
        rows: list[dict[str, Any]] = self.control(
            "GET", "/ledger", account=self.account, open_only=str(open_only).lower()
        )
        return rows

    def requests(self) -> list[dict[str, Any]]:
        """What the account asked for, oldest first."""
        return [row for row in self.control("GET", "/requests") if row["account"] == self.account]


@contextmanager
def serve_local_lium(*options: str, account: str = "local") -> Iterator[LocalLium]:
    """Run `sim serve` with `options` in a process of its own; it ends with the block. Raises RuntimeError when it
    does not come up."""
    command = [sys.executable, "-m", "lium_plan.sim", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            name, _, base_url = process.stdout.readline().strip().partition("=")
            if name != "LIUM_BASE_URL":
                raise RuntimeError(f"the local Lium did not start (status {process.wait(_READY_WITHIN_S)})")
            yield LocalLium(base_url, account)
        finally:
            process.terminate()
            try:
                process.wait(_END_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="session")
def local_lium_options() -> tuple[str, ...]:
    """The options that the session's server is started with. Override it."""
    return ("--speed", "60")


@pytest.fixture(scope="session")
def local_lium_server(local_lium_options: tuple[str, ...]) -> Iterator[LocalLium]:
    """One server for the session, seen from the account `local`."""
    with serve_local_lium(*local_lium_options) as server:
        yield server


@pytest.fixture
def local_lium(local_lium_server: LocalLium, request: pytest.FixtureRequest) -> Iterator[LocalLium]:
    """The server from an account that no other test has."""
    settings = local_lium_server.control("GET", "/config")
    yield local_lium_server.as_account(_account_of(request.node.nodeid))
    local_lium_server.control("DELETE", "/faults")
    local_lium_server.control("POST", "/config", settings)


def _account_of(test: str) -> str:
    """A name that says which test it is, and is as short as an account's name must be."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", test.rpartition("::")[2]).strip("-")
    return f"{plain[:48]}-{hashlib.sha256(test.encode()).hexdigest()[:8]}"
