"""Answers that are wrong rather than lost: another pod's id, a refusal of what was done, a yes to what was not."""

from __future__ import annotations

import pytest

from tests.simulation.leftovers import WITH_LOGIN, phases, somebody_makes
from tests.simulation.manifests import HEAD, VOLUMES, fleet, tails
from tests.simulation.telling import RENT, SEED, emptied, mended, record, rents, told
from tests.support.world import World
from tests.support.world_opening import run_world


def somebodys(world: World) -> str:
    """The id of the pod that somebody else has on the account."""
    (pod,) = (pod.id for pod in world.lium.world.pods if pod.id in world.foreign)
    return pod


def answers(world: World, pod_id: str, where: str, times: int | None = 1) -> None:
    effect = {"do": "answer", "status": 200, "where": where, "body": {"success": True, "pod_id": pod_id}}
    world.fault(effect, **RENT, times=times)


@pytest.mark.parametrize(("where", "sent"), [("after", 1), ("before", 2)])
def test_a_rent_answered_with_somebodys_pod_is_known_by_its_own_name(where: str, sent: int) -> None:
    """That pod is neither judged nor logged in to, extended or deleted; what was rented is found, or rented anew."""

    async def story(world: World) -> None:
        theirs = somebodys(world)
        answers(world, theirs, where)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert record(world).id != theirs
        assert len(rents(world)) == sent
        asked = [row for row in world.lium.world.requests if theirs in row.path and row.method != "GET"]
        assert asked == []
        await mended(world)
        await emptied(world)

    told(story)


def test_a_rent_answered_with_a_siblings_pod_leaves_two_pods_and_two_records() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        answers(world, str(record(world).id), "after")
        world.write("lium.yaml", fleet(2))
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len({record(world, key).id for key in ("fleet.a[0]", "fleet.a[1]")}) == 2
        assert len(world.open_charges("pod")) == 2
        await mended(world)
        await emptied(world)

    told(story, expected=("a-0", "a-1"))


def test_whoever_got_an_id_that_was_a_siblings_gives_it_up() -> None:
    """The wrong answer comes before the right one: whose id it is finds it taken."""

    async def undisturbed(world: World) -> str:
        assert (await world.apply()).code == 0
        (first,) = (charge.object_id for charge in world.open_charges("pod") if charge.name == rents(world)[0])
        return first

    first = run_world(SEED, undisturbed, manifest=fleet(2), expected=("a-0", "a-1"))

    async def story(world: World) -> None:
        world.fault({"do": "delay", "where": "after", "seconds": 0.02}, **RENT)
        effect = {"do": "answer", "status": 200, "where": "after", "body": {"pod_id": first}}
        world.fault(effect, **RENT, after=1)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert "looking for a rent whose answer was lost" in phases(ran)
        assert len({record(world, key).id for key in ("fleet.a[0]", "fleet.a[1]")}) == 2
        assert len(rents(world)) == 2
        await mended(world)
        await emptied(world)

    told(story, nodes=2)


@pytest.mark.parametrize("command", ["apply", "destroy"])
@pytest.mark.parametrize("where", ["after", "before"])
def test_a_wrong_id_that_outlived_its_run_is_not_believed_either(where: str, command: str) -> None:
    async def story(world: World) -> None:
        theirs = somebodys(world)
        answers(world, theirs, where)
        killed = await world.apply(crash_on=("GET /pods", "on its way", 2))
        assert killed.code is None, killed.words
        assert record(world).id == theirs
        world.clear_faults()
        if command == "apply":
            await mended(world)
        await emptied(world)

    told(story, expected=("a-0",) if command == "apply" else ())


def requests_about(world: World, pod_id: str) -> list[str]:
    """What was sent about a pod, other than to look."""
    return [row.method for row in world.lium.world.requests if pod_id in row.path and row.method != "GET"]


def test_what_is_listed_at_last_when_it_is_given_up_goes_by_its_own_id() -> None:
    """And is known by it, also where the delete is refused."""
    hidden = {"do": "twist", "twist": {"hide_seconds": 3600}}

    async def undisturbed(world: World) -> float:
        world.fault(hidden, **RENT)
        answers(world, somebodys(world), "after")
        await world.apply()
        rows = list(world.lium.world.requests)
        first, second = (
            index for index, row in enumerate(rows) if row.path.endswith("/rent") and '"lp-' in str(row.body)
        )
        looks = [row.at for row in rows[first:second] if row.path.endswith("/pods")]
        return (looks[-1] - rows[first].at).total_seconds()

    seconds = run_world(SEED, undisturbed, manifest=fleet(), expected=tails(1))

    async def story(world: World) -> None:
        theirs = somebodys(world)
        world.fault({"do": "twist", "twist": {"hide_seconds": seconds - 0.01}}, **RENT)
        answers(world, theirs, "after")
        world.fault({"do": "answer", "status": 403}, method="DELETE", path="pods/*")
        await world.apply()
        assert requests_about(world, theirs) == []
        (ours,) = [charge.object_id for charge in world.open_charges("pod")]
        assert requests_about(world, ours) == ["DELETE"]
        assert record(world).id == ours
        await mended(world)
        await emptied(world)

    told(story)


async def given_back_when_it_shows_up(world: World, *, after_s: float) -> None:
    state = world.state()
    assert state is not None
    assert [item.name for item in state.watched] == [rents(world)[0]]
    world.broken.clear()  # two for one address, and both are known
    await world.pass_time(after_s)
    await mended(world)
    assert len(world.open_charges("pod")) == 1
    await emptied(world)


def test_what_a_killed_run_rented_under_a_wrong_id_may_show_up_late() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"hide_seconds": 400}}, **RENT)
        answers(world, somebodys(world), "after")
        assert (await world.apply(crash_on=("GET /pods", "on its way", 2))).code is None
        world.clear_faults()
        ran = await world.apply()
        assert ran.code == 0, ran.words
        await given_back_when_it_shows_up(world, after_s=500)

    told(story)


def test_what_was_rented_under_a_wrong_id_may_show_up_late() -> None:
    """By then another pod stands at its address: the late one is given back."""

    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"hide_seconds": 200}}, **RENT)
        answers(world, somebodys(world), "after")
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(world.open_charges("pod")) == 2
        await given_back_when_it_shows_up(world, after_s=300)

    told(story)


def test_a_limit_that_is_answered_after_the_rent_makes_no_second_pod() -> None:
    """Also where the server keeps no keys."""

    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True)
        world.fault({"do": "answer", "status": 429, "where": "after"}, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(rents(world)) == 1
        await mended(world)
        await emptied(world)

    told(story)


CREATIONS = {
    "volume": ("volumes", HEAD + VOLUMES),
    "template": ("templates", fleet()),
    "credential": ("docker-credentials/", WITH_LOGIN),
}


@pytest.mark.parametrize("status", [400, 401, 402, 403, 409, 422, 429])
@pytest.mark.parametrize("kind", CREATIONS)
def test_a_creation_that_was_refused_and_done_is_known(kind: str, status: int) -> None:
    path, manifest = CREATIONS[kind]

    async def story(world: World) -> None:
        world.fault({"do": "answer", "status": status, "where": "after"}, method="POST", path=path)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(world.open_charges(kind)) == 1
        await mended(world)
        await emptied(world)

    told(story, manifest=manifest, expected=("a-0",) if kind == "template" else ())


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("kind", CREATIONS)
def test_a_creation_answered_with_somebodys_row_is_not_believed(kind: str, where: str) -> None:
    """Deleting it later would take theirs, and leave ours."""
    path, manifest = CREATIONS[kind]
    theirs = {
        "volume": {"name": "precious"},
        "template": {"name": "precious", "docker_image": "ubuntu", "docker_image_tag": "22.04", "volumes": ["/root"]},
        "credential": {"docker_username": "somebody", "docker_password": "precious"},
    }

    async def story(world: World) -> None:
        row = {**theirs[kind], "id": await somebody_makes(world, f"/{path}", theirs[kind])}
        world.foreign |= {row["id"]}
        world.fault({"do": "answer", "status": 200, "where": where, "body": row}, method="POST", path=path)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert [charge.object_id for charge in world.open_charges(kind)] != [row["id"]]
        await mended(world)
        await emptied(world)
        assert requests_about(world, row["id"]) == []

    told(story, manifest=manifest, expected=("a-0",) if kind == "template" else ())


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("kind", CREATIONS)
def test_a_deletion_that_was_answered_and_not_done_is_sent_again(kind: str, status: int) -> None:
    path, manifest = CREATIONS[kind]

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": status, "body": {}}, method="DELETE", path=f"{path.strip('/')}/*")
        gone = await emptied(world)
        assert any(phase.startswith("waiting to be deleted") for phase in phases(gone))

    told(story, manifest=manifest, expected=("a-0",) if kind == "template" else ())


def test_what_waits_for_a_limit_is_not_in_the_journal_yet() -> None:
    """After a crash only what was sent needs settling."""
    names = [f"t{number:02}" for number in range(22)]
    manifest = HEAD + "templates:\n" + "".join(f"  {name}: {{image: 'limsim/{name}:1'}}\n" for name in names)

    async def story(world: World) -> None:
        killed = await world.apply(kill_after_s=120)
        assert killed.code is None
        made = len(world.open_charges("template"))
        assert 0 < made < len(names)
        state = world.state()
        assert state is not None
        assert (len(state.records), state.open) == (made, {})
        await mended(world)
        await emptied(world)

    told(story, manifest=manifest, expected=())
