"""Things that go wrong when told to (`/_sim/faults`, `/_sim/config`), and when they do."""

from __future__ import annotations

import asyncio
from email.utils import parsedate_to_datetime

import httpx
import pytest

from lium_plan.sim.bare import BareRuntime
from lium_plan.sim.faults import path_fits
from tests.sim.lab import HOST, KEY, Lab, in_lab, refusal

RENTS = {"method": "POST", "path": "/executors/*/rent"}


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("/pods/*", "/pods/1", True),
        ("/pods/*", "/pods/1/events", False),
        ("/pods/**", "/pods/1/events", True),
        ("/pods/**", "/volumes", False),
        ("**", "/anything/at/all", True),
        ("/docker-credentials/", "/docker-credentials/", True),
        ("/pods", "/podsx", False),
    ],
)
def test_path_patterns(pattern: str, path: str, fits: bool) -> None:
    assert path_fits(pattern, path) is fits


@pytest.mark.parametrize(("where", "pods"), [("before", 0), ("after", 1)])
def test_a_lost_rent(where: str, pods: int) -> None:
    async def body(lab: Lab) -> None:
        wanted = await lab.rent_body()
        await lab.fault({"do": "lose_reply", "where": where}, match=RENTS)
        with pytest.raises(httpx.ReadError):
            await lab.call("POST", f"/executors/{lab.node()}/rent", wanted, Idempotency_Key="k")
        assert len(await lab.get("/pods")) == pods
        assert [row["status"] for row in await lab.control("GET", "/requests?path=/executors/*/rent")] == [None]
        again = await lab.call("POST", f"/executors/{lab.node()}/rent", wanted, Idempotency_Key="k")
        assert again.status_code == 200
        assert ("Idempotent-Replayed" in again.headers) is (pods == 1)

    in_lab(body)


def test_when_a_fault_fires() -> None:
    async def body(lab: Lab) -> None:
        match = {"path": "/volumes", "method": "GET", "account": "local", "after": 1, "times": 2}
        await lab.fault({"do": "answer", "status": 503}, match=match)
        statuses = [(await lab.call("GET", "/volumes")).status_code for _ in range(5)]
        assert statuses == [200, 503, 503, 200, 200]
        assert (await lab.call("GET", "/volumes", key="sk_sim_other")).status_code == 200
        (fault,) = await lab.control("GET", "/faults")
        assert (fault["matched"], fault["fired"]) == (5, 2)
        await lab.control("DELETE", "/faults")
        assert await lab.control("GET", "/faults") == []

    in_lab(body)


def test_any_answer_before_and_after_acting() -> None:
    async def body(lab: Lab) -> None:
        match = {"path": "/volumes", "method": "POST"}
        await lab.fault({"do": "answer", "status": 500, "where": "after"}, match=match)
        assert refusal(await lab.call("POST", "/volumes", {"name": "a"})) == (500, None)
        await lab.fault(
            {"do": "answer", "status": 429, "code": "rate_limited", "headers": {"Retry-After": "7"}}, match=match
        )
        answer = await lab.call("POST", "/volumes", {"name": "b"})
        assert refusal(answer) == (429, "rate_limited")
        assert answer.headers["Retry-After"] == "7"
        await lab.fault({"do": "answer", "status": 502, "text": "<html>bad gateway</html>"}, match=match)
        html = await lab.call("POST", "/volumes", {"name": "c"})
        assert (html.status_code, html.text) == (502, "<html>bad gateway</html>")
        await lab.fault({"do": "answer", "status": 200, "body": []}, match=match)
        assert (await lab.call("POST", "/volumes", {"name": "d"})).json() == []
        assert [row["name"] for row in await lab.get("/volumes")] == ["a"]

    in_lab(body)


@pytest.mark.parametrize(("where", "rows"), [("before", 0), ("after", 1)])
def test_late_replies(where: str, rows: int) -> None:
    async def body(lab: Lab) -> None:
        await lab.fault({"do": "delay", "seconds": 40, "where": where}, match={"method": "POST", "path": "/volumes"})
        with pytest.raises(httpx.ReadTimeout):
            await lab.call("POST", "/volumes", {"name": "v"})
        assert len(await lab.get("/volumes")) == rows
        await asyncio.sleep(11)
        assert len(await lab.get("/volumes")) == 1  # the server went on without its client

    in_lab(body)


def test_rents_that_come_out_differently() -> None:
    async def body(lab: Lab) -> None:
        twist = {
            "gpu_count": 2,
            "price_factor": 1.5,
            "hide_seconds": 8,
            "detail_404": True,
            "ssh": "silent",
            "visible_gpus": 0,
            "create_seconds": 3,
            "volume_mount_fails": True,
            "ssh_delay_seconds": 90,
        }
        await lab.fault({"do": "twist", "twist": twist}, match=RENTS)
        node = lab.node()
        pod_id = await lab.rent(node)
        assert await lab.get("/pods") == []
        await asyncio.sleep(9)
        (row,) = await lab.get("/pods")
        assert (row["id"], row["status"], row["gpu_count"]) == (pod_id, "RUNNING", "2")
        assert row["price"] == pytest.approx(1.5 * float(lab.world.nodes[node].price_per_gpu))
        assert (await lab.call("GET", f"/pods/{pod_id}")).status_code == 404
        runtime = lab.lium.simulator.runtime
        assert isinstance(runtime, BareRuntime)
        assert runtime.faults[pod_id].mode == "silent"
        container = runtime.running[pod_id]
        assert (container.gpu_count, container.volume_mount_fails, container.ssh_delay_s) == (0, True, 90)
        await lab.fault({"do": "detail_ok", "pod": pod_id})
        assert (await lab.call("GET", f"/pods/{pod_id}")).status_code == 200
        await lab.fault({"do": "twist", "twist": {"fails": "the node caught fire"}}, match=RENTS)
        burnt = await lab.rent(node)
        await asyncio.sleep(60)
        assert "the node caught fire" in (await lab.get(f"/pods/{burnt}/events"))[-1]["error"]

    in_lab(body)


def test_a_stuck_delete_bills_nothing_and_goes_on_when_told() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.running(pod_name="sticky-1")
        await lab.fault({"do": "stick", "pod": "sticky-*"})
        await lab.call("DELETE", f"/pods/{pod_id}")
        cost = (await lab.ledger())[0]["amount_usd"]
        await asyncio.sleep(3600)
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "DELETING"
        assert (await lab.get(f"/pods/{pod_id}/statement"))["removed"] is False
        assert (await lab.ledger())[0]["amount_usd"] == cost
        await lab.fault({"do": "unstick", "pod": pod_id})
        await asyncio.sleep(0.1)
        assert (await lab.call("GET", f"/pods/{pod_id}")).status_code == 404

    in_lab(body)


def test_a_pod_that_lists_still_show_after_it_is_gone() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.running()
        await lab.fault({"do": "twist", "twist": {"linger_seconds": 30}}, match={"method": "DELETE"})
        await lab.call("DELETE", f"/pods/{pod_id}")
        await asyncio.sleep(75)
        assert (await lab.call("GET", f"/pods/{pod_id}")).status_code == 404
        assert [row["id"] for row in await lab.get("/pods")] == [pod_id]
        await asyncio.sleep(30)
        assert await lab.get("/pods") == []

    in_lab(body, delete_seconds=60)


def test_what_providers_do() -> None:
    async def body(lab: Lab) -> None:
        node = lab.node()
        pod_id = await lab.running(node)
        await lab.fault({"do": "reclaim", "pod": pod_id, "notice_seconds": 120})
        assert (await lab.get(f"/pods/{pod_id}"))["notice_period"]
        await asyncio.sleep(121)
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "DELETING"
        await asyncio.sleep(120)
        events = await lab.get(f"/pods/{pod_id}/events")
        assert events[-1]["reason"] == "spot_reclaimed"
        assert events[-1]["actor"] is None
        gone = await lab.running()
        await lab.fault({"do": "vanish", "pod": gone})
        assert (await lab.call("GET", f"/pods/{gone}")).status_code == 404
        failed = await lab.running()
        await lab.fault({"do": "reboot_fails", "pod": failed})
        assert (await lab.get(f"/pods/{failed}"))["status"] == "REBOOT_FAILED"

    in_lab(body)


def test_ssh_faults_and_host_keys_reach_the_machines() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.running()
        await lab.fault({"do": "ssh", "pod": "*", "mode": "refuse", "seconds": 5})
        await lab.fault({"do": "host_key", "pod": pod_id})
        await asyncio.sleep(0)
        await lab.lium.simulator.machines.settle()
        runtime = lab.lium.simulator.runtime
        assert isinstance(runtime, BareRuntime)
        assert runtime.faults[pod_id].seconds == 5
        assert runtime.host_keys[pod_id] == 2

    in_lab(body)


def test_effects_around_a_matched_request() -> None:
    """The node is taken between the look and the rent; the pod breaks right after its detail was read."""

    async def body(lab: Lab) -> None:
        await lab.fault({"do": "take_node"}, match=RENTS)
        answer = await lab.call("POST", f"/executors/{lab.node()}/rent", await lab.rent_body())
        assert refusal(answer) == (400, "node_unavailable")
        pod_id = await lab.running()
        await lab.fault({"do": "break"}, match={"method": "GET", "path": "/pods/*"}, where="after")
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "RUNNING"
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "BROKEN"

    in_lab(body)


def test_faults_at_a_moment() -> None:
    async def body(lab: Lab) -> None:
        await lab.control(
            "POST",
            "/faults",
            [
                {"effect": {"do": "balance", "usd": 1}, "at": 60},
                {"effect": {"do": "answer", "status": 500}, "match": {"path": "/volumes"}, "at": 120},
            ],
        )
        assert (await lab.get("/users/me"))["balance"] == 100
        await asyncio.sleep(61)
        assert (await lab.get("/users/me"))["balance"] == 1
        assert (await lab.call("GET", "/volumes")).status_code == 200
        await asyncio.sleep(61)
        assert (await lab.call("GET", "/volumes")).status_code == 500

    in_lab(body)


@pytest.mark.parametrize(
    "bad",
    [
        {"effect": {"do": "explode"}},
        {"effect": {"do": "lose_reply"}},
        {"effect": {"do": "config", "settings": {"nonsense": 1}}},
        {"effect": {"do": "twist", "twist": {"nonsense": 1}}, "match": {}},
        {"effect": {"do": "ssh", "mode": "sing"}},
        [{"effect": {"do": "balance", "usd": 3}, "extra": 1}],
        {"effect": {"do": "balance", "usd": 1e300}},
        {"effect": {"do": "balance", "usd": 3}, "at": 1e300},
        {"effect": {"do": "delay", "seconds": 1e300}, "match": {}},
        {"effect": {"do": "price", "node": "*", "factor": 1e300}},
        {"effect": {"do": "price", "node": "*", "factor": 2, "announced_seconds": 1e300}},
        {"effect": {"do": "reclaim", "pod": "*", "notice_seconds": 1e300}},
        {"effect": {"do": "config", "settings": {"speed": 1e-300}}},
        {"effect": {"do": "config", "settings": {"delete_seconds": 1e300}}},
        {"effect": {"do": "config", "settings": {"date_skew_seconds": -1e300}}},
        {"effect": {"do": "twist", "twist": {"hide_seconds": 1e300}}, "match": {}},
    ],
)
def test_faults_that_make_no_sense_are_refused(bad: object) -> None:
    async def body(lab: Lab) -> None:
        answer = await lab.client.post(f"{HOST}/_sim/faults", json=bad)
        assert answer.status_code == 422
        assert await lab.control("GET", "/faults") == []

    in_lab(body)


def test_settings_are_validated_and_kept() -> None:
    async def body(lab: Lab) -> None:
        answer = await lab.client.post(f"{HOST}/_sim/config", json={"speed": 0})
        assert answer.status_code == 422
        changed = await lab.control("POST", "/config", {"delete_seconds": 1, "date_skew_seconds": 3600})
        assert (changed["delete_seconds"], changed["speed"]) == (1, 1)
        date = (await lab.call("GET", "/version")).headers["Date"]
        assert (parsedate_to_datetime(date) - lab.world.now).total_seconds() == pytest.approx(3600, abs=1)
        await lab.control("POST", "/config", {"no_rent_idempotency": True})
        assert "rent_idempotency" not in (await lab.get("/version"))["features"]

    in_lab(body)


def test_advance_jumps_and_the_date_header_follows() -> None:
    async def body(lab: Lab) -> None:
        before = lab.world.now
        pod_id = await lab.rent(termination_hours=1)
        await lab.control("POST", "/advance", {"seconds": 7200})
        answer = await lab.call("GET", "/version")
        assert (parsedate_to_datetime(answer.headers["Date"]) - before).total_seconds() >= 7199
        assert (await lab.call("GET", f"/pods/{pod_id}")).status_code == 404
        subs = [event["sub_event_type"] for event in await lab.get(f"/pods/{pod_id}/events")]
        assert subs == ["pod-rent.requested", "pod-create.success", "pod-delete.requested", "pod-delete.success"]
        assert 3600 < (await lab.get(f"/pods/{pod_id}/statement"))["billed_seconds"] < 3660

    in_lab(body)


def test_foreign_objects_cost_no_limits() -> None:
    async def body(lab: Lab) -> None:
        for index in range(3):
            await lab.template(name=f"t{index}")
        pod = {"executor_id": lab.node(), "pod_name": "foreign", "user_public_key": [KEY], "gpu_count": 1}
        template = await lab.template()
        made = await lab.control(
            "POST", "/objects", {"kind": "pod", "account": "local", "body": {**pod, "template_id": template}}
        )
        assert [row["id"] for row in await lab.get("/pods")] == [made["id"]]
        bad = await lab.client.post(f"{HOST}/_sim/objects", json={"kind": "pod", "body": {}})
        assert bad.status_code == 404
        bad = await lab.client.post(f"{HOST}/_sim/objects", json={"kind": "volume", "body": {}})
        assert bad.status_code == 422

    in_lab(body)


def test_the_ledger_lists_everything_that_ever_existed() -> None:
    async def body(lab: Lab) -> None:
        await lab.running()
        volume = (await lab.post("/volumes", {"name": "v"}))["id"]
        await lab.call("DELETE", f"/volumes/{volume}")
        rows = await lab.control("GET", "/ledger")
        assert [(row["kind"], row["to"] is None) for row in rows] == [
            ("template", True),
            ("pod", True),
            ("volume", False),
        ]
        assert set(rows[1]) >= {
            "kind",
            "id",
            "name",
            "node_id",
            "account",
            "gpu_count",
            "price_per_hour_usd",
            "from",
            "to",
            "amount_usd",
        }
        assert rows[1]["account"] == "local"
        still = await lab.control("GET", "/ledger?open_only=true&account=local")
        assert len(still) == 2

    in_lab(body)


def test_requests_are_recorded_with_their_bodies() -> None:
    async def body(lab: Lab) -> None:
        await lab.call("POST", "/volumes", {"name": "v"}, Idempotency_Key="x")
        (row,) = await lab.control("GET", "/requests?method=POST&path=/volumes")
        assert (row["status"], row["idempotency_key"], row["body"]) == (200, "x", {"name": "v"})
        assert row["at"].endswith("Z")

    in_lab(body)


def test_control_is_for_loopback_only_and_documented() -> None:
    async def body(lab: Lab) -> None:
        document = await lab.control("GET", "/openapi.json")
        assert {"/ledger", "/faults", "/config", "/advance", "/objects", "/reset", "/requests", "/world"} <= set(
            document["paths"]
        )
        assert "gpu_count" in (await lab.client.get("/openapi.json")).text
        page = await lab.client.get(f"{HOST}/_sim/")
        assert "Local Lium" in page.text
        await lab.running(pod_name="<b>shown</b>")
        page = await lab.client.get(f"{HOST}/_sim/")
        assert "&lt;b&gt;shown" in page.text
        far = httpx.ASGITransport(lab.lium.app, client=("203.0.113.5", 1))
        async with httpx.AsyncClient(transport=far) as client:
            assert (await client.get(f"{HOST}/_sim/world")).status_code == 403
            assert (await client.get(f"{HOST}/api/version")).status_code == 200
            assert (await client.get(f"{HOST}/elsewhere")).status_code == 404

    in_lab(body)


def test_the_page_tells_of_pods_requests_and_faults() -> None:
    async def body(lab: Lab) -> None:
        async def page() -> str:
            return (await lab.client.get(f"{HOST}/_sim/")).text

        assert "No account yet" in await page()
        pod_id = await lab.rent(pod_name="shown", termination_hours=2)
        assert '<td class=" busy">PENDING</td>' in await page()
        await asyncio.sleep(60)
        port = (await lab.get(f"/pods/{pod_id}"))["ports_mapping"]["22"]
        text = await page()
        assert '<td class=" good">RUNNING</td>' in text
        for cell in ("shown", "local", "in 1 h 59 min", f"127.0.0.1:{port}", f"GET /pods/{pod_id}"):
            assert f">{cell}</td>" in text, cell
        await lab.call("GET", "/pods/nowhere")
        await lab.fault({"do": "lose_reply"}, match={"path": "/volumes"})
        text = await page()
        assert '<td class=" bad">422</td>' in text
        assert "{&quot;effect&quot;:{&quot;do&quot;:&quot;lose_reply&quot;},&quot;match&quot;" in text
        with pytest.raises(httpx.ReadError):
            await lab.call("GET", "/volumes")
        await lab.call("DELETE", f"/pods/{pod_id}")
        text = await page()
        assert '<td class=" bad">no answer</td>' in text
        assert '<td class=" dim">DELETING</td>' in text
        assert f"127.0.0.1:{port}" not in text

    in_lab(body)


def test_reset_begins_again() -> None:
    async def body(lab: Lab) -> None:
        before = [node.id for node in lab.world.nodes]
        pod_id = await lab.running()
        await lab.control("POST", "/reset")
        assert [node.id for node in lab.world.nodes] == before
        assert await lab.get("/pods") == []
        assert (await lab.get("/users/me"))["balance"] == 100
        runtime = lab.lium.simulator.runtime
        assert isinstance(runtime, BareRuntime)
        assert pod_id not in runtime.running
        await lab.running()

    in_lab(body)
