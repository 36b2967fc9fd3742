"""Pods that are taken away in the middle of work, and what goes wrong while others are looked for in their places."""

from __future__ import annotations

from lium_plan.diagnostics import ExitCode
from lium_plan.requests import PlanRequest
from tests.simulation.manifests import BOOTSTRAP, fleet, tails
from tests.simulation.telling import RENT, emptied, mended, told
from tests.support.world import Ran, World
from tests.support.world_machines import Behaviour
from tests.support.world_oracles import all_done

RETRY = "    retry: {on_events: [no-capacity, interruption], duration: 30m}\n"
TASKS = "tasks:\n" + "".join(f"  {name}: {{fleet: a, commands: [train], wait: completed}}\n" for name in "tu")
SLOW = (Behaviour("make ready", 120.0), Behaviour("train", 120.0))


def ours(world: World) -> int:
    """So many pods were ever rented."""
    return sum(row.kind == "pod" and row.object_id not in world.foreign for row in world.lium.world.charges)


def tries(ran: Ran) -> int:
    return sum("looking for another" in (event.phase or "") for event in ran.events)


def test_a_rent_that_another_member_begins_meanwhile_is_known() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "answer", "status": 409, "code": "node_unavailable"}, **RENT, after=1, times=24)
        world.fault({"do": "reclaim", "pod": "*-a-0"}, at=59.0)
        # The look of the one takes as long as the rent of the other.
        world.fault({"do": "delay", "seconds": 8, "where": "before"}, at=58.5, method="GET", path="pods", times=None)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ours(world) == 3
        world.clear_faults()
        all_done(world)

    told(story, manifest=fleet(2, more=RETRY + BOOTSTRAP), expected=tails(2), behaviours=SLOW)


def test_an_outage_is_waited_out() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "reclaim", "pod": "*-a-0"}, at=60.0)
        world.fault({"do": "answer", "status": 503}, at=59.9, method="GET", path="users/me", times=3)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ours(world) == 2
        all_done(world)

    told(story, manifest=fleet(1, more=RETRY + BOOTSTRAP), behaviours=SLOW)


def test_where_the_pod_is_excluded_none_is_looked_for() -> None:
    async def story(world: World) -> None:
        assert (await world.apply(request=PlanRequest(excludes=("task.*",)))).code == 0
        world.fault({"do": "reclaim", "pod": "*-a-0"}, at=30.0)
        ran = await world.apply(request=PlanRequest(excludes=("fleet.a",)))
        assert ran.code == ExitCode.PARTIAL
        assert tries(ran) == 0
        assert ours(world) == 1
        await mended(world)

    told(story, manifest=fleet(1, more=RETRY, tail=TASKS), behaviours=SLOW)


def test_while_a_successors_rent_is_open_no_second_one_is_sent() -> None:
    """Two tasks wait for the same pod; what became of the rent that the first one's try sent is not known yet."""

    async def story(world: World) -> None:
        world.fault({"do": "reclaim", "pod": "*-a-0"}, at=60.0)
        unclear = {"do": "answer", "status": 409, "code": "idempotency_outcome_unknown"}
        world.fault(unclear, **RENT, after=1, times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.UNKNOWN_OUTCOME, ran.words
        state = world.state()
        assert state is not None
        assert [(effect.op, str(effect.address)) for effect in state.open.values()] == [("rent", "fleet.a[0]")]
        sent = [row for row in world.lium.world.requests if row.path.endswith("/rent")]
        assert len({row.idempotency_key for row in sent if row.idempotency_key}) == 2
        world.clear_faults()
        await mended(world)
        assert ours(world) == 2
        await emptied(world)

    told(story, manifest=fleet(1, more=RETRY, tail=TASKS), behaviours=SLOW)


def test_what_failed_before_the_lost_pod_ends_no_search_for_its_successor() -> None:
    """The first container could not be made, the second one was reclaimed; then nothing is on offer for two minutes."""

    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"fails": "Failed to pull"}}, **RENT, times=1)
        world.fault({"do": "reclaim", "pod": "*-a-0"}, at=150.0)
        world.fault({"do": "take_node", "node": "*"}, at=149.9)
        world.fault({"do": "free_node", "node": "*"}, at=300.0)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ours(world) == 3
        all_done(world)

    told(story, manifest=fleet(1, more=RETRY.replace("no-capacity, ", "") + BOOTSTRAP), behaviours=SLOW)


def test_two_limits_far_apart_are_no_limit_that_lasts() -> None:
    async def story(world: World) -> None:
        limit = {"do": "answer", "status": 429}
        world.fault(limit, **RENT, times=1)
        world.fault({"do": "lose_reply", "where": "after"}, **RENT, after=1, times=1)
        world.fault({"do": "reclaim", "pod": "*-a-0"}, at=1300.0)
        world.fault(limit, **RENT, after=2, times=1)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ours(world) == 2
        all_done(world)

    long = BOOTSTRAP.replace("timeout: 5m", "timeout: 60m")
    assert long != BOOTSTRAP
    told(story, manifest=fleet(1, more=RETRY + long), behaviours=(Behaviour("make ready", 1500.0),))
