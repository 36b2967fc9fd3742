"""One seed, one history; and a world that outlives its process."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lium_plan.sim.bare import BareRuntime
from lium_plan.sim.clock import LoopClock
from lium_plan.sim.effects import StartContainer
from lium_plan.sim.history import HANDLERS
from lium_plan.sim.inprocess import open_in_process
from lium_plan.sim.records import TimerKind
from lium_plan.sim.settings import Market, Settings
from lium_plan.sim.simulator import Beginning
from lium_plan.sim.store import BrokenWorld, FileStore
from tests.sim.lab import Lab
from tests.support.virtual import run_virtual


async def some_life(lab: Lab) -> list[str]:
    """Many kinds of requests; every answer as text."""
    answers: list[str] = []

    async def note(method: str, path: str, body: object = None, **headers: str) -> Any:
        response = await lab.call(method, path, body, **headers)
        heads = {name: value for name, value in response.headers.items() if name != "date"}
        answers.append(f"{response.status_code} {heads} {response.text}")
        return response.json() if response.content else None

    template = await note("POST", "/templates", {"name": "t", "docker_image": "limsim/x"})
    volume = await note("POST", "/volumes", {"name": "v"})
    await note("POST", "/docker-credentials/", {"docker_username": "u", "docker_password": "p"})
    nodes = (await note("GET", "/public/v1/nodes"))["nodes"]
    for index, node in enumerate(nodes[:12]):
        wanted = {
            "pod_name": f"p{index}",
            "template_id": template["id"],
            "gpu_count": node["available_gpu_count"],
            "user_public_key": ["ssh-ed25519 AAAA"],
            "termination_hours": 1 + index,
        }
        await note("POST", f"/executors/{node['id']}/rent", wanted, Idempotency_Key=f"k{index}")
        await asyncio.sleep(7)
    await note("GET", "/pods")
    await note("DELETE", f"/pods/{(await note('GET', '/pods'))[0]['id']}")
    await note("DELETE", f"/volumes/{volume['id']}")
    await asyncio.sleep(5000)
    await note("GET", "/pods")
    await note("GET", "/users/me/events?limit=1000")
    await note("GET", "/users/me")
    answers.append(json.dumps(await lab.control("GET", "/ledger")))
    return answers


def live(seed: int) -> list[str]:
    async def main() -> list[str]:
        settings = Settings(market=Market.LIVELY, balance_usd=1000)
        async with open_in_process(Beginning(seed=seed, settings=settings)) as lium:
            lab = Lab(lium)
            async with lab.client:
                return await some_life(lab)

    return run_virtual(main())


def test_one_seed_is_one_history_to_the_byte() -> None:
    assert live(3) == live(3)
    assert live(3) != live(4)


def rows(lab: Lab) -> dict[str, list[object]]:
    """Every table but the requests: reads are not kept."""
    return {table.name: list(table) for table in lab.world.tables if table.name != "requests"}


def test_whatever_was_answered_is_on_disk(tmp_path: Path) -> None:
    """After each answer the file is copied, as a kill would leave it, and must make the same world."""

    async def reloaded(path: Path) -> dict[str, list[object]]:
        copy = tmp_path / "copy.jsonl"
        shutil.copy(path, copy)
        async with open_in_process(Beginning(seed=99, nodes=1), store=FileStore(copy)) as lium:
            return rows(Lab(lium))

    async def main() -> None:
        path = tmp_path / "world.jsonl"
        async with open_in_process(Beginning(seed=5), store=FileStore(path)) as lium:
            lab = Lab(lium)
            async with lab.client:
                body = await lab.rent_body(termination_hours=2)
                assert path.stat().st_mode & 0o777 == 0o600
                assert rows(lab) == await reloaded(path)
                await lab.post("/volumes", {"name": "v"})
                assert rows(lab) == await reloaded(path)
                pod = await lab.post(f"/executors/{lab.node()}/rent", body, Idempotency_Key="k")
                assert rows(lab) == await reloaded(path)
                await lab.call("DELETE", f"/pods/{pod['pod_id']}")
                assert rows(lab) == await reloaded(path)
                await lab.fault({"do": "answer", "status": 500}, match={"path": "/x"})
                assert rows(lab) == await reloaded(path)

    run_virtual(main())


@pytest.mark.parametrize(
    ("path", "body", "trace"),
    [
        ("/api/volumes", {"name": "kept"}, b'"name":"kept"'),
        ("/_sim/config", {"delete_seconds": 7.25}, b'"delete_seconds":7.25'),
    ],
)
def test_it_is_on_disk_when_the_answer_leaves(tmp_path: Path, path: str, body: object, trace: bytes) -> None:
    """Not a moment later: the process may be killed in between."""
    world = tmp_path / "world.jsonl"
    kept: list[bool] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: Any) -> None:
        kept.append(trace in world.read_bytes())

    async def main() -> None:
        async with open_in_process(Beginning(nodes=1), store=FileStore(world)) as lium:
            scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "query_string": b""}
            scope |= {"headers": [(b"x-api-key", b"sk_sim_local")], "client": ("127.0.0.1", 1), "scheme": "http"}
            await lium.app(scope, receive, send)

    run_virtual(main())
    assert kept == [True, True]


def test_a_restarted_server_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "world.jsonl"

    async def before() -> tuple[str, dict[str, Any]]:
        async with open_in_process(Beginning(seed=5, settings=Settings(balance_usd=7)), store=FileStore(path)) as lium:
            lab = Lab(lium)
            async with lab.client:
                body = await lab.rent_body(pod_name="kept", termination_hours=3)
                pod_id = (await lab.post(f"/executors/{lab.node()}/rent", body, Idempotency_Key="k"))["pod_id"]
                await lab.control("POST", "/advance", {"seconds": 100})
                await lab.control("POST", "/config", {"delete_seconds": 5})
                return pod_id, body

    async def after(pod_id: str, body: dict[str, Any]) -> None:
        runtime = BareRuntime()
        beginning = Beginning(seed=1, nodes=3, settings=Settings(speed=2))
        async with open_in_process(beginning, store=FileStore(path), runtime=runtime) as lium:
            lab = Lab(lium)
            async with lab.client:
                await lab.lium.simulator.machines.settle()
                assert len(lab.world.nodes) == 84
                assert runtime.running[pod_id].generation == 1
                row = await lab.get(f"/pods/{pod_id}")
                assert row["status"] == "RUNNING"
                replay = await lab.call(
                    "POST", f"/executors/{lab.world.pods[pod_id].node_id}/rent", body, Idempotency_Key="k"
                )
                assert replay.json()["pod_id"] == pod_id
                assert replay.headers["Idempotent-Replayed"] == "true"
                assert lab.world.settings.delete_seconds == 5
                assert lab.world.settings.speed == 2
                assert not any(isinstance(effect, StartContainer) for effect in lab.world.effects)
                assert 6 < (await lab.get("/users/me"))["balance"] < 7
                fresh = await lab.rent()
                assert fresh != pod_id
                await asyncio.sleep(3 * 3600)
                events = await lab.get(f"/pods/{pod_id}/events")
                assert events[-1]["reason"] == "scheduled_termination"

    pod_id, body = run_virtual(before())
    run_virtual(after(pod_id, body))


def test_what_became_due_while_the_server_was_down_has_happened(tmp_path: Path) -> None:
    path = tmp_path / "world.jsonl"

    async def main() -> None:
        clock = LoopClock()
        async with open_in_process(Beginning(seed=5), store=FileStore(path)) as lium:
            lab = Lab(lium)
            async with lab.client:
                ended = await lab.running(termination_hours=1)
                ready = await lab.rent()
        await asyncio.sleep(2 * 3600)
        runtime = BareRuntime()
        async with open_in_process(store=FileStore(path), runtime=runtime, clock=clock) as lium:
            lab = Lab(lium)
            async with lab.client:
                await lium.simulator.machines.settle()
                assert list(runtime.running) == [ready]
                assert (await lab.get(f"/pods/{ready}"))["status"] == "RUNNING"
                events = await lab.get(f"/pods/{ended}/events")
                assert events[-1]["reason"] == "scheduled_termination"

    run_virtual(main())


def test_the_jump_in_time_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "world.jsonl"

    async def main() -> None:
        async with open_in_process(Beginning(nodes=1), store=FileStore(path)) as lium:
            await lium.simulator.jump(86400)
            late = lium.world.now
        async with open_in_process(Beginning(nodes=1), store=FileStore(path), clock=LoopClock()) as lium:
            lium.simulator.advance()
            assert abs((lium.world.now - late).total_seconds()) < 1

    run_virtual(main())


def test_every_kind_of_timer_has_its_handler() -> None:
    assert set(HANDLERS) == set(TimerKind)


def test_a_torn_last_line_was_never_answered(tmp_path: Path) -> None:
    path = tmp_path / "world.jsonl"

    async def main() -> None:
        async with open_in_process(Beginning(nodes=2), store=FileStore(path)) as lium:
            lab = Lab(lium)
            async with lab.client:
                await lab.post("/volumes", {"name": "a"})
                whole = path.stat().st_size
                await lab.post("/volumes", {"name": "b"})
        with path.open("r+b") as file:
            file.truncate(whole + 40)
        async with open_in_process(store=FileStore(path)) as lium:
            assert [row.name for row in lium.world.volumes] == ["a"]

    run_virtual(main())


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"hello\nworld\n", "not a line of a world file"),
        (b'{"rows":[]}\n', "not a world of this version"),
        (b'{"meta":{"id":"meta","format":99,"seed":1,"started_at":"2026-01-01T00:00:00Z","now":"2026-01-01T00:00:00Z"},'
         b'"settings":{},"rows":[]}\n', "world format 99"),
    ],
)  # fmt: skip
def test_files_that_are_no_world(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "world.jsonl"
    path.write_bytes(content)

    async def main() -> None:
        with pytest.raises(BrokenWorld, match=complaint):
            async with open_in_process(store=FileStore(path)):
                raise AssertionError("opened")

    run_virtual(main())
    assert path.read_bytes() == content


def test_one_world_has_one_simulator(tmp_path: Path) -> None:
    first = FileStore(tmp_path / "w")
    with pytest.raises(BrokenWorld, match="another simulator"):
        FileStore(tmp_path / "w")
    first.close()
    FileStore(tmp_path / "w").close()


def test_a_request_costs_the_same_bytes_however_big_the_world(tmp_path: Path) -> None:
    path = tmp_path / "world.jsonl"

    async def main() -> list[int]:
        sizes = []
        async with open_in_process(Beginning(seed=5), store=FileStore(path)) as lium:
            lab = Lab(lium)
            async with lab.client:
                for index in range(200):
                    before = path.stat().st_size
                    await lab.post("/volumes", {"name": f"v{index:03}"})
                    sizes.append(path.stat().st_size - before)
        return sizes

    sizes = run_virtual(main())
    assert max(sizes[100:]) < 1.1 * max(sizes[:10])
