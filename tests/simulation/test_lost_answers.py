"""Answers that are lost, refused or limited while a run creates and deletes."""

from __future__ import annotations

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.planning.plan import Plan
from tests.simulation.leftovers import WITH_LOGIN, keys, phases, somebody_deletes, somebody_makes
from tests.simulation.manifests import HEAD, VOLUMES, fleet
from tests.simulation.telling import RENT, emptied, mended, open_ops, record, rents, told
from tests.support.world import World


def test_a_creation_that_is_never_answered_is_given_up_after_three_attempts() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "lose_reply", "where": "before"}, method="POST", path="volumes", times=None)
        failed = await world.apply()
        assert failed.code == ExitCode.PARTIAL, failed.words
        assert "no answer from the server in 3 attempts" in failed.words
        sent = [row for row in world.lium.world.requests if row.method == "POST" and row.path.endswith("/volumes")]
        assert len(sent) == 3 + 1, "and the one that was there before"
        assert world.open_charges("volume") == ()
        world.clear_faults()
        await mended(world)

    told(story, manifest=HEAD + VOLUMES, expected=())


def test_a_creation_that_is_refused_is_not_tried_again() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "answer", "status": 400}, method="POST", path="volumes", times=None)
        failed = await world.apply()
        assert failed.code == ExitCode.PARTIAL, failed.words
        assert "create: " in failed.words
        assert "action-failed" not in failed.words
        assert failed.took_s < 10
        sent = [row for row in world.lium.world.requests if row.method == "POST" and row.path.endswith("/volumes")]
        assert len(sent) == 1 + 1, "and the one that was there before"
        state = world.state()
        assert state is not None
        assert not state.open
        world.clear_faults()
        await mended(world)

    told(story, manifest=HEAD + VOLUMES, expected=())


@pytest.mark.parametrize("status", [401, 403])
def test_a_creation_that_the_key_may_not_send_is_refused_for_good(status: int) -> None:
    """The look that other refusals are checked by would be refused too, and leave it open."""

    async def story(world: World) -> None:
        path = "volumes" if status == 401 else "docker-credentials/"
        world.fault({"do": "answer", "status": status}, method="POST", path=path, times=None)
        world.fault({"do": "answer", "status": status}, method="GET", path=path, after=1, times=None)
        failed = await world.apply()
        assert failed.code == ExitCode.PARTIAL, failed.words
        assert "permission: create: " in failed.words
        assert failed.took_s < 10
        state = world.state()
        assert state is not None
        assert not state.open
        world.clear_faults()
        await mended(world)
        await emptied(world)

    told(story, manifest=HEAD + VOLUMES if status == 401 else WITH_LOGIN, expected=())


def test_a_creation_that_nobody_can_tell_of_is_not_tried_again() -> None:
    """Its answer was lost, and two are listed then that could be it."""

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        (data,) = world.open_charges("volume")
        world.fault({"do": "twist", "twist": {"hide_seconds": 8}}, method="POST", path="volumes", times=2)
        twins = [await somebody_makes(world, "/volumes", {"name": data.name.replace("data", "more")}) for _ in range(2)]
        world.write("lium.yaml", HEAD + VOLUMES + "  more: {description: more}\n")
        world.fault({"do": "lose_reply", "where": "before"}, method="POST", path="volumes")
        unsure = await world.apply()
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        assert all(twin in unsure.words for twin in twins)
        state = world.state()
        assert state is not None
        assert [str(effect.address) for effect in state.open.values()] == ["volume.more"]
        await somebody_deletes(world, f"/volumes/{twins[0]}")
        await mended(world)
        assert record(world, "volume.more").id == twins[1]
        world.broken.clear()  # what somebody made by hand was nobody's until then

    told(story, manifest=HEAD + VOLUMES, expected=())


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_creation_whose_answer_was_lost_makes_one(where: str) -> None:
    async def story(world: World) -> None:
        world.fault({"do": "lose_reply", "where": where}, method="POST", path="volumes")
        assert (await world.apply()).code == 0
        assert len(world.open_charges("volume")) == 1
        await mended(world)

    told(story, manifest=HEAD + VOLUMES, expected=())


@pytest.mark.parametrize("status", [401, 403])
def test_a_deletion_that_the_key_may_not_send_is_not_tried_again(status: int) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": status}, method="DELETE", path="volumes/*", times=None)
        refused = await world.destroy()
        assert refused.code == ExitCode.PARTIAL, refused.words
        assert "permission: delete: " in refused.words
        assert refused.took_s < 10
        state = world.state()
        assert state is not None
        assert not state.open
        assert "volume.data" in state.records
        world.clear_faults()
        await emptied(world)

    told(story, manifest=HEAD + VOLUMES, expected=())


@pytest.mark.parametrize("status", [401, 403])
def test_a_deletion_that_the_key_may_not_look_after_is_left_open(status: int) -> None:
    """Gone, for all that is known; but nobody has seen it."""

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": status}, method="GET", path="volumes", after=1, times=None)
        blind = await world.destroy()
        assert blind.code == ExitCode.UNKNOWN_OUTCOME, blind.words
        assert f"destroy: GET /volumes: {status} " in blind.words
        assert blind.took_s < 10
        assert open_ops(world) == ["delete"]
        world.clear_faults()
        await emptied(world)

    told(story, manifest=HEAD + VOLUMES, expected=())


def test_a_key_file_that_is_gone_is_said_and_nothing_is_rented() -> None:
    async def story(world: World) -> None:
        key = world.folder / "id_ed25519"

        def taken_away(plan: object) -> bool:
            key.rename(key.with_suffix(".away"))
            return True

        failed = await world.apply(approve=taken_away)
        assert failed.code == ExitCode.PARTIAL, failed.words
        assert "ssh-key" in failed.words
        assert rents(world) == []
        key.with_suffix(".away").rename(key)
        await mended(world)

    told(story)


def test_a_rent_is_not_sent_again_when_its_price_rose_while_a_limit_was_waited_for() -> None:
    async def story(world: World) -> None:
        world.configure(feed_refresh_seconds=0)
        world.fault({"do": "answer", "status": 429, "headers": {"Retry-After": "70"}}, **RENT)

        def dearer(plan: Plan) -> bool:
            offers = [action.offer for action in plan.actions if action.offer is not None]
            world.fault({"do": "price", "node": offers[0].node_id, "factor": 20}, at=10)
            return True

        ran = await world.apply(approve=dearer)
        assert ran.code == 0, ran.words
        assert "waiting for the rent limit" in phases(ran)
        first, second = keys(world)
        assert first[0] != second[0]
        assert all(charge.price_per_hour <= 1 for charge in world.open_charges("pod"))
        await mended(world)

    told(story)


def test_a_limit_on_rents_is_waited_out() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "answer", "status": 429, "headers": {"Retry-After": "5"}}, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(set(keys(world))) == 1, "the same request"
        await mended(world)

    told(story)


def test_a_lost_rent_whose_events_can_not_be_read_is_waited_for() -> None:
    async def story(world: World) -> None:
        world.configure(list_lag_seconds=8)
        world.fault({"do": "lose_reply", "where": "after"}, **RENT)
        world.fault({"do": "answer", "status": 500}, method="GET", path="users/me/events", times=None)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(rents(world)) == 1
        await mended(world)

    told(story)


def test_a_creation_that_can_not_be_looked_for_is_unknown_not_failed() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "answer", "status": 500, "where": "after"}, method="POST", path="docker-credentials")
        world.fault({"do": "answer", "status": 500}, method="GET", path="docker-credentials", after=1, times=None)
        unsure = await world.apply()
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        assert "can't be looked for: GET /docker-credentials/: 500" in unsure.words
        assert 60 < unsure.took_s < 80
        world.clear_faults()
        state = world.state()
        assert state is not None
        assert [str(effect.address) for effect in state.open.values()] == ["credential.t"]
        await mended(world)
        assert len(world.open_charges("credential")) == 1

    told(story, manifest=WITH_LOGIN, expected=())


def test_a_limit_on_rents_that_never_ends_is_given_up_and_named() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "answer", "status": 429, "headers": {"Retry-After": "60"}}, **RENT, times=None)
        failed = await world.apply()
        assert failed.code == ExitCode.PARTIAL, failed.words
        assert (
            "rate-limited: rent: the server's limit has let nothing through for 15 min: POST /executors/"
            in failed.words
        )
        assert 900 < failed.took_s < 1100
        state = world.state()
        assert state is not None
        assert (state.open, [item.name for item in state.watched]) == ({}, rents(world)[:1])
        world.clear_faults()
        await mended(world)

    told(story)


def test_a_limit_on_rents_is_waited_for_as_long_as_the_fleet_says() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "answer", "status": 429, "headers": {"Retry-After": "60"}}, **RENT, times=20)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(set(keys(world))) == 1
        assert ran.took_s > 1000
        await mended(world)

    told(story, manifest=fleet(more="    retry: {on_events: [no-capacity], duration: 30m}\n"))


@pytest.mark.parametrize("through", ["refused", "rented"])
def test_a_limit_that_lets_other_rents_through_is_waited_for_longer(through: str) -> None:
    """Another fleet's rents are answered: again and again with a refusal, or once, after 12 minutes, with a pod."""

    async def story(world: World) -> None:
        other = next(node.id for node in world.lium.world.nodes if "3090" in node.gpu_model)
        block = fleet().split("fleets:\n")[1].replace("  a:\n", "  b:\n").replace("RTX4090", "RTX3090")
        refused = f"    node_ids: [{other}]\n    retry: {{on_events: [no-capacity], duration: 14m}}\n"
        world.write(
            "lium.yaml", fleet(tail=block + (refused if through == "refused" else "    volume: data\n") + VOLUMES)
        )
        limit = {"do": "answer", "status": 429, "headers": {"Retry-After": "60"}}
        refusal = {"do": "answer", "status": 409, "code": "node_unavailable"}

        def limited(plan: Plan) -> bool:
            (node,) = (action.offer.node_id for action in plan.actions if action.offer and action.address.name == "a")
            world.fault(limit, method="POST", path=f"executors/{node}/rent", times=15)
            if through == "refused":
                world.fault(refusal, method="POST", path=f"executors/{other}/rent", times=None)
            else:
                world.fault(limit, method="POST", path="volumes", times=12)
            return True

        ran = await world.apply(approve=limited)
        assert "rate-limited" not in ran.words
        assert record(world).status == "ready"
        assert ran.took_s > 1000, "longer than a limit on all"

    told(story, expected=("a-0", "b-0"))


def test_a_limit_met_again_after_a_while_is_a_new_one() -> None:
    """The first rent was carried out at last, and said to be limited: nothing is known until the next, minutes later."""

    async def story(world: World) -> None:
        limit = {"do": "answer", "status": 429, "headers": {"Retry-After": "60"}}
        world.configure(no_rent_idempotency=True)
        world.fault(limit, **RENT)
        world.fault({**limit, "where": "after"}, **RENT, after=1)
        world.fault(limit, method="POST", path="volumes", times=12)
        world.fault(limit, **RENT, after=2, times=6)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ran.took_s > 1000, "longer than a limit that never ends"
        assert len(rents(world)) == 9
        await mended(world)

    block = fleet().split("fleets:\n")[1].replace("  a:\n", "  b:\n")
    told(story, manifest=fleet(tail=f"{block}    volume: data\n{VOLUMES}"), expected=("a-0", "b-0"))


def test_a_creation_that_waits_for_a_limit_is_not_sent_once_the_run_is_interrupted() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "answer", "status": 429, "headers": {"Retry-After": "3"}}, method="POST", path="templates")
        ran = await world.apply(interrupt_after_s=(1.0,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        assert world.open_charges("template") == ()
        await mended(world)

    told(story)


@pytest.mark.parametrize(("path", "kind"), [("templates", "template"), ("executors/*/rent", "pod")])
@pytest.mark.parametrize("status", [200, 502])
def test_an_answer_that_comes_after_an_interrupt_is_written_down(path: str, kind: str, status: int) -> None:
    """Also one that makes it necessary to look."""

    async def story(world: World) -> None:
        if status != 200:
            world.fault({"do": "answer", "status": status, "where": "after"}, method="POST", path=path)
        world.fault({"do": "delay", "where": "after", "seconds": 3}, method="POST", path=path)
        ran = await world.apply(interrupt_after_s=(1.0,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        state = world.state()
        assert state is not None
        assert state.open == {}
        assert [record.kind for record in state.records.values()].count(kind) == 1
        await mended(world)

    told(story)


def test_a_clock_that_jumps_settles_no_rent() -> None:
    """The server's `Date` is six minutes ahead all at once, while a rent is still on its way."""

    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True, events_forbidden=True)
        world.fault({"do": "delay", "seconds": 200}, **RENT)
        world.fault({"do": "config", "settings": {"date_skew_seconds": 400}}, at=33.0)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ran.took_s > 200
        assert len(rents(world)) == 1
        await emptied(world)

    told(story)
