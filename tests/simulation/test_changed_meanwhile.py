"""Another manifest after a run that was killed or that failed: what was rented is judged first; what is left fits or goes."""

from __future__ import annotations

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.views.state_json import shown_status
from tests.simulation.leftovers import SENT
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


FIRST = "    lifecycle: {create_before_destroy: true}\n"


@pytest.mark.parametrize("how", ["killed with its rent on its way", "killed before it was seen", "not set up"])
@pytest.mark.parametrize("none_left", [False, True])
def test_who_thinks_better_of_a_replacement_keeps_what_was_to_be_replaced(how: str, none_left: bool) -> None:
    """Its successor, which nobody has used yet, goes; nothing is rented for it."""
    before = fleet(more=BOOTSTRAP + FIRST)
    behaviours = (Behaviour("make it fail", exit_status=1),)

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        old = record(world).id
        world.write("lium.yaml", before.replace("RTX4090", "RTX3090").replace("make ready", "make it fail"))
        if how == "not set up":
            assert (await world.apply()).code == ExitCode.PARTIAL
        else:
            killed = await world.apply(crash_on=SENT if "rent" in how else UNSEEN)
            assert killed.code is None
        await world.pass_time(1)
        assert len(world.open_charges("pod")) == 2
        world.write("lium.yaml", before)
        if none_left:
            full = {"do": "answer", "status": 409, "code": "node_unavailable"}
            world.fault(full, **RENT, times=None)
        await mended(world)
        assert [charge.object_id for charge in world.open_charges("pod")] == [old]
        assert len(rents(world)) == 2
        await emptied(world)

    told(story, manifest=before, behaviours=behaviours)
