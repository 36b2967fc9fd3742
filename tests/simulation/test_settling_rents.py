"""Open rents: found by lists or events, sent again where that is safe, settled by time otherwise."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.kinds.pod.facts import offer_facts, offer_of
from lium_plan.kinds.pod.offers import Offer, Tier
from lium_plan.requests import PlanRequest
from tests.simulation.leftovers import SENT, keys, killed_with_a_rent_on_its_way, phases
from tests.simulation.manifests import HEAD, VOLUMES, fleet
from tests.simulation.telling import RENT, emptied, mended, record, rents, told
from tests.support.world import World


def test_a_found_rent_is_said_and_kept() -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=True)
        (pod,) = world.open_charges("pod")
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert phases(ran)[0] == "settling an open rent"
        assert f"settled: found pod {pod.object_id}" in phases(ran)
        assert record(world).id == pod.object_id
        assert Decimal(str(record(world).attributes["price_per_hour_usd"])) == pod.price_per_hour
        await mended(world)
        assert len(rents(world)) == 1
        await emptied(world)

    told(story)


def test_an_unserved_rent_is_sent_again_as_it_was() -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        await mended(world)
        first, *more = keys(world)
        assert more == [first], "the same key and the same bytes"
        await emptied(world)

    told(story)


def test_an_unserved_rent_that_is_wanted_otherwise_is_not_sent_again() -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        world.write("lium.yaml", fleet().replace("ttl: 24h", "ttl: 30h"))
        await mended(world)
        first, second = keys(world)
        assert first[0] != second[0]
        assert json.loads(second[1])["termination_hours"] == 30
        await emptied(world)

    told(story)


def test_an_unserved_rent_that_is_wanted_no_more_is_not_sent_again() -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        world.write("lium.yaml", HEAD + VOLUMES)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(rents(world)) == 1
        state = world.state()
        assert state is not None
        assert (state.open, [item.name for item in state.watched]) == ({}, rents(world))
        await emptied(world)

    told(story, expected=())


def test_an_unserved_rent_is_not_sent_again_by_a_destroy() -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        gone = await emptied(world)
        assert len(rents(world)) == 1
        assert gone.took_s > 300, "nothing can be on its way any more when it is given up"

    told(story)


def test_a_rent_of_yesterday_is_not_sent_again_under_its_old_key() -> None:
    """The server forgets a key after a day: the same key would rent a second pod."""

    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        await world.pass_time(23.5 * 3600)
        await mended(world)
        first, second = keys(world)
        assert first[0] != second[0]
        await emptied(world)

    told(story)


def test_an_unserved_rent_is_not_sent_again_at_a_higher_price() -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        node = next(row.path for row in world.lium.world.requests if row.path.endswith("/rent")).split("/")[-2]
        first = keys(world)[0]
        sent = next(row for row in reversed(tuple(world.lium.world.requests)) if row.idempotency_key == first[0])
        node = sent.path.split("/")[-2]
        world.fault({"do": "price", "node": node, "factor": 20})
        await world.pass_time(120)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert [key for key, _ in keys(world)].count(first[0]) == 1
        assert all(charge.price_per_hour <= 1 for charge in world.open_charges("pod"))
        await emptied(world)

    told(story)


def test_where_keys_are_not_kept_no_rent_is_sent_again_before_time_has_decided() -> None:
    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True)
        await killed_with_a_rent_on_its_way(world, served=False)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        first, second = keys(world)
        assert first[0] != second[0]
        assert ran.took_s > 300
        await emptied(world)

    told(story)


def test_a_pod_that_no_list_shows_is_taken_from_the_events() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"hide_seconds": 40}}, **RENT)
        await killed_with_a_rent_on_its_way(world, served=True)
        (pod,) = world.open_charges("pod")
        ran = await world.apply()
        assert f"settled: the account's events name pod {pod.object_id}" in phases(ran)
        assert ran.code == ExitCode.UNKNOWN_OUTCOME, "no list shows it yet, so nothing more is done with it"
        await world.pass_time(60)
        await mended(world)
        assert len(rents(world)) == 1
        await emptied(world)

    told(story)


def test_without_events_it_is_asked_for_again_under_its_key() -> None:
    async def story(world: World) -> None:
        world.configure(events_forbidden=True)
        world.fault({"do": "twist", "twist": {"hide_seconds": 40}}, **RENT)
        await killed_with_a_rent_on_its_way(world, served=True)
        (pod,) = world.open_charges("pod")
        ran = await world.apply()
        assert f"settled: the repeated request named pod {pod.object_id}" in phases(ran)
        await world.pass_time(60)
        await mended(world)
        assert len(set(keys(world))) == 1
        assert len(world.open_charges("pod")) == 1
        await emptied(world)

    told(story)


def test_a_definite_no_to_the_repeated_rent_settles_it_at_once() -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        world.fault({"do": "take_node"}, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ran.took_s < 200, "it need not wait until nothing can be on its way"
        assert len(world.open_charges("pod")) == 1
        await emptied(world)

    told(story)


def test_what_the_server_itself_does_not_know_stays_open_and_is_said() -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        unknown = {"do": "answer", "status": 409, "code": "idempotency_outcome_unknown"}
        world.fault(unknown, **RENT, times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.UNKNOWN_OUTCOME, ran.words
        assert "the server itself does not know what became of lp-" in ran.words
        state = world.state()
        assert state is not None
        assert [effect.op for effect in state.open.values()] == ["rent"]
        assert len(set(keys(world))) == 1, "no other rent for that address"
        assert len(keys(world)) <= 8, "nor this one for ever"
        # A person looks, finds nothing, and the server has forgotten the key.
        world.clear_faults()
        await world.pass_time(24 * 3600)
        await mended(world)
        await emptied(world)

    told(story)


def test_the_first_rents_unclear_answer_leaves_it_open_and_the_rest_goes_on() -> None:
    async def story(world: World) -> None:
        unknown = {"do": "answer", "status": 409, "code": "idempotency_outcome_unknown"}
        world.fault(unknown, **RENT, times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.UNKNOWN_OUTCOME, ran.words
        assert "unknown-outcome: rent: " in ran.words
        state = world.state()
        assert state is not None
        assert [str(effect.address) for effect in state.open.values()] == ["fleet.a[0]"]
        assert "volume.data" in state.records

    told(story, manifest=fleet(tail=VOLUMES), expected=())


def test_a_found_pod_that_is_dearer_than_allowed_goes_back_and_that_is_proved() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"price_factor": 9}}, **RENT)
        await killed_with_a_rent_on_its_way(world, served=True)
        (dear,) = world.open_charges("pod")
        assert dear.price_per_hour > 1
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert any("given back: " in phase for phase in phases(ran))
        assert ran.report is not None
        assert [(proof.id, proof.gone) for proof in ran.report.proofs] == [(dear.object_id, True)]
        assert all(charge.price_per_hour <= 1 for charge in world.open_charges("pod"))
        await mended(world)
        await emptied(world)

    told(story)


EVENTS = {"method": "GET", "path": "users/me/events"}
GUARDED = fleet(more="    lifecycle: {prevent_destroy: true}\n")


async def another_pod_at_an_open_rents_address(world: World, *, served: bool) -> str:
    """Its id. The rent stays open, since events can't be read, and the pod of another address is moved to its own."""
    world.write("lium.yaml", GUARDED.replace("  a:\n", "  b:\n"))
    assert (await world.apply()).code == 0
    world.write("lium.yaml", GUARDED + GUARDED.split("fleets:\n")[1].replace("  a:\n", "  b:\n"))
    world.fault({"do": "twist", "twist": {"hide_seconds": 300}}, **RENT)
    await world.apply(crash_on=SENT if served else ("POST /executors/*/rent", "before", 1))
    await world.pass_time(1)
    world.fault({"do": "answer", "status": 500}, **EVENTS, times=None)
    world.write("lium.yaml", GUARDED + "moved: [{from: fleet.b, to: fleet.a}]\n")
    unsure = await world.apply()
    assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
    world.clear_faults()
    return str(record(world).id)


def test_a_found_pod_does_not_take_the_place_of_another_and_goes_back() -> None:
    """Also where pods are protected: nobody wants two. The one that stands there has become dearer, and stays."""

    async def story(world: World) -> None:
        stands = await another_pod_at_an_open_rents_address(world, served=True)
        world.fault({"do": "price", "node": "*", "factor": 9, "announced_seconds": 60})
        await world.pass_time(300)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert record(world).id == stands
        assert [charge.object_id for charge in world.open_charges("pod")] == [stands]
        assert ran.report is not None
        assert [proof.id != stands for proof in ran.report.proofs] == [True]

    told(story, expected=("b-0",))


def test_a_rent_is_not_sent_again_beside_a_pod_that_stands_at_its_address() -> None:
    async def story(world: World) -> None:
        await another_pod_at_an_open_rents_address(world, served=False)
        world.write("lium.yaml", fleet())
        assert (await world.apply(request=PlanRequest(replace=("fleet.a[0]",)))).code == 0
        assert "-a-0" not in "".join(rents(world)[:1])
        assert [name.endswith("-b-0") for name in rents(world)] == [True, False], (
            "one new rent, under a name of its own"
        )
        await mended(world)

    told(story)


@pytest.mark.parametrize(
    "now_wanted",
    [
        fleet().replace("max_price: 1.00", "max_price: 0.20"),
        fleet().replace("RTX4090", "RTX3090"),
        fleet(more="    min_cuda: 99\n"),
    ],
)
def test_a_rent_that_the_manifest_allows_no_more_is_not_sent_again(now_wanted: str) -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        first = keys(world)[0]
        world.write("lium.yaml", now_wanted)
        await world.apply()
        assert keys(world).count(first) == 1
        await emptied(world)

    told(story)


def test_an_unserved_rent_is_not_sent_again_above_todays_max_price() -> None:
    """It is under the ceiling of its own day, and its price has risen since."""

    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        first = keys(world)[0]
        world.write("lium.yaml", fleet().replace("max_price: 1.00", "max_price: 0.40"))
        world.fault({"do": "price", "node": "*", "factor": 2})
        await world.pass_time(120)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert keys(world) == [first]
        await emptied(world)

    told(story)


def test_an_unserved_rent_is_sent_again_where_the_node_tells_what_is_asked_for() -> None:
    """What a node tells of its network and CUDA is in the journal too."""
    offer = Offer(
        *("a-node", "RTX4090", 2, 24, 16, 64, 100, 200, Decimal("0.6"), Decimal("0.3"), "de", Tier.SPOT),
        download_mbps=Decimal("900.5"),
        cuda=Decimal("12.4"),
        nvlink=True,
        reliable=False,
    )
    assert offer_of(offer_facts(offer)) == offer
    silent = Offer(*("a-node", "RTX4090", 1, 24, 16, 64, 100, 200, Decimal("0.3"), Decimal("0.3"), "de", Tier.SECURE))
    assert offer_of(offer_facts(silent)) == silent


def test_events_that_can_not_be_read_leave_one_rent_open_and_the_rest_goes_on() -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        world.fault({"do": "answer", "status": 500}, **EVENTS, times=None)
        world.write("lium.yaml", fleet(tail=VOLUMES))
        ran = await world.apply()
        assert ran.code == ExitCode.UNKNOWN_OUTCOME, ran.words
        assert "can't be looked for: GET /users/me/events: 500" in ran.words
        assert 40 <= ran.took_s < 100
        assert len(keys(world)) == 1, "nor is it sent again"
        assert len(world.open_charges("volume")) == 1
        world.clear_faults()
        await mended(world)
        assert len(set(keys(world))) == 1

    told(story)


def test_a_server_that_does_not_tell_what_it_can_do_is_asked_again() -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        world.fault({"do": "answer", "status": 500}, method="GET", path="version", times=3)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ran.took_s < 100
        assert len(set(keys(world))) == 1, "the same request"
        await mended(world)

    told(story)


@pytest.mark.parametrize("moved", [False, True])
def test_the_node_of_a_found_pod_that_was_too_dear_is_not_tried_again(moved: bool) -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"price_factor": 9}}, **RENT, times=None)
        await killed_with_a_rent_on_its_way(world, served=True)
        if moved:
            world.write("lium.yaml", fleet().replace("  a:\n", "  b:\n") + "moved: [{from: fleet.a, to: fleet.b}]\n")
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        nodes = [charge.node_id for charge in world.lium.world.charges if charge.name.startswith("lp-")]
        pods = [node for node in nodes if node is not None]
        assert len(pods) == len(set(pods)) == 3
        assert world.open_charges("pod") == ()

    told(story, expected=("b-0",) if moved else None)
