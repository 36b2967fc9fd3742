"""An extension of a pod's life whose answer nobody read: the server's row says what became of it."""

from __future__ import annotations

import asyncio

import pytest

from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.operations.extending import extend
from lium_plan.requests import Sources
from tests.simulation.leftovers import phases
from tests.simulation.telling import emptied, mended, record, told
from tests.support.world import World
from tests.support.world_process import Process

SITE, PATH = "POST /pods/*/schedule-removal", "pods/*/schedule-removal"


async def killed_extending(world: World, *, served: bool) -> str:
    """The end that the pod had before."""
    assert (await world.apply()).code == 0
    before = str(record(world).attributes["removal_at"])
    if not served:
        world.fault({"do": "lose_reply", "where": "before"}, method="POST", path=PATH)
    process = Process(crash_on=(SITE, "on its way", 1))
    task = process.start(
        extend(world.settings, Sources(("project",)), "fleet.a[0]", 7200, outside=world._outside(process))
    )
    await asyncio.wait((task,))
    assert process.dead
    await process.buried()
    await world.pass_time(1)
    state = world.state()
    assert state is not None
    assert [effect.op for effect in state.open.values()] == ["extend"]
    return before


def test_one_that_took_holds() -> None:
    async def story(world: World) -> None:
        before = await killed_extending(world, served=True)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert any(phase.startswith("settled: it was extended to ") for phase in phases(ran))
        assert str(record(world).attributes["removal_at"]) > before
        assert record(world).attributes["extended_until"] == record(world).attributes["removal_at"]
        await mended(world)
        assert str(record(world).attributes["removal_at"]) > before, "no apply takes it back"
        await emptied(world)

    told(story)


def test_one_that_never_arrived_is_not_believed() -> None:
    async def story(world: World) -> None:
        before = await killed_extending(world, served=False)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert "settled: the server shows another end: it was not extended" in phases(ran)
        assert record(world).attributes["removal_at"] == before
        assert "extended_until" not in record(world).attributes
        await mended(world)

    told(story)


@pytest.mark.parametrize("served", [True, False])
def test_one_of_a_pod_that_went_meanwhile_is_over(served: bool) -> None:
    async def story(world: World) -> None:
        await killed_extending(world, served=served)
        world.fault({"do": "vanish", "pod": "*-a-0"})
        await world.pass_time(5)
        gone = await emptied(world)
        state = world.state()
        assert state is not None
        assert (state.records, state.open) == ({}, {}), gone.words

    told(story)


async def extending(world: World) -> Failure:
    """How it fails."""
    outside = world._outside(Process(version=world.version))
    with pytest.raises(Failure) as failed:
        await extend(world.settings, Sources(("project",)), "fleet.a", 3600, outside=outside)
    return failed.value


def test_one_that_may_have_been_done_is_unknown_not_failed() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 502, "where": "after"}, method="POST", path=PATH, times=3)
        world.fault({"do": "answer", "status": 503}, method="GET", path="pods", after=1, times=None)
        failure = await extending(world)
        assert failure.exit_code is ExitCode.UNKNOWN_OUTCOME
        (said,) = failure.diagnostics
        assert (said.code, said.address) == ("unknown-outcome", "fleet.a[0]")
        assert "extend: POST /pods/" in said.message
        assert said.message.endswith("; whether it was extended can't be seen now")
        assert said.hint == "it stays open in the journal; the next apply settles it"
        world.clear_faults()
        ran = await world.apply()
        assert any(phase.startswith("settled: it was extended to ") for phase in phases(ran))
        await mended(world)

    told(story)


def test_one_that_a_list_shows_was_not_done_is_an_error() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 400}, method="POST", path=PATH, times=None)
        failure = await extending(world)
        assert failure.exit_code is ExitCode.ERROR
        assert [said.code for said in failure.diagnostics] != ["unknown-outcome"]
        state = world.state()
        assert state is not None
        assert state.open == {}

    told(story)
