"""A lost state that is built anew from the account and the manifest (`state recover`): what is taken, what is left."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable

import pytest

from lium_plan.answers import Recovered
from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.marks import lineage_mark
from lium_plan.operations.recovering import recover
from lium_plan.requests import PlanRequest, Sources
from lium_plan.state.model import State
from tests.simulation.leftovers import WITH_LOGIN, somebody_deletes, somebody_makes
from tests.simulation.manifests import HEAD, VOLUMES, fleet
from tests.simulation.telling import SEED
from tests.support.world import World
from tests.support.world_opening import run_world
from tests.support.world_oracles import foreign_untouched, no_duplicates, no_secrets, nothing_unknown
from tests.support.world_process import Process

EVERYTHING = (
    WITH_LOGIN
    + VOLUMES
    + (
        "fleets:\n  a:\n    nodes: 2\n    resources: {gpu: 'RTX4090:1'}\n    max_price: 1.00\n    template: t\n    ttl: 24h\n"
        "    bootstrap: {commands: [make ready]}\n"
        "  b:\n    resources: {gpu: 'RTX3090:1'}\n    max_price: 1.00\n    image: ubuntu:22.04\n    volume: data\n"
        "    ttl: 24h\n"
    )
)
TEMPLATE = "template.image-ubuntu-22-04-cb28"


def lost(story: Callable[[World], Awaitable[None]], manifest: str, *, foreign: bool = False) -> None:
    """Tell it; the oracles are asked by the story, since nothing is known of what a lost state held."""
    run_world(SEED, story, manifest=manifest, expected=(), checks=(), foreign=foreign)


async def recovered(world: World, *, lineage: str | None = None, dry_run: bool = False, wait_s: float = 0) -> Recovered:
    process = Process()
    return await process.start(
        recover(
            world.settings,
            Sources(("project",)),
            lineage=lineage,
            dry_run=dry_run,
            lock_timeout_s=wait_s,
            outside=world._outside(process),
        )
    )


async def refused(world: World, *, lineage: str | None = None, dry_run: bool = False) -> Failure:
    with pytest.raises(Failure) as caught:
        await recovered(world, lineage=lineage, dry_run=dry_run)
    return caught.value


def state_of(world: World) -> State:
    state = world.state()
    assert state is not None
    return state


def ids(world: World) -> dict[str, str | None]:
    """Of everything in the state that the account shows too."""
    return {key: row.id for key, row in state_of(world).records.items() if row.kind not in ("bootstrap", "task")}


def lose(world: World) -> State:
    """The state directory goes. What it said last."""
    state = state_of(world)
    shutil.rmtree(world.settings.state_dir)
    return state


async def made(world: World, manifest: str | None = None) -> None:
    if manifest is not None:
        world.write("lium.yaml", manifest)
    ran = await world.apply()
    assert ran.code == 0, ran.words


async def idle(world: World) -> None:
    """There is nothing left to do, and nothing unknown."""
    before = world.changes()
    ran = await world.apply()
    assert ran.code == 0, ran.words
    assert world.changes() == before
    nothing_unknown(world, "recovered")
    no_duplicates(world, "recovered")


def told_of(found: Recovered) -> str:
    return "\n".join(f"{item.code}: {item.message}" for item in found.diagnostics)


# --- what is taken ---------------------------------------------------------------------------------------------------


def test_everything_comes_back_at_its_address_and_nothing_is_rented_twice() -> None:
    async def story(world: World) -> None:
        await made(world)
        held, before = ids(world), lose(world)
        tried = await recovered(world, dry_run=True)
        assert world.files() == {}, "nothing is written when it is only tried"
        found = await recovered(world)
        assert found.taken == tried.taken
        assert ids(world) == held
        assert {item.key: (item.kind, item.id) for item in found.taken} == {
            key: (state_of(world).records[key].kind, id) for key, id in held.items()
        }
        assert [item.key for item in found.taken] == sorted(held)
        prices = {item.key: item.price_per_hour_usd for item in found.taken}
        assert prices["template.t"] is None
        billed = {charge.object_id: charge.price_per_hour for charge in world.open_charges("pod")}
        assert prices["fleet.a[0]"] == billed[str(held["fleet.a[0]"])]
        after = state_of(world)
        assert (after.project, after.stack, after.serial) == ("cases", "default", 1)
        assert (after.account_id, after.workspace_id) == (before.account_id, before.workspace_id)
        assert (lineage_mark(after.lineage), after.lineage == before.lineage) == (lineage_mark(before.lineage), False)
        assert list(after.records) == sorted(held)
        assert found.left == ()
        assert "bootstraps and tasks count as not run" in told_of(found)
        pods = {charge.object_id for charge in world.open_charges("pod")}
        await made(world)
        assert {charge.object_id for charge in world.open_charges("pod")} == pods
        await idle(world)
        no_secrets(world)
        foreign_untouched(world)
        gone = await world.destroy()
        assert gone.code == 0, gone.words
        assert world.open_charges() == ()

    lost(story, EVERYTHING, foreign=True)


def test_nothing_is_said_of_bootstraps_where_there_are_none() -> None:
    async def story(world: World) -> None:
        await made(world)
        lose(world)
        assert told_of(await recovered(world)) == ""
        await idle(world)

    lost(story, fleet())


def test_what_was_moved_is_found_under_every_name_that_it_had() -> None:
    """A pod keeps the name it was rented under, and so does a volume that has none of its own."""
    beside = "  z: {resources: {gpu: 'RTX3090:1'}, max_price: 1.00, image: 'ubuntu:22.04', ttl: 24h}\n"
    former = fleet(2, tail=beside + "volumes: {old: {}, plain: {}, own: {name: mine}, still: {}}\n")
    moves = (
        "moved: [{from: fleet.a, to: fleet.b}, {from: fleet.b, to: fleet.c}, {from: volume.old, to: volume.new},"
        " {from: volume.own, to: volume.other}, {from: volume.plain, to: volume.named}]\n"
    )
    later = former.replace("  a:\n", "  c:\n").replace(
        "old: {}, plain: {}, own: {name: mine}", "new: {}, named: {name: fresh}, other: {name: mine}"
    )

    async def story(world: World) -> None:
        await made(world)
        held = ids(world)
        lose(world)
        world.write("lium.yaml", later + moves)
        found = await recovered(world)
        assert found.left == ()
        assert ids(world) == {
            "fleet.c[0]": held["fleet.a[0]"],
            "fleet.c[1]": held["fleet.a[1]"],
            "fleet.z[0]": held["fleet.z[0]"],
            "volume.new": held["volume.old"],
            "volume.named": held["volume.plain"],
            "volume.other": held["volume.own"],
            "volume.still": held["volume.still"],
            TEMPLATE: held[TEMPLATE],
        }
        await made(world)
        await idle(world)
        assert len(world.open_charges()) == len(held)

    lost(story, former)


def test_a_member_that_was_moved_alone_is_found() -> None:
    async def story(world: World) -> None:
        await made(world)
        held = ids(world)
        lose(world)
        world.write("lium.yaml", fleet("[main]", tail="moved: [{from: 'fleet.a[0]', to: 'fleet.a[main]'}]\n"))
        await recovered(world)
        assert ids(world) == {"fleet.a[main]": held["fleet.a[0]"], TEMPLATE: held[TEMPLATE]}
        await idle(world)

    lost(story, fleet())


def test_the_numbers_that_live_count_whatever_nodes_says() -> None:
    async def story(world: World) -> None:
        await made(world)
        held = ids(world)
        lose(world)
        world.write("lium.yaml", fleet(1))
        await recovered(world)
        assert ids(world) == held, "also those beyond what is asked for now, so that an apply gives them back"
        await made(world)
        assert [charge.object_id for charge in world.open_charges("pod")] == [held["fleet.a[0]"]]

    lost(story, fleet(3))


def test_a_member_with_a_name_is_none_of_a_fleet_that_is_counted() -> None:
    async def story(world: World) -> None:
        await made(world)
        named = ids(world)["fleet.a[main]"]
        lose(world)
        world.write("lium.yaml", fleet(1))
        found = await recovered(world)
        assert [item.id for item in found.left if item.kind == "pod"] == [named]
        assert not [key for key in ids(world) if key.startswith("fleet.")]

    lost(story, fleet("[main]"))


def test_a_template_that_the_manifest_has_and_no_pod_uses_yet_is_taken_with_its_login() -> None:
    async def story(world: World) -> None:
        await made(world)
        held = ids(world)
        await made(world, WITH_LOGIN + "  u:\n    image: limsim/torch:2.4\n" + VOLUMES)  # another one, without a login
        held |= ids(world)
        assert set(held) == {"template.t", "template.u", "credential.t", "volume.data"}
        lose(world)
        found = await recovered(world)
        assert (ids(world), found.left) == (held, ())
        await idle(world)

    lost(story, WITH_LOGIN + VOLUMES)


def test_a_template_that_is_not_as_the_manifest_has_it_is_left() -> None:
    async def story(world: World) -> None:
        await made(world)
        held = ids(world)
        lose(world)
        world.write("lium.yaml", (WITH_LOGIN + VOLUMES).replace("torch:2.4", "torch:2.5"))
        found = await recovered(world)
        assert ids(world) == {"volume.data": held["volume.data"]}, "nor is its login"
        assert [(item.kind, item.id) for item in found.left] == [("template", held["template.t"])]
        assert "no pod uses it, and no template of the manifest is the same" in told_of(found)

    lost(story, WITH_LOGIN + VOLUMES)


# --- templates that pods use -----------------------------------------------------------------------------------------

SWITCHED = "templates:\n  t: {image: 'ubuntu:22.04'}\n"


def on_template(nodes: int) -> str:
    return fleet(nodes, tail=SWITCHED).replace("image: ubuntu:22.04\n    ttl", "template: t\n    ttl")


def test_of_two_templates_at_one_address_the_one_that_most_pods_use_stands_there() -> None:
    """A change of the image was cut short: the other is still used, and goes when nothing uses it any more."""

    async def story(world: World) -> None:
        await made(world)
        old = ids(world)["template.t"]
        world.write("lium.yaml", on_template(3).replace("22.04", "24.04"))
        switch = "PUT /pods/*/switch-template"
        killed = await world.apply(crash_on=(switch, "answered", 2), options=None)
        assert killed.code is None
        await world.pass_time(60)
        used = [pod.template_id for pod in world.lium.world.pods]
        most = max(set(used), key=used.count)
        assert len(set(used)) == 2
        lose(world)
        found = await recovered(world)
        other = next(id for id in used if id != most)
        assert ids(world)["template.t"] == most
        assert ids(world)[f"template.t#{other}"] == other
        assert state_of(world).records[f"template.t#{other}"].deposed
        assert found.left == ()
        assert old in used
        await made(world)
        await idle(world)
        assert len(world.open_charges("template")) == 1

    lost(story, on_template(3))


def test_a_pod_on_somebody_elses_template_takes_none() -> None:
    async def story(world: World) -> None:
        theirs = await somebody_makes(
            world, "/templates", {"name": "theirs", "docker_image": "limsim/torch", "docker_image_tag": "2.4"}
        )
        world.foreign |= {theirs}
        await made(
            world, fleet().replace("image: ubuntu:22.04", "template: t") + f"templates: {{t: {{id: {theirs}}}}}\n"
        )
        held = ids(world)
        lose(world)
        found = await recovered(world)
        assert ids(world) == held
        assert set(held) == {"fleet.a[0]"}
        assert found.left == ()
        await idle(world)
        # The manifest has one of its own there now: what the pod uses is somebody's all the same.
        lose(world)
        world.write("lium.yaml", on_template(1))
        assert (await recovered(world)).left == ()
        assert set(ids(world)) == {"fleet.a[0]"}

    lost(story, fleet())


def test_a_template_whose_login_is_wanted_but_not_made_yet_is_taken_alone() -> None:
    plain = on_template(1).replace("ubuntu:22.04", "limsim/torch:2.4")

    async def story(world: World) -> None:
        await made(world)
        held = ids(world)
        lose(world)
        login = "registry_auth: {username: '${{ env.REG_USER }}', password: '${{ env.REG_PASS }}'}"
        world.write("lium.yaml", plain.replace("'limsim/torch:2.4'}", f"'limsim/torch:2.4', {login}}}"))
        await recovered(world)
        assert ids(world) == held
        await made(world)
        await idle(world)

    lost(story, plain)


def test_a_template_whose_login_is_wanted_no_more_is_taken_alone() -> None:
    def on_login(auth: str) -> str:
        return on_template(1).replace("'ubuntu:22.04'", f"'limsim/torch:2.4'{auth}")

    login = ", registry_auth: {username: '${{ env.REG_USER }}', password: '${{ env.REG_PASS }}'}"

    async def story(world: World) -> None:
        await made(world)
        held = ids(world)
        lose(world)
        world.write("lium.yaml", on_login(""))
        await recovered(world)
        assert ids(world) == {key: id for key, id in held.items() if key != "credential.t"}
        await made(world)
        await made(world)

    lost(story, on_login(login))


# --- what is left ----------------------------------------------------------------------------------------------------


def test_what_fits_no_address_is_left_and_named_with_its_cost() -> None:
    async def story(world: World) -> None:
        await made(world)
        held = ids(world)
        prices = {charge.object_id: charge.price_per_hour for charge in world.open_charges()}
        lose(world)
        world.write("lium.yaml", fleet("[x]"))
        found = await recovered(world)
        left = {item.id: item for item in found.left}
        assert set(left) == {held["fleet.a[y]"], held["volume.data"]}
        pod, volume = left[str(held["fleet.a[y]"])], left[str(held["volume.data"])]
        assert (pod.project, pod.stack, pod.price_per_hour_usd) == ("cases", "default", prices[pod.id])
        assert (volume.kind, volume.price_per_hour_usd) == ("volume", None)
        assert f"left: pod {pod.name} ({pod.id}) is left, for ${prices[pod.id]:.2f}/h: its name fits no" in told_of(
            found
        )
        assert f"left: volume {volume.name} ({volume.id}) is left: its name fits no" in told_of(found)
        assert set(ids(world)) == {"fleet.a[x]", TEMPLATE}

    lost(story, fleet("[x, y]", tail=VOLUMES))


def test_of_two_of_one_name_neither_is_taken() -> None:
    async def story(world: World) -> None:
        await made(world)
        (ours,) = world.open_charges("volume")
        twin = await somebody_makes(world, "/volumes", {"name": ours.name})
        lose(world)
        found = await recovered(world)
        assert {item.id for item in found.left} == {ours.object_id, twin}
        assert told_of(found).count("2 carry the name of volume.data") == 2
        assert ids(world) == {}

    lost(story, HEAD + VOLUMES)


def test_a_name_that_fits_two_addresses_is_at_neither() -> None:
    """What is too long for a pod's name is cut."""
    long = "a" * 31
    one = fleet("[main1]").replace("  a:\n", f"  {long}x:\n")
    block = one.partition("fleets:\n")[2]

    async def story(world: World) -> None:
        await made(world)
        held = ids(world)
        lose(world)
        world.write("lium.yaml", one + block.replace(f"{long}x", f"{long}y"))
        found = await recovered(world)
        assert [item.id for item in found.left] == [held[f"fleet.{long}x[main1]"]]
        assert f"its name fits fleet.{long}x[main1] and fleet.{long}y[main1]" in told_of(found)

    lost(story, one)


def test_what_moved_and_what_was_rented_in_its_place_are_both_named() -> None:
    """The one is called as its address was, the other as it is: the address is claimed twice all the same."""
    first = fleet(more="    lifecycle: {create_before_destroy: true}\n")
    later = first.replace("  a:\n", "  b:\n") + "moved: [{from: fleet.a, to: fleet.b}]\n"

    async def story(world: World) -> None:
        await made(world)
        world.write("lium.yaml", later)
        replacing = PlanRequest(replace=("fleet.b[0]",))
        killed = await world.apply(request=replacing, crash_on=("POST /executors/*/rent", "answered", 1))
        assert killed.code is None
        pods = {charge.object_id for charge in world.open_charges("pod")}
        assert len(pods) == 2
        lose(world)
        found = await recovered(world)
        assert {item.id for item in found.left if item.kind == "pod"} == pods
        assert told_of(found).count("2 carry the name of fleet.b[0]") == 2

    lost(story, first)


# --- several states' things ------------------------------------------------------------------------------------------


def test_the_things_of_several_states_are_not_mixed() -> None:
    async def story(world: World) -> None:
        await made(world)
        first, state = ids(world), lose(world)
        ran = await world.apply(request=PlanRequest(allow_foreign_lineage=True))
        assert ran.code == 0, ran.words
        second, other = ids(world), lose(world)
        unsure = await refused(world)
        assert unsure.exit_code is ExitCode.UNSAFE
        (said,) = unsure.diagnostics
        marks = sorted((lineage_mark(state.lineage), lineage_mark(other.lineage)))
        prices = [charge.price_per_hour for charge in world.open_charges("pod")]
        assert said.code == "several-lineages"
        assert [f"{mark}: 2 things, $" in said.message for mark in marks] == [True, True]
        assert f"${prices[0]:.2f}/h" in said.message
        unknown = await refused(world, lineage="ffffff")
        assert (unknown.exit_code, unknown.diagnostics[0].code) == (ExitCode.ERROR, "no-such-lineage")
        assert marks[0] in unknown.diagnostics[0].message
        assert world.files() == {}
        await recovered(world, lineage=state.lineage.upper())
        assert ids(world) == first
        lose(world)
        await recovered(world, lineage=lineage_mark(other.lineage))
        assert ids(world) == second

    lost(story, fleet(tail=VOLUMES))


def test_a_lineage_that_is_not_there_is_refused_though_there_is_one_only() -> None:
    async def story(world: World) -> None:
        await made(world)
        state = lose(world)
        assert (await refused(world, lineage="ffffff")).diagnostics[0].code == "no-such-lineage"
        await recovered(world, lineage=lineage_mark(state.lineage))

    lost(story, HEAD + VOLUMES)


def test_on_an_account_with_nothing_of_ours_there_is_nothing_to_recover() -> None:
    async def story(world: World) -> None:
        for lineage in (None, "ffffff"):
            said = await refused(world, lineage=lineage)
            assert (said.exit_code, said.diagnostics[0].code) == (ExitCode.ERROR, "nothing-to-recover")
        foreign_untouched(world)

    lost(story, fleet(), foreign=True)


def test_what_is_on_its_way_out_is_nothing_to_recover() -> None:
    async def story(world: World) -> None:
        await made(world)
        pod = ids(world)["fleet.a[0]"]
        world.fault({"do": "stick", "pod": "*-a-0"})
        await somebody_deletes(world, f"/pods/{pod}")
        await world.pass_time(1)
        lose(world)
        assert (await refused(world)).diagnostics[0].code == "nothing-to-recover"

    lost(story, fleet())


# --- states that are there -------------------------------------------------------------------------------------------


def test_a_state_that_holds_something_is_not_recovered_over() -> None:
    async def story(world: World) -> None:
        await made(world)
        before, asked = world.files(), world.transport.sent
        for dry_run in (False, True):
            said = await refused(world, dry_run=dry_run)
            assert (said.exit_code, said.diagnostics[0].code) == (ExitCode.ERROR, "state-exists")
            assert "with 1 resource" in said.diagnostics[0].message
        assert (world.files(), world.transport.sent) == (before, asked)

    lost(story, HEAD + VOLUMES)


def test_nor_one_that_holds_a_begun_creation_only() -> None:
    async def story(world: World) -> None:
        killed = await world.apply(crash_on=("POST /volumes", "on its way", 1))
        assert killed.code is None
        await world.pass_time(1)
        assert (await refused(world)).diagnostics[0].code == "state-exists"
        await made(world)
        assert len(world.open_charges("volume")) == 1

    lost(story, HEAD + VOLUMES)


def test_an_empty_state_is_filled() -> None:
    async def story(world: World) -> None:
        await made(world)
        held, files = ids(world), world.files()
        assert (await world.destroy()).code == 0
        empty = world.files()
        for name in files:
            (world.settings.state_dir / name).unlink(missing_ok=True)
        await made(world)
        held = ids(world)
        lose(world)
        world.settings.state_dir.mkdir()
        (world.settings.state_dir / "default.json").write_bytes(empty["default.json"])
        await recovered(world)
        assert ids(world) == held

    lost(story, HEAD + VOLUMES)


def test_a_state_that_can_not_be_read_is_set_aside() -> None:
    async def story(world: World) -> None:
        await made(world)
        held = ids(world)
        (world.settings.state_dir / "default.json").write_bytes(b"{")
        found = await recovered(world)
        assert ids(world) == held
        assert any("unreadable" in name for name in found.kept)
        await idle(world)

    lost(story, HEAD + VOLUMES)


def test_of_two_that_recover_at_once_the_second_finds_a_state() -> None:
    async def story(world: World) -> None:
        await made(world)
        held = ids(world)
        lose(world)
        both = await asyncio.gather(*(recovered(world, wait_s=60) for _ in range(2)), return_exceptions=True)
        (won,) = (item for item in both if isinstance(item, Recovered))
        (late,) = (item for item in both if isinstance(item, Failure))
        assert late.diagnostics[0].code == "state-exists"
        assert (state_of(world).lineage, ids(world)) == (won.lineage, held)

    lost(story, HEAD + VOLUMES)


def test_an_account_that_can_not_be_read_is_said() -> None:
    async def story(world: World) -> None:
        await made(world)
        lose(world)
        world.fault({"do": "answer", "status": 403}, method="GET", path="volumes", times=None)
        said = await refused(world)
        assert "look at the account" in said.diagnostics[0].message
        assert world.files() == {}

    lost(story, HEAD + VOLUMES)
