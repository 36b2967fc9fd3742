"""The rent routes: what is checked, in which order, and what a key remembers."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tests.sim.lab import KEY, Lab, in_lab, refusal

UNKNOWN = "00000000-0000-4000-8000-000000000000"


def test_a_rent_becomes_a_running_pod() -> None:
    async def body(lab: Lab) -> None:
        node = lab.node()
        free = (await lab.get("/executors"))[0]["available_gpu_count"] if node else 0
        pod_id = await lab.rent(node, pod_name="mine")
        row = await lab.get(f"/pods/{pod_id}")
        assert (row["status"], row["gpu_count"], row["ssh_connect_cmd"], row["ports_mapping"]) == (
            "PENDING",
            "1",
            None,
            {},
        )
        assert row["phase"] == "queued"
        assert row["estimated_ready_seconds"] > 0
        await asyncio.sleep(60)
        row = await lab.get(f"/pods/{pod_id}")
        port = row["ports_mapping"]["22"]
        assert row["status"] == "RUNNING"
        assert row["ssh_connect_cmd"] == f"ssh root@127.0.0.1 -p {port}"
        assert row["phase"] is None
        assert "+" not in row["created_at"]
        assert "Z" not in row["created_at"]
        assert free > 0

    in_lab(body)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"template_id": UNKNOWN}, (404, "template_not_found")),
        ({"template_id": None}, (400, "template_invalid")),
        ({"termination_hours": 721}, (400, "ttl_invalid")),
        ({"termination_hours": -1}, (400, "ttl_invalid")),
        ({"gpu_count": 99}, (400, "gpu_count_invalid")),
        ({"gpu_count": 0}, (400, "gpu_count_invalid")),
        ({"user_public_key": []}, (422, "validation_error")),
        ({"user_public_key": "  "}, (422, "validation_error")),
        ({"pod_name": ""}, (422, "validation_error")),
        ({"gpu_count": "many"}, (422, "validation_error")),
        ({"volume_id": UNKNOWN}, (404, "not_found")),
        ({"initial_port_count": 1000}, (409, None)),
        ({"restore_path": "/root"}, (422, "validation_error")),
    ],
)
def test_refused_bodies(fields: dict[str, object], expected: tuple[int, str | None]) -> None:
    async def body(lab: Lab) -> None:
        wanted = {**await lab.rent_body(), **fields}
        answer = await lab.call("POST", f"/executors/{lab.node()}/rent", wanted)
        assert refusal(answer) == expected
        assert await lab.get("/pods") == []
        assert await lab.ledger() == []

    in_lab(body, balance_usd=10_000)


def test_every_field_that_fails_validation_is_named() -> None:
    async def body(lab: Lab) -> None:
        answer = await lab.call("POST", f"/executors/{lab.node()}/rent", {"gpu_count": "x"})
        fields = {item["field"] for item in answer.json()["validation_errors"]}
        assert fields == {"pod_name", "user_public_key", "gpu_count"}

    in_lab(body)


def test_a_string_and_a_list_of_keys_are_both_fine() -> None:
    async def body(lab: Lab) -> None:
        one = await lab.rent(user_public_key=KEY)
        two = await lab.rent(user_public_key=[KEY, KEY + "2"])
        assert lab.world.pods[one].public_keys == (KEY,)
        assert lab.world.pods[two].public_keys == (KEY, KEY + "2")

    in_lab(body)


def test_without_gpu_count_every_free_gpu_is_rented() -> None:
    async def body(lab: Lab) -> None:
        node = lab.node()
        free = lab.world.nodes[node].gpu_count - lab.world.nodes[node].others
        pod_id = await lab.rent(node, gpu_count=None)
        assert (await lab.get(f"/pods/{pod_id}"))["gpu_count"] == str(free)
        assert node not in {row["id"] for row in await lab.get("/executors")}

    in_lab(body)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("offline", (400, "node_unavailable")),
        ("paused", (409, "node_paused_by_provider")),
        ("banned", (409, "provider_banned")),
        ("unverified", (400, "node_not_verified")),
        ("slow", (400, "node_below_bandwidth_floor")),
    ],
)
def test_node_states(state: str, expected: tuple[int, str]) -> None:
    async def body(lab: Lab) -> None:
        node = lab.node()
        await lab.fault({"do": "node_state", "node": node, "state": state})
        answer = await lab.call("POST", f"/executors/{node}/rent", await lab.rent_body())
        assert refusal(answer) == expected
        assert node not in {row["id"] for row in await lab.get("/executors")}

    in_lab(body)


def test_unknown_taken_and_unsplittable_nodes() -> None:
    async def body(lab: Lab) -> None:
        wanted = await lab.rent_body()
        assert refusal(await lab.call("POST", f"/executors/{UNKNOWN}/rent", wanted)) == (404, "node_not_found")
        node = lab.node()
        await lab.fault({"do": "take_node", "node": node})
        assert refusal(await lab.call("POST", f"/executors/{node}/rent", wanted)) == (400, "node_unavailable")
        whole = lab.node(split=False)
        answer = await lab.call("POST", f"/executors/{whole}/rent", wanted)
        assert refusal(answer) == (400, "gpu_split_not_allowed")

    in_lab(body)


def test_a_node_refuses_others_while_a_rent_is_in_progress() -> None:
    async def body(lab: Lab) -> None:
        node, wanted = lab.node(), await lab.rent_body()
        await lab.rent(node)
        other = await lab.call("POST", f"/executors/{node}/rent", wanted)
        assert refusal(other) == (400, "node_rent_in_progress")
        await asyncio.sleep(5)
        assert (await lab.call("POST", f"/executors/{node}/rent", wanted)).status_code == 200

    in_lab(body, rent_lock_seconds=5)


@pytest.mark.parametrize("hours", [0, 1, 720])
def test_times_to_live_that_are_allowed(hours: int) -> None:
    """0 is none."""

    async def body(lab: Lab) -> None:
        pod_id = await lab.rent(termination_hours=hours)
        row = await lab.get(f"/pods/{pod_id}")
        assert (row["termination_hours"], row["removal_scheduled_at"] is None) == (hours, hours == 0)
        await lab.control("POST", "/advance", {"seconds": hours * 3600 + 600})
        status = (await lab.call("GET", f"/pods/{pod_id}")).status_code
        assert status == (200 if hours == 0 else 404)

    in_lab(body, balance_usd=100_000)


def test_a_broken_pod_blocks_its_node_until_it_is_deleted() -> None:
    async def body(lab: Lab) -> None:
        node = lab.node()
        pod_id = await lab.running(node)
        await lab.fault({"do": "break", "pod": pod_id})
        wanted = await lab.rent_body()
        answer = await lab.call("POST", f"/executors/{node}/rent", wanted)
        assert refusal(answer) == (400, None)
        assert f"This node still has a broken pod ({pod_id})" in answer.json()["message"]
        await lab.call("DELETE", f"/pods/{pod_id}")
        await asyncio.sleep(120)
        assert (await lab.call("POST", f"/executors/{node}/rent", wanted)).status_code == 200

    in_lab(body)


def test_the_order_of_checks() -> None:
    """401, scope, budget, balance, key, body, node: each request breaks one rule more than the one before it."""

    async def body(lab: Lab) -> None:
        async def attempt(key: str | None, wanted: object, idempotency_key: str = "k") -> tuple[int, str | None]:
            path = f"/executors/{UNKNOWN}/rent"
            return refusal(await lab.call("POST", path, wanted, key=key, Idempotency_Key=idempotency_key))

        narrow = await lab.control("POST", "/objects", {"kind": "key", "body": {"name": "ci", "scopes": ["read"]}})
        small = {"name": "small", "max_budget_usd": 2.5}
        spent = (await lab.control("POST", "/objects", {"kind": "key", "body": small}))["key"]
        node = lab.node()
        await lab.fault({"do": "price", "node": node, "per_gpu_hour_usd": 8.0})
        await lab.rent(node, key=spent)
        await asyncio.sleep(1300)
        await lab.fault({"do": "balance", "usd": 0})
        broken: dict[str, object] = {}
        assert await attempt("sk_nobody", broken) == (401, "unauthorized")
        assert await attempt(narrow["key"], broken) == (403, "api_key_scope")
        assert await attempt(spent, broken) == (402, "API_KEY_BUDGET_EXCEEDED")
        assert await attempt("sk_sim_local", broken) == (403, "insufficient_balance")
        await lab.control("POST", "/objects", {"kind": "account", "body": {"verified": False}})
        assert await attempt("sk_sim_local", broken) == (403, "account_not_verified")
        await lab.control("POST", "/objects", {"kind": "account", "body": {}})
        await lab.fault({"do": "balance", "usd": 50})
        assert await attempt("sk_sim_local", broken) == (422, "validation_error")
        assert await attempt("sk_sim_local", {"other": 1}) == (422, "idempotency_key_reused")
        assert await attempt("sk_sim_local", await lab.rent_body(), "k2") == (404, "node_not_found")

    in_lab(body, spent_budget_removes_pods=False)


def test_a_replay_is_the_same_answer_and_no_second_pod() -> None:
    async def body(lab: Lab) -> None:
        path, wanted = f"/executors/{lab.node()}/rent", await lab.rent_body()
        first = await lab.call("POST", path, wanted, Idempotency_Key="k")
        again = await lab.call("POST", path, wanted, Idempotency_Key="k")
        assert "Idempotent-Replayed" not in first.headers
        assert again.headers["Idempotent-Replayed"] == "true"
        assert again.content == first.content
        assert len(await lab.get("/pods")) == 1
        shuffled = dict(reversed(list(wanted.items())))
        assert (await lab.call("POST", path, shuffled, Idempotency_Key="k")).headers["Idempotent-Replayed"]
        other = await lab.call("POST", path, {**wanted, "pod_name": "q"}, Idempotency_Key="k")
        assert refusal(other) == (422, "idempotency_key_reused")
        elsewhere = await lab.call("POST", f"/executors/{UNKNOWN}/rent", wanted, Idempotency_Key="k")
        assert refusal(elsewhere) == (422, "idempotency_key_reused")

    in_lab(body)


def test_refusals_are_replayed_and_a_key_is_forgotten_after_a_day() -> None:
    async def body(lab: Lab) -> None:
        node = lab.node()
        path, wanted = f"/executors/{node}/rent", await lab.rent_body()
        await lab.fault({"do": "take_node", "node": node})
        assert refusal(await lab.call("POST", path, wanted, Idempotency_Key="k")) == (400, "node_unavailable")
        await lab.fault({"do": "free_node", "node": node})
        again = await lab.call("POST", path, wanted, Idempotency_Key="k")
        assert again.status_code == 400
        assert again.headers["Idempotent-Replayed"] == "true"
        assert (await lab.call("POST", path, wanted, Idempotency_Key="k2")).status_code == 200
        await lab.control("POST", "/advance", {"seconds": 24 * 3600})
        assert (await lab.call("POST", path, wanted, Idempotency_Key="k")).status_code == 200

    in_lab(body)


def test_an_idempotency_key_belongs_to_its_account() -> None:
    async def body(lab: Lab) -> None:
        path, wanted = f"/executors/{lab.node()}/rent", await lab.rent_body()
        public = await lab.template(is_private=False)
        wanted["template_id"] = public
        await lab.post(path, wanted, Idempotency_Key="k")
        other = await lab.call("POST", path, wanted, key="sk_sim_other", Idempotency_Key="k")
        assert other.status_code == 200
        assert "Idempotent-Replayed" not in other.headers

    in_lab(body)


def test_balance_refusals_are_not_recorded_and_come_before_replays() -> None:
    async def body(lab: Lab) -> None:
        path, wanted = f"/executors/{lab.node()}/rent", await lab.rent_body()
        await lab.fault({"do": "balance", "usd": 0.01})
        answer = await lab.call("POST", path, wanted, Idempotency_Key="k")
        assert refusal(answer) == (403, "insufficient_balance")
        assert "requires at least $" in answer.json()["message"]
        assert "Your balance is $0.01" in answer.json()["message"]
        await lab.fault({"do": "balance", "usd": 5})
        assert (await lab.call("POST", path, wanted, Idempotency_Key="k")).status_code == 200
        await lab.fault({"do": "balance", "usd": 0})
        again = await lab.call("POST", path, wanted, Idempotency_Key="k")
        assert refusal(again) == (403, "insufficient_balance")
        assert "Idempotent-Replayed" not in again.headers

    in_lab(body)


def test_a_second_request_while_the_first_is_running() -> None:
    async def body(lab: Lab) -> None:
        path, wanted = f"/executors/{lab.node()}/rent", await lab.rent_body()
        await lab.fault({"do": "delay", "seconds": 5, "where": "inside"}, match={"path": "/executors/*/rent"})
        first = asyncio.create_task(lab.call("POST", path, wanted, Idempotency_Key="k"))
        await asyncio.sleep(1)
        again = await lab.call("POST", path, wanted, Idempotency_Key="k")
        assert refusal(again) == (409, "idempotency_in_progress")
        assert (await first).status_code == 200
        replayed = await lab.call("POST", path, wanted, Idempotency_Key="k")
        assert replayed.headers["Idempotent-Replayed"] == "true"

    in_lab(body)


@pytest.mark.parametrize(("where", "pods"), [("inside", 0), ("unrecorded", 1)])
def test_an_outcome_that_was_never_stored(where: str, pods: int) -> None:
    async def body(lab: Lab) -> None:
        path, wanted = f"/executors/{lab.node()}/rent", await lab.rent_body()
        await lab.fault({"do": "lose_reply", "where": where}, match={"path": "/executors/*/rent"})
        with pytest.raises(httpx.ReadError):
            await lab.call("POST", path, wanted, Idempotency_Key="k")
        assert len(await lab.get("/pods")) == pods
        again = await lab.call("POST", path, wanted, Idempotency_Key="k")
        assert refusal(again) == (409, "idempotency_in_progress")
        await asyncio.sleep(301)
        again = await lab.call("POST", path, wanted, Idempotency_Key="k")
        assert refusal(again) == (409, "idempotency_outcome_unknown")
        assert len(await lab.get("/pods")) == pods

    in_lab(body)


def test_the_charged_price_is_the_nodes_current_one() -> None:
    async def body(lab: Lab) -> None:
        node = lab.node()
        await lab.get("/public/v1/nodes", key=None)
        await lab.fault({"do": "price", "node": node, "per_gpu_hour_usd": 0.77})
        feed = await lab.get("/public/v1/nodes", key=None)
        assert next(row for row in feed["nodes"] if row["id"] == node)["price_per_gpu_hour"] != 0.77
        pod_id = await lab.rent(node, gpu_count=2)
        assert (await lab.get(f"/pods/{pod_id}"))["price"] == 1.54
        await asyncio.sleep(61)
        feed = await lab.get("/public/v1/nodes", key=None)
        assert next(row for row in feed["nodes"] if row["id"] == node)["price_per_gpu_hour"] == 0.77

    in_lab(body)


def test_dockerfiles() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.running(dockerfile_content="FROM ubuntu:24.04\nRUN true\n")
        template = lab.world.pods[pod_id].template_id
        assert lab.world.templates[template].docker_image == "ubuntu"
        await lab.call("DELETE", f"/pods/{pod_id}")
        await asyncio.sleep(120)
        assert (await lab.call("GET", f"/templates/{template}")).status_code == 404
        for bad in ("RUN true", "FROM a\nADD https://example.com/x /x", "FROM a\n" + "#" * 65536):
            wanted = await lab.rent_body(dockerfile_content=bad)
            answer = await lab.call("POST", f"/executors/{lab.node()}/rent", wanted)
            assert refusal(answer) == (422, "validation_error")

    in_lab(body)


def test_rent_by_spec_takes_the_cheapest_within_the_cap() -> None:
    async def body(lab: Lab) -> None:
        spec = {**await lab.rent_body(), "gpu_type": "RTX 4090", "gpu_count": 1}
        dry = await lab.post("/executors/rent-by-spec", {**spec, "dry_run": True})
        assert dry["pod_id"] is None
        assert await lab.get("/pods") == []
        done = await lab.post("/executors/rent-by-spec", spec, Idempotency_Key="s")
        assert done["selected_executor"]["id"] == dry["selected_executor"]["id"]
        offered = [
            node.price_per_gpu
            for node in lab.world.nodes
            if node.machine_name == "NVIDIA GeForce RTX 4090" and node.min_rentable == 1
        ]
        assert done["price_per_hour"] == float(min(offered))
        assert done["candidates"] == len(done["alternatives_considered"]) + 1 or done["candidates"] > 5
        assert (await lab.get(f"/pods/{done['pod_id']}"))["price"] == done["price_per_hour"]

    in_lab(body)


def test_rent_by_spec_says_which_constraint_left_nothing() -> None:
    async def body(lab: Lab) -> None:
        spec = {**await lab.rent_body(), "gpu_type": "NVIDIA H100 80GB HBM3", "max_price_per_gpu_hour": 0.01}
        answer = await lab.call("POST", "/executors/rent-by-spec", spec)
        flat = answer.json()
        assert answer.status_code == 409
        assert "error" not in flat
        assert (flat["code"], flat["constraint"]) == ("no_executor_matches_spec", "max_price_per_gpu_hour")
        assert flat["candidates_before"] > 0

    in_lab(body)


def test_rent_by_spec_passes_over_a_node_that_refuses() -> None:
    async def body(lab: Lab) -> None:
        spec = {**await lab.rent_body(), "gpu_type": "RTX 3090"}
        first = (await lab.post("/executors/rent-by-spec", {**spec, "dry_run": True}))["selected_executor"]["id"]
        node = lab.world.nodes[first]
        lab.world.nodes.change(node.id, ports=1)
        done = await lab.post("/executors/rent-by-spec", spec)
        assert done["selected_executor"]["id"] != first
        assert done["attempts"] == 2

    in_lab(body)


def test_clusters_are_rented_and_removed_whole() -> None:
    async def body(lab: Lab) -> None:
        offers = await lab.get("/executors/infiniband-clusters")
        nodes = [row["id"] for row in offers[0]["nodes"]][:2]
        plain = {**await lab.rent_body(), "executor_uuids": nodes}
        assert refusal(await lab.call("POST", "/executors/cluster/rent", plain)) == (400, "template_invalid")
        image = next(row for row in await lab.get("/templates") if row["docker_image"] == "daturaai/lium-cluster")
        wanted = {**plain, "template_id": image["id"]}
        lonely = await lab.call("POST", "/executors/cluster/rent", {**wanted, "executor_uuids": nodes[:1]})
        assert refusal(lonely) == (422, "validation_error")
        mixed = await lab.call("POST", "/executors/cluster/rent", {**wanted, "executor_uuids": [nodes[0], lab.node()]})
        assert mixed.status_code == 400
        assert await lab.get("/pods") == []
        made = await lab.post("/executors/cluster/rent", wanted, Idempotency_Key="c")
        rows = await lab.get("/pods")
        assert {row["id"] for row in rows} == set(made["pod_ids"])
        assert {row["pod_name"] for row in rows} == {"p"}
        assert {row["cluster_overlay_ip"] for row in rows} == {"10.42.0.1", "10.42.0.2"}
        cluster = rows[0]["cluster_id"]
        assert refusal(await lab.call("DELETE", f"/clusters/{cluster}")) == (409, "pod_state_conflict")
        await asyncio.sleep(60)
        gone = (await lab.call("DELETE", f"/clusters/{cluster}")).json()["pods"]
        assert [row["success"] for row in gone] == [True, True]
        await asyncio.sleep(120)
        assert refusal(await lab.call("DELETE", f"/clusters/{cluster}")) == (404, "not_found")

    in_lab(body, balance_usd=1000)


def test_a_broken_json_body_is_a_validation_error() -> None:
    async def body(lab: Lab) -> None:
        answer = await lab.client.post(
            f"/executors/{lab.node()}/rent", content=b"{", headers={"X-API-KEY": "sk_sim_local"}
        )
        assert refusal(answer) == (422, "validation_error")
        templates = await lab.client.post(
            "/templates",
            content=b"{",
            headers={"X-API-KEY": "sk_sim_local", "Content-Type": "application/json"},
        )
        assert refusal(templates) == (422, "validation_error")
        assert json.loads(templates.content)["validation_errors"]

    in_lab(body)
