"""Tasks whose pod can't be reached for a while: they go on there, and so does whoever waits for them."""

from __future__ import annotations

import pytest

from lium_plan.diagnostics import ExitCode
from tests.simulation.leftovers import phases
from tests.simulation.manifests import fleet
from tests.simulation.telling import mended, record, told
from tests.support.world import World
from tests.support.world_machines import Behaviour

OUT_OF_REACH = "the pod can't be reached at the moment: the task goes on there"
FOR_LONG = (Behaviour("make t", duration_s=2000),)
POD = {"do": "ssh", "pod": "*-a-0"}


def one(more: str = "") -> str:
    return fleet(tail=f"tasks:\n  t: {{fleet: a, commands: [make t]{more}}}\n")


def out_of_reach(world: World, *, at: float, seconds: float | None = None) -> None:
    """From `at` seconds from now, for so long."""
    world.fault({**POD, "mode": "drop"}, at=at)
    world.fault({**POD, "mode": "refuse", **({} if seconds is None else {"seconds": seconds})}, at=at + 0.01)


@pytest.mark.parametrize("seconds", [300, 1500])
def test_it_is_waited_for_all_the_same(seconds: float) -> None:
    async def story(world: World) -> None:
        out_of_reach(world, at=600, seconds=seconds)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert phases(ran).count(OUT_OF_REACH) == 1
        assert phases(ran).count("ssh: port") < 100, "one outage is no flood of words"
        assert record(world, "task.t[0]").status == "completed"
        await mended(world)

    told(story, manifest=one(), behaviours=FOR_LONG)


def test_its_fleet_is_given_back_after_an_outage() -> None:
    async def story(world: World) -> None:
        out_of_reach(world, at=600, seconds=900)
        assert (await world.apply()).code == 0
        assert world.open_charges("pod") == ()

    told(story, manifest=one(", on_completion: destroy-fleet"), behaviours=FOR_LONG, expected=())


def test_not_beyond_its_pods_end() -> None:
    async def story(world: World) -> None:
        out_of_reach(world, at=600)
        world.fault({"do": "vanish", "pod": "*-a-0"}, at=1500)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "the pod is gone" in ran.words
        assert ran.took_s < 1700

    told(story, manifest=one(), behaviours=FOR_LONG)


def test_not_long_beyond_its_longest_duration() -> None:
    async def story(world: World) -> None:
        out_of_reach(world, at=600)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "task-connection" in ran.words
        assert 1800 < ran.took_s < 3000
        assert record(world, "task.t[0]").status == "running"

    told(story, manifest=one(", max_duration: 20m"), behaviours=FOR_LONG)


def test_an_interrupt_ends_the_waiting() -> None:
    async def story(world: World) -> None:
        out_of_reach(world, at=600)
        ran = await world.apply(interrupt_after_s=(1000,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        assert record(world, "task.t[0]").status == "running"

    told(story, manifest=one(), behaviours=FOR_LONG)


def test_who_has_not_been_there_yet_gives_up_in_time() -> None:
    async def story(world: World) -> None:
        await world.apply(interrupt_after_s=(600,))
        world.fault({**POD, "mode": "refuse"})
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "task-connection" in ran.words
        assert ran.took_s < 200

    told(story, manifest=one(), behaviours=FOR_LONG)
