"""Disks that are full or fail under a run (case B2), and what the exit code says then."""

from __future__ import annotations

import asyncio

import pytest

from lium_plan.diagnostics import ExitCode
from tests.simulation.exhaustive import COMMANDS, passed, try_disk
from tests.simulation.telling import RENT, mended, rents, told
from tests.support.world import World

UNSENT = ("POST /executors/*/rent", "before", 1)


def test_b2_a_snapshot_that_cannot_be_written_is_no_failure_without_changes() -> None:
    """The run did everything, and the journal holds it: code 1 would say that nothing was changed."""
    syncs = _syncs_before_the_last_snapshot()

    async def story(world: World) -> None:
        world.disk.begin_trouble("sync", syncs + 1)
        ran = await world.apply()
        world.disk.end_trouble()
        assert ran.changes > 0
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "snapshot-write" in ran.words
        assert "fleet.a[0]" in world.state().records  # type: ignore[union-attr]
        await mended(world)
        assert len(rents(world)) == 1

    told(story)


def _syncs_before_the_last_snapshot() -> int:
    counted = 0

    async def story(world: World) -> None:
        nonlocal counted
        points = [point for point, _ in (await world.apply(recording=True)).points]
        last = max(point.number for point in points if point.site == "temporary snapshot")
        counted = sum(
            point.site.startswith("sync of") and point.phase == "after" and point.number < last for point in points
        )

    told(story)
    return counted


def test_b2_a_rent_that_is_settled_by_sending_it_again_is_a_change_though_the_disk_fails_before_its_end() -> None:
    """Its begin is in the journal from before, so nothing is written until it is settled."""
    codes = []

    async def story(world: World) -> None:
        await world.apply(crash_on=UNSENT)
        await world.pass_time(1)
        world.disk.begin_trouble("sync", len(codes))
        ran = await world.apply()
        world.disk.end_trouble()
        assert ran.code != ExitCode.ERROR or ran.changes == 0, ran.words
        codes.append(ran.code if ran.changes else None)
        await mended(world)
        assert len(rents(world)) == 1

    for _ in range(4):
        told(story)
    assert ExitCode.PARTIAL in codes


def test_b2_nothing_is_rented_when_the_journal_cannot_be_written() -> None:
    async def story(world: World) -> None:
        world.disk.begin_trouble("full", 0)
        ran = await world.apply()
        assert ran.code == ExitCode.ERROR, ran.words
        assert ran.changes == 0
        assert world.open_charges() == ()
        world.disk.end_trouble()
        await mended(world)

    told(story)


def test_b2_what_is_in_flight_when_the_disk_fills_is_recorded_in_the_space_kept_for_it() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "delay", "where": "after", "seconds": 9}, **RENT)
        asyncio.get_running_loop().call_later(6, world.disk.begin_trouble, "full", 0)
        await world.apply()
        world.disk.end_trouble()
        state = world.state()
        assert state is not None
        rented = {row.object_id for row in world.open_charges("pod")}
        assert rented == {item.id for item in state.records.values() if item.kind == "pod"}
        await mended(world)
        assert len(rents(world)) == 1

    told(story)


@pytest.mark.parametrize("command", COMMANDS)
def test_b2_a_sample_of_disks_that_fail(command: str) -> None:
    syncs = sum(point.site.startswith("sync of") and point.phase == "after" for point, _ in passed(command))
    for trouble, number in (*(("sync", 1 + share * syncs // 3) for share in range(3)), ("full", 9_000)):
        outcome = try_disk(command, trouble, number)
        assert not outcome.broken, str(outcome)
