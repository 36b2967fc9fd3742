"""Creations and deletions where the looks around them fail: nothing is sent unseen, and nothing is forgotten."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.requests import ApplyRequest
from tests.simulation.leftovers import WITH_LOGIN, somebody_deletes, somebody_makes
from tests.simulation.manifests import HEAD, VOLUMES, fleet
from tests.simulation.telling import emptied, mended, open_ops, record, rents, told
from tests.support.world import World

LIMITED = {"do": "answer", "status": 429, "headers": {"Retry-After": "60"}}


def sent(world: World, method: str, path: str) -> int:
    return sum(row.method == method and row.path.endswith(path) for row in world.lium.world.requests)


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


class Between(httpx.AsyncBaseTransport):
    """A network that may refuse a request, or change an answer's headers."""

    def __init__(
        self,
        world: World,
        *,
        fails: Callable[[httpx.Request], bool] = lambda request: False,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._inner, self._fails, self._headers = world.transport, fails, headers or {}
        world.transport = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._fails(request):
            raise httpx.ConnectError("[Errno 101] Network is unreachable")
        response = await self._inner.handle_async_request(request)
        response.headers.update(self._headers)
        return response


CREATED = {
    "volumes": (HEAD + VOLUMES, ()),
    "templates": (fleet(), ("a-0",)),
    "docker-credentials/": (WITH_LOGIN, ()),
    "executors/*/rent": (fleet(), ("a-0",)),
}


@pytest.mark.parametrize("path", CREATED)
def test_what_never_left_was_not_made(path: str) -> None:
    """Nobody looks for it, and nothing stays open."""
    manifest, expected = CREATED[path]
    down = True

    async def story(world: World) -> None:
        nonlocal down
        end = path.rpartition("*")[2]
        Between(world, fails=lambda request: down and request.method == "POST" and request.url.path.endswith(end))
        failed = await world.apply()
        assert failed.code == ExitCode.PARTIAL, failed.words
        assert "can't connect to lium.test" in failed.words
        assert failed.took_s < 20
        assert open_ops(world) == []
        down = False
        await mended(world)
        await emptied(world)

    told(story, manifest=manifest, expected=expected)


@pytest.mark.parametrize("path", CREATED)
def test_an_interrupt_in_a_limits_wait_is_instant(path: str) -> None:
    """What was refused is not under way, and is written down as not done."""
    manifest, expected = CREATED[path]

    async def story(world: World) -> None:
        world.fault(LIMITED, method="POST", path=path, times=None)
        ran = await world.apply(interrupt_after_s=(20.0,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        assert 20 <= ran.took_s < 21
        assert open_ops(world) == []
        world.clear_faults()
        await mended(world)
        await emptied(world)

    told(story, manifest=manifest, expected=expected)


@pytest.mark.parametrize("path", CREATED)
def test_a_limit_that_lets_nothing_through_is_given_up_at_last(path: str) -> None:
    """Within its longest window something must have been let through."""
    manifest, expected = CREATED[path]
    minutes = 66 if path == "templates" else 15
    doing = "rent" if path.endswith("/rent") else "create"

    async def story(world: World) -> None:
        world.fault(LIMITED, method="POST", path=path, times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert f"rate-limited: {doing}: the server's limit has let nothing through for {minutes} min: " in ran.words
        assert "429 Too Many Requests" in ran.words
        assert ran.took_s > minutes * 60
        assert open_ops(world) == []
        world.clear_faults()
        await mended(world)
        await emptied(world)

    told(story, manifest=manifest, expected=expected)


def test_a_server_whose_clock_stands_still_holds_nothing_up() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "lose_reply", "where": "before"}, method="POST", path="volumes")
        Between(world, headers={"Date": "Thu, 10 Sep 2026 13:00:00 GMT"})
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert 60 < ran.took_s < 80
        # What was made a moment ago, by that clock, is waited for in the lists: not for ever either.
        await somebody_deletes(world, f"/volumes/{record(world, 'volume.data').id}")
        again = await world.apply()
        assert again.code == 0, again.words
        assert 20 <= again.took_s < 40
        await emptied(world)

    told(story, manifest=HEAD + VOLUMES, expected=())


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_lost_creation_is_looked_for_through_an_outage(where: str) -> None:
    async def story(world: World) -> None:
        world.fault({"do": "lose_reply", "where": where}, method="POST", path="volumes")
        world.fault({"do": "answer", "status": 503}, method="GET", path="volumes", after=1, times=9)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(world.open_charges("volume")) == 1
        await mended(world)

    told(story, manifest=HEAD + VOLUMES, expected=())


def test_a_lost_creation_that_can_not_be_looked_for_is_named() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "lose_reply", "where": "after"}, method="POST", path="volumes")
        world.fault({"do": "answer", "status": 503}, method="GET", path="volumes", after=1, times=None)
        unsure = await world.apply()
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        (made,) = world.open_charges("volume")
        assert f"unknown-outcome: create: {made.name} can't be looked for: GET /volumes: 503" in unsure.words
        assert open_ops(world) == ["create"]
        world.clear_faults()
        await mended(world)

    told(story, manifest=HEAD + VOLUMES, expected=())


def test_a_delete_goes_on_when_an_outage_is_over() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 503}, method="DELETE", path="volumes/*", times=2)
        world.fault({"do": "answer", "status": 503}, method="GET", path="volumes", after=1, times=5)
        gone = await emptied(world)
        assert gone.took_s > 10
        assert open_ops(world) == []

    told(story, manifest=HEAD + VOLUMES, expected=())


def test_a_delete_in_an_outage_that_lasts_stays_known() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 503}, method="DELETE", path="volumes/*", times=None)
        world.fault({"do": "answer", "status": 503}, method="GET", path="volumes", after=1, times=20)
        refused = await world.destroy(options=ApplyRequest(wait_timeout_s=60))
        assert "delete-refused: delete: the server still refuses after 60 s: " in refused.words
        assert (record(world, "volume.data").status, open_ops(world)) == ("deleting", [])
        world.clear_faults()
        await emptied(world)

    told(story, manifest=HEAD + VOLUMES, expected=())


def test_a_template_that_two_addresses_share_stays_for_the_other() -> None:
    one, other = (f"{name}: {{image: 'ubuntu:22.04', env: {{N: '1'}}}}" for name in ("t1", "t2"))
    manifest = HEAD + "templates: {{{}}}\n"

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        kept = record(world, "template.t2").id
        assert record(world, "template.t1").id == kept
        world.write("lium.yaml", manifest.format(other))
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert not [row for row in world.lium.world.requests if row.method == "DELETE"]
        assert record(world, "template.t2").id == kept
        await mended(world)
        await emptied(world)

    told(story, manifest=manifest.format(f"{one}, {other}"), expected=())


@pytest.mark.parametrize("used", [False, True])
def test_a_template_under_a_new_name_does_not_go_with_the_old_one(used: bool) -> None:
    """While its delete is on its way it is listed, and no other address takes it."""
    templates = HEAD + "templates:\n  {}: {{image: 'ubuntu:22.04', env: {{N: '1'}}}}\n"
    user = fleet().removeprefix(HEAD).replace("image: ubuntu:22.04", "template: t2")

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.write("lium.yaml", templates.format("t2") + (user if used else ""))
        world.fault({"do": "delay", "seconds": 1, "where": "before"}, method="DELETE", path="templates/*")
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ran.took_s < 60
        assert record(world, "template.t2").id in {charge.object_id for charge in world.open_charges("template")}
        await mended(world)
        await emptied(world)

    told(story, manifest=templates.format("t1"), expected=("a-0",) if used else ())
