"""The server as a process, over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import asyncssh
import httpx
import pytest

from lium_plan.diagnostics import Failure
from lium_plan.sim import market
from lium_plan.sim.inprocess import open_in_process
from lium_plan.sim.serve import ServeOptions, load_beginning
from lium_plan.sim.simulator import Beginning
from tests.support.nursery import SIM, Process, nursery
from tests.support.sims import until
from tests.support.virtual import run_virtual

MODES = [(), ("--confined",)]
KEYED = {"X-API-KEY": "sk_sim_local"}


@contextmanager
def serving(*options: str, machines: bool = False, under: tuple[str, ...] = ()) -> Iterator[tuple[Process, str]]:
    """`python -m lium_plan.sim`, as an argument of `under`; yields the process and the base URL."""
    given = options if machines else (*options, "--no-machines")
    process: Process
    if under:
        command = [*under, sys.executable, "-m", "lium_plan.sim", *given]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    else:
        process = nursery().start(SIM, given)
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


@pytest.mark.parametrize("where", ["before", "inside", "after"])
def test_sigterm_while_answers_are_late_is_quiet(where: str) -> None:
    """A late answer, a followed log and an unfinished request are cut off, without a word."""
    with (
        serving("--nodes", "3", "--speed", "1000") as (process, base),
        httpx.Client(base_url=base, headers=KEYED) as api,
    ):
        node, template = api.get("/executors").json()[0], api.get("/templates").json()[0]
        path = f"/executors/{node['id']}/rent"
        wanted = {"pod_name": "p", "template_id": template["id"], "user_public_key": "k"}
        pod_id = api.post(path, json=wanted).json()["pod_id"]
        control = base.removesuffix("/api") + "/_sim"
        api.post(f"{control}/advance", json={"seconds": 60}).raise_for_status()
        with api.stream("GET", f"/pods/{pod_id}/logs?follow=true") as log, socket.socket() as unfinished:
            assert next(log.iter_lines()).startswith("data: ")
            host, _, port = base.removeprefix("http://").removesuffix("/api").partition(":")
            unfinished.connect((host, int(port)))
            unfinished.sendall(b"POST /api/volumes HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
            fault = {"match": {"path": path}, "effect": {"do": "delay", "seconds": 600, "where": where}}
            api.post(f"{control}/faults", json=fault).raise_for_status()
            late = threading.Thread(target=_lost, args=(base, path, wanted))
            late.start()
            while not api.get(f"{control}/faults").json()[0]["fired"]:
                pass
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
            late.join(30)
        assert (process.returncode, out) == (0, "")
        assert err.splitlines() == [line for line in err.splitlines() if "3 nodes" in line]


def _lost(base: str, path: str, body: object) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{base}{path}", json=body, headers={**KEYED, "Idempotency-Key": "late"}, timeout=60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_that_end_it(number: signal.Signals) -> None:
    with serving("--nodes", "1") as (process, _):
        process.send_signal(number)
        assert process.wait(timeout=20) == 0


def test_it_outlives_its_terminal_under_nohup() -> None:
    with serving("--nodes", "1", under=("nohup",)) as (process, base):
        process.send_signal(signal.SIGHUP)
        for _ in range(3):
            assert httpx.get(f"{base}/version").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


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
        (("--speed", "nan"), "sim serve: speed: Input should be"),
        (("--speed", "inf"), "sim serve: speed: Input should be"),
        (("--balance", "1e30"), "sim serve: balance_usd: Input should be"),
        (("--host", "203.0.113.1"), "cannot listen on 203.0.113.1:0"),
        (("--world", "/dev/null/w"), "cannot keep the world: /dev/null: "),
        (("--world", "/proc/w"), "cannot keep the world: /proc/w.lock: "),
        (("--world", "/proc/sys"), "cannot keep the world: /proc/sys"),
    ],
)
def test_options_that_can_not_be_met(options: tuple[str, ...], complaint: str) -> None:
    with nursery().start(SIM, ["--no-machines", *options]) as process:
        out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert complaint in err
    assert "Traceback" not in err
    assert out == ""


FEED_ROW = {"id": "ebdfdbe2-875a-4caa-8eea-1ab5c2a763e1", "gpu_model": "L4", "gpu_count": 2}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "not JSON: Expecting value"),
        ("\xff", "not JSON: "),
        ("[" * 20_000, "not JSON: "),
        ("[]", "no object with a list `nodes`"),
        ('{"nodes": {}}', "no object with a list `nodes`"),
        ('{"nodes": [7]}', "nodes[0]: Input should be a valid dictionary"),
        ('{"nodes": [{}]}', "nodes[0].id: Field required"),
        ({"id": "x"}, "nodes[1].id: Input should be a valid UUID"),
        ({"gpu_count": "2"}, "nodes[1].gpu_count: Value error, Input should be a number or null"),
        ({"gpu_count": 0}, "nodes[1].gpu_count: Input should be greater than or equal to 1"),
        ({"available_gpu_count": True}, "nodes[1].available_gpu_count: "),
        ({"price_per_gpu_hour": -1}, "nodes[1].price_per_gpu_hour: Input should be greater than or equal to 0"),
        ({"price_per_gpu_hour": float("nan")}, "nodes[1].price_per_gpu_hour: "),
        ({"ram_gb": 1e300}, "nodes[1].ram_gb: "),
        ({"tier": "gold"}, "nodes[1].tier: Input should be 'secure' or 'spot'"),
        ({}, "nodes: Value error, 2 rows have the id ebdfdbe2-875a-4caa-8eea-1ab5c2a763e1"),
    ],
)
def test_feeds_that_are_none(tmp_path: Path, content: str | dict[str, object], complaint: str) -> None:
    """Said with its place, by the same path as the other options' complaints."""
    feed = tmp_path / "feed.json"
    if isinstance(content, str):
        feed.write_text(content, encoding="latin-1")
    else:
        feed.write_text(json.dumps({"nodes": [FEED_ROW, {**FEED_ROW, **content}]}))
    with pytest.raises(Failure) as refused:
        load_beginning(ServeOptions(feed=feed))
    (told,) = refused.value.diagnostics
    assert f"{feed}: {complaint}" in told.message
    assert told.hint is not None
    assert told.message.count("\n") <= 5


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "it: Input should be a valid list"),
        ("x: [", "not YAML: "),
        ("\xff", "not YAML: "),
        ("[" * 20_000, "not YAML: "),
        ("- 7", "[0]: Input should be a valid dictionary"),
        ("- effect: {do: explode}", "[0].effect: Input tag 'explode'"),
        ("- effect: {do: lose_reply}", "[0]: lose_reply needs a match"),
        ("- effect: {do: answer, status: 99}\n  match: {}", "[0].effect.answer.status: Input should be greater"),
        ("- effect: {do: config, settings: {speeed: 3}}", "[0].effect.settings.speeed: Extra inputs"),
    ],
)
def test_scenarios_that_are_none(tmp_path: Path, content: str, complaint: str) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(content, encoding="latin-1")
    with pytest.raises(Failure) as refused:
        load_beginning(ServeOptions(scenario=scenario))
    (told,) = refused.value.diagnostics
    assert f"{scenario}: {complaint}" in told.message
    assert told.hint is not None


def test_a_feed_s_zeros_and_blanks_are_kept() -> None:
    """And a feed without a node is one."""
    row = {**FEED_ROW, "gpu_count": 2, "price_per_gpu_hour": 0, "cpu_count": 0, "ram_gb": 0, "disk_free_gb": 0}
    row |= {"network_download_mbps": 0, "tier": None, "country_code": None}
    assert feed_of({"nodes": []}) == []
    (node,) = feed_of({"nodes": [row]})
    assert {name: node[name] for name in row} == row
    assert "region" not in node


def feed_of(feed: dict[str, object]) -> list[dict[str, Any]]:
    async def body() -> list[dict[str, Any]]:
        async with open_in_process(Beginning(feed=feed)) as lium:
            found: list[dict[str, Any]] = json.loads(market.feed(lium.world))["nodes"]
            return found

    return run_virtual(body())


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the file's size stands in for the disk's: half a line is written, then no more."""
    world = tmp_path / "world.jsonl"
    with serving("--nodes", "3", "--world", str(world)) as (process, base):
        with httpx.Client(base_url=base, headers=KEYED) as api:
            control = base.removesuffix("/api") + "/_sim"
            kept = [api.post("/volumes", json={"name": f"v{number}"}).raise_for_status().json() for number in range(3)]
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (world.stat().st_size + 300, resource.RLIM_INFINITY))
            size = world.stat().st_size
            refused = api.post("/volumes", json={"name": "too much"})
            assert refused.status_code == 500
            assert refused.json()["error"]["message"] == "The world's file can't be written"
            assert api.get("/volumes").status_code == 500
            assert httpx.post(f"{control}/config", json={"delete_seconds": 1}).status_code == 500
            # It goes on trying, and takes half a line back each time.
            until(lambda: world.stat().st_size == size, process, what="the file as it was")
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            volumes = api.get("/volumes").raise_for_status().json()
            assert volumes[:3] == kept
            assert [row["name"] for row in volumes[3:]] == ["too much"]
        process.kill()
        assert process.stderr is not None
        said = process.stderr.read()
        assert said.count("cannot write the world's file: File too large; until that works, the answer is 500") == 1
        assert said.count("the world's file is written again") == 1
        assert "Traceback" not in said
    with serving("--world", str(world)) as (_, base):
        assert httpx.get(f"{base}/volumes", headers=KEYED).json() == volumes


def test_a_world_that_can_not_be_rewritten_stays_as_it_was(tmp_path: Path) -> None:
    world = tmp_path / "world.jsonl"
    with serving("--nodes", "3", "--world", str(world)) as (_, base):
        httpx.post(f"{base}/volumes", json={"name": "kept"}, headers=KEYED).raise_for_status()
    before = world.read_bytes()
    command = [sys.executable, "-m", "lium_plan.sim", "--no-machines", "--world", str(world)]
    limit = "import resource, os, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (999, 999)); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", limit, *command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot keep the world: {world}: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert world.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["world.jsonl", "world.jsonl.lock"]


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
