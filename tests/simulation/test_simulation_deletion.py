"""Deletion: the cases of real tools that forgot what did not go."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.requests import ApplyRequest
from tests.simulation.manifests import HEAD, VOLUME, VOLUMES, fleet
from tests.simulation.telling import emptied, mended, record, told
from tests.support.world import ACCOUNT, World
from tests.support.world_opening import QUICKSTART, run_world
from tests.support.world_oracles import agrees, foreign_untouched

KEY = {"X-API-KEY": f"sk_sim_{ACCOUNT}"}
VOLUME_ONLY = HEAD + VOLUMES
WITH_LOGIN = HEAD + (
    "templates:\n  t:\n    image: limsim/torch:2.4\n"
    "    registry_auth: {username: '${{ env.REG_USER }}', password: '${{ env.REG_PASS }}'}\n"
    "fleets:\n  a:\n    resources: {gpu: 'RTX4090:1'}\n    template: t\n    ttl: 24h\n"
)


async def _foreign_user(world: World, volume_id: str) -> str:
    """Somebody's pod with our volume in it."""
    server = world.lium.world
    node = next(node for node in server.nodes if node.gpu_model == "RTX 3090" and node.min_rentable == 1)
    template = next(item for item in server.templates if item.user_id is None)
    body = {
        "pod_name": "somebodys",
        "template_id": template.id,
        "volume_id": volume_id,
        "gpu_count": 1,
        "user_public_key": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAA someone"],
    }
    async with httpx.AsyncClient(transport=world.lium.transport, base_url=world.lium.base_url, headers=KEY) as client:
        answer = (await client.post(f"/executors/{node.id}/rent", json=body)).raise_for_status()
    pod_id = str(answer.json()["pod_id"])
    world.foreign |= {pod_id}
    return pod_id


def test_i1_a_volume_in_use_by_a_foreign_pod_is_refused_and_named() -> None:
    async def story(world: World) -> None:
        await world.apply()
        pod_id = await _foreign_user(world, str(record(world, "volume.data").id))
        refused = await world.destroy(options=ApplyRequest(wait_timeout_s=60))
        assert refused.code in (ExitCode.PARTIAL, ExitCode.UNSAFE)
        assert pod_id in refused.words
        assert record(world, "volume.data").id in {charge.object_id for charge in world.open_charges("volume")}
        foreign_untouched(world)

    told(story, manifest=VOLUME_ONLY, expected=())


def test_i1_a_volume_with_a_pod_stuck_in_deleting_is_waited_for() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "stick", "pod": "*-a-0"})
        asyncio.get_running_loop().call_later(300, lambda: world.fault({"do": "unstick", "pod": "*"}))
        await emptied(world)

    told(story, manifest=fleet(more=VOLUME, tail=VOLUMES))


def test_i1_and_ends_with_3_when_it_stays_stuck() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "stick", "pod": "*-a-0"})
        stuck = await world.destroy()
        assert stuck.code == ExitCode.PARTIAL
        assert {"fleet.a[0]", "volume.data"} <= set(world.state().records)  # type: ignore[union-attr]
        world.fault({"do": "unstick", "pod": "*"})
        await world.pass_time(5)
        await emptied(world)

    told(story, manifest=fleet(more=VOLUME, tail=VOLUMES))


def test_i4_a_credential_whose_delete_answers_500() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 500}, method="DELETE", path="docker-credentials/*", times=None)
        stuck = await world.destroy(options=ApplyRequest(wait_timeout_s=120))
        assert stuck.code == ExitCode.PARTIAL
        assert record(world, "credential.t").id in {charge.object_id for charge in world.open_charges("credential")}
        world.clear_faults()
        await emptied(world)

    told(story, manifest=WITH_LOGIN)


def test_i4_three_times_500_is_waited_out() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 500}, method="DELETE", path="docker-credentials/*", times=3)
        await emptied(world)

    told(story, manifest=WITH_LOGIN)


@pytest.mark.parametrize("position", range(7))
@pytest.mark.parametrize(
    "effect",
    [
        {"do": "answer", "status": 500},
        {"do": "answer", "status": 500, "where": "after"},
        {"do": "lose_reply", "where": "before"},
        {"do": "lose_reply", "where": "after"},
        {"do": "answer", "status": 409},
    ],
    ids=["500", "500-after", "lost-before", "lost-after", "409"],
)
def test_i6_each_delete_fails_once_in_every_position(position: int, effect: dict[str, object]) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault(effect, method="DELETE", path="**", after=position)
        gone = await world.destroy()
        assert gone.code == 0, gone.words
        assert [row.fired for row in world.lium.world.faults] == [1]
        agrees(world, gone)
        foreign_untouched(world)
        assert not world.broken, world.broken

    run_world(5, story)


@pytest.mark.parametrize("manifest", [None, "version: 1\nproject: [broken", "project: other\nversion: 1\nfleets: {}\n"])
def test_i6_destroy_works_from_the_state_alone(manifest: str | None) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        path = world.folder / "project" / "lium.yaml"
        if manifest is None:
            path.unlink()
        else:
            path.write_text(manifest)
        gone = await world.destroy()
        assert gone.code == 0, gone.words
        agrees(world, gone)

    run_world(5, story, manifest=QUICKSTART)


@pytest.mark.parametrize("body", [{}, [], {"pod": None}, {"status": "STOPPED"}])
def test_i8_a_delete_that_is_accepted_and_does_nothing_is_not_believed(body: object) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        answer = {"do": "answer", "status": 200, "body": body}
        world.fault(answer, method="DELETE", path="pods/*", times=None)
        kept = await world.destroy(options=ApplyRequest(wait_timeout_s=200))
        assert kept.code == ExitCode.PARTIAL
        assert record(world).id in {charge.object_id for charge in world.open_charges("pod")}
        world.clear_faults()
        await emptied(world)

    told(story)


def test_i8_it_is_asked_again_within_one_run() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 200, "body": {}}, method="DELETE", path="pods/*")
        await emptied(world)

    told(story)


def test_e4_what_was_deleted_by_hand_is_made_again_or_simply_gone() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        async with httpx.AsyncClient(
            transport=world.lium.transport, base_url=world.lium.base_url, headers=KEY
        ) as client:
            await client.delete(f"/pods/{record(world).id}")
        await world.pass_time(120)
        await mended(world)
        async with httpx.AsyncClient(
            transport=world.lium.transport, base_url=world.lium.base_url, headers=KEY
        ) as client:
            await client.delete(f"/pods/{record(world).id}")
        await emptied(world)

    told(story)


DOWN = {"do": "answer", "status": 503}


def down(world: World) -> None:
    """From the first delete on nothing of pods is answered; nor is then the look at the end of the run."""
    world.fault(DOWN, method="DELETE", path="pods/*", times=None)
    world.fault(DOWN, method="GET", path="pods", after=1, times=None)


def test_a_short_outage_does_not_end_a_delete() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        down(world)
        asyncio.get_running_loop().call_later(15, world.clear_faults)
        gone = await emptied(world)
        assert 15 < gone.took_s < 120

    told(story, nodes=2)


def test_an_outage_that_outlasts_the_wait_leaves_what_is_being_deleted() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        down(world)
        kept = await world.destroy(options=ApplyRequest(wait_timeout_s=60))
        assert kept.code in (ExitCode.PARTIAL, ExitCode.UNKNOWN_OUTCOME)
        assert "still-there: delete: not gone after 60 s: the server refuses: DELETE /pods/" in kept.words
        state = world.state()
        assert state is not None
        assert (record(world).status, state.open) == ("deleting", {})
        world.clear_faults()
        await emptied(world)

    told(story)


def test_a_key_that_may_not_list_ends_a_delete_that_fails() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault(DOWN, method="DELETE", path="pods/*", times=None)
        world.fault({"do": "answer", "status": 401}, method="GET", path="pods", after=1, times=None)
        kept = await world.destroy()
        assert kept.code in (ExitCode.PARTIAL, ExitCode.UNKNOWN_OUTCOME)
        assert "permission: delete: GET /pods: 401" in kept.words
        assert kept.took_s < 20
        world.clear_faults()
        await emptied(world)

    told(story)


def test_a_pod_that_no_list_has_confirmed_is_looked_for_through_an_outage() -> None:
    async def story(world: World) -> None:
        killed = await world.apply(crash_on=("GET /pods", "on its way", 2))
        assert killed.code is None, killed.words
        assert "created_at" not in record(world).attributes
        world.fault(DOWN, method="GET", path="pods", after=2, times=6)
        gone = await emptied(world)
        assert any(event.phase and event.phase.startswith("looking for it again in 10 s") for event in gone.events)

    told(story, expected=())


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("pods/*", "the list lacks it, and its detail can't be read: GET /pods/"),
        ("pods", "no list of pods could be read: GET /pods: 500"),
    ],
)
def test_why_a_pod_may_not_be_gone_is_told_as_it_is(path: str, why: str) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        broken = {"do": "answer", "status": 500}
        world.fault(broken, method="GET", path=path, after=1 if path == "pods" else 0, times=None)
        kept = await world.destroy(options=ApplyRequest(wait_timeout_s=60))
        assert kept.code in (ExitCode.PARTIAL, ExitCode.UNKNOWN_OUTCOME)
        assert why in kept.words
        assert "still listed" not in kept.words
        world.clear_faults()
        await emptied(world)

    told(story)


def test_deletes_that_are_refused_at_once_share_one_look() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 409}, method="DELETE", path="pods/*", times=6)
        before = len(list(world.lium.world.requests))
        await emptied(world)
        rows = list(world.lium.world.requests)[before:]
        deletes = [number for number, row in enumerate(rows) if row.method == "DELETE" and "pods/" in row.path]
        between = rows[deletes[0] : deletes[3]]
        assert len([row for row in between if row.method == "GET" and row.path.endswith("/pods")]) == 1

    told(story, nodes=3)
