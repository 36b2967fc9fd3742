"""A task that goes to another pod while it runs is stopped on the one that it leaves: it never runs twice."""

from __future__ import annotations

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.requests import PlanRequest
from tests.simulation.manifests import HEAD
from tests.simulation.telling import emptied, mended, record, told
from tests.support.world import World
from tests.support.world_machines import Behaviour, now_s

FOREVER = (Behaviour("make t", duration_s=1e6),)
MOVED = 'moved: [{from: "task.t[x]", to: "task.t[0]"}]\n'


def two_fleets(task_on: str, *, member: str = "x", more: str = "") -> str:
    pods = "resources: {gpu: 'RTX4090:1'}, max_price: 1.00, image: ubuntu:22.04, ttl: 24h"
    return (
        f"{HEAD}fleets:\n  a: {{nodes: [{member}], {pods}}}\n  b: {{nodes: 1, {pods}}}\n"
        f"tasks:\n  t: {{fleet: {task_on}, commands: [make t], wait: started}}\n{more}"
    )


def runs_on(world: World, address: str) -> bool:
    machine = world.machines.machine(str(record(world, address).id))
    assert machine is not None
    return any(not started.ended(now_s()) for started in machine.commands.values())


@pytest.mark.parametrize(("member", "more"), [("x", ""), ("x", MOVED), ("0", "")])
def test_it_is_stopped_on_the_pod_that_it_leaves(member: str, more: str) -> None:
    async def story(world: World) -> None:
        world.awaits_tasks = False
        assert (await world.apply()).code == 0
        assert runs_on(world, f"fleet.a[{member}]")
        world.write("lium.yaml", two_fleets("b", member=member, more=more))
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert "rename" not in ran.words
        assert not runs_on(world, f"fleet.a[{member}]")
        assert runs_on(world, "fleet.b[0]")
        await mended(world)
        await emptied(world)

    told(story, manifest=two_fleets("a", member=member), behaviours=FOREVER, expected=(f"a-{member}", "b-0"))


def test_where_it_can_not_be_stopped_no_second_one_is_started() -> None:
    async def story(world: World) -> None:
        world.awaits_tasks = False
        assert (await world.apply()).code == 0
        world.write("lium.yaml", two_fleets("b", member="0"))
        world.fault({"do": "ssh", "pod": "*-a-0", "mode": "refuse"})
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "it may still run on fleet.a[0]" in ran.words
        assert runs_on(world, "fleet.a[0]")
        assert not runs_on(world, "fleet.b[0]")
        world.fault({"do": "ssh", "pod": "*-a-0", "mode": "none"})
        assert (await world.apply()).code == 0
        assert not runs_on(world, "fleet.a[0]")
        assert runs_on(world, "fleet.b[0]")

    told(story, manifest=two_fleets("a", member="0"), behaviours=FOREVER, expected=("a-0", "b-0"))


def test_with_the_pod_that_it_leaves_it_goes_too() -> None:
    async def story(world: World) -> None:
        world.awaits_tasks = False
        assert (await world.apply()).code == 0
        only_b = two_fleets("b", member="0").replace("  a: {nodes: [0], ", "  c: {nodes: 1, ")
        world.write("lium.yaml", only_b)
        world.expected = frozenset(("b-0", "c-0"))
        ran = await world.apply(request=PlanRequest(allow_destroy=("all",)))
        assert ran.code == 0, ran.words
        assert runs_on(world, "fleet.b[0]")
        await mended(world)

    told(story, manifest=two_fleets("a", member="0"), behaviours=FOREVER, expected=("a-0", "b-0"))


def test_one_whose_start_was_lost_is_stopped_where_it_had_started() -> None:
    async def story(world: World) -> None:
        world.awaits_tasks = False
        assert (await world.apply(crash_on=("ssh start", "started", 1))).code is None
        await world.pass_time(1)
        world.write("lium.yaml", two_fleets("b", member="0"))
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ran.report is not None
        assert [(str(item.address), item.note) for item in ran.report.results] == [
            ("task.t[0]", "it runs on fleet.a[0]: it is stopped there, and started on fleet.b[0]")
        ]
        assert not runs_on(world, "fleet.a[0]")
        assert runs_on(world, "fleet.b[0]")
        await mended(world)
        await emptied(world)

    told(story, manifest=two_fleets("a", member="0"), behaviours=FOREVER, expected=("a-0", "b-0"))
