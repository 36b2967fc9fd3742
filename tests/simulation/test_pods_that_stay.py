"""Pods that are asked to go and do not, or not provably: they stay known, and what they may cost is said."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.requests import ApplyRequest, PlanRequest
from tests.simulation.leftovers import killed_with_a_rent_on_its_way, missing, phases, without
from tests.simulation.manifests import fleet
from tests.simulation.telling import RENT, emptied, mended, open_ops, record, rents, told
from tests.support.world import World

DELETE = {"method": "DELETE", "path": "pods/*"}
LISTS = {"method": "GET", "path": "pods"}


def deletes(world: World) -> int:
    return sum(row.method == "DELETE" and "/pods/" in row.path for row in world.lium.world.requests)


def test_a_pod_that_the_server_refuses_to_delete_is_tried_until_the_deadline() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 409, "body": {"detail": "a backup runs"}}, **DELETE, times=None)
        ran = await world.destroy(options=ApplyRequest(wait_timeout_s=35))
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "still-there: delete: not gone after 35 s: the server refuses: " in ran.words
        assert "a backup runs" in ran.words
        assert "it may still cost $0.30/h" in ran.words
        assert phases(ran).count("delete again in 10 s: the pod is busy") == deletes(world) - 1 == 3
        assert 30 <= ran.took_s < 40
        assert (record(world).status, open_ops(world)) == ("deleting", [])
        world.clear_faults()
        await emptied(world)

    told(story)


def test_a_pod_that_stays_listed_is_waited_for_until_the_deadline() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "stick", "pod": "*-a-0"})
        ran = await world.destroy(options=ApplyRequest(wait_timeout_s=60))
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "still-there: delete: not gone after 60 s: it is still listed" in ran.words
        assert "deleting" in phases(ran)
        assert 60 <= ran.took_s < 70
        assert (deletes(world), record(world).status) == (1, "deleting")
        world.fault({"do": "unstick", "pod": "*"})
        await world.pass_time(5)
        gone = await emptied(world)
        assert gone.report is not None
        assert [proof.gone for proof in gone.report.proofs] == [True]

    told(story)


def test_a_pod_that_is_said_not_to_exist_and_runs_on_is_asked_again() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 404}, **DELETE, times=2)
        gone = await world.destroy(options=ApplyRequest(wait_timeout_s=200))
        assert gone.code == 0, gone.words
        assert deletes(world) == 3
        assert gone.took_s >= 100, "each answer is given its time"
        assert world.open_charges() == ()

    told(story)


def test_a_delete_that_answers_500_and_works_is_not_sent_twice() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 500, "where": "after"}, **DELETE, times=None)
        gone = await emptied(world)
        assert not [phase for phase in phases(gone) if phase.startswith("delete again")]

    told(story)


def test_one_that_answers_500_and_does_nothing_is_tried_again() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 500}, **DELETE, times=4)
        gone = await emptied(world)
        assert [phase for phase in phases(gone) if phase.startswith("delete again in 10 s: ")]

    told(story)


async def killed_before_any_list(world: World, *, answered: str | None = None) -> None:
    """Its rent was answered, and no list has confirmed the id."""
    if answered is not None:
        body = {"success": True, "pod_id": answered}
        world.fault({"do": "answer", "status": 200, "where": "after", "body": body}, **RENT)
    killed = await world.apply(crash_on=("GET /pods", "on its way", 2))
    assert killed.code is None
    assert "created_at" not in record(world).attributes
    world.clear_faults()


def test_an_id_that_no_list_has_confirmed_is_not_deleted_unseen() -> None:
    async def story(world: World) -> None:
        await killed_before_any_list(world)
        world.fault({"do": "answer", "status": 403}, **LISTS, after=2, times=None)
        ran = await world.destroy()
        assert ran.code in (ExitCode.PARTIAL, ExitCode.UNKNOWN_OUTCOME), ran.words
        assert "permission: list pods before the delete: " in ran.words
        assert deletes(world) == 0
        assert len(world.open_charges("pod")) == 1
        world.clear_faults()
        await emptied(world)
        assert deletes(world) == 1

    told(story)


def test_one_whose_lists_fail_is_looked_for_every_few_seconds_before_it_is_deleted() -> None:
    async def story(world: World) -> None:
        await killed_before_any_list(world)
        world.fault({"do": "answer", "status": 404}, **LISTS, after=2, times=3)
        gone = await emptied(world)
        assert sum(phase.startswith("looking for it again in 10 s: GET /pods: 404") for phase in phases(gone)) == 3
        failed = [row.at for row in world.lium.world.requests if (row.path, row.status) == ("/pods", 404)]
        assert len(failed) == 3
        assert all((later - earlier).total_seconds() >= 10 for earlier, later in pairwise(failed))
        assert deletes(world) == 1

    told(story)


def test_a_pod_whose_delete_was_refused_is_none_that_is_leaving() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 409}, **DELETE, times=None)
        ran = await world.destroy(interrupt_after_s=(5,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        assert deletes(world) == 1
        assert (record(world).status, open_ops(world)) == ("ready", [])
        world.clear_faults()
        await mended(world)
        await emptied(world)

    told(story)


@pytest.mark.parametrize("status", [401, 403])
def test_a_delete_that_the_key_may_not_look_after_says_so_at_once(status: int) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "stick", "pod": "*-a-0"})
        world.fault({"do": "answer", "status": status}, **LISTS, after=1, times=None)
        ran = await world.destroy()
        assert "permission: list pods after the delete: " in ran.words
        assert ran.took_s < 20
        assert (record(world).status, deletes(world)) == ("deleting", 1)
        world.clear_faults()
        world.fault({"do": "unstick", "pod": "*"})
        await emptied(world)

    told(story)


@pytest.mark.parametrize("after_s", [5, 3600])
def test_a_missing_pod_that_nothing_tells_of_stays_known(after_s: int) -> None:
    """One that was rented just now may not be listed yet; one that is older is not proved gone."""

    async def story(world: World) -> None:
        without(world, "events", "statement")
        unsure = await missing(world, after_s)
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        young = "rented less than a minute ago and not listed yet"
        old = "nothing the server says proves that it is gone"
        assert (young in unsure.words, old in unsure.words) == (after_s < 60, after_s > 60)
        assert len(rents(world)) == 1
        assert record(world).id is not None

    told(story)


def test_what_the_events_say_of_an_end_is_repeated() -> None:
    async def story(world: World) -> None:
        without(world, "statement")
        again = await missing(world, 3600)
        assert again.code == 0, again.words
        told_why = [action.reason for plan in again.plans for action in plan.actions]
        assert any("the account's events say pod-" in why for why in told_why), told_why
        await mended(world)

    told(story)


def test_a_wrong_id_under_which_nothing_was_rented_is_forgotten() -> None:
    """Also where no other machine can be had."""

    async def story(world: World) -> None:
        (theirs,) = (pod.id for pod in world.lium.world.pods if pod.id in world.foreign)
        world.fault({"do": "answer", "status": 200, "body": {"success": True, "pod_id": theirs}}, **RENT)
        world.fault({"do": "answer", "status": 409, "code": "node_unavailable"}, **RENT, after=1, times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert any(phase.startswith("nothing to delete: its rent was answered with ") for phase in phases(ran))
        state = world.state()
        assert state is not None
        assert "fleet.a[0]" not in state.records
        assert rents(world)[0] in [item.name for item in state.watched]
        assert deletes(world) == 0
        world.clear_faults()
        await mended(world)

    told(story)


@pytest.mark.parametrize("refresh", [True, False])
def test_what_is_deleted_is_the_pod_of_its_name_whatever_id_was_answered(refresh: bool) -> None:
    async def story(world: World) -> None:
        (theirs,) = (pod.id for pod in world.lium.world.pods if pod.id in world.foreign)
        await killed_before_any_list(world, answered=theirs)
        assert record(world).id == theirs
        gone = await world.destroy(request=PlanRequest(refresh=refresh))
        assert gone.code == 0, gone.words
        assert world.open_charges() == ()
        assert not [row for row in world.lium.world.requests if row.method == "DELETE" and theirs in row.path]
        assert gone.report is not None
        assert [(proof.id == theirs, proof.gone) for proof in gone.report.proofs] == [(False, True)], gone.report.proofs

    told(story)


def test_nothing_is_left_of_a_pod_that_went() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        pins = world.settings.state_dir / "known_hosts"
        assert list(pins.glob("*"))
        gone = await emptied(world)
        assert list(pins.glob("*")) == []
        assert "deleting" in phases(gone)

    told(story)


def test_a_delete_that_was_sent_is_word_enough_where_nothing_else_tells_of_the_end() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        killed = await world.destroy(crash_on=("DELETE /pods/*", "on its way", 1))
        assert killed.code is None
        await world.pass_time(600)
        without(world, "events", "statement")
        settling = await world.destroy()
        assert settling.code == ExitCode.UNKNOWN_OUTCOME, "until then nothing told that it had gone"
        assert "settled: it is on its way out" in phases(settling)
        await emptied(world)
        state = world.state()
        assert state is not None
        assert state.records == {}

    told(story)


def test_a_found_pod_that_is_too_dear_and_does_not_go_stays_known() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"price_factor": 9}}, **RENT)
        await killed_with_a_rent_on_its_way(world, served=True)
        (dear,) = world.open_charges("pod")
        world.fault({"do": "answer", "status": 403}, **DELETE, times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert any(phase.startswith("giving it back: ") for phase in phases(ran))
        assert any(phase.startswith(f"settled: found pod {dear.object_id}; given back: ") for phase in phases(ran))
        state = world.state()
        assert state is not None
        assert dear.object_id in {row.id for row in state.records.values()}
        world.clear_faults()
        await mended(world)
        assert dear.object_id not in {charge.object_id for charge in world.open_charges("pod")}

    told(story)


def test_a_found_pod_that_is_too_dear_goes_where_nobody_wants_one_any_more() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"price_factor": 9}}, **RENT)
        await killed_with_a_rent_on_its_way(world, served=True)
        (dear,) = world.open_charges("pod")
        gone = await emptied(world)
        assert any(phase.startswith(f"settled: found pod {dear.object_id}; given back: ") for phase in phases(gone))
        assert deletes(world) == 1

    told(story)


def test_a_statement_that_can_not_be_read_does_not_keep_a_destroy_from_its_end() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 500}, method="GET", path="pods/*/statement", times=None)
        gone = await emptied(world)
        assert gone.report is not None
        assert [(proof.gone, proof.total_usd) for proof in gone.report.proofs] == [(True, None)]

    told(story)


@pytest.mark.parametrize(("where", "sent"), [("before", 2), ("after", 1)])
def test_a_delete_that_may_have_been_done_is_looked_for_until_a_list_comes(where: str, sent: int) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 502, "where": where}, **DELETE, times=1)
        world.fault({"do": "answer", "status": 500}, **LISTS, after=1, times=2)
        before = len(list(world.lium.world.requests))
        await emptied(world)
        rows = list(world.lium.world.requests)[before:]
        assert len([row for row in rows if row.method == "DELETE" and row.path.startswith("/pods/")]) == sent
        assert open_ops(world) == []

    told(story)


# --- a node that a broken pod of ours blocks -------------------------------------------------------------------------


async def told_of_a_broken_pod(world: World, *, more: str = "", breaks: bool) -> str:
    """The id of the pod of `fleet.b`, which a refusal says is broken when `fleet.a` is rented on its own."""
    other = fleet(more=more).replace("RTX4090", "RTX3090").replace("  a:\n", "  b:\n")
    world.write("lium.yaml", other + fleet().split("fleets:\n")[1])
    assert (await world.apply(request=PlanRequest(targets=("fleet.b",)))).code == 0
    if breaks:
        world.fault({"do": "break", "pod": "*-b-0"})
        await world.pass_time(1)
    named = str(record(world, "fleet.b[0]").id)
    message = f"This node still has a broken pod ({named}) that must be removed before you can rent it again."
    world.fault({"do": "answer", "status": 400, "body": {"success": False, "message": message}}, **RENT)
    return named


@pytest.mark.parametrize(
    ("more", "breaks", "deleted"),
    [("", True, 1), ("", False, 0), ("    lifecycle: {prevent_destroy: true}\n", True, 0)],
)
def test_a_pod_that_is_said_to_be_broken_is_deleted_where_a_list_bears_it_out(
    more: str, breaks: bool, deleted: int
) -> None:
    async def story(world: World) -> None:
        await told_of_a_broken_pod(world, more=more, breaks=breaks)
        ran = await world.apply(request=PlanRequest(targets=("fleet.a",)))
        assert ran.code == 0, ran.words
        assert deletes(world) == deleted
        state = world.state()
        assert state is not None
        assert ("fleet.b[0]" in state.records) == (not deleted)
        assert len([name for name in rents(world) if name.endswith("-a-0")]) == 2, "the next node"

    told(story, expected=("a-0", "b-0"))


@pytest.mark.parametrize("fails", [DELETE, {"method": "GET", "path": "pods"}])
def test_a_broken_pod_that_does_not_go_keeps_nobody_from_another_node(fails: dict[str, str]) -> None:
    async def story(world: World) -> None:
        named = await told_of_a_broken_pod(world, breaks=True)
        if fails is DELETE:
            world.fault({"do": "answer", "status": 403}, **DELETE, times=None)
        else:
            world.fault({"do": "answer", "status": 500}, **LISTS, after=1, times=3)
        ran = await world.apply(request=PlanRequest(targets=("fleet.a",)))
        assert ran.code == 0, ran.words
        assert any(phase.startswith("it blocks its node, and does not go: ") for phase in phases(ran))
        assert record(world, "fleet.b[0]").id == named

    told(story, expected=("a-0", "b-0"))


# --- a machine for what is to be replaced ----------------------------------------------------------------------------


def test_what_is_to_be_replaced_waits_for_a_machine_as_its_fleet_says() -> None:
    """And nothing is destroyed until there is one."""

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        old = record(world).id
        world.fault({"do": "take_node", "node": "*"})
        await world.pass_time(70)
        world.fault({"do": "free_node", "node": "*"}, at=120)
        ran = await world.apply(request=PlanRequest(replace=("fleet.a[0]",)))
        assert (record(world).id != old, record(world).status) == (True, "ready"), ran.words
        assert any(phase.startswith("tries again in 15 s, until ") for phase in phases(ran))
        said = phases(ran)
        assert said.index("deleting") > max(n for n, phase in enumerate(said) if phase.startswith("tries again in"))
        await mended(world)

    told(story, manifest=fleet(more="    retry: {on_events: [no-capacity], duration: 30m}\n"))


def test_a_machine_for_what_is_to_be_replaced_is_not_waited_for_beyond_the_fleets_time() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "take_node", "node": "*"})
        await world.pass_time(70)
        failed = await world.apply(request=PlanRequest(replace=("fleet.a[0]",)))
        assert failed.code == ExitCode.PARTIAL, failed.words
        assert 40 <= failed.took_s <= 60
        assert deletes(world) == 0

    told(story, manifest=fleet(more="    retry: {on_events: [no-capacity], duration: 1m}\n"))


def test_the_node_of_an_adopted_pod_that_failed_is_not_tried_again() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"fails": "no space left on device"}}, **RENT, times=None)
        assert (await world.apply(interrupt_after_s=(3.0,))).code == ExitCode.INTERRUPTED
        assert record(world).status == "pending"
        failed = await world.apply()
        assert failed.code == ExitCode.PARTIAL, failed.words
        assert "creation failed on 3 nodes: no space left on device" in failed.words
        nodes = [charge.node_id for charge in world.lium.world.charges if charge.name in rents(world)]
        assert len(nodes) == len(set(nodes)) == 3

    told(story)
