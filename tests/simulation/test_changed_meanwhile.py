"""Killed between a rent's answer and the first list, then another manifest: the pod is judged first, as ever."""

from __future__ import annotations

import pytest

from lium_plan.views.state_json import shown_status
from tests.simulation.manifests import fleet
from tests.simulation.telling import RENT, emptied, mended, record, rents, told
from tests.support.world import World
from tests.support.world_machines import Behaviour

UNSEEN = ("GET /pods", "before", 2)
"""The first list after the rents."""
BOOTSTRAP = "    bootstrap: {commands: [make ready]}\n"
CHANGES = {
    "longer": ("ttl: 24h", "ttl: 36h"),
    "shorter": ("ttl: 24h", "ttl: 5h"),
    "endless": ("    ttl: 24h\n", ""),
    "image": ("ubuntu:22.04", "ubuntu:24.04"),
    "image and ttl": ("image: ubuntu:22.04\n    ttl: 24h", "image: ubuntu:24.04\n    ttl: 5h"),
}


async def killed_then_changed(world: World, change: str) -> None:
    killed = await world.apply(crash_on=UNSEEN)
    assert killed.code is None
    assert record(world).status == "pending"
    assert "created_at" not in record(world).attributes
    whole = fleet(1, more=BOOTSTRAP)
    before, after = CHANGES[change]
    assert before in whole
    world.write("lium.yaml", whole.replace(before, after))
    await world.pass_time(5)


@pytest.mark.parametrize("change", CHANGES)
def test_a_pod_that_was_never_seen_ready_becomes_what_is_wanted_now(change: str) -> None:
    async def story(world: World) -> None:
        await killed_then_changed(world, change)
        await mended(world)
        assert len(rents(world)) == 1
        await emptied(world)

    told(story, manifest=fleet(1, more=BOOTSTRAP))


@pytest.mark.parametrize("change", ["endless", "image and ttl"])
@pytest.mark.parametrize(
    "twist", [{"price_factor": 9}, {"visible_gpus": 0}, {"fails": "no space left"}, {"ssh": "silent"}]
)
def test_one_that_is_not_what_was_ordered_is_given_back_all_the_same(change: str, twist: dict[str, object]) -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": twist}, **RENT, times=1)
        await killed_then_changed(world, change)
        (first,) = world.open_charges("pod")
        await mended(world)
        (kept,) = world.open_charges("pod")
        assert kept.object_id != first.object_id
        assert kept.price_per_hour <= 1
        await emptied(world)

    told(story, manifest=fleet(1, more=BOOTSTRAP))


@pytest.mark.parametrize("exit_status", [0, 1])
def test_a_pod_whose_bootstrap_is_no_longer_declared_is_ready_without_one(exit_status: int) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == (3 if exit_status else 0)
        world.write("lium.yaml", fleet(1))
        await mended(world)
        state = world.state()
        assert state is not None
        assert shown_status(record(world), state) == "ready"
        world.write("lium.yaml", fleet(1, more=BOOTSTRAP))
        assert (await world.apply()).code == (3 if exit_status else 0)
        state = world.state()
        assert state is not None
        assert shown_status(record(world), state) == ("bootstrap-failed" if exit_status else "ready")
        await emptied(world)

    behaviours = (Behaviour("make ready", exit_status=exit_status),)
    told(story, manifest=fleet(1, more=BOOTSTRAP), behaviours=behaviours)
