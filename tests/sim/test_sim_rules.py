"""Rules of the server that no other module's tests break on purpose. `README.md` beside this has the whole list."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path

import httpx
import pytest

from tests.sim.lab import Lab, in_lab, refusal

HERE = Path(__file__).parent


def session(account: str = "local") -> dict[str, str | None]:
    return {"key": None, "Authorization": f"Bearer sim-session.{account}"}


async def another_key(lab: Lab, **fields: object) -> str:
    made = await lab.control("POST", "/objects", {"kind": "key", "body": {"name": "ci", **fields}})
    return str(made["key"])


@pytest.mark.parametrize("code", [401, 402, 403])
def test_what_is_checked_before_the_key_is_not_kept_under_it(code: int) -> None:
    """A refusal for want of a key, a scope or a budget burns no idempotency key; a resend of a rent that went through
    can meet one without a replay header."""

    async def body(lab: Lab) -> None:
        node = lab.node()
        path, wanted = f"/executors/{node}/rent", await lab.rent_body()
        spent = await another_key(lab, max_budget_usd=1.0)
        narrow = await another_key(lab, scopes=["read"])
        await lab.fault({"do": "price", "node": node, "per_gpu_hour_usd": 8.0})
        forbidden = {401: "sk_nobody", 402: spent, 403: narrow}[code]
        for _ in range(2):
            answer = await lab.call("POST", path, wanted, key=forbidden, Idempotency_Key="k")
            assert (answer.status_code, "Idempotent-Replayed" in answer.headers) == (code, False)
        first = await lab.call("POST", path, wanted, Idempotency_Key="k")
        assert (first.status_code, "Idempotent-Replayed" in first.headers) == (200, False)
        answer = await lab.call("POST", path, wanted, key=forbidden, Idempotency_Key="k")
        assert (answer.status_code, "Idempotent-Replayed" in answer.headers) == (code, False)
        replayed = await lab.call("POST", path, wanted, Idempotency_Key="k")
        assert replayed.headers["Idempotent-Replayed"] == "true"

    in_lab(body)


@pytest.mark.parametrize(("seconds", "code"), [(298, "idempotency_in_progress"), (301, "idempotency_outcome_unknown")])
def test_the_lock_of_a_key_lasts_300_seconds(seconds: int, code: str) -> None:
    async def body(lab: Lab) -> None:
        path, wanted = f"/executors/{lab.node()}/rent", await lab.rent_body()
        await lab.fault({"do": "lose_reply", "where": "inside"}, match={"path": "/executors/*/rent"})
        with pytest.raises(httpx.ReadError):
            await lab.call("POST", path, wanted, Idempotency_Key="k")
        await lab.control("POST", "/advance", {"seconds": seconds})
        assert refusal(await lab.call("POST", path, wanted, Idempotency_Key="k")) == (409, code)
        await lab.control("POST", "/advance", {"seconds": 24 * 3600})
        assert (await lab.call("POST", path, wanted, Idempotency_Key="k")).status_code == 200

    in_lab(body)


@pytest.mark.parametrize(("hours", "replayed"), [(23.9, True), (24.1, False)])
def test_a_record_is_kept_for_24_hours(hours: float, replayed: bool) -> None:
    async def body(lab: Lab) -> None:
        path, wanted = f"/executors/{lab.node()}/rent", await lab.rent_body()
        first = await lab.post(path, wanted, Idempotency_Key="k")
        await lab.control("POST", "/advance", {"seconds": hours * 3600})
        again = await lab.call("POST", path, wanted, Idempotency_Key="k")
        assert ("Idempotent-Replayed" in again.headers, again.json() == first) == (replayed, replayed)

    in_lab(body)


def test_a_pod_has_one_volume_and_a_volume_one_pod() -> None:
    async def body(lab: Lab) -> None:
        first, second = [(await lab.post("/volumes", {"name": name}))["id"] for name in ("a", "b")]
        pod_id = await lab.running(volume_id=first)
        reboot = f"/pods/{pod_id}/reboot"
        assert refusal(await lab.call("POST", reboot, {"volume_id": second}))[0] == 409
        other = await lab.running()
        assert refusal(await lab.call("POST", f"/pods/{other}/reboot", {"volume_id": first}))[0] == 409
        both = await lab.rent_body(volume_id=[first, second])
        assert refusal(await lab.call("POST", f"/executors/{lab.node()}/rent", both))[0] == 422
        assert (await lab.call("POST", reboot, {"volume_id": first})).status_code == 200

    in_lab(body)


def test_a_failed_creation_stays_for_three_minutes_and_no_longer() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent(template_id=await lab.template(docker_image="limsim/fails-now"))
        failed = None
        while failed is None:
            await asyncio.sleep(1)
            row = await lab.get(f"/pods/{pod_id}")
            failed = row if row["status"] == "CREATION_FAILED" else None
        await asyncio.sleep(177)
        assert [row["status"] for row in await lab.get("/pods")] == ["CREATION_FAILED"]
        await asyncio.sleep(4)
        assert await lab.get("/pods") == []

    in_lab(body)


def test_stamps_are_naive_with_and_without_microseconds() -> None:
    async def body(lab: Lab) -> None:
        free = [node.id for node in lab.world.nodes if node.min_rentable == 1 and node.others < node.gpu_count]
        for node in free[:8]:
            await lab.rent(node)
        stamps = [row["created_at"] for row in await lab.get("/pods")]
        plain, fine = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", r"\.\d{6}"
        assert all(re.fullmatch(f"{plain}({fine})?", stamp) for stamp in stamps)
        assert {bool(re.fullmatch(plain, stamp)) for stamp in stamps} == {True, False}

    in_lab(body)


def test_names_are_not_unique() -> None:
    async def body(lab: Lab) -> None:
        pods = {await lab.rent(lab.node(), pod_name="same") for _ in range(2)}
        volumes = {(await lab.post("/volumes", {"name": "same"}))["id"] for _ in range(2)}
        templates = {await lab.template(name="same") for _ in range(2)}
        assert [len(found) for found in (pods, volumes, templates)] == [2, 2, 2]
        assert {row["gpu_count"] for row in await lab.get("/pods")} == {"1"}

    in_lab(body)


def test_reserved_environment_is_dropped_without_a_word() -> None:
    async def body(lab: Lab) -> None:
        sent = {"PATH": "/x", "LD_PRELOAD": "/y.so", "PYTHONPATH": "/z", "EMPTY": "", "MINE": "1"}
        template = await lab.template(environment=sent)
        assert (await lab.get(f"/templates/{template}"))["environment"] == sent
        pod_id = await lab.running(template_id=template)
        runtime = lab.lium.simulator.runtime
        assert dict(runtime.running[pod_id].environment) == {"MINE": "1"}  # type: ignore[attr-defined]

    in_lab(body)


@pytest.mark.parametrize(
    ("asked", "supported", "granted"),
    [(True, True, "ENABLED"), (True, False, "UNSUPPORTED_IMAGE"), (False, True, "DISABLED")],
)
def test_encryption_that_is_asked_for_may_not_be_granted(asked: bool, supported: bool, granted: str) -> None:
    async def body(lab: Lab) -> None:
        template = await lab.template(supports_volume_encryption=supported)
        pod_id = await lab.rent(template_id=template, enable_volume_encryption=asked)
        row = await lab.get(f"/pods/{pod_id}")
        assert (row["enable_volume_encryption"], row["volume_encryption_status"]) == (asked, None)
        await asyncio.sleep(60)
        assert (await lab.get(f"/pods/{pod_id}"))["volume_encryption_status"] == granted

    in_lab(body)


def test_a_key_that_sees_its_own_pods_sees_no_others() -> None:
    async def body(lab: Lab) -> None:
        own = await another_key(lab, scopes=["read", "rent"], pod_visibility="own")
        mine, others = await lab.rent(key=own), await lab.rent()
        assert [row["id"] for row in await lab.get("/pods", key=own)] == [mine]
        assert {row["id"] for row in await lab.get("/pods")} == {mine, others}
        for method, path in (
            ("GET", f"/pods/{others}"),
            ("GET", f"/pods/{others}/events"),
            ("GET", f"/pods/{others}/statement"),
            ("DELETE", f"/pods/{others}"),
        ):
            assert refusal(await lab.call(method, path, key=own)) == (404, "not_found")

    in_lab(body)


@pytest.mark.parametrize(
    ("scopes", "method", "path", "scope"),
    [
        (["rent"], "GET", "/pods", "read"),
        (["rent"], "GET", "/users/me", "read"),
        (["rent"], "GET", "/users/me/events", "read"),
        (["read", "manage"], "POST", "/executors/rent-by-spec", "rent"),
        (["read", "rent"], "POST", "/volumes", "manage"),
        (["read", "rent"], "POST", "/templates", "manage"),
        (["read", "rent"], "POST", "/docker-credentials/", "manage"),
        (["billing"], "GET", "/pods", "read"),
    ],
)
def test_a_missing_scope_is_named(scopes: list[str], method: str, path: str, scope: str) -> None:
    async def body(lab: Lab) -> None:
        key = await another_key(lab, scopes=scopes)
        answer = await lab.call(method, path, {"name": "x", "docker_image": "y"} if method == "POST" else None, key=key)
        assert answer.status_code == 403
        assert answer.json()["message"] == f"API key 'ci' does not have the '{scope}' scope"

    in_lab(body)


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "scopes": ["read", "billing"]},
        {"name": "x", "scopes": []},
        {"name": "x", "daily_budget_usd": 0.5},
        {"name": "x", "daily_budget_usd": 5, "max_budget_usd": 2},
    ],
)
def test_keys_that_make_no_sense_are_refused(body: dict[str, object]) -> None:
    async def test(lab: Lab) -> None:
        assert refusal(await lab.call("POST", "/keys", body, **session()))[0] == 422

    in_lab(test)


async def _raw(lab: Lab, content: bytes, headers: dict[str, str]) -> int:
    sent = {"X-API-KEY": "sk_sim_local", **headers}
    return (await lab.client.post("/volumes", content=content, headers=sent)).status_code


def test_a_body_without_a_type_is_json_and_a_form_is_not() -> None:
    async def body(lab: Lab) -> None:
        assert await _raw(lab, b'{"name": "v"}', {}) == 200
        assert await _raw(lab, b'{"name": "v"}', {"Content-Type": "application/x-www-form-urlencoded"}) == 422
        assert await _raw(lab, b'{"name": "\\ud800"}', {}) == 422
        assert 400 <= await _raw(lab, b"[" * 100_000, {}) < 500

    in_lab(body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/executors/{node}/rent", {"gpu_count": 10**60}),
        ("/executors/{node}/rent", {"gpu_count": -(10**60)}),
        ("/executors/rent-by-spec", {"gpu_type": "H100", "gpu_count": 10**30}),
        ("/executors/rent-by-spec", {"gpu_type": "H100", "max_price_per_gpu_hour": "nan"}),
        ("/executors/cluster/rent", {"executor_uuids": ["{node}", "{other}"], "user_public_key": ""}),
        ("/executors/cluster/rent", {"executor_uuids": ["{node}", "{node}"]}),
        ("/templates", {"name": "x", "docker_image": "x", "internal_ports": [70000]}),
    ],
)
def test_absurd_bodies_are_the_client_s_fault(path: str, body: dict[str, object]) -> None:
    async def test(lab: Lab) -> None:
        nodes = [node.id for node in lab.world.nodes][:2]
        sent = {**await lab.rent_body(), **body}
        if "executor_uuids" in sent:
            sent["executor_uuids"] = [nodes[0], nodes[0 if "{other}" not in str(body) else 1]]
        answer = await lab.call("POST", path.format(node=lab.node()), sent)
        assert 400 <= answer.status_code < 500, answer.text

    in_lab(test)


@pytest.mark.parametrize(
    "path",
    [
        "/executors/{node}/quote?hours=1e308",
        "/executors/{node}/quote?hours=nan",
        "/executors/{node}/quote?hours=1&gpu_count=99999999999999999999999999",
        "/users/me/events?since=0001-01-01T00:00:00%2B14:00",
        "/users/me/events?limit=1001",
        "/users/me/events?limit=0",
    ],
)
def test_absurd_queries_are_the_client_s_fault(path: str) -> None:
    async def test(lab: Lab) -> None:
        assert (await lab.call("GET", path.format(node=lab.node()))).status_code == 422

    in_lab(test)


def test_a_statement_from_the_beginning_to_the_end_of_time() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.running()
        statement = await lab.get("/billing/statement?start_day=0001-01-01&end_day=9999-12-31")
        assert [row["pod_id"] for row in statement["pods"]] == [pod_id]
        assert len(statement["pods"][0]["days"]) == 1

    in_lab(body)


# -- the list of rules --------------------------------------------------------------------------------------------


def test_every_rule_of_the_list_names_tests_that_exist() -> None:
    text = (HERE / "README.md").read_text()
    named = re.findall(r"`(test_\w+)\.(test_\w+)`", text)
    assert len(named) > 40
    there = {
        (path.stem, node.name)
        for path in HERE.rglob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert set(named) <= there, set(named) - there
