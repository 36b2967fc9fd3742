"""Other people's clients, each in a virtual environment of its own, against a local Lium on loopback.

The environments lie under `build/clients`, made once; without a package index to take a client from its tests are
skipped.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.venvs import CLIENTS, client_bin
from tests.support.nursery import SIM, Started, nursery

LIUM = ("lium-0.32.0", "lium.io==0.32.0")
GPUHUNT = ("gpuhunt-0.1.34", "gpuhunt==0.1.34")
DSTACK = ("dstack-0.22.5", "dstack[server]==0.22.5")
GENERATOR = ("openapi-python-client", "openapi-python-client>=0.26,<1")
SCHEMATHESIS = ("schemathesis", "schemathesis>=4,<5")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first of each client also installs it, and others wait for that: how long depends on the index."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(900))


def client(name: str, *requirements: str) -> Path:
    """The `bin` directory; made when it isn't there yet, by one worker while the others wait."""
    CLIENTS.mkdir(parents=True, exist_ok=True)
    with (CLIENTS / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return client_bin(name, *requirements)
        except subprocess.CalledProcessError as problem:
            pytest.skip(f"no index to install {', '.join(requirements)} from: {problem}")


@dataclass(frozen=True, slots=True)
class Server:
    base_url: str
    scratch: Path
    process: Started

    @property
    def control_url(self) -> str:
        return self.base_url.removesuffix("/api") + "/_sim"

    def control(self, method: str, path: str, body: object = None) -> Any:
        answer = httpx.request(method, self.control_url + path, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def open_pods(self, account: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.control("GET", f"/ledger?account={account}&open_only=true")
        return [row for row in rows if row["kind"] == "pod"]


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Starts a server with the options given; ends all of them at the session's end."""
    servers: list[Server] = []

    def begin(*options: str) -> Server:
        scratch = tmp_path_factory.mktemp("server")
        with (scratch / "log").open("w") as log:
            process = nursery().start(SIM, options, stderr=log)
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("LIUM_BASE_URL="), (scratch / "log").read_text()
        servers.append(Server(first.strip().partition("=")[2], scratch, process))
        return servers[-1]

    yield begin
    for server in servers:
        server.process.terminate()
    for server in servers:
        server.process.communicate(timeout=30)
        said = (server.scratch / "log").read_text()
        assert "Traceback" not in said, said
        assert " failed: " not in said, said


@pytest.fixture(scope="session")
def server(start: Callable[..., Server]) -> Server:
    """With machines behind the pods, and thirty times as fast as the real one."""
    return start("--speed", "30", "--nodes", "84")


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody with an account and a home of their own, and the client's environment."""

    name: str
    home: Path
    environ: dict[str, str]
    bin: Path

    def run(self, *arguments: str, status: int = 0) -> str:
        """What the `lium` command prints on stdout."""
        done = subprocess.run(
            [str(self.bin / "lium"), *arguments],
            env=self.environ,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == status, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *arguments: str, flag: tuple[str, ...] = ("--format", "json")) -> Any:
        return json.loads(self.run(*arguments, *flag))

    def python(self, code: str) -> Any:
        """The JSON that a script prints as its last line, run by the client's own interpreter."""
        done = subprocess.run(
            [str(self.bin / "python"), "-c", textwrap.dedent(code)],
            env=self.environ,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
            timeout=170,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def person(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Person:
    name = request.node.name.replace("_", "-")[:40]
    ssh = tmp_path / ".ssh"
    ssh.mkdir(mode=0o700)
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ssh / "id_ed25519")]
    subprocess.run(made, check=True)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LIUM_BASE_URL": server.base_url,
        "LIUM_API_KEY": f"sk_sim_{name}",
        "LIUM_SELF_UPDATE_DISABLE": "1",
        "LIUM_SSH_PERSIST": "0",
        "COLUMNS": "250",
    }
    return Person(name, tmp_path, environ, client(*LIUM))
