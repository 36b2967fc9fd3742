"""Creations and deletions where the looks around them fail: nothing is sent unseen, and nothing is forgotten."""

from __future__ import annotations

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.requests import ApplyRequest
from tests.simulation.leftovers import somebody_makes
from tests.simulation.manifests import HEAD, VOLUMES, fleet
from tests.simulation.telling import emptied, mended, record, rents, told
from tests.support.world import World


def sent(world: World, method: str, path: str) -> int:
    return sum(row.method == method and row.path.endswith(path) for row in world.lium.world.requests)


def open_ops(world: World) -> list[str]:
    state = world.state()
    assert state is not None
    return [effect.op for effect in state.open.values()]


@pytest.mark.parametrize(
    ("status", "said"), [(403, "permission: create: "), (500, "no answer from the server in 3 attempts")]
)
def test_a_template_that_can_not_be_looked_for_is_not_made(status: int, said: str) -> None:
    """There may be an equal one already."""

    async def story(world: World) -> None:
        planted = sent(world, "POST", "/templates")
        world.fault({"do": "answer", "status": status}, method="GET", path="templates", times=None)
        failed = await world.apply()
        assert failed.code == ExitCode.PARTIAL, failed.words
        assert said in failed.words
        assert sent(world, "POST", "/templates") == planted
        assert (rents(world), open_ops(world)) == ([], [])
        world.clear_faults()
        await mended(world)
        await emptied(world)

    told(story, manifest=fleet(), expected=("a-0",))


def test_what_may_have_been_created_is_looked_for_in_peace() -> None:
    """For a minute, every few seconds."""

    async def story(world: World) -> None:
        world.fault({"do": "lose_reply", "where": "before"}, method="POST", path="volumes")
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ran.took_s > 60
        assert 10 < sent(world, "GET", "/volumes") < 20
        await mended(world)

    told(story, manifest=HEAD + VOLUMES, expected=())


@pytest.mark.parametrize(
    ("effect", "why"),
    [
        ({"do": "answer", "status": 409, "body": {"detail": "the volume is attached"}}, "the volume is attached"),
        ({"do": "answer", "status": 200, "body": {}}, "it is still listed"),
    ],
)
def test_why_something_did_not_go_in_time_is_said(effect: dict[str, object], why: str) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault(effect, method="DELETE", path="volumes/*", times=None)
        refused = await world.destroy(options=ApplyRequest(wait_timeout_s=30))
        assert refused.code == ExitCode.PARTIAL, refused.words
        assert (
            refused.words.partition("delete-refused: delete: the server still refuses after 30 s: ")[2].count(why) == 1
        )
        assert 20 <= refused.took_s < 40
        state = world.state()
        assert state is not None
        assert (state.records["volume.data"].status, open_ops(world)) == ("deleting", [])
        world.clear_faults()
        await emptied(world)

    told(story, manifest=HEAD + VOLUMES, expected=())


def test_what_somebody_elses_pod_uses_is_not_waited_for() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        volume = str(record(world, "volume.data").id)
        server = world.lium.world
        node = next(node for node in server.nodes if node.gpu_model == "RTX 3090" and node.min_rentable == 1)
        body = {
            "pod_name": "somebodys",
            "template_id": next(item.id for item in server.templates if item.user_id is None),
            "volume_id": volume,
            "gpu_count": 1,
            "user_public_key": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAA someone"],
        }
        pod = await somebody_makes(world, f"/executors/{node.id}/rent", body)
        world.foreign |= {pod}
        refused = await world.destroy()
        assert refused.code == ExitCode.PARTIAL, refused.words
        assert f"in-use: delete: pod somebodys ({pod}) uses it" in refused.words
        assert refused.took_s < 10, "no wait helps"
        assert record(world, "volume.data").status == "deleting"
        # Where nobody can tell who uses it, it is waited for all the same.
        world.fault({"do": "answer", "status": 403}, method="GET", path="pods", after=1, times=None)
        unsure = await world.destroy(options=ApplyRequest(wait_timeout_s=30))
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        assert "delete-refused" in unsure.words

    told(story, manifest=HEAD + VOLUMES, expected=())
