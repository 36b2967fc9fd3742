"""What every client meets, whatever it asks for: headers, bodies, streams, and the end of the server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from lium_plan.sim.wire import KEPT_BODY, MOST_BODY
from tests.sim.lab import HOST, Lab, in_lab, refusal

KEYED = {"X-API-KEY": "sk_sim_local"}
JSON = {**KEYED, "Content-Type": "application/json"}
UNKNOWN = "00000000-0000-4000-8000-000000000000"


def test_every_answer_has_a_date_and_the_request_s_id() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.running()
        asked: list[tuple[str, str, int, dict[str, Any]]] = [
            ("GET", "/version", 200, {}),
            ("GET", f"/pods/{pod_id}/logs", 200, {"headers": KEYED}),
            ("GET", "/openapi.json", 200, {}),
            ("GET", "/pods", 401, {}),
            ("GET", f"/pods/{UNKNOWN}", 404, {"headers": KEYED}),
            ("GET", "/no/such/route", 404, {}),
            ("PATCH", "/pods", 405, {"headers": KEYED}),
            ("HEAD", "/pods", 405, {"headers": KEYED}),
            ("GET", "/pods/", 307, {"headers": KEYED}),
            ("POST", "/volumes", 422, {"headers": KEYED, "json": {}}),
            ("DELETE", f"/pods/{pod_id}", 403, {"headers": KEYED, "content": b"../../"}),
        ]
        for method, path, status, rest in asked:
            plain = await lab.client.request(method, path, **rest)
            assert plain.status_code == status, (method, path, plain.text)
            assert plain.headers["Date"]
            assert plain.headers["X-Request-Id"].startswith("req-")
            rest["headers"] = {**rest.get("headers", {}), "x-request-id": "mine"}
            assert (await lab.client.request(method, path, **rest)).headers["X-Request-Id"] == "mine"

    in_lab(body)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/Vnd.Api+JSON", 200),
        (None, 200),
        ("application/x-www-form-urlencoded", 422),
        ("text/plain", 422),
        ("application/jsonlines", 422),
    ],
)
@pytest.mark.parametrize("path", ["/volumes", "/executors/{node}/rent"])
def test_a_body_is_read_as_json_when_it_says_so(path: str, kind: str | None, status: int) -> None:
    async def body(lab: Lab) -> None:
        sent = {"name": "v", **await lab.rent_body()}
        headers = KEYED if kind is None else {**KEYED, "Content-Type": kind}
        answer = await lab.client.post(path.format(node=lab.node()), content=json.dumps(sent), headers=headers)
        assert answer.status_code == status, answer.text

    in_lab(body)


@pytest.mark.parametrize("content", [b"\xff\xfe", b'{"name": "\xe9"}', b"{", b"nul", b'"text"', b"[]"])
@pytest.mark.parametrize("path", ["/volumes", "/executors/{node}/rent"])
def test_bodies_that_are_no_object_are_refused_in_the_envelope(path: str, content: bytes) -> None:
    async def body(lab: Lab) -> None:
        answer = await lab.client.post(path.format(node=lab.node()), content=content, headers=JSON)
        assert refusal(answer) == (422, "validation_error")
        assert answer.json()["validation_errors"]

    in_lab(body)


def test_a_body_that_is_too_large_is_refused_and_not_kept() -> None:
    async def body(lab: Lab) -> None:
        answer = await lab.client.post("/build-contexts", content=b"\x1f\x8b" * (MOST_BODY // 2) + b"!", headers=KEYED)
        assert refusal(answer) == (413, None)
        fits = await lab.client.post("/build-contexts", content=b"\x1f\x8b" * KEPT_BODY, headers=KEYED)
        assert len(fits.json()["sha256"]) == 64
        kept = [len(row["body"]) for row in await lab.control("GET", "/requests?path=/build-contexts")]
        assert kept == [KEPT_BODY, KEPT_BODY]

    in_lab(body)


@pytest.mark.parametrize(
    "content", [b'{"name": "\\ud800"}', b'{"name": NaN}', b'{"name": 1e999}', b"\xff", b"[" * 9999]
)
def test_whatever_was_sent_can_be_looked_at(content: bytes) -> None:
    async def body(lab: Lab) -> None:
        await lab.client.post("/volumes", content=content, headers=JSON)
        (row,) = await lab.control("GET", "/requests?method=POST")
        assert (row["path"], row["status"]) == ("/volumes", 422)
        assert (await lab.client.get(f"{HOST}/_sim/")).status_code == 200

    in_lab(body)


def test_the_feed_is_for_pages_of_any_origin() -> None:
    async def body(lab: Lab) -> None:
        asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "GET"}
        answers = [await lab.client.options("/public/v1/nodes", headers=asked)]
        answers += [await lab.client.get("/public/v1/nodes") for _ in range(61)]
        assert [answer.status_code for answer in answers] == [200] * 61 + [429]
        assert {answer.headers["Access-Control-Allow-Origin"] for answer in answers} == {"*"}

    in_lab(body)


@pytest.mark.parametrize("query", ["lat=inf&lon=1", "lat=1&lon=nan", "lat=91&lon=0", "lat=0&lon=-181"])
def test_places_that_are_nowhere(query: str) -> None:
    async def body(lab: Lab) -> None:
        answer = await lab.call("GET", f"/executors?{query}&max_distance_mile=5")
        assert refusal(answer) == (422, "validation_error")
        pole = await lab.get("/executors?lat=-90&lon=180&max_distance_mile=99999")
        assert pole

    in_lab(body)


def test_a_count_in_quotes_is_that_count() -> None:
    """Checked against the balance as what it means, not as all that are free."""

    async def body(lab: Lab) -> None:
        node = lab.node(spare=4)
        await lab.fault({"do": "balance", "usd": float(lab.world.nodes[node].price_per_gpu) / 4 + 0.001})
        pod_id = await lab.rent(node, gpu_count="1")
        assert (await lab.get(f"/pods/{pod_id}"))["gpu_count"] == "1"

    in_lab(body)


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_that_has_no_body_has_none(status: int) -> None:
    async def body(lab: Lab) -> None:
        effect = {"do": "answer", "status": status, "body": {"x": 1}, "headers": {"X-Mine": "é"}}
        await lab.fault(effect, match={"path": "/volumes"})
        answer = await lab.call("GET", "/volumes")
        assert (answer.status_code, answer.content) == (status, b"")
        assert "Content-Length" not in answer.headers
        refused = await lab.client.post(
            f"{HOST}/_sim/faults", json={"effect": {"do": "answer", "status": 100}, "match": {}}
        )
        assert refused.status_code == 422

    in_lab(body)


async def _follow(lab: Lab, pod_id: str, *, leave_after: int) -> list[dict[str, Any]]:
    """What is sent to a client that follows a pod's log and goes away after so many messages."""
    sent: list[dict[str, Any]] = []
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while len(sent) < leave_after:  # noqa: ASYNC110
            await asyncio.sleep(1)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/api/pods/{pod_id}/logs",
        "query_string": b"follow=true",
        "headers": [(b"x-api-key", b"sk_sim_local")],
        "client": ("127.0.0.1", 1),
        "http_version": "1.1",
        "scheme": "http",
        "server": ("lium.test", 80),
    }
    await lab.lium.app(scope, receive, send)
    return sent


def test_nobody_is_followed_for_who_went_away() -> None:
    """The request ends with its client, although the pod runs on; and with the pod, when the client stays."""

    async def body(lab: Lab) -> None:
        pod_id = await lab.running()
        sent = await asyncio.wait_for(_follow(lab, pod_id, leave_after=2), 60)
        assert b"started" in sent[1]["body"]
        following = asyncio.create_task(_follow(lab, pod_id, leave_after=99))
        await asyncio.sleep(5)
        await lab.call("DELETE", f"/pods/{pod_id}")
        sent = await asyncio.wait_for(following, 60)
        assert sent[-1].get("more_body", False) is False

    in_lab(body)


def test_a_stream_can_break_off() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.running()
        await lab.fault({"do": "lose_reply"}, match={"path": "/pods/*/logs"})
        with pytest.raises(httpx.ReadError):
            await lab.call("GET", f"/pods/{pod_id}/logs")
        assert (await lab.call("GET", f"/pods/{pod_id}/logs")).text.startswith("data: ")

    in_lab(body)
