"""A task's start whose answer nobody read: only its pod knows, and it runs once."""

from __future__ import annotations

import pytest

from lium_plan.diagnostics import ExitCode
from tests.simulation.leftovers import phases
from tests.simulation.manifests import fleet
from tests.simulation.telling import emptied, mended, record, told
from tests.support.world import World
from tests.support.world_machines import Behaviour

ONE = fleet(tail="tasks:\n  t: {fleet: a, commands: [make t], wait: completed}\n")
LONG = (Behaviour("make t", duration_s=300),)
UNSENT, STARTED = ("ssh start", "before", 1), ("ssh start", "started", 1)


async def killed(world: World, at: tuple[str, str, int]) -> None:
    ran = await world.apply(crash_on=at)
    assert ran.code is None
    await world.pass_time(1)
    assert open_ops(world) == ["start"]


def open_ops(world: World) -> list[str]:
    state = world.state()
    assert state is not None
    return [effect.op for effect in state.open.values()]


def starts(world: World) -> int:
    return sum(effect.what == "start" for effect in world.machines.effects)


@pytest.mark.parametrize(("at", "said"), [(UNSENT, "settled: it never started"), (STARTED, "settled: it had started")])
def test_it_runs_once_whether_it_had_started_or_not(at: tuple[str, str, int], said: str) -> None:
    async def story(world: World) -> None:
        await killed(world, at)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert said in phases(ran)
        assert starts(world) == 1
        assert record(world, "task.t[0]").attributes["exit_code"] == 0
        machine = world.machines.machine(str(record(world).id))
        assert machine is not None
        assert not machine.sessions, "nobody is logged in any more"
        await mended(world)

    told(story, manifest=ONE, behaviours=LONG)


@pytest.mark.parametrize("at", [UNSENT, STARTED])
def test_a_destroy_forgets_it_with_its_pod(at: tuple[str, str, int]) -> None:
    async def story(world: World) -> None:
        await killed(world, at)
        gone = await emptied(world)
        assert "settled: it is forgotten with its pod" in phases(gone)
        assert open_ops(world) == []

    told(story, manifest=ONE, behaviours=LONG)


def test_where_its_pod_has_gone_it_is_started_on_the_next() -> None:
    async def story(world: World) -> None:
        await killed(world, STARTED)
        world.fault({"do": "vanish", "pod": "*-a-0"})
        await world.pass_time(5)
        await world.apply()
        await mended(world)
        assert open_ops(world) == []
        assert record(world, "task.t[0]").attributes["exit_code"] == 0

    told(story, manifest=ONE, behaviours=LONG)


def test_while_its_pod_can_not_be_asked_it_stays_open() -> None:
    async def story(world: World) -> None:
        await killed(world, STARTED)
        world.fault({"do": "ssh", "pod": "*-a-0", "mode": "refuse"})
        unsure = await world.apply()
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        assert "nobody can say whether the task started" in unsure.words
        assert open_ops(world) == ["start"]
        world.fault({"do": "ssh", "pod": "*-a-0", "mode": "none"})
        await mended(world)
        assert starts(world) == 1

    told(story, manifest=ONE, behaviours=LONG)
