"""A task's start whose answer nobody read: only its pod knows, and it runs once."""

from __future__ import annotations

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.requests import PlanRequest
from tests.simulation.leftovers import phases
from tests.simulation.manifests import fleet
from tests.simulation.telling import emptied, mended, open_ops, record, told
from tests.support.world import World
from tests.support.world_machines import Behaviour, now_s

ONE = fleet(tail="tasks:\n  t: {fleet: a, commands: [make t], wait: completed}\n")
LONG = (Behaviour("make t", duration_s=300),)
UNSENT, STARTED = ("ssh start", "before", 1), ("ssh start", "started", 1)


async def killed(world: World, at: tuple[str, str, int]) -> None:
    ran = await world.apply(crash_on=at)
    assert ran.code is None
    await world.pass_time(1)
    assert open_ops(world) == ["start"]


def running(world: World) -> int:
    """How many of them run now."""
    machine = world.machines.machine(str(record(world).id))
    assert machine is not None
    return sum(not started.ended(now_s()) for started in machine.commands.values())


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


def gone(world: World) -> bool:
    state = world.state()
    assert state is not None
    return "task.t[0]" not in state.records and not state.open and running(world) == 0


@pytest.mark.parametrize(("at", "started"), [(UNSENT, 0), (STARTED, 1)])
def test_one_that_is_no_longer_declared_is_stopped_on_the_pod_that_stays(
    at: tuple[str, str, int], started: int
) -> None:
    async def story(world: World) -> None:
        await killed(world, at)
        assert running(world) == started
        world.write("lium.yaml", fleet())
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ran.plans[0].open[0].will == "ask the pod whether it started, and stop it, or forget it with its pod"
        assert gone(world)
        world.write("lium.yaml", ONE)
        await mended(world)
        assert starts(world) == started + 1

    told(story, manifest=ONE, behaviours=LONG)


def test_one_that_is_destroyed_by_itself_is_stopped_on_the_pod_that_stays() -> None:
    async def story(world: World) -> None:
        await killed(world, STARTED)
        world.run_checks = []  # they expect a destroy to leave nothing
        ran = await world.destroy(request=PlanRequest(targets=("task.t",)))
        assert ran.code == 0, ran.words
        assert gone(world)
        assert len(world.open_charges("pod")) == 1

    told(story, manifest=ONE, behaviours=LONG)


def test_what_is_wanted_no_more_goes_with_its_pod() -> None:
    two = ONE.replace(
        "tasks:", "  b: {nodes: 1, resources: {gpu: 'RTX4090:1'}, max_price: 1.00, image: u, ttl: 24h}\ntasks:"
    )

    async def story(world: World) -> None:
        await killed(world, STARTED)
        world.write("lium.yaml", two.replace("  a:", "  c:").partition("tasks:")[0])
        world.expected = frozenset(("b-0", "c-0"))
        ran = await world.apply(request=PlanRequest(allow_destroy=("all",)))
        assert ran.code == 0, ran.words
        assert open_ops(world) == []
        await mended(world)

    told(story, manifest=two, expected=("a-0", "b-0"), behaviours=LONG)


def test_what_is_wanted_no_more_stays_open_while_its_pod_can_not_be_asked() -> None:
    async def story(world: World) -> None:
        await killed(world, STARTED)
        world.write("lium.yaml", fleet())
        world.fault({"do": "ssh", "pod": "*-a-0", "mode": "refuse"})
        assert (await world.apply()).code == ExitCode.UNKNOWN_OUTCOME
        assert open_ops(world) == ["start"]
        world.fault({"do": "ssh", "pod": "*-a-0", "mode": "none"})
        assert (await world.apply()).code == 0
        assert running(world) == 0

    told(story, manifest=ONE, behaviours=LONG)
