"""The simulation itself: one seed gives one history, a kill takes everything with it, and the oracles can see."""

from __future__ import annotations

import asyncio
import os

import pytest

from lium_plan.requests import ApplyRequest
from lium_plan.sim import lifecycle
from tests.support.world import CANARY_TOKEN, Broken, World
from tests.support.world_opening import run_world
from tests.support.world_oracles import agrees, all_done, foreign_untouched, no_secrets, nothing_unknown
from tests.support.world_process import Process


async def a_life(world: World) -> bytes:
    world.fault({"do": "lose_reply", "where": "after"}, method="POST", path="executors/*/rent")
    await world.apply(crash_at=500)
    await world.pass_time(30)
    await world.apply()
    await world.destroy()
    return world.history()


def test_one_seed_gives_one_history_to_the_byte() -> None:
    first, second = run_world(7, a_life), run_world(7, a_life)
    assert first == second
    assert first != run_world(8, a_life)


def test_the_quickstart_in_virtual_time() -> None:
    async def story(world: World) -> None:
        made = await world.apply()
        assert made.code == 0, made.words
        for check in (all_done, foreign_untouched, no_secrets):
            check(world)
        agrees(world, made)
        assert len(world.open_charges("pod")) == 3
        idle = await world.apply()
        assert (idle.code, idle.report and idle.report.results) == (0, ())
        gone = await world.destroy()
        assert gone.code == 0, gone.words
        agrees(world, gone)
        assert world.open_charges() == ()
        assert not world.broken

    run_world(3, story)


def test_a_killed_run_sends_and_writes_nothing_more() -> None:
    async def story(world: World) -> None:
        killed = await world.apply(crash_at=300)
        assert killed.code is None
        assert killed.died_at is not None
        before = world.files(), world.transport.sent
        await world.pass_time(600)
        assert (world.files(), world.transport.sent) == before
        assert len(asyncio.all_tasks()) < 10

    run_world(1, story)


def test_killed_runs_leave_no_descriptors_behind() -> None:
    async def story(world: World) -> None:
        await world.apply(crash_at=200)
        before = len(os.listdir("/proc/self/fd"))
        for number in (100, 150, 250, 350):
            await world.apply(crash_at=number)
        assert len(os.listdir("/proc/self/fd")) <= before

    run_world(1, story)


def test_the_lock_of_a_killed_run_is_free() -> None:
    async def story(world: World) -> None:
        await world.apply(crash_at=400)
        again = await world.apply(options=ApplyRequest(lock_timeout_s=0))
        assert again.code == 0, again.words

    run_world(1, story)


def test_the_oracles_see_an_unknown_pod() -> None:
    async def story(world: World) -> None:
        await world.apply()
        world.remove_file("default.json")
        with pytest.raises(Broken, match="O1"):
            nothing_unknown(world, "now")

    run_world(1, story, checks=())


def test_the_oracles_see_a_lost_and_a_left_pod() -> None:
    async def story(world: World) -> None:
        made = await world.apply()
        server = world.lium.world
        ours = next(pod for pod in server.pods if pod.id not in world.foreign)
        lifecycle.remove_row(server, ours)
        with pytest.raises(Broken, match="O7"):
            agrees(world, made)
        with pytest.raises(Broken, match="O4"):
            all_done(world)

    run_world(1, story, checks=())


def test_a_run_that_goes_round_and_round_is_ended() -> None:
    async def story(world: World) -> None:
        process = Process()

        async def spin() -> None:
            while True:  # noqa: ASYNC110
                await asyncio.sleep(0)

        task = process.start(spin())
        await asyncio.wait((task,))
        assert process.spun

    run_world(1, story)


def test_the_oracles_see_a_secret() -> None:
    async def story(world: World) -> None:
        await world.apply()
        world.write("../state/logs/leak.log", f"… {CANARY_TOKEN} …")
        with pytest.raises(Broken, match="O6"):
            no_secrets(world)

    run_world(1, story, checks=())
