"""Rents whose answers, lists and interrupts come at the worst moment: sent once, and known."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.sim.records import RequestSeen
from tests.simulation.leftovers import keys, killed_with_a_rent_on_its_way, phases
from tests.simulation.manifests import fleet, tails
from tests.simulation.telling import RENT, SEED, emptied, mended, open_ops, record, rents, told, watched
from tests.support.world import World
from tests.support.world_opening import run_world

LIMIT = {"do": "answer", "status": 429}
LISTS = {"method": "GET", "path": "pods"}


def lists(world: World) -> list[RequestSeen]:
    return [row for row in world.lium.world.requests if row.method == "GET" and row.path.endswith("/pods")]


def test_an_interrupt_while_a_limit_is_waited_for_sends_nothing_more() -> None:
    """The limit ends within the time that an answer on its way would be given."""

    async def story(world: World) -> None:
        world.fault({**LIMIT, "headers": {"Retry-After": "7"}}, **RENT)
        ran = await world.apply(interrupt_after_s=(4,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        assert "waiting for the rent limit" in phases(ran)
        await world.pass_time(60)
        assert len(rents(world)) == 1
        assert open_ops(world) == []
        assert watched(world) == rents(world), "a refusal may have been wrong"
        assert "action-failed" not in ran.words
        await mended(world)
        await emptied(world)

    told(story)


def limited_at(**fault: object) -> float:
    """When an apply whose first rent is answered with 429 says so, in seconds from its start."""

    async def story(world: World) -> float:
        world.fault({**LIMIT, "headers": {"Retry-After": "7"}, **fault}, **RENT)
        began = world.now()
        ran = await world.apply()
        said = next(event for event in ran.events if event.phase == "waiting for the rent limit")
        return (said.at - began).total_seconds()

    return run_world(SEED, story, manifest=fleet(), expected=tails(1))


def test_an_interrupt_right_after_a_limit_leaves_nothing_open() -> None:
    async def story(world: World) -> None:
        world.fault({**LIMIT, "headers": {"Retry-After": "7"}}, **RENT)
        ran = await world.apply(interrupt_after_s=(moment + 0.5,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        assert ran.took_s < moment + 1.5
        assert (len(rents(world)), open_ops(world), watched(world)) == (1, [], rents(world))
        await mended(world)
        await emptied(world)

    moment = limited_at()
    told(story)


def test_an_interrupt_while_a_refused_rent_is_looked_for_leaves_it_open() -> None:
    """The pod was made all the same, and the list that would show it can't be read."""

    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True)
        world.fault({**LIMIT, "where": "after"}, **RENT)
        world.fault({"do": "answer", "status": 403}, **LISTS, after=1, times=4)
        ran = await world.apply(interrupt_after_s=(moment + 5,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        assert open_ops(world) == ["rent"]
        assert len(world.open_charges("pod")) == 1
        world.clear_faults()
        assert (await world.apply()).code == 0
        assert len(rents(world)) == 1
        await mended(world)
        await emptied(world)

    moment = limited_at(where="after")
    told(story)


def test_a_rent_that_waited_for_a_limit_is_looked_for_from_when_it_was_sent_last() -> None:
    """Not from when it was first written down: it may still be on its way."""

    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True, events_forbidden=True)
        world.fault({**LIMIT, "headers": {"Retry-After": "200"}}, **RENT)
        world.fault({"do": "delay", "seconds": 300}, **RENT, after=1)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(rents(world)) == 2, "one of them refused"
        assert len(world.open_charges("pod")) == 1
        await mended(world)
        await emptied(world)

    told(story)


def test_an_interrupt_before_the_first_rent_leaves_nothing_to_settle() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "delay", "seconds": 5}, method="POST", path="templates")
        ran = await world.apply(interrupt_after_s=(2,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        assert (rents(world), open_ops(world), watched(world)) == ([], [], [])
        await mended(world)

    told(story)


def test_an_interrupt_while_an_answer_does_not_come_leaves_the_rent_open() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "delay", "where": "after", "seconds": 100}, **RENT)
        ran = await world.apply(interrupt_after_s=(4,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        assert open_ops(world) == ["rent"]
        assert len(world.open_charges("pod")) == 1
        again = await world.apply()
        assert again.code == 0, again.words
        assert len(rents(world)) == 1
        await mended(world)
        await emptied(world)

    told(story)


def test_a_refused_rent_that_may_have_been_carried_out_is_not_sent_again_unseen() -> None:
    """A limit was answered, the pod made, and the list that would show it can't be read."""

    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True)
        world.fault({**LIMIT, "where": "after"}, **RENT)
        world.fault({"do": "answer", "status": 403}, **LISTS, after=1, times=1)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(rents(world)) == 1
        assert len(world.open_charges("pod")) == 1
        await mended(world)

    told(story)


def test_lists_that_fail_now_and_then_do_not_end_a_settlement() -> None:
    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True)
        await killed_with_a_rent_on_its_way(world, served=False)
        for after in (3, 10):
            world.fault({"do": "answer", "status": 403}, **LISTS, after=after, times=4)
        began = len(lists(world))
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(rents(world)) == 2
        asked = [row for row in lists(world)[began:] if (row.at - lists(world)[began].at).total_seconds() < 360]
        assert 100 < len(asked) < 200, "every few seconds"
        failed = [row.at for row in asked if row.status == 403]
        assert len(failed) == 8
        assert all((later - earlier).total_seconds() >= 10 for earlier, later in pairwise(failed))
        await mended(world)
        await emptied(world)

    told(story)


@pytest.mark.parametrize("body", [{}, {"success": True}])
def test_a_repeated_rent_whose_answer_says_nothing_is_looked_for(body: dict[str, object]) -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        world.fault({"do": "answer", "status": 200, "body": body, "where": "after"}, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert any(phase.startswith("settled: found pod ") for phase in phases(ran))
        assert len(set(keys(world))) == 1
        await mended(world)
        await emptied(world)

    told(story)


def test_a_repeated_rent_that_is_answered_with_a_siblings_id_is_looked_for() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        sibling = record(world).id
        world.write("lium.yaml", fleet(2))
        await killed_second(world)
        answer = {"do": "answer", "status": 200, "body": {"success": True, "pod_id": sibling}, "where": "after"}
        world.fault(answer, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert any(phase.startswith("settled: found pod ") for phase in phases(ran))
        assert record(world).id == sibling
        assert len(world.open_charges("pod")) == 2
        await mended(world)

    told(story, expected=("a-0", "a-1"))


async def killed_second(world: World) -> None:
    world.fault({"do": "lose_reply", "where": "before"}, **RENT)
    killed = await world.apply(crash_on=("POST /executors/*/rent", "on its way", 1))
    assert killed.code is None
    await world.pass_time(1)


def test_an_unserved_rent_on_a_template_that_is_wanted_no_more_is_not_sent_again() -> None:
    """The one that is wanted now does not exist yet."""

    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        world.write("lium.yaml", fleet().replace("22.04", "24.04"))
        ran = await world.apply()
        assert ran.code == 0, ran.words
        first, second = keys(world)
        assert first[0] != second[0]
        await mended(world)
        await emptied(world)

    told(story)


def test_an_unserved_rent_is_not_sent_again_without_the_key_file() -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        key = world.folder / "id_ed25519"

        def taken_away(plan: object) -> bool:
            key.rename(key.with_suffix(".away"))
            return True

        failed = await world.apply(approve=taken_away)
        assert failed.code == ExitCode.PARTIAL, world.broken
        assert "ssh-key" in failed.words
        assert len(rents(world)) == 1
        assert open_ops(world) == []
        key.with_suffix(".away").rename(key)
        await mended(world)
        await emptied(world)

    told(story)


def test_a_limit_is_waited_out_and_the_same_request_sent_again() -> None:
    """Also where the server keeps no keys: a list says that nothing was made."""

    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True)
        world.fault({**LIMIT, "headers": {"Retry-After": "3"}}, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        first, second = keys(world)
        assert first == second
        assert ran.took_s < 60
        await mended(world)

    told(story)


def test_a_limit_that_outlasts_the_reading_of_the_market_is_waited_out_too() -> None:
    """The price is read again then, and is still allowed."""

    async def story(world: World) -> None:
        world.fault({**LIMIT, "headers": {"Retry-After": "100"}}, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        first, second = keys(world)
        assert first == second
        assert 60 < ran.took_s < 200
        await mended(world)

    told(story)


def test_a_pod_that_was_made_and_refused_is_given_a_moment_to_show() -> None:
    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True)
        world.fault({"do": "twist", "twist": {"hide_seconds": 0.7}}, **RENT)
        world.fault({**LIMIT, "where": "after"}, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(rents(world)) == 1
        assert len(world.open_charges("pod")) == 1
        await mended(world)

    told(story)


@pytest.mark.parametrize("ttl_h", [24, None])
def test_a_rent_carries_the_time_to_live_if_there_is_one(ttl_h: int | None) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        ((_, body),) = keys(world)
        assert json.loads(body).get("termination_hours") == ttl_h

    told(story, manifest=fleet() if ttl_h else fleet().replace("    ttl: 24h\n", ""))


def test_a_repeated_rent_is_given_its_time_too() -> None:
    """The first one was sent long ago; what is sent now may still be carried out minutes later."""

    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        await world.pass_time(600)
        world.fault({"do": "delay", "seconds": 100}, **RENT)
        world.fault({"do": "lose_reply", "where": "after"}, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(set(keys(world))) == 1
        assert len(world.open_charges("pod")) == 1
        await mended(world)

    told(story)


def test_a_repeated_rent_waits_for_a_limit_that_outlasts_the_reading_of_the_market() -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        world.fault({**LIMIT, "headers": {"Retry-After": "60"}}, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(set(keys(world))) == 1
        assert len(world.open_charges("pod")) == 1
        await mended(world)

    told(story)


@pytest.mark.parametrize("where", ["in a list", "in the events"])
def test_what_bears_a_rents_name_is_taken_from_whoever_was_given_its_id(where: str) -> None:
    """The wrong answer comes first, and no list shows yet what it was really for."""

    async def undisturbed(world: World) -> str:
        assert (await world.apply()).code == 0
        (first,) = (charge.object_id for charge in world.open_charges("pod") if charge.name == rents(world)[0])
        return first

    first = run_world(SEED, undisturbed, manifest=fleet(2), expected=tails(2))

    async def story(world: World) -> None:
        world.fault({"do": "delay", "where": "after", "seconds": 0.02}, **RENT)
        hidden = {"do": "twist", "twist": {"hide_seconds": 30}}
        world.fault(hidden, **RENT, after=int(where == "in a list"), times=None)
        world.fault({"do": "answer", "status": 200, "where": "after", "body": {"pod_id": first}}, **RENT, after=1)
        killed = await world.apply(kill_after_s=10)
        assert killed.code is None
        assert "looking for a rent whose answer was lost" in phases(killed)
        assert record(world).id == first
        assert record(world, "fleet.a[1]").id is None, "a state in which two hold one pod could not be read"
        await world.pass_time(60)
        await mended(world)
        assert len(rents(world)) == 2
        assert len({record(world, key).id for key in ("fleet.a[0]", "fleet.a[1]")}) == 2
        await emptied(world)

    told(story, nodes=2)


def test_an_answer_with_a_siblings_id_is_not_written_down() -> None:
    """A state in which two hold one pod could not be read after a crash."""

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        sibling = record(world).id
        world.configure(events_forbidden=True, no_rent_idempotency=True)
        world.fault({"do": "twist", "twist": {"hide_seconds": 30}}, **RENT)
        world.fault({"do": "answer", "status": 200, "where": "after", "body": {"pod_id": sibling}}, **RENT)
        world.write("lium.yaml", fleet(2))
        killed = await world.apply(kill_after_s=10)
        assert killed.code is None
        assert open_ops(world) == ["rent"]
        await mended(world)
        assert len(world.open_charges("pod")) == 2
        assert record(world).id == sibling

    told(story, expected=tails(2))


def test_a_pod_that_is_not_listed_yet_is_waited_for_when_nobody_can_say_whether_it_ended() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"hide_seconds": 30}}, **RENT)
        world.fault({"do": "answer", "status": 503}, method="GET", path="users/me/events", times=None)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(rents(world)) == 1
        world.clear_faults()
        await mended(world)
        await emptied(world)

    told(story)
