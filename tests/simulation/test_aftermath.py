"""What a run does once its plan is carried out: pods rented after all, ranged fleets, fleets that end with a task."""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import takewhile

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.engine.events import ResultKind
from lium_plan.lium.calls import ATTEMPTS
from lium_plan.operations.aftermath import LOOK_EVERY_S
from lium_plan.requests import ApplyRequest, PlanRequest
from tests.simulation.manifests import HEAD, VOLUMES, fleet, tails
from tests.simulation.telling import RENT, emptied, mended, pods, rents, told, watched
from tests.support.world import Ran, World
from tests.support.world_machines import Behaviour

WRONG_NO = {"do": "answer", "status": 409, "code": "node_unavailable", "where": "after"}
"""The server makes the pod and says that it did not."""


def state_keys(world: World) -> set[str]:
    state = world.state()
    assert state is not None
    return set(state.records)


def results(ran: Ran, kind: ResultKind) -> set[str]:
    assert ran.report is not None
    return {str(result.address) for result in ran.report.results if result.kind is kind}


LATE = "which appeared after its rent had been settled as not done"


def open_rows(ran: Ran) -> list[str]:
    return [f"{item.address}: {item.will}" for item in ran.plans[0].open]


# --- rented after all ------------------------------------------------------------------------------------------------


def test_a_pod_whose_rent_was_refused_wrongly_is_given_back_in_the_same_run() -> None:
    async def story(world: World) -> None:
        world.fault(WRONG_NO, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert "rented-after-all: pod " in ran.words
        assert len(rents(world)) == 2
        assert len(pods(world)) == 1
        assert watched(world) == []
        assert ran.report is not None
        assert [proof.gone for proof in ran.report.proofs] == [True]
        await mended(world)
        await emptied(world)

    told(story)


def test_where_nothing_else_could_be_had_it_is_kept() -> None:
    async def story(world: World) -> None:
        world.fault(WRONG_NO, **RENT)
        world.fault({"do": "answer", "status": 409, "code": "node_unavailable"}, **RENT, after=1, times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        (pod,) = pods(world)
        state = world.state()
        assert state is not None
        assert state.records["fleet.a[0]"].id == pod
        adopted = [event for event in world.store().events() if event.action == "adopt"]
        assert [(event.id, event.result) for event in adopted] == [(pod, "done: it turned up late")]
        world.clear_faults()
        await mended(world)
        assert pods(world) == [pod]
        await emptied(world)

    told(story)


def test_one_that_does_not_go_ends_the_run_with_3_and_stays_known() -> None:
    async def story(world: World) -> None:
        world.fault(WRONG_NO, **RENT)
        world.fault({"do": "answer", "status": 403}, method="DELETE", path="pods/*", times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert len(pods(world)) == 2
        world.clear_faults()
        await mended(world)
        assert len(pods(world)) == 1

    told(story)


def test_when_nobody_can_look_the_name_stays_watched() -> None:
    async def story(world: World) -> None:
        world.fault(WRONG_NO, **RENT)
        no_more_after(world, 1)
        world.fault({"do": "answer", "status": 403}, method="GET", path="pods", after=1, times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        (charge,) = world.open_charges("pod")
        assert charge.name in watched(world)
        world.clear_faults()
        again = await world.apply()
        assert again.code == 0, again.words
        assert open_rows(again) == [f"fleet.a[0]: adopt pod {charge.name}, {LATE}"]
        await mended(world)
        assert pods(world) == [charge.object_id]

    told(story)


def test_a_plan_says_what_becomes_of_a_pod_that_came_late() -> None:
    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True, events_forbidden=True)
        world.fault({"do": "delay", "seconds": 500}, **RENT)
        assert (await world.apply()).code == 0
        await world.pass_time(300)
        (name,) = watched(world)
        again = await world.apply()
        assert again.code == 0, again.words
        assert open_rows(again) == [f"fleet.a[0]: give back pod {name}, {LATE}"]
        gone = await emptied(world)
        assert open_rows(gone) == []

    told(story)


def test_what_could_not_be_deleted_is_not_tried_again_by_the_same_run() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.write("lium.yaml", fleet(1))
        world.fault({"do": "answer", "status": 403}, method="DELETE", path="pods/*", times=None)
        assert (await world.apply()).code == ExitCode.PARTIAL
        assert sum(row.method == "DELETE" for row in world.lium.world.requests) == 1
        world.clear_faults()
        await mended(world)

    told(story, nodes=2, expected=tails(1))


# --- ranges ----------------------------------------------------------------------------------------------------------


def no_more_after(world: World, count: int) -> None:
    refusal = {"do": "answer", "status": 409, "code": "node_unavailable"}
    world.fault(refusal, **RENT, after=count, times=None)


BOOTSTRAPPED = "    bootstrap: {commands: [make ready]}\n"
OTHER = "  b:\n    resources: {gpu: 'RTX3090:1'}\n    max_price: 1.00\n    image: ubuntu:22.04\n    ttl: 24h\n"


def task(name: str = "t", *, where: str = "a", more: str = "") -> str:
    return f"  {name}: {{fleet: {where}, commands: [make {name}], wait: completed{more}}}\n"


def test_a_range_that_has_its_minimum_is_done_with_what_it_has() -> None:
    """What waited for the members that never came is made for those that did."""

    async def story(world: World) -> None:
        no_more_after(world, 2)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(pods(world)) == 2
        assert "fewer-members: 2 of 3 members; at least 2 are needed" in ran.words
        state = world.state()
        assert state is not None
        assert {key for key in state.records if key.startswith("task.")} == {"task.t[0]", "task.t[1]"}
        assert {str(row.attributes.get("exit_code")) for key, row in state.records.items() if key[:4] == "task"} == {
            "0"
        }
        world.clear_faults()
        await emptied(world)

    told(story, manifest=fleet("2..3", more=BOOTSTRAPPED, tail="tasks:\n" + task()), expected=tails(2))


def test_a_task_that_fails_where_a_range_has_fewer_is_a_failure_all_the_same() -> None:
    async def story(world: World) -> None:
        no_more_after(world, 2)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert len(pods(world)) == 2

    manifest = fleet("2..3", tail="tasks:\n" + task())
    told(story, manifest=manifest, expected=tails(2), behaviours=(Behaviour("make t", exit_status=1),))


def test_a_range_below_its_minimum_gives_back_what_it_got_and_nothing_else() -> None:
    other = HEAD + "fleets:\n" + OTHER + VOLUMES

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        before = pods(world)
        world.write("lium.yaml", fleet("2..3", tail=OTHER + VOLUMES))
        no_more_after(world, 1)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "fewer-members" not in ran.words
        assert "fleet.a[0]" in results(ran, ResultKind.DONE) | results(ran, ResultKind.FAILED)
        assert len(rents(world)) > 2
        assert pods(world) == before
        assert {key for key in state_keys(world) if key.startswith("fleet.")} == {"fleet.b[0]"}
        assert "volume.data" in state_keys(world)

    told(story, manifest=other, expected=())


def test_a_range_below_its_minimum_takes_nothing_else_of_its_run_along() -> None:
    async def story(world: World) -> None:
        no_more_after(world, 1)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert pods(world) == []
        assert "volume.data" in state_keys(world), "the run made it too, and the fleet does not need it"

    told(story, manifest=fleet("2..3", tail=VOLUMES), expected=())


def test_a_fleet_of_a_fixed_size_keeps_what_it_got() -> None:
    async def story(world: World) -> None:
        no_more_after(world, 1)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "fewer-members" not in ran.words
        assert len(pods(world)) == 1

    told(story, nodes=2, expected=())


FIRST = "    lifecycle: {create_before_destroy: true}\n"


def test_pods_whose_successors_can_not_be_had_stay_members_of_a_range() -> None:
    """The run that was to replace them has failed all the same."""

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        before = pods(world)
        no_more_after(world, 0)
        both = PlanRequest(replace=("fleet.a[0]", "fleet.a[1]"))
        ran = await world.apply(request=both)
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "fewer-members" not in ran.words
        assert pods(world) == before
        await mended(world)
        assert pods(world) == before
        world.clear_faults()
        assert (await world.apply(request=both)).code == 0
        assert set(pods(world)) & set(before) == {before[2]}
        await mended(world)

    told(story, manifest=fleet("2..3", more=FIRST), expected=tails(3))


@pytest.mark.parametrize("on_offer", [False, True])
def test_nor_are_pods_that_broke(on_offer: bool) -> None:
    """Where nothing is on offer they stay in the state. What stands in the place of one is a member."""

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        for number in (1, 2):
            world.fault({"do": "break", "pod": f"*-a-{number}"}, at=1.0)
        await world.pass_time(2)
        if on_offer:
            no_more_after(world, 1)
        else:
            world.write("lium.yaml", fleet("2..3").replace("max_price: 1.00", "max_price: 0.01"))
        ran = await world.apply()
        assert ran.code == (ExitCode.OK if on_offer else ExitCode.PARTIAL), ran.words
        assert ran.words.count("fewer-members: ") == ran.words.count("fewer-members: 2 of 3 members") == on_offer

    told(story, manifest=fleet("2..3"), expected=tails(3))


def test_a_range_below_its_minimum_keeps_what_is_protected_and_says_so() -> None:
    async def story(world: World) -> None:
        no_more_after(world, 1)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert ran.words.count("protected: it is new and stays all the same: prevent_destroy protects it") == 1
        assert len(pods(world)) == 1
        assert len([key for key in state_keys(world) if key.startswith("fleet.a")]) == 1

    of_that_name = (
        "volumes:\n  a: {lifecycle: {prevent_destroy: true}}\n"  # it is new as well, and no matter of the range
    )
    more = "    lifecycle: {prevent_destroy: true}\n"
    told(story, manifest=fleet("2..3", more=more, tail=of_that_name), expected=())


def test_a_member_that_fails_otherwise_is_no_matter_of_the_range() -> None:
    async def story(world: World) -> None:
        empty = {"do": "answer", "status": 402, "code": "insufficient_balance"}
        world.fault(empty, **RENT, after=2, times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "fewer-members" not in ran.words
        assert len(pods(world)) == 2

    told(story, manifest=fleet("2..3"), expected=tails(2))


# --- giving back -----------------------------------------------------------------------------------------------------


GIVING_BACK = ApplyRequest(destroy_new_on_failure=True)


def away_after_the_walk(world: World, *, times: int | None, status: int = 503) -> None:
    """Every look at the account reads this once: the first one, the plan's, succeeds."""
    world.fault({"do": "answer", "status": status}, method="GET", path="users/me", after=1, times=times)


def test_giving_back_waits_for_a_server_that_is_away() -> None:
    async def story(world: World) -> None:
        no_more_after(world, 1)
        away_after_the_walk(world, times=5)
        ran = await world.apply(options=GIVING_BACK)
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert pods(world) == []
        assert "not-given-back" not in ran.words

    told(story, nodes=2)


def test_what_could_not_be_given_back_is_named_with_its_price() -> None:
    async def story(world: World) -> None:
        no_more_after(world, 1)
        away_after_the_walk(world, times=None)
        ran = await world.apply(options=GIVING_BACK)
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert ran.took_s > GIVING_BACK.wait_timeout_s
        assert re.search(
            r"not-given-back: it was to be given back, and is still there: .*fleet.a\[0\] \(\$[\d.]+/h\)", ran.words
        )
        assert "GET /users/me: 503" in ran.words
        looks = sum(row.path == "/users/me" and row.status == 503 for row in world.lium.world.requests)
        assert looks <= ATTEMPTS * (ran.took_s / LOOK_EVERY_S + 2)
        assert len(pods(world)) == 1
        world.clear_faults()
        await emptied(world)

    told(story, nodes=2)


def test_an_interrupt_ends_the_wait_for_a_server_that_is_away() -> None:
    async def story(world: World) -> None:
        no_more_after(world, 1)
        away_after_the_walk(world, times=None)
        ran = await world.apply(options=GIVING_BACK, interrupt_after_s=(300,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        assert ran.took_s < 302
        assert "not-given-back: " in ran.words
        world.clear_faults()
        await emptied(world)

    told(story, nodes=2)


def test_a_look_for_refused_rents_that_fails_keeps_nothing_from_being_given_back() -> None:
    async def story(world: World) -> None:
        world.fault(WRONG_NO, **RENT, after=1)
        no_more_after(world, 2)
        away_after_the_walk(world, times=1, status=400)
        ran = await world.apply(options=GIVING_BACK)
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "look at the account: GET /users/me: 400" in ran.words
        (late,) = world.open_charges("pod")
        assert late.name in watched(world)
        world.clear_faults()
        await emptied(world)

    told(story, nodes=2)


def test_a_run_that_could_not_look_for_a_refused_rent_does_not_end_with_0() -> None:
    async def story(world: World) -> None:
        world.fault(WRONG_NO, **RENT)
        away_after_the_walk(world, times=1, status=400)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert len(pods(world)) == 2
        await mended(world)
        assert len(pods(world)) == 1

    told(story)


def test_an_interrupt_ends_the_look_for_a_refused_rent() -> None:
    async def story(world: World) -> None:
        world.fault(WRONG_NO, **RENT)
        away_after_the_walk(world, times=None)
        ran = await world.apply(interrupt_after_s=(300,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        assert ran.took_s < 302
        world.clear_faults()
        await mended(world)

    told(story)


@pytest.mark.parametrize("options", [GIVING_BACK, ApplyRequest()])
def test_a_run_in_which_nothing_is_unknown_says_nothing_of_what_stays(options: ApplyRequest) -> None:
    async def story(world: World) -> None:
        ran = await world.apply(options=options)
        assert ran.code == 0, ran.words
        assert "kept: " not in ran.words

    told(story)


def test_what_is_unknown_is_no_failure_and_nothing_is_given_back_for_it() -> None:
    async def story(world: World) -> None:
        nobody_knows = {"do": "answer", "status": 409, "code": "idempotency_outcome_unknown"}
        world.fault(nobody_knows, **RENT, after=1, times=None)
        ran = await world.apply(options=GIVING_BACK)
        assert ran.code == ExitCode.UNKNOWN_OUTCOME, ran.words
        assert "kept: nothing has failed" in ran.words
        assert len(pods(world)) == 1
        world.clear_faults()
        await emptied(world)

    told(story, nodes=2)


def test_a_failed_run_gives_back_what_it_made_and_not_what_was_there() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        before = pods(world)
        world.write("lium.yaml", fleet(2, tail=VOLUMES))
        no_more_after(world, 0)
        ran = await world.apply(options=ApplyRequest(destroy_new_on_failure=True))
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert pods(world) == before
        assert "volume.data" not in state_keys(world)
        again = await world.apply(options=ApplyRequest(destroy_new_on_failure=True))
        assert again.code == ExitCode.PARTIAL, again.words
        assert pods(world) == before

    told(story)


ONCE = "    bootstrap: {commands: [make ready], run: once, timeout: 5m}\n"


@pytest.mark.parametrize("first", [False, True])
def test_a_failed_run_gives_back_what_it_put_in_the_place_of_another(first: bool) -> None:
    lifecycle = "    lifecycle: {create_before_destroy: true}\n" if first else ""

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        before = pods(world)
        world.write("lium.yaml", fleet(2, more=ONCE.replace("ready", "worse") + lifecycle))
        ran = await world.apply(
            request=PlanRequest(replace=("fleet.a[1]",)), options=ApplyRequest(destroy_new_on_failure=True)
        )
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert set(pods(world)) <= set(before), "nothing of it is left"
        assert len(pods(world)) == (2 if first else 1), "and what is there still was there before"
        world.write("lium.yaml", fleet(2, more=ONCE + lifecycle))
        await mended(world)
        await emptied(world)

    failing = (Behaviour("make worse", exit_status=3),)
    told(story, manifest=fleet(2, more=ONCE + lifecycle), expected=tails(2), behaviours=failing)


def test_a_failed_run_keeps_what_is_protected_with_all_that_it_needs_and_says_so() -> None:
    async def story(world: World) -> None:
        ran = await world.apply(options=ApplyRequest(destroy_new_on_failure=True))
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert ran.words.count("protected: it is new and stays all the same: prevent_destroy protects it") == 1
        kept = {key for key in state_keys(world) if not key.startswith("template.")}
        assert kept == {"fleet.a[0]", "fleet.a[0].bootstrap"}, "neither the other fleet nor the volume"
        assert "delete-refused" not in ran.words, "what is in use is not even asked for"
        assert any(key.startswith("template.") for key in state_keys(world))

    more = BOOTSTRAPPED + "    lifecycle: {prevent_destroy: true}\n"
    failing = (Behaviour("make ready", exit_status=3),)
    told(story, manifest=fleet(1, more=more, tail=OTHER + VOLUMES), expected=(), behaviours=failing)


def test_a_failed_run_gives_back_no_template_that_an_older_pod_has_come_to_use() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        before = pods(world)
        other = fleet(2, more=ONCE.replace("ready", "worse")).replace("ubuntu:22.04", "debian:12")
        world.write("lium.yaml", other)
        ran = await world.apply(options=ApplyRequest(destroy_new_on_failure=True))
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert pods(world) == before
        assert "delete-refused" not in ran.words
        world.write("lium.yaml", other.replace("worse", "ready"))
        await mended(world)
        await emptied(world)

    failing = (Behaviour("make worse", exit_status=3),)
    told(story, manifest=fleet(2, more=ONCE), expected=tails(2), behaviours=failing)


def test_what_is_released_keeps_its_price() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        price = str(world.open_charges("pod")[0].price_per_hour)
        world.write("lium.yaml", HEAD + VOLUMES + "removed: [{from: fleet.a, destroy: false}]\n")
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert ran.plans[0].cost.after_per_hour_usd == Decimal(price), "the bill goes on"
        state = world.state()
        assert state is not None
        found = {item.kind: item.price_per_hour_usd for item in state.released}
        assert {kind: price and Decimal(price) for kind, price in found.items()} == {
            "pod": Decimal(price),
            "template": None,
        }
        world.broken.clear()  # what is released runs on, and is nobody's

    told(story, expected=())


def test_one_that_made_nothing_gives_nothing_back() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        before = pods(world)
        world.write("lium.yaml", fleet(2))
        no_more_after(world, 0)
        ran = await world.apply(options=ApplyRequest(destroy_new_on_failure=True))
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert pods(world) == before
        paths = [row.path for row in world.lium.world.requests]
        after = list(takewhile(lambda path: not path.endswith("/rent"), reversed(paths)))
        assert after
        assert "/users/me" not in after, "nothing is planned for the sake of nothing"

    told(story)


# --- fleets that end with a task -------------------------------------------------------------------------------------

ENDS = ", on_completion: destroy-fleet"


def test_a_fleet_goes_with_its_completed_task_and_stays_gone() -> None:
    async def story(world: World) -> None:
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert pods(world) == []
        assert len(rents(world)) == 1
        idle = await world.apply()
        assert (idle.code, len(rents(world))) == (0, 1)

    told(story, manifest=fleet(tail="tasks:\n" + task(more=ENDS)), expected=())


def test_a_completed_task_takes_its_fleet_once_that_is_asked_for() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        assert len(pods(world)) == 2
        world.write("lium.yaml", fleet(2, tail="tasks:\n" + task(more=ENDS)))
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert pods(world) == []
        for _ in range(2):
            idle = await world.apply()
            assert (idle.code, len(rents(world))) == (0, 2), "and it stays gone"

    told(story, manifest=fleet(2, tail="tasks:\n" + task()), expected=())


def test_one_member_completed_before_that_was_asked_for() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == ExitCode.PARTIAL
        world.write("lium.yaml", fleet(2, tail="tasks:\n" + task(more=ENDS)))
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert pods(world) == []
        assert ((await world.apply()).code, len(rents(world))) == (0, 2)

    failing = (Behaviour("make t", exit_status=3, times=1),)
    told(story, manifest=fleet(2, tail="tasks:\n" + task()), expected=(), behaviours=failing)


def test_it_goes_though_another_task_has_failed_whose_fleet_stays() -> None:
    async def story(world: World) -> None:
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert {key for key in state_keys(world) if key.startswith("fleet.")} == {"fleet.b[0]"}
        assert len(pods(world)) == 1
        assert len(rents(world)) == 2
        state = world.state()
        assert state is not None
        assert state.records["task.u[0]"].attributes["exit_code"] == 3, "it is not tried again on this occasion"

    manifest = fleet(tail=OTHER + "tasks:\n" + task(more=ENDS) + task("u", where="b"))
    told(story, manifest=manifest, expected=(), behaviours=(Behaviour("make u", exit_status=3, times=1),))


def test_a_fleet_that_will_not_go_ends_the_run_with_3() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "answer", "status": 403}, method="DELETE", path="pods/*", times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert len(pods(world)) == 1
        world.clear_faults()
        assert (await world.apply()).code == 0
        assert pods(world) == []

    told(story, manifest=fleet(tail="tasks:\n" + task(more=ENDS)), expected=())


def test_a_fleet_that_must_not_be_destroyed_stays_and_that_is_said() -> None:
    guarded = fleet(more="    lifecycle: {prevent_destroy: true}\n", tail="tasks:\n" + task(more=ENDS))

    async def story(world: World) -> None:
        ran = await world.apply()
        assert "prevent_destroy" in ran.words
        assert len(pods(world)) == 1
        assert ran.code == 3

    told(story, manifest=guarded, expected=tails(1))
