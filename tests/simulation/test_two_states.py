"""Two states of one stack, and one that has forgotten: what another has made is named, and never made twice."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.operations.states import release
from lium_plan.requests import PlanRequest
from tests.simulation.manifests import HEAD, VOLUMES, fleet
from tests.simulation.telling import emptied, record, told
from tests.support.world import Ran, World


def use(world: World, name: str) -> None:
    """The same project, with its state elsewhere."""
    world.settings = replace(world.settings, state_dir=Path(name))
    world.serials.clear()


@pytest.mark.parametrize("meant", [False, True])
def test_a_destroy_names_the_pods_of_another_state_of_its_stack(meant: bool) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        use(world, "second")
        beside = await world.apply(request=PlanRequest(allow_foreign_lineage=True))
        assert beside.code == 0, beside.words
        theirs = record(world).id
        use(world, "state")
        for _ in range(2):  # the second one finds nothing to destroy, and says the same
            gone: Ran = await world.destroy(request=PlanRequest(allow_foreign_lineage=meant))
            assert gone.code == (0 if meant else ExitCode.PARTIAL), gone.words
            assert gone.report is not None
            (told_of,) = (item for item in gone.report.diagnostics if item.code == "foreign-lineage")
            assert "1 pod of project cases, stack default runs under another state" in told_of.message
            assert "$0.30/h" in told_of.message
            assert gone.report.elsewhere == (not meant)
        assert [charge.object_id for charge in world.open_charges("pod")] == [theirs]
        use(world, "second")
        await emptied(world)
        world.broken.clear()  # the judge knows of one state at a time

    told(story)


def test_a_volume_that_an_older_state_does_not_know_is_not_made_twice() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        shutil.copytree("state", "older")
        world.write("lium.yaml", fleet(more="    volume: data\n", tail=VOLUMES))
        assert (await world.apply(request=PlanRequest(allow_destroy=("all",)))).code == 0
        kept = record(world, "volume.data").id
        assert (await world.destroy(request=PlanRequest(targets=("fleet.a",)))).code == 0
        shutil.rmtree("state")
        shutil.copytree("older", "state")
        world.serials.clear()
        planned = await world.apply()
        assert planned.code == ExitCode.UNSAFE, planned.words
        assert f"({kept}) is there already, made by this state, which does not know it" in planned.words
        refused = await world.apply(request=PlanRequest(refresh=False))
        assert refused.code == ExitCode.PARTIAL, refused.words
        assert "is there already, made by this state, which does not know it" in refused.words
        assert refused.report is not None
        assert refused.report.next_command is None, "the same again would be refused again"
        assert [charge.object_id for charge in world.open_charges("volume")] == [kept]
        world.broken.clear()  # it was forgotten on purpose

    told(story)


def given_up(world: World) -> list[str]:
    state = world.state()
    assert state is not None
    return [item.kind for item in state.released]


def test_a_volume_that_was_released_is_not_made_twice_and_may_be_taken_back() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        kept = record(world, "volume.data").id
        await release(world.settings, ["volume.data"], dry_run=False)
        world.serials.clear()
        refused = await world.apply()
        assert refused.code == ExitCode.UNSAFE, refused.words
        assert "made by this state, which has released it" in refused.words
        assert given_up(world) == ["volume"]
        world.write("lium.yaml", HEAD + VOLUMES + f"imports: [{{to: volume.data, id: {kept}}}]\n")
        assert (await world.apply()).code == 0
        assert record(world, "volume.data").id == kept
        assert given_up(world) == []
        await emptied(world)

    told(story, manifest=HEAD + VOLUMES, expected=())


def test_a_template_that_was_released_is_taken_back_by_its_name() -> None:
    manifest = HEAD + "templates: {t: {image: 'ubuntu:22.04'}}\n"

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        kept = record(world, "template.t").id
        await release(world.settings, ["template.t"], dry_run=False)
        world.serials.clear()
        assert given_up(world) == ["template"]
        assert (await world.apply()).code == 0
        assert record(world, "template.t").id == kept
        assert given_up(world) == [], "what the state holds is not released"
        await emptied(world)

    told(story, manifest=manifest, expected=())
