"""Limits, errors and money: the cases of real tools that turned a limit into a failure, or a refusal into a bill."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.engine.events import EventType
from lium_plan.kinds.protocol import Verb
from lium_plan.requests import ApplyRequest, PlanRequest
from lium_plan.sim.market import held
from tests.simulation.faults import HTML
from tests.simulation.manifests import HEAD, fleet
from tests.simulation.telling import RENT, emptied, mended, rents, told
from tests.support.world import World
from tests.support.world_oracles import agrees

MANY_TEMPLATES = (
    HEAD
    + "fleets:\n"
    + "".join(
        f"  f{number:02}:\n    resources: {{gpu: 'RTX4090:1'}}\n    image: busybox:{number}\n    ttl: 24h\n"
        for number in range(25)
    )
)


def test_f1_25_templates_under_the_servers_limits() -> None:
    """1 in 5 s, 5 a minute, 20 an hour: no failure, said beforehand, and only what needs them waits for them."""

    async def story(world: World) -> None:
        made = await world.apply()
        assert made.code == 0, made.words
        agrees(world, made)
        assert not [row for row in world.lium.world.requests if row.status == 429]
        said = made.plans[0].rate_limit_wait_s
        templates = [event for event in made.events if _is(event.type, "template", event.address)]
        took = (templates[-1].at - made.events[0].at).total_seconds()
        assert took == pytest.approx(said, rel=0.05), "the plan said how long"
        pods = [event for event in made.events if _is(event.type, "fleet", event.address)]
        assert (pods[0].at - made.events[0].at).total_seconds() < 60, "the first pod waits for its own template alone"
        await emptied(world)

    told(story, manifest=MANY_TEMPLATES, expected=[f"f{number:02}-0" for number in range(25)])


def test_f1_what_was_created_within_the_hour_counts_in_the_estimate_and_the_wait_is_told() -> None:
    async def story(world: World) -> None:
        whole = (world.folder / "project" / "lium.yaml").read_text()
        world.write("lium.yaml", LOOSE.format(", ".join(f"t{n}: {{image: 'limsim/a:{n}'}}" for n in range(20))))
        assert (await world.apply()).code == 0
        await world.pass_time(600)
        world.write("lium.yaml", whole)
        made = await world.apply()
        assert made.code == 0, made.words
        assert not [row for row in world.lium.world.requests if row.status == 429]
        templates = [event for event in made.events if _is(event.type, "template", event.address)]
        took = (templates[-1].at - made.events[0].at).total_seconds()
        said = made.plans[0].rate_limit_wait_s
        assert said > 2000
        assert took == pytest.approx(said, rel=0.05), "the plan said how long"
        told_of = [event.phase for event in made.events if event.phase and "server's limit, until" in event.phase]
        assert len(told_of) == 5, "and each that waits says until when"

    whole = ", ".join(f"t{n}: {{image: 'limsim/a:{n}'}}" for n in range(25))
    told(story, manifest=LOOSE.format(whole), expected=())


LOOSE = "version: 1\nproject: cases\ntemplates: {{{}}}\n"


def _is(kind: EventType, head: str, address: object) -> bool:
    return kind is EventType.APPLY_COMPLETE and str(address).startswith(f"{head}.")


def test_f1_an_interrupt_during_a_wait_for_a_limit_is_instant() -> None:
    async def story(world: World) -> None:
        ran = await world.apply(interrupt_after_s=(600,))
        assert ran.code == ExitCode.INTERRUPTED
        assert ran.took_s < 610
        await emptied(world)

    told(story, manifest=MANY_TEMPLATES)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 418, 500, 502, 503])
@pytest.mark.parametrize(
    "body",
    [{"text": HTML}, {"text": ""}, {"text": '{"success": fa'}, {"text": "upstream connect error"}],
    ids=["html", "empty", "truncated", "plain"],
)
def test_f4_bodies_of_every_shape_show_the_status(status: int, body: Mapping[str, str]) -> None:
    async def story(world: World) -> None:
        world.fault({"do": "answer", "status": status, **body}, method="GET", path="pods", times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.ERROR
        assert str(status) in ran.words or {401: "key", 403: "permission"}.get(status, "-") in ran.words.lower()
        assert "<html" not in ran.words.lower()
        assert not rents(world)

    told(story)


@pytest.mark.parametrize("body", [{"text": HTML}, {"text": ""}, {"body": {}}, {"body": []}, {"text": "[{"}])
def test_f4_a_200_that_is_no_answer_to_a_rent(body: Mapping[str, object]) -> None:
    async def story(world: World) -> None:
        world.fault({"do": "answer", "status": 200, "where": "after", **body}, **RENT)
        await mended(world)
        assert len(set(rents(world))) == 1

    told(story)


# --- F5: capacity for some -------------------------------------------------------------------------------------------


def _leave_five(world: World) -> None:
    """Five GPUs of the wanted kind are free in all."""
    left = 5
    for node in tuple(world.lium.world.nodes):
        if node.gpu_model == "RTX 4090":
            room = node.gpu_count - held(world.lium.world, node)
            free = min(left, room) if node.min_rentable == 1 else 0
            left -= free
            others = room - free
            world.lium.world.nodes.put(replace(node, others=others, tier="secure"))


def test_f5_five_of_eight_are_kept_and_used() -> None:
    async def story(world: World) -> None:
        _leave_five(world)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL
        assert len(world.open_charges("pod")) == 5
        assert len(rents(world)) == 5, "no loop"
        assert ran.report is not None
        assert ran.report.running_pods == 5
        await emptied(world)

    told(story, nodes=8)


def test_f5_or_given_back_when_that_is_asked_for() -> None:
    async def story(world: World) -> None:
        _leave_five(world)
        ran = await world.apply(options=ApplyRequest(destroy_new_on_failure=True))
        assert ran.code == ExitCode.PARTIAL
        assert world.open_charges("pod") == ()

    told(story, nodes=8)


@pytest.mark.parametrize(("nodes", "code", "pods"), [("3..8", 0, 5), ("6..8", 3, 0)])
def test_f5_a_range_is_content_with_its_minimum(nodes: str, code: int, pods: int) -> None:
    async def story(world: World) -> None:
        _leave_five(world)
        ran = await world.apply()
        assert (ran.code, len(world.open_charges("pod"))) == (code, pods), ran.words

    told(story, manifest=fleet(nodes), expected=[f"a-{number}" for number in range(pods)])


# --- F6 … F9 ---------------------------------------------------------------------------------------------------------


def test_f6_the_balance_ends_at_the_fourth_of_eight() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "balance", "usd": 0.01}, **RENT, after=3)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL
        assert "insufficient-balance" in ran.words
        assert "permission" not in ran.words
        assert len(world.open_charges("pod")) == 3
        refused = [row for row in world.lium.world.requests if row.path.endswith("/rent") and row.status == 403]
        assert len(refused) == len({row.body for row in refused}), "none was tried twice"
        world.fault({"do": "balance", "usd": 100.0})
        await mended(world)

    told(story, nodes=8)


def test_f8_a_node_that_was_taken_gives_way_to_the_next_offer_at_once() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "take_node"}, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert any(event.type is EventType.SUBSTITUTION for event in ran.events)
        first, second = [row.at for row in world.lium.world.requests if row.path.endswith("/rent")][-2:]
        assert (second - first).total_seconds() < 2

    told(story)


def test_f8_the_whole_search_ends_at_its_deadline() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "take_node"}, **RENT, times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL
        assert 280 < ran.took_s < 320
        phases = {event.phase for event in ran.events if event.phase and "tries again" in event.phase}
        assert phases, ran.events
        for phase in phases:
            assert re.match(r"tries again in 15 s, until \d\d:\d\d:\d\dZ: (refused by|nothing to rent: )", phase), phase
        assert len({phase.partition(": ")[0] for phase in phases}) == 1, "the end of it does not move"
        assert world.open_charges("pod") == ()

    told(story, manifest=fleet(more="    retry: {on_events: [no-capacity], duration: 5m}\n"))


def test_f9_a_delete_that_answers_409_for_20_minutes() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 409}, method="DELETE", path="pods/*", times=None)
        asyncio.get_running_loop().call_later(1200, world.clear_faults)
        stuck = await world.destroy()
        assert stuck.code == ExitCode.PARTIAL
        state = world.state()
        assert state is not None
        assert state.records["fleet.a[0]"].status == "deleting"
        assert "/h" in stuck.words, "with what it costs"
        await world.pass_time(400)
        await emptied(world)

    told(story)


# --- money has a ceiling ---------------------------------------------------------------------------------------------


def test_a_pod_that_comes_back_dearer_than_its_ceiling_is_given_back() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"price_factor": 9}}, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert all(charge.price_per_hour <= 1 for charge in world.open_charges("pod"))
        dear = [charge for charge in world.lium.world.charges if charge.price_per_hour > 1]
        assert dear
        assert all(charge.until is not None for charge in dear)
        seconds = (dear[0].until - dear[0].since).total_seconds() if dear[0].until else 1e9
        assert seconds < 10, "at the first listing that shows it"

    told(story)


def test_no_rent_is_sent_when_the_price_has_risen_beyond_the_ceiling() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "price", "node": "*", "factor": 20}, method="POST", path="templates", where="after")
        world.configure(feed_refresh_seconds=0)
        await world.apply(options=ApplyRequest(wait_timeout_s=60))
        assert all(charge.price_per_hour <= 1 for charge in world.lium.world.charges)

    told(story)


def test_what_waits_for_its_turn_is_not_rented_when_the_price_rises_meanwhile() -> None:
    """Nothing of it was sent, and nothing is left open."""

    async def story(world: World) -> None:
        world.configure(feed_refresh_seconds=0)
        world.fault({"do": "answer", "status": 409, "code": "node_unavailable"}, **RENT)
        world.fault({"do": "answer", "status": 429, "headers": {"Retry-After": "60"}}, **RENT, after=1)
        world.fault({"do": "price", "node": "*", "factor": 20}, at=20)
        ran = await world.apply(options=ApplyRequest(wait_timeout_s=60))
        assert ran.code == ExitCode.PARTIAL, ran.words
        state = world.state()
        assert state is not None
        assert (state.open, len(rents(world))) == ({}, 2)
        assert ran.report is not None
        causes = [result.cause.code for result in ran.report.results if result.cause is not None]
        assert causes == ["no-capacity"] * 2
        assert sorted(item.name for item in state.watched) == sorted(rents(world))

    told(story, nodes=2, expected=())


def test_a_late_pod_under_a_name_that_was_given_up_is_given_back() -> None:
    """The effect of a rent that arrives after it was settled as not done."""

    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True, events_forbidden=True)
        world.fault({"do": "delay", "seconds": 500}, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(world.open_charges("pod")) == 1
        await world.pass_time(300)
        assert len(world.open_charges("pod")) == 2, "the late one came"
        again = await world.apply()
        assert again.code == 0, again.words
        assert len(world.open_charges("pod")) == 1
        agrees(world, again)
        state = world.state()
        assert state is not None
        assert state.watched == (), "it came, and was dealt with"
        await emptied(world)

    told(story)


def test_a_destroy_takes_a_late_pod_along() -> None:
    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True, events_forbidden=True)
        world.fault({"do": "delay", "seconds": 500}, **RENT)
        assert (await world.apply()).code == 0
        await world.pass_time(300)
        assert len(world.open_charges("pod")) == 2
        await emptied(world)

    told(story)


def test_a_target_leaves_everything_else_alone() -> None:
    async def story(world: World) -> None:
        made = await world.apply(request=PlanRequest(targets=("fleet.a[0]",)))
        assert made.report is not None
        assert [str(r.address) for r in made.report.results if r.verb is Verb.CREATE and r.address.head == "fleet"] == [
            "fleet.a[0]"
        ]
        assert len(world.open_charges("pod")) == 1

    told(story, nodes=2)
