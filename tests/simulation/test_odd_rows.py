"""Rows of a pod list that tell too little, too late, or what nobody can reckon with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import httpx
import pytest

from lium_plan.diagnostics import ExitCode
from tests.simulation.manifests import fleet
from tests.simulation.telling import emptied, mended, record, rents, told
from tests.support.world import World

Row = dict[str, object]


class Rewritten(httpx.AsyncBaseTransport):
    """Between lium-plan and the server: each row of a pod of ours in a list is what `rewrite` makes of it."""

    def __init__(self, server: httpx.AsyncBaseTransport, rewrite: Callable[[Row], Mapping[str, object]]) -> None:
        self._server = server
        self._rewrite = rewrite

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._server.handle_async_request(request)
        if request.method != "GET" or not request.url.path.endswith("/pods"):
            return response
        rows: list[Row] = json.loads(await response.aread())
        ours = [{**row, **self._rewrite(row)} if str(row["pod_name"]).startswith("lp-") else row for row in rows]
        headers = {"Date": response.headers["Date"]}
        return httpx.Response(response.status_code, headers=headers, content=json.dumps(ours).encode())


def rewrite(world: World, how: Callable[[Row], Mapping[str, object]]) -> None:
    world.transport._server = Rewritten(world.transport._server, how)


def once_running(first: Row, later: Row) -> Callable[[Row], Mapping[str, object]]:
    return lambda row: first if row["status"] == "PENDING" else later


@pytest.mark.parametrize("first", [None, 0])
def test_a_price_that_is_told_late_is_judged_when_it_is_told(first: object) -> None:
    async def story(world: World) -> None:
        rewrite(world, once_running({"price": first}, {"price": 5.0}))
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL
        assert "it costs $5.00/h, the ceiling is $1.00/h" in ran.words
        assert world.open_charges("pod") == ()

    told(story, expected=())


def test_a_price_that_rises_before_it_runs_is_judged_again() -> None:
    async def story(world: World) -> None:
        rewrite(world, once_running({}, {"price": 5.0}))
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL
        assert "it costs $5.00/h, the ceiling is $1.00/h" in ran.words
        assert world.open_charges("pod") == ()

    told(story, expected=())


def test_a_gpu_count_that_is_told_late_is_compared_with_what_was_ordered() -> None:
    async def story(world: World) -> None:
        rewrite(world, once_running({"gpu_count": None}, {"gpu_count": "8"}))
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL
        assert "it has 8 GPUs, 1 ordered" in ran.words
        assert world.open_charges("pod") == ()

    told(story, expected=())


def test_a_price_that_is_never_told_is_that_of_the_offer() -> None:
    async def story(world: World) -> None:
        rewrite(world, lambda row: {"price": 0})
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert float(str(record(world).attributes["price_per_hour_usd"])) > 0
        await emptied(world)

    told(story)


def test_an_absurd_price_is_above_every_ceiling() -> None:
    async def story(world: World) -> None:
        rewrite(world, lambda row: {"price": "1e39"})
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL
        assert "the ceiling is $1.00/h" in ran.words
        assert world.open_charges("pod") == ()

    told(story, expected=())


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_date_that_means_none_ends_no_run(at: str) -> None:
    """Neither while the pod is there nor when it is looked for in what happened since."""

    async def story(world: World) -> None:
        rewrite(world, lambda row: {"created_at": at})
        for _ in range(2):
            ran = await world.apply()
            assert ran.code == 0, ran.words
        world.fault({"do": "vanish", "pod": "*-a-0"})
        await world.pass_time(5)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(rents(world)) == 2
        await emptied(world)

    told(story)


def test_half_a_character_in_a_row_reaches_neither_the_state_nor_a_record() -> None:
    async def story(world: World) -> None:
        ids = iter(["\ud800", "2026-11-30T12:00:00Z"])
        host = {"executor_ip_address": "\ud800"}
        rewrite(world, lambda row: {"executor": host, "phase": "\ud800 pulling", "id": next(ids, row["id"])})
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert (record(world).attributes["ip"], len(rents(world))) == ("?", 1)
        assert (await world.apply()).code == 0
        await emptied(world)

    told(story)


REMOVAL = {"path": "pods/*/schedule-removal"}
FAILURES = [{"do": "answer", "status": 503}, {"do": "lose_reply", "where": "after"}]


@pytest.mark.parametrize("failure", FAILURES, ids=["503", "lost"])
def test_the_end_of_a_pod_that_has_none_is_set_through_a_failure(failure: dict[str, object]) -> None:
    async def story(world: World) -> None:
        untold: list[Row] = [{"removal_scheduled_at": None}]
        rewrite(world, lambda row: untold[0] if untold else {})
        world.fault(failure, method="POST", **REMOVAL)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert [row.fired for row in world.lium.world.faults] == [1]
        untold.clear()
        await mended(world)

    told(story)


@pytest.mark.parametrize(("ttl", "method"), [("    ttl: 30h\n", "POST"), ("", "DELETE")])
@pytest.mark.parametrize("failure", FAILURES, ids=["503", "lost"])
def test_the_end_of_a_pod_is_changed_through_a_failure(failure: dict[str, object], ttl: str, method: str) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.write("lium.yaml", fleet().replace("    ttl: 24h\n", ttl))
        world.fault(failure, method=method, **REMOVAL)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert [row.fired for row in world.lium.world.faults] == [1]
        await mended(world)

    told(story)
