"""Settling as a part of a run: what it leaves to the plan that follows, and when a run must end with it."""

from __future__ import annotations

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.requests import PlanRequest
from tests.simulation.leftovers import SENT, killed_with_a_rent_on_its_way
from tests.simulation.manifests import VOLUME, VOLUMES, fleet, tails
from tests.simulation.telling import RENT, SEED, emptied, mended, pods, record, rents, told
from tests.support.world import World
from tests.support.world_opening import run_world

FULL = {"do": "answer", "status": 409, "code": "node_unavailable"}
NOBODY_KNOWS = {"do": "answer", "status": 409, "code": "idempotency_outcome_unknown"}


def test_nothing_is_made_on_what_nobody_can_tell_of() -> None:
    """What stays open is not done again, and what needs it is left out; the rest goes on."""

    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=False)
        unknown = {"do": "answer", "status": 409, "code": "idempotency_outcome_unknown"}
        world.fault(unknown, **RENT, times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.UNKNOWN_OUTCOME, ran.words
        assert ran.report is not None
        assert {str(result.address) for result in ran.report.results} <= {"volume.data", "template.image-ubuntu-22-04"}
        assert not [result for result in ran.report.results if "fleet.a[0]" in str(result.address)]

    told(story, manifest=fleet(more="    bootstrap: {commands: [make ready]}\n", tail=VOLUMES), expected=())


def test_an_interrupt_while_settling_ends_at_once_and_everything_stays_open() -> None:
    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True)
        await killed_with_a_rent_on_its_way(world, served=False)
        ran = await world.apply(interrupt_after_s=(60,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        assert ran.took_s < 62
        state = world.state()
        assert state is not None
        assert [effect.op for effect in state.open.values()] == ["rent"]
        await mended(world)
        await emptied(world)

    told(story)


def test_when_the_server_is_away_while_settling_it_stays_open() -> None:
    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True)
        await killed_with_a_rent_on_its_way(world, served=False)
        away = {"do": "answer", "status": 401}
        world.fault(away, method="GET", path="pods", after=3, times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.UNKNOWN_OUTCOME, ran.words
        assert "can't be looked for: GET /pods: 401" in ran.words
        assert "look at the account: GET /pods: 401" in ran.words
        state = world.state()
        assert state is not None
        assert [effect.op for effect in state.open.values()] == ["rent"]
        world.clear_faults()
        await mended(world)
        await emptied(world)

    told(story)


def test_what_settling_finds_may_make_the_rest_unsafe() -> None:
    """The pod that a destroy finds is one that must not be destroyed."""
    guarded = fleet(more="    lifecycle: {prevent_destroy: true}\n")

    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=True)
        refused = await world.destroy()
        assert refused.code == ExitCode.UNSAFE, refused.words
        assert "prevent_destroy" in refused.words
        assert record(world).protected
        assert len(world.open_charges("pod")) == 1
        await mended(world)

    told(story, manifest=guarded)


def test_what_is_needed_too_after_settling_needs_another_yes() -> None:
    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True)
        assert (await world.apply()).code == 0
        world.write("lium.yaml", fleet(2))
        world.fault({"do": "lose_reply", "where": "before"}, **RENT)
        killed = await world.apply(crash_on=SENT)
        assert killed.code is None
        world.fault({"do": "vanish", "pod": "*-a-0"}, at=200)
        changed = await world.apply()
        assert changed.code == ExitCode.PARTIAL, changed.words
        assert "plan-changed" in changed.words
        assert "was not confirmed" in changed.words
        assert world.open_charges("pod") == (), "nothing was rented without a yes"
        await mended(world)
        await emptied(world)

    told(story, expected=tails(2))


def test_what_is_found_and_not_what_is_asked_for_any_more_is_replaced_as_the_plan_has_said() -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=True)
        (found,) = pods(world)
        world.write("lium.yaml", fleet(more=VOLUME, tail=VOLUMES))
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert "adopt it, replace it if it is not what is asked for, or" in ran.plans[0].open[0].will
        assert record(world).inputs["volume"] == "volume.data"
        assert found not in pods(world)
        await mended(world)
        await emptied(world)

    told(story)


def test_what_settling_gives_back_is_proved_gone() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"price_factor": 9}}, **RENT, times=1)
        await killed_with_a_rent_on_its_way(world, served=True)
        (found,) = pods(world)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ran.report is not None
        assert [(proof.id, proof.gone) for proof in ran.report.proofs] == [(found, True)]
        await mended(world)

    told(story)


def test_a_yes_to_a_change_in_place_is_none_to_a_new_pod() -> None:
    """Both were on their way when the run was killed; while the rent is looked for, the pod that was changed breaks."""

    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True)
        assert (await world.apply()).code == 0
        world.write("lium.yaml", fleet(2).replace("ubuntu:22.04", "ubuntu:24.04"))
        world.fault({"do": "delay", "where": "before", "seconds": 60}, method="PUT", path="pods/*/switch-template")
        world.fault({"do": "lose_reply", "where": "before"}, **RENT)
        killed = await world.apply(crash_on=SENT)
        assert killed.code is None
        state = world.state()
        assert state is not None
        assert {str(effect.address) for effect in state.open.values()} == {"fleet.a[0]", "fleet.a[1]"}
        world.fault({"do": "break", "pod": "*-a-0"}, at=200)
        changed = await world.apply()
        assert changed.code == ExitCode.PARTIAL, changed.words
        assert "replace fleet.a[0] is needed too, and was not confirmed" in changed.words
        await mended(world)
        await emptied(world)

    told(story, expected=tails(2))


def test_a_refusal_after_a_rent_was_sent_again_does_not_say_that_nothing_changed() -> None:
    """The account's balance, enough for all when the plan was made, is eaten up while the answer is awaited."""

    async def story(world: World) -> None:
        await world.apply(crash_on=("POST /executors/*/rent", "before", 1))
        await world.pass_time(1)
        world.fault({"do": "balance", "account": "local", "usd": 0.3})
        world.fault({"do": "delay", "where": "inside", "seconds": 400}, **RENT, times=1)
        ran = await world.apply()
        assert "balance-too-low" in ran.words
        assert ran.changes > 0
        assert ran.code == ExitCode.PARTIAL, ran.words
        world.fault({"do": "balance", "account": "local", "usd": 100})
        await mended(world)

    told(story, manifest=fleet(2), expected=tails(2))


@pytest.mark.parametrize("served", [True, False])
def test_when_the_server_is_away_after_settling_the_run_ends_and_nothing_is_forgotten(served: bool) -> None:
    async def story(world: World) -> None:
        await killed_with_a_rent_on_its_way(world, served=served)
        if not served:
            world.fault(NOBODY_KNOWS, **RENT, times=None)
        world.fault({"do": "answer", "status": 401}, method="GET", path="users/me", after=1, times=None)
        ran = await world.apply()
        assert ran.code == (ExitCode.PARTIAL if served else ExitCode.UNKNOWN_OUTCOME), ran.words
        assert "look at the account: GET /users/me: 401" in ran.words
        state = world.state()
        assert state is not None
        assert ("fleet.a[0]" in state.records) == served
        assert len(state.open) == (not served)
        world.clear_faults()
        if not served:
            await world.pass_time(24 * 3600)
        await mended(world)
        await emptied(world)

    told(story)


# --- what an open rent is not sent again for --------------------------------------------------------------------------

TWO = fleet(1) + fleet(1).partition("fleets:\n")[2].replace("  a:\n", "  b:\n")


@pytest.mark.parametrize(
    ("beside", "acted"), [(PlanRequest(excludes=("fleet.a",)), False), (PlanRequest(targets=("fleet.b",)), True)]
)
def test_a_rent_that_is_left_out_is_looked_for_and_not_sent_again(beside: PlanRequest, acted: bool) -> None:
    async def story(world: World) -> None:
        await world.apply(
            request=PlanRequest(targets=("fleet.a",)),
            crash_on=("POST /executors/*/rent", "answered" if acted else "before", 1),
        )
        ran = await world.apply(request=beside)
        state = world.state()
        assert state is not None
        assert not state.open
        assert ("fleet.a[0]" in state.records) == acted, ran.words
        assert ran.report is not None
        left = [str(item.address) for item in ran.report.diagnostics if item.code == "left-out"]
        assert left == ["fleet.a[0]"] * acted
        assert len([name for name in rents(world) if name.endswith("-a-0")]) == int(acted)
        await mended(world)

    async def loosely(world: World) -> None:
        await story(world)
        assert all("left {'fleet.a[0]': 'pending'}" in text for text in world.broken), "it is not set up, as was asked"

    run_world(SEED, loosely, manifest=TWO, expected=("a-0", "b-0"))


def test_a_rent_is_not_sent_again_where_another_pod_is_about_to_be_imported() -> None:
    async def story(world: World) -> None:
        await world.apply(crash_on=("POST /executors/*/rent", "before", 1))
        (theirs,) = (pod.id for pod in world.lium.world.pods if pod.id in world.foreign)
        any_pod = "    lifecycle: {ignore_changes: [resources, template, ttl]}\n"
        world.write("lium.yaml", fleet(1, more=any_pod) + f"imports: [{{to: 'fleet.a[0]', id: {theirs}}}]\n")
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert record(world).id == theirs
        assert rents(world) == []

    told(story)


def test_the_rents_of_what_is_renamed_are_sent_again_as_ever() -> None:
    async def story(world: World) -> None:
        await world.apply(crash_on=("POST /executors/*/rent", "before", 1))
        world.write("lium.yaml", RENAMED)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert record(world, "fleet.b[0]").id in pods(world)
        assert [name[-3:] for name in rents(world)] == ["a-0"]

    told(story)


# --- renamed meanwhile ------------------------------------------------------------------------------------------------

RENAMED = fleet(1).replace("  a:\n", "  b:\n") + "moved: [{from: fleet.a, to: fleet.b}]\n"
LATE = {"no_rent_idempotency": True, "events_forbidden": True}
"""With such a server a rent that takes long is settled as not done."""


def test_nothing_is_rented_under_a_new_name_while_a_rent_under_the_old_one_is_unknown() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "lose_reply", "where": "unrecorded"}, **RENT)
        await world.apply(crash_on=("POST /executors/*/rent", "on its way", 1))
        world.fault(NOBODY_KNOWS, **RENT, times=None)
        world.write("lium.yaml", RENAMED)
        ran = await world.apply()
        assert ran.code == ExitCode.UNKNOWN_OUTCOME, ran.words
        (item,) = ran.plans[0].open
        assert (str(item.address), item.will.partition(": ")[2][:8]) == ("fleet.b[0]", "adopt it")
        assert len(set(rents(world))) == 1
        world.clear_faults()
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(set(rents(world))) == 1
        assert len(pods(world)) == 1
        assert (await world.apply()).code == 0

    told(story)


def test_a_pod_that_turns_up_late_for_a_renamed_fleet_is_given_back() -> None:
    async def story(world: World) -> None:
        world.configure(**LATE)
        world.fault({"do": "delay", "seconds": 500}, **RENT)
        assert (await world.apply()).code == 0
        (kept,) = pods(world)
        world.write("lium.yaml", RENAMED)
        assert (await world.apply()).code == 0
        await world.pass_time(300)
        assert len(pods(world)) == 2
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert [item.will.partition(",")[0] for item in ran.plans[0].open] == [f"give back pod {rents(world)[0]}"]
        assert pods(world) == [kept]
        assert (await world.apply()).changes == 0

    told(story)


def test_one_whose_place_is_free_is_adopted_under_the_new_name() -> None:
    async def story(world: World) -> None:
        world.configure(**LATE)
        world.fault({"do": "delay", "seconds": 500}, **RENT)
        world.fault(FULL, **RENT, after=1, times=None)
        assert (await world.apply()).code == ExitCode.PARTIAL
        world.write("lium.yaml", RENAMED)
        await world.pass_time(300)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert [str(item.address) for item in ran.plans[0].open] == ["fleet.b[0]"]
        assert [record(world, "fleet.b[0]").id] == pods(world)

    told(story)


def test_one_that_is_known_by_a_wrong_id_moves_as_it_is() -> None:
    async def story(world: World) -> None:
        (theirs,) = (pod.id for pod in world.lium.world.pods if pod.id in world.foreign)
        world.fault({"do": "answer", "status": 200, "where": "after", "body": {"pod_id": theirs}}, **RENT)
        await world.apply(crash_on=("GET /pods", "on its way", 2))
        assert record(world).id == theirs
        world.write("lium.yaml", RENAMED)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(rents(world)) == 1
        assert [record(world, "fleet.b[0]").id] == pods(world)

    told(story)


# --- late, and left out -----------------------------------------------------------------------------------------------


def test_a_late_pod_that_has_a_place_is_known_and_left_alone_with_its_fleet_and_its_price_is_said() -> None:
    async def story(world: World) -> None:
        world.configure(**LATE)
        world.fault({"do": "delay", "seconds": 500}, **RENT)
        world.fault(FULL, **RENT, after=1, times=None)
        assert (await world.apply()).code == ExitCode.PARTIAL
        await world.pass_time(300)
        ran = await world.apply(request=PlanRequest(excludes=("fleet.a",)))
        (item,) = ran.plans[0].open
        assert item.will.startswith("leave pod ")
        assert "late-pod: pod " in ran.words
        assert record(world).status == "pending"
        world.clear_faults()
        await mended(world)
        assert all("'fleet.a[0]': 'pending'" in text for text in world.broken), "it was not set up, as was asked"
        world.broken.clear()

    told(story)
