"""What a plan promises is what an apply does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lium_plan import operations
from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.operations.planning import Beforehand, known_beforehand
from lium_plan.requests import ApplyRequest, PlanRequest, Sources
from lium_plan.views.plan_text import plan_text
from tests.simulation.manifests import fleet
from tests.simulation.telling import emptied, mended, record, told
from tests.support.world import Ran, World
from tests.support.world_process import Process


def actions(ran: Ran) -> list[str]:
    return [f"{action.verb} {action.address}" for action in ran.plans[0].actions]


def test_a_project_gets_its_new_name_though_nothing_else_changes() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.write("lium.yaml", fleet().replace("project: cases", "project: renamed"))
        assert (await world.apply()).code == ExitCode.UNSAFE
        renamed = await world.apply(request=PlanRequest(rename_project=True))
        assert renamed.code == 0, renamed.words
        assert actions(renamed) == []
        state = world.state()
        assert state is not None
        assert state.project == "renamed"
        assert (await world.apply()).code == 0, "and so it stays"
        await emptied(world)

    told(story, nodes=1)


def test_a_saved_plan_with_strict_offers_sends_nothing_once_its_node_is_taken(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        path = tmp_path / "plan.json"
        saving = await world.apply(approve=lambda plan: (operations.save_plan(plan, path), False)[1])
        planned = [action.offer.node_id for action in saving.plans[0].actions if action.offer is not None]
        for node in planned:
            world.fault({"do": "take_node", "node": node}, at=0)
        await world.pass_time(120)
        before = world.changes()
        strict = await world.apply(options=ApplyRequest(plan_file=path, strict_offers=True))
        assert strict.code == ExitCode.STALE, strict.words
        assert f"node {planned[0]} is taken" in strict.words
        assert world.changes() == before
        assert (await world.apply(options=ApplyRequest(plan_file=path))).code == 0, "others will do without it"
        await emptied(world)

    told(story, nodes=1)


def test_a_saved_plan_with_strict_offers_rents_what_still_stands(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        path = tmp_path / "plan.json"
        saving = await world.apply(approve=lambda plan: (operations.save_plan(plan, path), False)[1])
        planned = [action.offer.node_id for action in saving.plans[0].actions if action.offer is not None]
        strict = await world.apply(options=ApplyRequest(plan_file=path, strict_offers=True))
        assert strict.code == 0, strict.words
        assert [record(world, f"fleet.a[{number}]").attributes["node_id"] for number in (0, 1)] == planned
        await mended(world)
        await emptied(world)

    told(story, nodes=2)


async def saved(world: World, path: Path, request: PlanRequest | None = None) -> None:
    """A plan that is made and saved, and not carried out."""
    command = "destroy" if request is not None and request.destroying else "apply"
    await world.run(command, approve=lambda plan: (operations.save_plan(plan, path), False)[1], request=request)


@pytest.mark.parametrize("stack", ["default", "b"])
def test_a_saved_plan_to_destroy_does_not_pass_where_its_state_is_not(tmp_path: Path, stack: str) -> None:
    async def story(world: World) -> None:
        path = tmp_path / "plan.json"
        assert (await world.apply()).code == 0
        await saved(world, path, PlanRequest(destroying=True))
        mine, manifest = world.settings, (world.folder / "project" / "lium.yaml").read_text()
        (world.folder / "project" / "lium.yaml").unlink()
        world.settings = replace(mine, stack=stack, state_dir=mine.state_dir if stack == "b" else Path("elsewhere"))
        before = world.changes()
        checks, world.checks = world.checks, []  # they would look for what is billed in the state that is not there
        refused = await world.destroy(options=ApplyRequest(plan_file=path))
        world.checks = checks
        assert refused.code == ExitCode.STALE, refused.words
        assert ("made for stack default" if stack == "b" else "no state in elsewhere any more") in refused.words
        assert world.changes() == before
        world.settings = mine
        world.write("lium.yaml", manifest)
        assert (await world.destroy(options=ApplyRequest(plan_file=path))).code == 0
        assert world.open_charges() == ()

    told(story)


def test_a_destroy_that_leaves_everything_out_says_what_goes_on_costing() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        checks, world.run_checks = world.run_checks, []  # they expect a destroy to leave nothing
        ran = await world.destroy(request=PlanRequest(excludes=("fleet.a", "template.*")))
        world.run_checks = checks
        assert ran.code == 0, ran.words
        assert actions(ran) == []
        assert "was left out: it stays, and goes on costing $0." in plan_text(ran.plans[0])
        await emptied(world)

    told(story)


EDITED_PLANS: dict[str, tuple[str, str, int, str]] = {
    "a higher ceiling": ('"ceiling_per_hour_usd": 1.0,', '"ceiling_per_hour_usd": 50,', ExitCode.STALE, "was changed"),
    "no checksum": ('"checksum": ', '"was": ', ExitCode.STALE, "has no checksum"),
    "no number": ('"ceiling_per_hour_usd": 1.0,', '"ceiling_per_hour_usd": NaN,', ExitCode.ERROR, "NaN is no number"),
    "no end": ('"ceiling_per_hour_usd": 1.0,', '"ceiling_per_hour_usd": 1e999,', ExitCode.ERROR, "1e999 is no number"),
    "below zero": ('"ceiling_per_hour_usd": 1.0,', '"ceiling_per_hour_usd": -1,', ExitCode.ERROR, "is -1, below 0"),
    "a space more": ('"cost": {', '"cost":  {', ExitCode.STALE, "was changed"),
}


@pytest.mark.parametrize("edit", EDITED_PLANS)
def test_a_saved_plan_that_was_edited_is_not_carried_out(tmp_path: Path, edit: str) -> None:
    before, after, code, words = EDITED_PLANS[edit]

    async def story(world: World) -> None:
        path = tmp_path / "plan.json"
        await saved(world, path)
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))
        sent = world.changes()
        refused = await world.apply(options=ApplyRequest(plan_file=path))
        assert refused.code == code, refused.words
        assert words in refused.words
        assert world.changes() == sent
        path.write_text(text)
        assert (await world.apply(options=ApplyRequest(plan_file=path))).code == 0
        await emptied(world)

    told(story)


def test_where_no_number_stands_is_told(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        path = tmp_path / "plan.json"
        await saved(world, path)
        lines = path.read_text().splitlines()
        number = next(number for number, line in enumerate(lines, 1) if '"until_ttl_usd"' in line)
        lines[number - 1] = '  "until_ttl_usd": Infinity,'
        path.write_text("\n".join(lines))
        with pytest.raises(Failure) as caught:
            operations.load_plan(path)
        position = caught.value.diagnostics[0].position
        assert position is not None
        assert (position.file, position.line) == (str(path), number)

    told(story)


def test_of_a_plan_that_cannot_be_made_what_state_and_manifest_say_is_known() -> None:
    async def story(world: World) -> None:
        def known() -> Beforehand:
            outside = world._outside(Process())
            return known_beforehand(world.settings, PlanRequest(sources=Sources(("project",))), outside=outside)

        assert known() == Beforehand("cases")
        assert (await world.apply()).code == 0
        state = world.state()
        assert state is not None
        assert known() == Beforehand("cases", state.lineage, state.serial)
        world.write("lium.yaml", "version: 1\nproject: [\n")
        assert known() == Beforehand("cases", state.lineage, state.serial), "the state's word is left"
        world.write("lium.yaml", fleet())
        await emptied(world)

    told(story)
