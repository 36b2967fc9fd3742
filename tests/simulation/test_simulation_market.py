"""A hostile market, bounded (`python -m tests.simulation.market` for more), and single stories about money in it."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import httpx
import pytest

from lium_plan import operations
from lium_plan.diagnostics import ExitCode
from lium_plan.engine.events import EventType
from lium_plan.requests import ApplyRequest, PlanRequest
from lium_plan.sim import money
from lium_plan.sim.market import held
from lium_plan.sim.rows import Charge
from lium_plan.sim.settings import Settings as ServerSettings
from tests.simulation.manifests import BOOTSTRAP, HEAD, fleet, tails
from tests.simulation.market import draw, tell
from tests.simulation.market import told as tale_told
from tests.simulation.telling import RENT, emptied, record, rents, told
from tests.support.world import ACCOUNT, World
from tests.support.world_machines import Behaviour
from tests.support.world_market import Terms, Watch
from tests.support.world_opening import run_world
from tests.support.world_oracles import all_done

SEEDS = 20
CHUNK = 5
HOUR_S = 3600.0
LOGIN = {"X-API-Key": f"sk_sim_{ACCOUNT}"}


@pytest.mark.parametrize("first", range(1, SEEDS, CHUNK))
def test_no_rent_above_a_ceiling_whatever_the_market_does(first: int) -> None:
    rented = 0
    for seed in range(first, first + CHUNK):
        verdict = tell(draw(seed))
        rented += verdict.rents
        if verdict.broken:
            pytest.fail(tale_told(verdict))
    assert rented > 10, "a market in which nothing is rented shows nothing"


# --- the watch can see -----------------------------------------------------------------------------------------------


def rent_body(tail: str = "a-0", hours: int = 24) -> dict[str, object]:
    return {"pod_name": f"lp-123456-abcdef-aaaaaaaa-{tail}", "gpu_count": 1, "termination_hours": hours}


def test_the_watch_sees_each_broken_promise() -> None:
    async def story(world: World) -> None:
        watch = Watch(world, {"a": Terms(Decimal("1.00"), 24)})
        row = {"id": "n1", "price_per_gpu_hour": 1.01, "available_gpu_count": 1}
        cheap = {**row, "price_per_gpu_hour": 0.50}
        tails = iter(f"a-{number}" for number in range(9))

        def broken(feed: object, *, hours: int = 24, age_s: float = 0.0) -> set[str]:
            world.broken.clear()
            watch.read_market("feed", world.clock - age_s, {"nodes": [feed]})
            tail = next(tails)
            watch.rent_leaves("n1", f"key of {tail}", rent_body(tail, hours))
            return {text.partition(":")[0] for text in world.broken}

        watch.begins(limit_usd=None)
        assert broken(cheap) == set()
        assert broken(row) == {"M1"}, "too dear"
        assert broken({**cheap, "id": "n2"}) == {"M1"}, "not on offer"
        assert broken(cheap, age_s=61) == {"M1"}, "read too long ago"
        assert broken(cheap, hours=0) == {"M5"}
        watch.begins(limit_usd=Decimal("1.90"))
        assert broken(cheap) == set()
        assert broken(cheap) == {"M2"}, "the one before is still on its way, at its ceiling"
        world.broken.clear()

    run_world(5, story, manifest=fleet(1), expected=(), checks=())


# --- dearer than agreed ----------------------------------------------------------------------------------------------


def cost_of(world: World, charge: Charge) -> Decimal:
    return money.amount(world.lium.world, charge)


def test_what_comes_back_dearer_counts_at_its_price_until_it_has_gone() -> None:
    """The limit has room for it at its ceiling, and not at what it costs while the server refuses to delete it."""

    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"price_factor": 9}}, **RENT)
        world.fault({"do": "answer", "status": 429, "headers": {"Retry-After": "20"}}, **RENT, after=1)
        world.fault({"do": "answer", "status": 409}, method="DELETE", path="pods/*", times=None)
        ran = await world.apply(options=ApplyRequest(wait_timeout_s=60))
        assert ran.code == ExitCode.PARTIAL, ran.words
        dear = next(charge for charge in world.open_charges("pod") if charge.price_per_hour > 1)
        assert f"may still cost ${dear.price_per_hour:.2f}/h" in ran.words
        assert record(world).attributes["price_per_hour_usd"] == str(dear.price_per_hour.normalize())
        assert "max-hourly-cost" in ran.words, "the other one waited for room that did not come"
        assert len(rents(world)) == 2
        world.clear_faults()
        await emptied(world)

    manifest = fleet(2, more=RETRY).replace("fleets:", "policy: {max_hourly_cost: 2.00}\nfleets:")
    told(story, manifest=manifest)


def test_a_lost_rent_that_is_dearer_goes_back_before_others_are_settled() -> None:
    """Of two rents whose answers were lost one is found, and dear; the other one takes six minutes to settle."""

    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"price_factor": 9}}, **RENT)
        world.fault({"do": "lose_reply", "where": "after"}, **RENT)
        world.fault({"do": "lose_reply", "where": "before"}, **RENT, after=1)
        world.configure(no_rent_idempotency=True)
        await world.apply(crash_on=("POST /executors/*/rent", "on its way", 2))
        ran = await world.apply()
        (dear,) = (charge for charge in world.lium.world.charges if charge.price_per_hour > 1)
        assert dear.until is not None
        assert (dear.until - dear.since).total_seconds() < 15
        assert ran.report is not None
        assert [proof.id for proof in ran.report.proofs] == [dear.object_id], "and that is told"
        assert any(event.type is EventType.PROOF for event in ran.events)

    told(story, nodes=2)


def test_a_confirmed_ceiling_outlives_the_settling_of_an_open_rent() -> None:
    """Without `max_price` it is a tenth above the offer that was shown, not above what the market wants later."""

    async def story(world: World) -> None:
        world.configure(feed_refresh_seconds=0)
        world.fault({"do": "lose_reply", "where": "before"}, **RENT)
        await world.apply(crash_on=("POST /executors/*/rent", "on its way", 1))
        # `GET /version` is asked when a repeat is thought of: after the plan was confirmed.
        world.fault({"do": "price", "node": "*", "factor": 3}, method="GET", path="version")
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "its ceiling $0.33" in ran.words
        assert world.open_charges("pod") == ()

    told(story, manifest=fleet(1).replace("    max_price: 1.00\n", ""), expected=())


@pytest.mark.parametrize(("limit", "pods"), [(None, 1), ("0.99", 0), ("1.00", 1)])
def test_a_saved_plan_keeps_to_the_lower_of_both_limits(limit: str | None, pods: int, tmp_path: Path) -> None:
    async def story(world: World) -> None:
        path = tmp_path / "plan.json"
        await world.apply(approve=lambda plan: (operations.save_plan(plan, path), False)[1])
        most = None if limit is None else Decimal(limit)
        await world.apply(options=ApplyRequest(plan_file=path), request=PlanRequest(max_hourly_cost_usd=most))
        assert len(world.open_charges("pod")) == pods

    told(story, expected=tails(pods))


# --- a laptop that is gone for good ----------------------------------------------------------------------------------

LAPTOP = HEAD + (
    "fleets:\n  a:\n    resources: {gpu: 'RTX4090:1'}\n    max_price: 1.00\n    image: ubuntu:22.04\n    ttl: 2h\n"
    "    bootstrap: {commands: [make ready], timeout: 30m}\n"
)
WAYS = {
    "while the rent is on its way": {"crash_on": ("POST /executors/*/rent", "on its way", 1)},
    "before its answer is read": {"crash_on": ("POST /executors/*/rent", "answered", 1)},
    "while it waits for the pod": {"kill_after_s": 10.0},
    "before the deadline is corrected": {"crash_on": ("POST /pods/*/schedule-removal", "before", 1)},
    "after the deadline is corrected": {"crash_on": ("POST /pods/*/schedule-removal", "answered", 1)},
    "while it sets the pod up": {"crash_on": ("ssh run", "before", 1)},
}


@pytest.mark.parametrize("creating_s", [20, 600])
@pytest.mark.parametrize("way", WAYS)
def test_the_bill_of_a_killed_laptop_ends_with_its_ttl(way: str, creating_s: int) -> None:
    """2 h, and what the server's clock may add: it counts anew from RUNNING until somebody corrects it."""

    async def story(world: World) -> None:
        ran = await world.apply(**WAYS[way])  # type: ignore[arg-type]
        if creating_s < 300 and "deadline" in way:
            assert ran.code == 0, "within five minutes nothing is corrected"
        else:
            assert ran.code is None, ran.words
        await world.pass_time(30 * HOUR_S)
        assert world.open_charges("pod") == ()
        (charge,) = (
            row for row in world.lium.world.charges if row.kind == "pod" and row.object_id not in world.foreign
        )
        assert charge.until is not None
        corrected = creating_s > 300 and way in ("after the deadline is corrected", "while it sets the pod up")
        billed_s = (charge.until - charge.since).total_seconds()
        assert billed_s == pytest.approx(2 * HOUR_S + (0 if corrected else creating_s), abs=1.5)
        assert float(cost_of(world, charge)) <= float(charge.price_per_hour) * (2 + creating_s / HOUR_S + 0.001)
        gone = await emptied(world)
        assert gone.report is not None
        assert gone.report.running_per_hour_usd == 0

    server = ServerSettings(latency_seconds=0.05, balance_usd=1000, create_seconds=creating_s)
    told(story, manifest=LAPTOP, behaviours=(Behaviour("make ready", 600.0),), server=server)


# --- money that runs out ---------------------------------------------------------------------------------------------

RETRY = "    retry: {on_events: [no-capacity, interruption], duration: 30m}\n"


def budget(world: World, usd: str) -> None:
    for key in tuple(world.lium.world.keys):
        world.lium.world.keys.change(key.id, daily_budget_usd=Decimal(usd))


@pytest.mark.parametrize(("trouble", "status", "code", "cure"), [
    ("budget", 402, "key-budget", "the API key's own budget"),
    ("balance", 403, "insufficient-balance", "top up"),
])  # fmt: skip
def test_an_empty_purse_is_told_by_its_name_and_never_tried_again(
    trouble: str, status: int, code: str, cure: str
) -> None:
    async def story(world: World) -> None:
        if trouble == "budget":
            budget(world, "0.01")
        else:
            world.fault({"do": "balance", "usd": 0.01}, method="POST", path="templates")
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL
        assert f"{code}: " in ran.words
        assert "no-capacity" not in ran.words
        assert "permission" not in ran.words
        assert ran.took_s < 60, "no retry waits for money"
        assert ran.report is not None
        hints = {(item.cause.hint or "").lower() for item in ran.report.results if item.cause}
        assert any(cure.lower() in hint for hint in hints), hints
        refused = [row for row in world.lium.world.requests if row.path.endswith("/rent") and row.status == status]
        assert len(refused) == len({json.loads(row.body or "{}")["pod_name"][-3:] for row in refused}) == 2
        assert world.open_charges("pod") == ()

    told(story, manifest=fleet(2, more=RETRY), expected=())


def test_the_plan_tells_the_balance_its_floor_and_how_long_it_lasts() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "balance", "usd": 6.66})
        ran = await world.apply()
        assert ran.code == 0, ran.words
        cost = ran.plans[0].cost
        others = sum(c.price_per_hour for c in world.lium.world.charges if c.object_id in world.foreign)
        per_hour = Decimal("0.30") + others
        assert cost.balance_usd == pytest.approx(Decimal("6.66"), abs=Decimal("0.001"))
        assert cost.balance_floor_usd == per_hour / 4
        assert cost.runway_s == pytest.approx(float(Decimal("6.66") / per_hour) * HOUR_S, abs=5)

    told(story)


@pytest.mark.parametrize(("path", "key"), [("public/v1/nodes", "nodes"), ("executors", None)])
def test_rows_that_make_no_sense_hide_no_others(path: str, key: str | None) -> None:
    async def story(world: World) -> None:
        async with httpx.AsyncClient(
            transport=world.lium.transport, base_url=world.lium.base_url, headers=LOGIN
        ) as user:
            body = (await user.get(path)).json()
        rows = body if key is None else body[key]
        odd = [{**rows[0], "id": id} for id in ({}, [1], None, 7, True, "")]
        rows[:0] = [*odd, "no row", None, *odd * 20]
        world.fault({"do": "answer", "status": 200, "body": body}, method="GET", path=path, times=None)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        all_done(world)

    told(story, nodes=2)


# --- who wants no, and who is taken away -----------------------------------------------------------------------------


def leave_one(world: World) -> str:
    """One node with one GPU of the kind is left; its id."""
    nodes = world.lium.world.nodes
    ours = [node for node in nodes if node.gpu_model == "RTX 4090"]
    for node in ours:
        nodes.put(replace(node, others=node.gpu_count))
    kept = next(node for node in ours if node.min_rentable == 1 and not held(world.lium.world, node))
    nodes.put(replace(kept, others=kept.gpu_count - 1, tier="secure"))
    return kept.id


def test_a_node_that_refused_serves_minutes_later_while_retry_lasts() -> None:
    async def story(world: World) -> None:
        node = leave_one(world)
        world.fault({"do": "answer", "status": 400, "code": "node_unavailable"}, **RENT, times=4)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert 45 < ran.took_s < 600
        sent = [row for row in world.lium.world.requests if row.path.endswith(f"{node}/rent")]
        assert [row.status for row in sent] == [400, 400, 400, 400, 200]
        assert len({row.idempotency_key for row in sent}) == 5, "a new key for every try"

    told(story, manifest=fleet(1, more=RETRY))


def test_what_comes_on_offer_while_retry_lasts_is_enough() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "price", "node": "*", "factor": 20})
        world.fault({"do": "price", "node": "*", "factor": 0.05}, at=200.0)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert 200 < ran.took_s < 400
        all_done(world)

    told(story, manifest=fleet(1, more=RETRY))


def test_strict_offers_refuse_rather_than_take_another() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "take_node"}, **RENT)
        ran = await world.apply(options=ApplyRequest(strict_offers=True))
        assert ran.code == ExitCode.PARTIAL
        assert "strict-offers" in ran.words
        assert len(rents(world)) == 1
        assert not [event for event in ran.events if event.type is EventType.SUBSTITUTION]

    told(story)


def test_each_substitution_is_said_and_placed_on_a_reading_of_the_last_minute() -> None:
    async def story(world: World) -> None:
        watch = Watch(world, {"a": Terms(Decimal("1.00"), 24)})
        watch.begins(limit_usd=None)
        world.fault({"do": "take_node"}, **RENT, times=2)
        world.fault({"do": "delay", "seconds": 20, "where": "before"}, **RENT, times=4)
        ran = await world.apply(approve=watch.confirmed)
        watch.ended(ran, disturbed=False)
        assert ran.code == 0, ran.words
        assert watch.substitutions >= 2
        said = [event for event in ran.events if event.type is EventType.SUBSTITUTION]
        assert all(event.price_per_hour_usd is not None for event in said)

    told(story, nodes=3)


def all_spot(world: World) -> None:
    for node in tuple(world.lium.world.nodes):
        world.lium.world.nodes.put(replace(node, tier="spot"))


SPOT = fleet(1, more=f"    spot_policy: spot\n{RETRY}{BOOTSTRAP}")


def test_a_reclaimed_spot_pod_is_rented_again_and_no_failure() -> None:
    async def story(world: World) -> None:
        all_spot(world)
        world.fault({"do": "reclaim", "pod": "*-a-0"}, at=60.0)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        ours = [row for row in world.lium.world.charges if row.kind == "pod" and row.object_id not in world.foreign]
        assert len(ours) == 2
        all_done(world)

    told(story, manifest=SPOT, behaviours=(Behaviour("make ready", 120.0),))


def test_where_every_successor_is_too_dear_few_are_tried_and_none_twice() -> None:
    """Each try is billed. The feed shows the old prices all the time."""

    async def story(world: World) -> None:
        all_spot(world)
        world.fault({"do": "reclaim", "pod": "*-a-0"}, at=60.0)
        world.fault({"do": "twist", "twist": {"price_factor": 9}}, at=60.0, **RENT, times=99)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL
        ours = [row for row in world.lium.world.charges if row.kind == "pod" and row.object_id not in world.foreign]
        assert len(ours) == 1 + 3
        assert len({row.node_id for row in ours[1:]}) == 3
        assert world.open_charges("pod") == ()
        assert ran.words.count("the ceiling is") == 3
        assert ran.report is not None
        notes = {str(item.address): item.note for item in ran.report.results}
        assert notes["fleet.a[0]"] == "taken away since"

    told(story, manifest=SPOT, behaviours=(Behaviour("make ready", 120.0),), expected=())


def test_where_no_successor_is_to_be_had_the_failure_says_why_and_when_it_will() -> None:
    async def story(world: World) -> None:
        all_spot(world)
        world.fault({"do": "reclaim", "pod": "*-a-0"}, at=60.0)
        world.fault({"do": "price", "node": "*", "factor": 20}, at=59.0)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL
        assert "taken away (spot_reclaimed), and no other was had: " in ran.words
        assert "max_price" in ran.words
        looking = [event for event in ran.events if "taken away: looking for another, until " in (event.phase or "")]
        assert len(looking) == 1
        assert 1800 < ran.took_s < 2000, "as long as retry says"

    told(story, manifest=SPOT, behaviours=(Behaviour("make ready", 120.0),), expected=())


def test_successors_that_can_not_be_had_leave_what_there_was() -> None:
    """Of a fleet that is content with fewer, replaced one beside the other."""

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "take_node"}, **RENT, times=None)
        ran = await world.apply(request=PlanRequest(replace=("fleet.a[0]", "fleet.a[1]")))
        assert ran.code in (ExitCode.OK, ExitCode.PARTIAL), ran.words
        assert len(world.open_charges("pod")) == 2

    told(story, manifest=fleet("1..2", more="    lifecycle: {create_before_destroy: true}\n"), expected=tails(2))


@pytest.mark.parametrize("more", ["", "    lifecycle: {create_before_destroy: true}\n"])
@pytest.mark.parametrize("events", ["interruption", "no-capacity, interruption"])
def test_an_interruption_is_made_up_for_only_within_the_ceiling(events: str, more: str) -> None:
    """Prices have risen by then: it goes on trying while `retry` lasts, and rents nothing dearer, however often."""

    async def story(world: World) -> None:
        world.configure(feed_refresh_seconds=0)
        world.fault({"do": "reclaim", "pod": "*-a-0"}, at=60.0)
        world.fault({"do": "price", "node": "*", "factor": 4}, at=59.0)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL
        assert "interruption" in ran.words
        assert 1800 < ran.took_s < 2200
        assert len(rents(world)) == 1

    retry = RETRY.replace("no-capacity, interruption", events)
    manifest = fleet(1, more=f"{retry}{BOOTSTRAP}{more}").replace("    max_price: 1.00\n", "")
    told(story, manifest=manifest, expected=(), behaviours=(Behaviour("make ready", 120.0),))


def test_a_market_that_can_not_be_read_is_tried_again_while_retry_lasts() -> None:
    async def story(world: World) -> None:
        leave_one(world)
        world.fault(
            {"do": "answer", "status": 200, "text": "[{"}, method="GET", path="public/v1/nodes", after=1, times=3
        )
        ran = await world.apply()
        assert ran.code == 0, ran.words

    told(story, manifest=fleet(1, more=RETRY))


# --- time to live ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("creating_s", "corrected"), [(20, False), (280, False), (330, True), (1000, True)])
def test_the_ttl_is_in_the_rent_and_corrected_once_it_runs_if_it_moved(creating_s: int, corrected: bool) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        (sent,) = (
            row for row in world.lium.world.requests if row.path.endswith("/rent") and row.body and "lp-" in row.body
        )
        assert json.loads(sent.body or "{}")["termination_hours"] == 24
        moved = [row for row in world.lium.world.requests if row.path.endswith("/schedule-removal")]
        assert len(moved) == corrected
        pod = world.lium.world.pods[str(record(world).id)]
        assert pod.removal_scheduled_at is not None
        late_s = (pod.removal_scheduled_at - pod.created_at).total_seconds() - 24 * HOUR_S
        assert late_s == pytest.approx(0 if corrected else creating_s, abs=2)

    server = ServerSettings(latency_seconds=0.05, balance_usd=1000, create_seconds=creating_s)
    told(story, server=server)


def test_a_ttl_that_the_server_has_lost_is_drift_and_armed_again() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        pod_id = str(record(world).id)
        before = world.lium.world.pods[pod_id].removal_scheduled_at
        world.lium.world.pods.change(pod_id, removal_scheduled_at=None, removal_follows_boot=False)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert [(str(drift.address), drift.status) for drift in ran.plans[0].drift] == [("fleet.a[0]", "ttl-lost")]
        after = world.lium.world.pods[pod_id].removal_scheduled_at
        assert before is not None
        assert after is not None
        assert abs((after - before).total_seconds()) <= 300

    told(story)
