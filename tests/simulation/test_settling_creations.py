"""Open creations of volumes, templates and logins, and several things that could be the one."""

from __future__ import annotations

import re

import pytest

from lium_plan.diagnostics import ExitCode
from tests.simulation.leftovers import WITH_LOGIN, phases, somebody_deletes, somebody_makes
from tests.simulation.manifests import HEAD, VOLUME, VOLUMES, fleet
from tests.simulation.telling import emptied, mended, record, told
from tests.support.world import CANARY_PASSWORD, World

CREATIONS = {
    "volume": ("POST /volumes", HEAD + VOLUMES, "volume.data", "volumes"),
    "template": ("POST /templates", fleet(), "template", "templates"),
    "credential": ("POST /docker-credentials/", WITH_LOGIN, "credential.t", "docker-credentials"),
}


@pytest.mark.parametrize("kind", CREATIONS)
@pytest.mark.parametrize("served", [True, False])
def test_an_open_creation_is_adopted_or_done_again(kind: str, served: bool) -> None:
    site, manifest, _, path = CREATIONS[kind]

    async def story(world: World) -> None:
        if not served:
            world.fault({"do": "lose_reply", "where": "before"}, method="POST", path=path)
        killed = await world.apply(crash_on=(site, "on its way", 1))
        assert killed.code is None, killed.words
        await world.pass_time(1)
        before = world.open_charges(kind)
        assert len(before) == served
        ran = await world.apply()
        assert ran.code == 0, ran.words
        made = list(world.open_charges(kind))
        assert len(made) == 1
        assert not served or made == list(before), "not a second one"
        said = f"settled: adopted {kind} " if served else f"settled: no {'new ' * (kind == 'credential')}{kind}"
        assert any(phase.startswith(said) for phase in phases(ran)), phases(ran)
        await mended(world)
        await emptied(world)

    told(story, manifest=manifest, expected=("a-0",) if kind == "template" else ())


def test_a_volume_is_kept_from_destruction_also_when_its_creation_was_settled() -> None:
    guarded = HEAD + "volumes:\n  data: {description: data, lifecycle: {prevent_destroy: true}}\n"

    async def story(world: World) -> None:
        killed = await world.apply(crash_on=("POST /volumes", "on its way", 1))
        assert killed.code is None
        await world.pass_time(1)
        assert (await world.apply()).code == 0
        assert record(world, "volume.data").protected
        assert (await world.destroy()).code == ExitCode.UNSAFE
        assert len(world.open_charges("volume")) == 1

    told(story, manifest=guarded, expected=())


def test_a_volume_without_a_pod_to_use_it_is_billed_and_known() -> None:
    async def story(world: World) -> None:
        await world.apply(crash_on=("POST /volumes", "answered", 1))
        await mended(world)
        assert record(world).depends_on
        await emptied(world)

    told(story, manifest=fleet(more=VOLUME, tail=VOLUMES))


# --- several that could be it -------------------------------------------------------------------------------------


def test_what_cannot_be_looked_for_hides_nothing_of_what_can() -> None:
    """Two creations are open: of one there are two candidates, and the list that could tell of the other fails."""

    async def story(world: World) -> None:
        world.fault({"do": "lose_reply", "where": "before"}, method="POST", path="templates")
        world.fault({"do": "delay", "seconds": 8}, method="POST", path="volumes")
        killed = await world.apply(kill_after_s=1.0)
        assert killed.code is None
        await world.pass_time(30)
        (ours,) = world.open_charges("volume")
        twin = await somebody_makes(world, "/volumes", {"name": ours.name})
        world.fault({"do": "answer", "status": 500}, method="GET", path="templates", times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.UNKNOWN_OUTCOME, ran.words
        assert ran.words.count("unknown-outcome: create of ") == 2
        assert twin in ran.words
        assert ours.object_id in ran.words
        assert re.search(r"lp-\w+-\w+ can't be looked for: GET /templates: 500", ran.words)
        world.clear_faults()
        await somebody_deletes(world, f"/volumes/{twin}")
        await mended(world)

    told(story, manifest=fleet(more=VOLUME, tail=VOLUMES))


def test_two_volumes_of_one_name_stop_with_8_and_are_named() -> None:
    async def story(world: World) -> None:
        killed = await world.apply(crash_on=("POST /volumes", "on its way", 1))
        assert killed.code is None
        await world.pass_time(1)
        (ours,) = world.open_charges("volume")
        twin = await somebody_makes(world, "/volumes", {"name": ours.name})
        unsure = await world.apply()
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        assert f"2 volumes are called {ours.name}" in unsure.words
        assert twin in unsure.words
        assert ours.object_id in unsure.words
        await somebody_deletes(world, f"/volumes/{twin}")
        await mended(world)
        assert record(world, "volume.data").id == ours.object_id

    told(story, manifest=HEAD + VOLUMES, expected=())


def test_two_logins_that_look_like_ours_stop_with_8_and_are_named() -> None:
    async def story(world: World) -> None:
        killed = await world.apply(crash_on=("POST /docker-credentials/", "on its way", 1))
        assert killed.code is None
        await world.pass_time(1)
        (ours,) = world.open_charges("credential")
        body = {"docker_username": "robot", "docker_password": CANARY_PASSWORD}
        twin = await somebody_makes(world, "/docker-credentials/", body)
        unsure = await world.apply()
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        assert "several new credentials look like ours" in unsure.words
        assert twin in unsure.words
        await somebody_deletes(world, f"/docker-credentials/{twin}")
        await mended(world)
        assert record(world, "credential.t").id == ours.object_id

    told(story, manifest=WITH_LOGIN, expected=())


def test_another_login_that_is_new_too_is_not_taken_for_ours() -> None:
    async def story(world: World) -> None:
        killed = await world.apply(crash_on=("POST /docker-credentials/", "on its way", 1))
        assert killed.code is None
        await world.pass_time(1)
        (ours,) = world.open_charges("credential")
        for name, word in (("robot", "another"), ("somebody", CANARY_PASSWORD)):
            body = {"docker_username": name, "docker_password": word}
            world.foreign |= {await somebody_makes(world, "/docker-credentials/", body)}
        await mended(world)
        assert record(world, "credential.t").id == ours.object_id

    told(story, manifest=WITH_LOGIN, expected=())


def test_a_login_that_somebodys_template_uses_is_not_adopted() -> None:
    async def story(world: World) -> None:
        killed = await world.apply(crash_on=("POST /docker-credentials/", "on its way", 1))
        assert killed.code is None
        await world.pass_time(1)
        (ours,) = world.open_charges("credential")
        template = await somebody_makes(
            world,
            "/templates",
            {"name": "theirs", "docker_image": "limsim/torch", "docker_credential_id": ours.object_id},
        )
        world.foreign |= {template}
        unsure = await world.apply()
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        assert "is used by a template that is not in this state" in unsure.words

    told(story, manifest=WITH_LOGIN, expected=())


def test_a_login_that_is_listed_late_is_waited_for() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"hide_seconds": 30}}, method="POST", path="docker-credentials")
        killed = await world.apply(crash_on=("POST /docker-credentials/", "on its way", 1))
        assert killed.code is None
        await mended(world)
        assert len(world.open_charges("credential")) == 1

    told(story, manifest=WITH_LOGIN, expected=())


# --- lists that lag -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CREATIONS)
@pytest.mark.parametrize("command", ["apply", "destroy"])
def test_what_was_made_a_moment_ago_and_is_not_listed_yet_is_not_taken_for_gone(kind: str, command: str) -> None:
    site, manifest, _, path = CREATIONS[kind]

    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"hide_seconds": 12}}, method="POST", path=path)
        killed = await world.apply(crash_on=(site, "answered", 1))
        assert killed.code is None
        ran = await world.run(command)
        assert ran.code == 0, ran.words
        assert len(world.open_charges(kind)) == (command == "apply"), "neither lost nor made twice"
        if command == "apply":
            await mended(world)
            await emptied(world)

    told(story, manifest=manifest, expected=("a-0",) if (kind, command) == ("template", "apply") else ())


@pytest.mark.parametrize("kind", ["volume", "credential"])
def test_nor_is_what_a_finished_run_made(kind: str) -> None:
    _, manifest, _, path = CREATIONS[kind]

    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"hide_seconds": 12}}, method="POST", path=path)
        assert (await world.apply()).code == 0
        await mended(world)
        assert len(world.open_charges(kind)) == 1, "neither lost nor made twice"
        await emptied(world)

    told(story, manifest=manifest, expected=())
