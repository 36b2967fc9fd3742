"""The server as a process, over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

import asyncssh
import httpx
import pytest

MODES = [(), ("--confined",)]
KEYED = {"X-API-KEY": "sk_sim_local"}


@contextmanager
def serving(*options: str, machines: bool = False) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`python -m lium_plan.sim`; yields the process and the base URL."""
    command = [sys.executable, "-m", "lium_plan.sim", *options]
    if not machines:
        command.append("--no-machines")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        assert first.startswith("LIUM_BASE_URL=http://127.0.0.1:"), (first, process.poll())
        assert second == "LIUM_API_KEY=sk_sim_local\n"
        yield process, first.removeprefix("LIUM_BASE_URL=").strip()
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        finally:
            process.kill()


def test_it_says_two_lines_answers_and_ends_with_0_on_sigterm() -> None:
    with serving("--nodes", "5", "--balance", "12.5") as (process, base):
        assert base.endswith("/api")
        with httpx.Client(base_url=base, headers=KEYED) as client:
            assert client.get("/users/me").json()["balance"] == 12.5
            assert len(client.get("/executors").json()) == 5
            assert client.get("/version").headers["X-Request-Id"]
            assert len(client.get("/version").headers.get_list("Date")) == 1
            redirect = client.get("/docker-credentials")
            assert redirect.status_code == 307
            assert client.get(redirect.headers["location"]).json() == []
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (0, "")
        assert "5 nodes" in err
        assert "Traceback" not in err


@pytest.mark.parametrize(("where", "volumes"), [("before", 0), ("after", 1)])
def test_a_lost_reply_really_drops_the_connection(where: str, volumes: int) -> None:
    with serving("--nodes", "2") as (process, base), httpx.Client(base_url=base, headers=KEYED) as client:
        control = base.removesuffix("/api") + "/_sim"
        fault = {"match": {"method": "POST", "path": "/volumes"}, "effect": {"do": "lose_reply", "where": where}}
        assert client.post(f"{control}/faults", json=fault).status_code == 200
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            client.post("/volumes", json={"name": "v"})
        assert len(client.get("/volumes").json()) == volumes
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
        assert "Traceback" not in err


def test_a_killed_server_loses_nothing(tmp_path: Path) -> None:
    world = str(tmp_path / "world.jsonl")
    with serving("--nodes", "3", "--world", world) as (process, base):
        httpx.post(f"{base}/volumes", json={"name": "kept"}, headers=KEYED).raise_for_status()
        process.kill()
        process.wait()
    with serving("--nodes", "7", "--world", world) as (_, base):
        assert [row["name"] for row in httpx.get(f"{base}/volumes", headers=KEYED).json()] == ["kept"]
        assert len(httpx.get(f"{base}/executors").json()) == 3


def test_scenario_and_feed_files(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("- effect: {do: answer, status: 503}\n  match: {path: /volumes, times: null}\n")
    feed = tmp_path / "feed.json"
    row = {"id": "ebdfdbe2-875a-4caa-8eea-1ab5c2a763e1", "gpu_model": "L4", "gpu_count": 2, "price_per_gpu_hour": 0.2}
    feed.write_text(json.dumps({"nodes": [row]}))
    with serving("--scenario", str(scenario), "--feed", str(feed)) as (_, base):
        for _ in range(2):
            assert httpx.get(f"{base}/volumes", headers=KEYED).status_code == 503
        (node,) = httpx.get(f"{base}/public/v1/nodes").json()["nodes"]
        assert (node["id"], node["gpu_model"], node["price_per_gpu_hour"]) == (row["id"], "L4", 0.2)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--feed", "/nowhere/feed.json"), "/nowhere/feed.json: No such file"),
        (("--scenario", "/nowhere/s.yaml"), "/nowhere/s.yaml: No such file"),
        (("--host", "203.0.113.1"), "cannot listen on 203.0.113.1:0"),
    ],
)
def test_options_that_can_not_be_met(options: tuple[str, ...], complaint: str) -> None:
    command = [sys.executable, "-m", "lium_plan.sim", "--no-machines", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "lium_plan.sim", "--no-machines", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_it_ends_by_itself_when_idle_but_not_while_a_task_runs() -> None:
    """A pod that merely stands there doesn't keep it, a detached process does, though nobody asks for anything.

    What counts as a task in each mode has its own test with the pods. Five seconds, because a busy machine may need some
    to log in.
    """
    options = ("--nodes", "3", "--idle-exit", "5", "--speed", "100", "--confined")
    with serving(*options, machines=True) as (process, base):
        door = Door(base)
        detached = "setsid nohup sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"
        task = asyncio.run(door.run(detached)).strip()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=7)
        os.kill(int(task), signal.SIGTERM)
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("mode", MODES)
def test_nothing_outlives_a_server(mode: tuple[str, ...], number: signal.Signals) -> None:
    """Neither the process that starts its pods' programs, nor these, nor what they have left behind."""
    with serving("--nodes", "3", "--speed", "100", *mode, machines=True) as (process, base):
        door = Door(base)
        task = asyncio.run(door.run("setsid nohup sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"))
        running = descendants(process.pid)
        if mode:  # without namespaces what was left behind belongs to the host's own PID 1
            running[int(task)] = started(int(task)) or "gone"
        assert len(running) >= 3
        process.send_signal(number)
        process.wait(timeout=20)
        deadline = monotonic() + 20
        while left := [pid for pid in running if running[pid] == started(pid)]:
            assert monotonic() < deadline, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]


def started(pid: int) -> str | None:
    """When a process started, None when it is gone; a zombie is as good as gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def descendants(pid: int) -> dict[int, str]:
    """Every process below `pid`, and when each started."""
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    below = {pid}
    while below:
        below = {child for child, parent in parents.items() if parent in below}
        found |= {child: when for child in below if (when := started(child)) is not None}
    return found


class Door:
    """A pod of the smallest kind on a server's first node, and a way in."""

    def __init__(self, base: str) -> None:
        self._key = asyncssh.generate_private_key("ssh-ed25519")
        control = base.removesuffix("/api") + "/_sim"
        with httpx.Client(base_url=base, headers=KEYED, timeout=30) as client:
            template = client.get("/templates").json()[0]["id"]
            pod = {
                "executor_id": client.get("/executors").json()[0]["id"],
                "pod_name": "p",
                "template_id": template,
                "user_public_key": self._key.export_public_key().decode(),
            }
            twist = {"create_seconds": 0, "ssh_delay_seconds": 0}
            wanted = {"kind": "pod", "body": pod, "twist": twist}
            made = client.post(f"{control}/objects", json=wanted).raise_for_status().json()["id"]
            client.post(f"{control}/advance", json={"seconds": 60}).raise_for_status()
            row = client.get(f"/pods/{made}").json()
            assert row["status"] == "RUNNING", row
            self._port = row["ports_mapping"]["22"]

    async def run(self, command: str) -> str:
        options = {"username": "root", "client_keys": [self._key], "known_hosts": None, "config": None}
        async with asyncssh.connect("127.0.0.1", self._port, **options) as connection:
            return str((await connection.run(command, check=True)).stdout)


@pytest.mark.parametrize("mode", MODES)
def test_a_rented_pod_has_a_machine_behind_it(mode: tuple[str, ...]) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    fault = {"match": {"path": "/executors/*/rent"}, "effect": {"do": "twist", "twist": {"ssh_delay_seconds": 0}}}

    async def nvidia_smi(port: int) -> str:
        options = {"username": "root", "client_keys": [key], "known_hosts": None, "config": None}
        async with asyncssh.connect("127.0.0.1", port, **options) as connection:
            done = await connection.run("nvidia-smi -L", check=True)
            return str(done.stdout)

    with serving("--nodes", "3", "--speed", "100", *mode, machines=True) as (process, base):
        with httpx.Client(base_url=base, headers=KEYED) as client:
            control = base.removesuffix("/api") + "/_sim"
            client.post(f"{control}/faults", json=fault).raise_for_status()
            node = next(row for row in client.get("/executors").json() if row["available_gpu_count"] >= 2)
            template = client.post("/templates", json={"name": "t", "docker_image": "limsim/plain"}).json()["id"]
            public = key.export_public_key().decode()
            wanted = {"pod_name": "p", "template_id": template, "gpu_count": 2, "user_public_key": [public]}
            if node["min_gpu_count_for_rental"] is None:
                wanted["gpu_count"] = node["gpu_count"]
            pod = client.post(f"/executors/{node['id']}/rent", json=wanted).json()["pod_id"]
            client.post(f"{control}/advance", json={"seconds": 60}).raise_for_status()
            row = client.get(f"/pods/{pod}").json()
            assert row["status"] == "RUNNING"
            port = row["ports_mapping"]["22"]
            listed = asyncio.run(nvidia_smi(port))
            assert listed.count(node["machine_name"]) == wanted["gpu_count"]
            client.delete(f"/pods/{pod}").raise_for_status()
            client.post(f"{control}/advance", json={"seconds": 60}).raise_for_status()
            with pytest.raises(OSError):
                asyncio.run(nvidia_smi(port))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
