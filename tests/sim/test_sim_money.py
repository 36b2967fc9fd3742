"""Charges, balances, statements, budgets (contract §2.4.3, §2.7.9, §2.14, §2.15.3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.sim.lab import Lab, in_lab, refusal


async def new_key(lab: Lab, **fields: object) -> dict[str, str]:
    made = await lab.control("POST", "/objects", {"kind": "key", "body": {"name": "ci", **fields}})
    return {"id": made["id"], "secret": made["key"]}


def test_a_pod_is_charged_from_the_rent_to_the_delete_request() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent(gpu_count=2)
        price = (await lab.get(f"/pods/{pod_id}"))["price"]
        await asyncio.sleep(1800)
        await lab.call("DELETE", f"/pods/{pod_id}")
        await asyncio.sleep(3600)
        charge = (await lab.ledger())[0]
        assert charge["amount_usd"] == pytest.approx(price / 2, rel=1e-3)
        assert (charge["id"], charge["gpu_count"], charge["price_per_hour_usd"]) == (pod_id, 2, price)
        assert charge["to"] is not None
        statement = await lab.get(f"/pods/{pod_id}/statement")
        assert statement["removed"] is True
        assert statement["billed_seconds"] == pytest.approx(1800, abs=1)
        assert statement["total"] == pytest.approx(price / 2, rel=1e-3)
        balance = (await lab.get("/users/me"))["balance"]
        assert balance == pytest.approx(100 - price / 2, rel=1e-4)
        record = await lab.get(f"/pods/{pod_id}/record")
        assert record["close_reason"] == "user_initiated"
        assert record["price_segments"][0]["amount"] == statement["total"]

    in_lab(body)


def test_the_balance_falls_while_pods_run_pending_included() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent()
        price = (await lab.get(f"/pods/{pod_id}"))["price"]
        await asyncio.sleep(10)
        assert (await lab.get("/users/me"))["balance"] == pytest.approx(100 - price / 360, rel=1e-6)

    in_lab(body)


def test_a_broken_pod_is_credited() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.running()
        await asyncio.sleep(3600)
        assert (await lab.get("/users/me"))["balance"] < 100
        await lab.fault({"do": "break", "pod": pod_id})
        assert (await lab.get("/users/me"))["balance"] == 100
        assert (await lab.ledger())[0]["credited"] is True

    in_lab(body)


def test_the_balance_must_hold_a_quarter_of_an_hour_of_everything() -> None:
    async def body(lab: Lab) -> None:
        node = lab.node()
        price = float(lab.world.nodes[node].price_per_gpu)
        wanted = await lab.rent_body()
        path = f"/executors/{node}/rent"
        await lab.fault({"do": "balance", "usd": price / 4})
        assert refusal(await lab.call("POST", path, wanted)) == (403, "insufficient_balance")
        await lab.fault({"do": "balance", "usd": price / 4 + 0.001})
        assert (await lab.call("POST", path, wanted)).status_code == 200
        assert refusal(await lab.call("POST", path, wanted)) == (403, "insufficient_balance")
        quote = await lab.get(f"/executors/{node}/quote?hours=1&gpu_count=1")
        assert quote["pod_balance_floor_usd"] == pytest.approx(price / 4)
        assert quote["rent_balance_required_usd"] == pytest.approx(price / 2)
        assert quote["total_usd"] == pytest.approx(price)
        anonymous = await lab.get(f"/executors/{node}/quote?hours=1&gpu_count=1", key=None)
        assert anonymous["rent_balance_required_usd"] is None

    in_lab(body)


def test_an_announced_price_becomes_a_second_segment() -> None:
    async def body(lab: Lab) -> None:
        node = lab.node()
        pod_id = await lab.running(node)
        await lab.fault({"do": "price", "node": node, "factor": 2, "announced_seconds": 1800})
        before = (await lab.get(f"/pods/{pod_id}"))["price"]
        row = next(item for item in await lab.get("/executors") if item["id"] == node)
        assert row["pending_price_per_hour"] == pytest.approx(2 * row["price_per_hour"])
        await asyncio.sleep(3600)
        assert (await lab.get(f"/pods/{pod_id}"))["price"] == pytest.approx(2 * before)
        segments = (await lab.get(f"/pods/{pod_id}/statement"))["price_segments"]
        assert [item["price_per_hour"] for item in segments] == pytest.approx([before, 2 * before])
        assert len(await lab.ledger()) == 2

    in_lab(body)


async def budgeted_pod(lab: Lab) -> tuple[str, str]:
    """A pod of a key that may spend 1 USD a day, at 1.5 USD per hour; and one of the account's own key."""
    key = await new_key(lab, daily_budget_usd=1.0)
    node = lab.node()
    await lab.fault({"do": "price", "node": node, "per_gpu_hour_usd": 1.5})
    return await lab.rent(node, key=key["secret"]), await lab.rent(node)


def test_a_used_up_budget_ends_the_key_s_pods_as_a_schedule_would() -> None:
    async def body(lab: Lab) -> None:
        pod_id, other = await budgeted_pod(lab)
        await asyncio.sleep(2390)
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "RUNNING"
        await asyncio.sleep(20)
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "DELETING"
        assert (await lab.get(f"/pods/{other}"))["status"] == "RUNNING"
        row = next(row for row in await lab.ledger() if row["id"] == pod_id)
        assert row["amount_usd"] == pytest.approx(1.0, abs=1e-6)
        events = await lab.get(f"/pods/{pod_id}/events")
        assert (events[-1]["reason"], events[-1]["actor"]) == ("budget_reached", None)

    in_lab(body)


def test_a_budget_that_is_raised_or_begins_anew_lets_pods_live() -> None:
    async def body(lab: Lab) -> None:
        """The world begins at noon; a day's budget lasts until midnight if it lasts 12 hours."""
        pod_id, _ = await budgeted_pod(lab)
        key_id = (await lab.get(f"/pods/{pod_id}"))["api_key_id"]
        session = await lab.post("/users/login", {"email": "local@x", "password": "x"}, key=None)
        bearer = {"key": None, "Authorization": f"Bearer {session['token']}"}
        await lab.call("PATCH", f"/keys/{key_id}", {"daily_budget_usd": 18.5}, **bearer)
        await asyncio.sleep(24 * 3600)
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "RUNNING"
        await asyncio.sleep(1200)
        await lab.call("PATCH", f"/keys/{key_id}", {"daily_budget_usd": 1.0}, **bearer)
        await asyncio.sleep(1)
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "DELETING"

    in_lab(body)


@pytest.mark.parametrize(("setting", "status"), [(True, 404), (False, 200)])
def test_an_empty_balance_ends_pods_when_the_switch_says_so(setting: bool, status: int) -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent(lab.node())
        await asyncio.sleep(60)
        await lab.fault({"do": "balance", "usd": 0})
        await asyncio.sleep(120)
        assert (await lab.call("GET", f"/pods/{pod_id}")).status_code == status

    in_lab(body, empty_balance_removes_pods=setting)


@pytest.mark.parametrize("window", ["daily", "monthly", "max"])
def test_budgets(window: str) -> None:
    async def body(lab: Lab) -> None:
        key = await new_key(lab, **{f"{window}_budget_usd": 1.0})
        node = lab.node()
        await lab.fault({"do": "price", "node": node, "per_gpu_hour_usd": 1.5})
        pod_id = await lab.rent(node, key=key["secret"])
        await asyncio.sleep(1800)
        answer = await lab.call("POST", f"/executors/{node}/rent", await lab.rent_body(), key=key["secret"])
        assert refusal(answer) == (402, "API_KEY_BUDGET_EXCEEDED")
        data = answer.json()["message"]
        assert data == {
            "message": f"{window} budget reached",
            "window": window,
            "budget_usd": 1.0,
            "spent_usd": pytest.approx(0.75, abs=0.01),
            "api_key_id": key["id"],
        }
        refusals = (await lab.get(f"/keys/{key['id']}/refusals"))["refusals"]
        assert [(row["window"], row["route"]) for row in refusals] == [(window, "rent")]
        extend = {"removal_scheduled_at": "2099-01-01T00:00:00Z"}
        soon = {"removal_scheduled_at": lab.world.now.replace(hour=23).isoformat()}
        path = f"/pods/{pod_id}/schedule-removal"
        assert (await lab.call("POST", path, soon, key=key["secret"])).status_code == 200
        assert refusal(await lab.call("POST", path, extend, key=key["secret"]))[0] == 402
        row: dict[str, Any] = await lab.get(f"/keys/{key['id']}")
        assert row["spent_today_usd"] == pytest.approx(0.75, abs=0.01)

    in_lab(body)


def test_keys_see_and_change_what_their_scopes_allow() -> None:
    async def body(lab: Lab) -> None:
        mine = await lab.running()
        own = (await new_key(lab, scopes=["read", "rent"], pod_visibility="own"))["secret"]
        wide = (await new_key(lab, scopes=["read", "rent"]))["secret"]
        deaf = (await new_key(lab, scopes=["rent"]))["secret"]
        assert await lab.get("/pods", key=own) == []
        assert (await lab.call("GET", f"/pods/{mine}", key=own)).status_code == 404
        assert [row["id"] for row in await lab.get("/pods", key=wide)] == [mine]
        refused = await lab.call("DELETE", f"/pods/{mine}", key=wide)
        assert refusal(refused) == (403, "api_key_scope")
        assert refused.json()["message"] == "API key 'ci' does not have the 'manage' scope"
        theirs = await lab.rent(key=own)
        assert (await lab.call("DELETE", f"/pods/{theirs}", key=own)).status_code == 200
        assert refusal(await lab.call("GET", "/users/me/events", key=deaf)) == (403, "api_key_scope")
        assert refusal(await lab.call("POST", "/templates", {}, key=own)) == (403, "api_key_scope")
        assert refusal(await lab.call("GET", "/pods", key="sk_sim_")) == (401, "unauthorized")
        assert refusal(await lab.call("GET", "/executors", key="wrong")) == (401, "unauthorized")
        assert await lab.get("/executors", key=None)

    in_lab(body)


def test_keys_are_managed_with_a_session() -> None:
    async def body(lab: Lab) -> None:
        assert refusal(await lab.call("POST", "/keys", {"name": "x"})) == (403, "session_required")
        login = {"email": "local@example.org", "password": "x"}
        token = (await lab.post("/users/login", login, key=None))["token"]
        session = {"key": None, "Authorization": f"Bearer {token}"}
        made = await lab.post("/keys", {"name": "x", "scopes": ["read"]}, **session)
        assert made["key"].startswith("sk_")
        assert "key" not in (await lab.get("/keys"))[-1]
        assert (await lab.get("/users/me", key=made["key"]))["name"] == "local"
        unordered = {"name": "x", "daily_budget_usd": 5, "monthly_budget_usd": 2}
        assert refusal(await lab.call("POST", "/keys", unordered, **session)) == (422, "validation_error")
        mixed = {"name": "x", "scopes": ["read", "billing"]}
        assert refusal(await lab.call("POST", "/keys", mixed, **session)) == (422, "validation_error")
        await lab.call("DELETE", f"/keys/{made['id']}", **session)
        assert (await lab.call("GET", "/users/me", key=made["key"])).status_code == 401
        spaces = await lab.get("/workspaces")
        assert (await lab.get(f"/workspaces/{spaces[0]['id']}/members"))[0]["role"] == "owner"

    in_lab(body)


def test_the_billing_statement_adds_up() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent()
        await asyncio.sleep(20 * 3600)  # over midnight
        statement = await lab.get("/billing/statement?start_day=2026-09-10&end_day=2026-09-11")
        (row,) = statement["pods"]
        assert row["pod_id"] == pod_id
        assert [day["billing_day"] for day in row["days"]] == ["2026-09-10", "2026-09-11"]
        assert sum(day["billed_seconds"] for day in row["days"]) == pytest.approx(20 * 3600, abs=1)
        assert statement["total"] == pytest.approx((await lab.get(f"/pods/{pod_id}/statement"))["total"], abs=1e-5)
        early = await lab.get("/billing/statement?start_day=2026-09-01&end_day=2026-09-02")
        assert early["pods"] == []

    in_lab(body)


def test_events_and_audit() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.running(pod_name="watched")
        events = await lab.get("/users/me/events?limit=1000")
        assert [event["created_at"][:19] for event in events] == sorted(
            (event["created_at"][:19] for event in events), reverse=True
        )
        assert {event["pod_name"] for event in events if event["pod_id"]} == {"watched"}
        assert len(await lab.get("/users/me/events?limit=1")) == 1
        await asyncio.sleep(1)
        since = lab.world.now.isoformat().replace("+00:00", "Z")
        assert await lab.get(f"/users/me/events?since={since}") == []
        for bad in ("limit=0", "limit=1001", "since=never"):
            assert refusal(await lab.call("GET", f"/users/me/events?{bad}")) == (422, "validation_error")
        node = lab.world.pods[pod_id].node_id
        await lab.call("POST", f"/executors/{node}/rent", {}, X_Source="test")
        audit = (await lab.get("/account/audit?action=pod.create"))["items"]
        assert [(item["status_code"], item["resource_id"]) for item in audit] == [(422, None), (200, pod_id)]
        assert audit[0]["source"] == "test"
        paged = await lab.get("/account/audit?limit=1")
        rest = await lab.get(f"/account/audit?limit=1&cursor={paged['next_cursor']}")
        assert rest["items"] != paged["items"]
        await lab.control("POST", "/config", {"events_forbidden": True})
        assert (await lab.call("GET", "/users/me/events")).status_code == 403

    in_lab(body)
