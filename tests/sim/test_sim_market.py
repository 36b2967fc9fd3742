"""Feed and catalogue: two views of the same nodes (contract §2.2, §2.3, §3.1, §5)."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from lium_plan.sim.inprocess import open_in_process
from lium_plan.sim.settings import Settings
from lium_plan.sim.simulator import Beginning
from lium_plan.sim.specs import gpu_key
from tests.sim.lab import Lab, in_lab, refusal
from tests.support.virtual import run_virtual

GIB_IN_KIB = 1024 * 1024

ROW = {
    "id": "ebdfdbe2-875a-4caa-8eea-1ab5c2a763e1",
    "gpu_model": "RTX 5090",
    "gpu_count": 8,
    "available_gpu_count": 6,
    "price_per_gpu_hour": 0.5,
    "min_rentable_gpu_count": 2,
    "gpu_memory_gb": 32,
    "cpu_count": 384,
    "ram_gb": 251,
    "disk_gb": 935,
    "disk_free_gb": 800,
    "tier": "spot",
    "country": "Japan",
    "country_code": "JP",
    "region": "13",
    "city": "Chiyoda City",
}


def nearest(kib: int) -> int:
    return math.floor(kib / GIB_IN_KIB + 0.5)


def test_feed_and_catalogue_agree() -> None:
    async def body(lab: Lab) -> None:
        feed = await lab.get("/public/v1/nodes", key=None)
        rows = {row["id"]: row for row in await lab.get("/executors", key=None)}
        assert feed["count"] == len(feed["nodes"]) == len(rows) > 70
        assert feed["generated_at"].endswith("Z")
        nulls = 0
        for node in feed["nodes"]:
            row = rows[node["id"]]
            nulls += sum(value is None for value in node.values())
            assert row["available_gpu_count"] == node["available_gpu_count"] >= node.get("min_rentable_gpu_count", 1)
            assert row["price_per_gpu"] == node["price_per_gpu_hour"]
            assert nearest(row["specs"]["ram"]["total"]) == node["ram_gb"]
            assert nearest(row["specs"]["hard_disk"]["free"]) == node["disk_free_gb"]
            assert node["cpu_count"] in (row["specs"]["cpu"]["count"], None)
            assert row["machine_name"].endswith(node["gpu_model"])
            assert len(row["specs"]["gpu"]["details"]) == row["gpu_count"] == node["gpu_count"]
            minimum = row["min_gpu_count_for_rental"]
            assert node.get("min_rentable_gpu_count", minimum or row["gpu_count"]) == (minimum or row["gpu_count"])
            assert node["rent_url"] == f"https://lium.io/browse-pods/{node['id']}"
        assert nulls > 0
        assert any("min_rentable_gpu_count" not in node for node in feed["nodes"])
        assert {node["tier"] for node in feed["nodes"]} >= {"secure", "spot"}

    in_lab(body)


def test_small_worlds_have_the_common_models() -> None:
    async def body(lab: Lab) -> None:
        models = {row["gpu_model"] for row in (await lab.get("/public/v1/nodes"))["nodes"]}
        assert {"RTX 4090", "H100 80GB HBM3", "RTX 3090", "H200"} <= models

    in_lab(body, nodes=8)


def test_the_feed_is_a_minute_old_and_the_catalogue_is_not() -> None:
    async def body(lab: Lab) -> None:
        node = lab.node()
        await lab.get("/public/v1/nodes", key=None)
        await lab.fault({"do": "take_node", "node": node})
        stale = await lab.get("/public/v1/nodes", key=None)
        assert node in {row["id"] for row in stale["nodes"]}
        assert node not in {row["id"] for row in await lab.get("/executors")}
        await asyncio.sleep(60)
        fresh = await lab.call("GET", "/public/v1/nodes", key=None)
        assert node not in {row["id"] for row in fresh.json()["nodes"]}
        assert fresh.headers["Access-Control-Allow-Origin"] == "*"

    in_lab(body)


def test_filters() -> None:
    async def body(lab: Lab) -> None:
        async def pick(query: str) -> list[dict[str, Any]]:
            rows = await lab.get(f"/executors?{query}")
            assert isinstance(rows, list)
            return rows

        everything = await pick("")
        h200 = await pick("machine_names=NVIDIA H200,NVIDIA L4")
        assert {row["machine_name"] for row in h200} == {"NVIDIA H200", "NVIDIA L4"}
        assert await pick("machine_names=H200") == []
        assert {row["gpu_count"] for row in await pick("gpu_count_gte=4&gpu_count_lte=4")} == {4}
        assert all(row["price_per_hour"] <= 1 for row in await pick("price_per_hour_lte=1"))
        assert all(row["nvlink"] for row in await pick("nvlink=true"))
        assert all(row["effective_download_speed_mbps"] >= 5000 for row in await pick("min_download_mbps=5000"))
        near = await pick("lat=35.69&lon=139.75&max_distance_mile=50")
        assert near
        assert {row["location"]["country_code"] for row in near} == {"JP"}
        assert refusal(await lab.call("GET", "/executors?lat=3")) == (422, "validation_error")
        assert await pick("size=5&page=2") == everything[5:10]
        assert await pick("size=5") == everything
        assert await pick("nonsense=1") == everything
        summary = (await pick("view=summary"))[0]
        assert len(summary["specs"]["gpu"]["details"]) == 1
        assert summary["specs"]["gpu"]["driver"]
        assert "interconnect" not in summary
        assert (await lab.get("/executors/count"))["count"] == len(everything)
        assert (await lab.get("/executors/total-count"))["total_count"] == 84

    in_lab(body)


def test_order_limits_of_a_splitting_node() -> None:
    async def body(lab: Lab) -> None:
        node = lab.node(spare=4)
        lab.world.nodes.change(node, min_rentable=2, others=lab.world.nodes[node].gpu_count - 3)
        path = f"/executors/{node}/rent"
        for count, expected in ((1, "gpu_count_invalid"), (4, "gpu_count_invalid")):
            answer = await lab.call("POST", path, await lab.rent_body(gpu_count=count))
            assert refusal(answer) == (400, expected)
        await lab.rent(node, gpu_count=2)
        assert node not in {row["id"] for row in await lab.get("/executors")}  # 1 is left, 2 is the least
        answer = await lab.call("POST", path, await lab.rent_body(gpu_count=1))
        assert refusal(answer) == (400, "gpu_count_invalid")

    in_lab(body)


def test_a_saved_feed_comes_back_as_it_was() -> None:
    second = {**ROW, "id": "45af0308-a13c-497f-93ea-ab06144eee29", "gpu_model": "Gizmo 9", "region": None}
    del second["min_rentable_gpu_count"]

    async def main() -> None:
        beginning = Beginning(feed={"generated_at": "x", "count": 2, "nodes": [ROW, second]})
        async with open_in_process(beginning) as lium:
            lab = Lab(lium)
            nodes = (await lab.get("/public/v1/nodes"))["nodes"]
            for name, value in ROW.items():
                assert nodes[0][name] == value, name
            assert nodes[0]["price_per_node_hour"] == 4.0
            assert "min_rentable_gpu_count" not in nodes[1] or len(nodes) == 1
            row = next(item for item in await lab.get("/executors") if item["id"] == ROW["id"])
            assert row["machine_name"] == "NVIDIA GeForce RTX 5090"
            assert row["tier"] == "spot"
            await lab.client.aclose()

    run_virtual(main())


def test_small_catalogue_routes() -> None:
    async def body(lab: Lab) -> None:
        machines = {row["name"]: row for row in await lab.get("/machines", key=None)}
        assert machines["NVIDIA H200"]["total_gpu_count"] == sum(
            node.gpu_count for node in lab.world.nodes if node.machine_name == "NVIDIA H200"
        )
        capacity = await lab.get("/machines/capacity", key=None)
        assert all(set(row["buckets"]) <= {"1", "2", "4", "8"} for row in capacity)
        asked = await lab.post("/machine-requests", {"machine_name": "NVIDIA H200"})
        assert asked["provider_notified_count"] > 0
        images = await lab.get("/executors/default-docker-image?gpu_model=NVIDIA H200&driver_version=550.1")
        known = {(row["docker_image"], row["docker_image_tag"]) for row in await lab.get("/templates")}
        assert {(row["docker_image"], row["docker_image_tag"]) for row in images} <= known
        template = (await lab.get("/templates"))[0]["id"]
        query = f"executor_id={lab.node()}&template_id={template}"
        assert (await lab.get(f"/executors/deployment-estimate?{query}"))["is_cached_template"] is True
        version = await lab.get("/version", key=None)
        assert "rent_idempotency" in version["features"]
        assert datetime.fromisoformat(version["started_at"]).tzinfo is None

    in_lab(body)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("A100-SXM4-80GB", "a100"),
        ("NVIDIA RTX A6000", "a6000"),
        ("RTX 6000 Ada Generation", "rtx6000ada"),
        ("B300 SXM6 AC", "b300"),
        ("H200 NVL", "h200nvl"),
        ("RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
    ],
)
def test_gpu_names(name: str, key: str) -> None:
    assert gpu_key(name) == key


def test_a_lively_market_moves_and_a_calm_one_does_not() -> None:
    async def watch(market: str, seen: list[object]) -> None:
        async with open_in_process(Beginning(settings=Settings.model_validate({"market": market}))) as lium:
            before = {node.id: (node.others, node.price_per_gpu) for node in lium.world.nodes}
            await lium.simulator.jump(2 * 3600)
            after = {node.id: (node.others, node.price_per_gpu) for node in lium.world.nodes}
            seen.extend(item for item in after.items() if before[item[0]] != item[1])
            assert all(0 <= node.others <= node.gpu_count for node in lium.world.nodes)
            assert all(node.price_per_gpu >= Decimal("0.01") for node in lium.world.nodes)

    calm: list[object] = []
    lively: list[object] = []
    again: list[object] = []
    run_virtual(watch("calm", calm))
    run_virtual(watch("lively", lively))
    run_virtual(watch("lively", again))
    assert calm == []
    assert len(lively) > 20
    assert again == lively


def test_spot_pods_are_reclaimed_and_pods_break_in_a_lively_market() -> None:
    async def body(lab: Lab) -> None:
        spot = [node.id for node in lab.world.nodes if node.tier == "spot"]
        template = await lab.template()
        for node in spot:
            await lab.rent(node, template_id=template, gpu_count=None)
        await lab.control("POST", "/advance", {"seconds": 12 * 3600})
        ends = {pod.close_reason for pod in lab.world.pods}
        assert "spot_reclaimed" in ends

    in_lab(body, market="lively", balance_usd=100_000)
