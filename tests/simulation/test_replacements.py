"""A new pod first, then the old one goes: whatever comes between, what still does its work stays until something else does."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.requests import ApplyRequest, PlanRequest
from tests.simulation.leftovers import SENT
from tests.simulation.manifests import BOOTSTRAP, HEAD, fleet, tails
from tests.simulation.telling import RENT, emptied, mended, record, told
from tests.support.world import World
from tests.support.world_machines import Behaviour
from tests.support.world_process import Point

FIRST = "    lifecycle: {create_before_destroy: true}\n"
UNSEEN = ("GET /pods", "before", 2)
DEPOSED = ("journal done", "after", 1)
SUCCEEDED = ("journal begin delete", "before", 1)
"""The successor stands, and the old pod is about to go."""
REPLACE = PlanRequest(replace=("fleet.a[0]",))
FULL = {"do": "answer", "status": 409, "code": "node_unavailable"}
NOBODY_KNOWS = {"do": "answer", "status": 409, "code": "idempotency_outcome_unknown"}
LOST = {"do": "lose_reply", "where": "before"}
FAILS = Behaviour("make it fail", exit_status=1)


def pods(world: World) -> list[str]:
    return sorted(charge.object_id for charge in world.open_charges("pod"))


def other(manifest: str) -> str:
    return manifest.replace("RTX4090", "RTX3090")


@pytest.mark.parametrize("how", ["nobody knows whether it was rented", "killed before it was"])
def test_a_member_that_was_to_be_replaced_still_counts(how: str) -> None:
    before = fleet("1..3", more=FIRST)

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        had = pods(world)
        world.write("lium.yaml", other(before))
        if how == "killed before it was":
            await world.apply(crash_on=DEPOSED)
        else:
            world.fault(LOST, **RENT, times=1)
            world.fault(NOBODY_KNOWS, **RENT, times=None)
            ran = await world.apply(request=PlanRequest(targets=("fleet.a[0]",)))
            assert ran.code == ExitCode.UNKNOWN_OUTCOME
            await world.pass_time(20 * 3600)
            world.clear_faults()
        world.write("lium.yaml", before)
        await mended(world)
        assert pods(world) == had
        await emptied(world)

    told(story, manifest=before, expected=tails(3))


def test_a_member_whose_successor_was_given_back_still_counts() -> None:
    before = fleet("1..2", more=FIRST + BOOTSTRAP)

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        had = pods(world)
        world.write("lium.yaml", other(before).replace("make ready", "make it fail"))
        one = PlanRequest(targets=("fleet.a[0]", "fleet.a[0].bootstrap"))
        await world.apply(request=one, options=ApplyRequest(destroy_new_on_failure=True))
        assert not [row for row in world.lium.world.requests if row.method == "DELETE" and "templates" in row.path]
        world.write("lium.yaml", before)
        await mended(world)
        assert pods(world) == had

    told(story, manifest=before, expected=tails(2), behaviours=(FAILS,))


def test_numbers_with_a_gap_stay_the_members() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "vanish", "pod": "*-a-0"})
        await world.pass_time(5)
        two = fleet(2, more=FIRST)
        world.write("lium.yaml", two)
        assert (await world.apply()).code == 0
        had = pods(world)
        world.write("lium.yaml", other(two))
        await world.apply(crash_on=DEPOSED)
        world.fault(FULL, **RENT, times=None)
        await world.apply()
        assert pods(world) == had

    told(story, manifest=fleet(3, more=FIRST), expected=("a-1", "a-2"))


@pytest.mark.parametrize("answer", [NOBODY_KNOWS, FULL])
@pytest.mark.parametrize("reverted", [False, True])
def test_under_another_name_it_stays_as_well(answer: dict[str, object], reverted: bool) -> None:
    before = fleet(1, more=FIRST)

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        had = pods(world)
        world.write("lium.yaml", other(before))
        world.fault(LOST, **RENT)
        await world.apply(crash_on=SENT)
        await world.pass_time(1)
        world.fault(answer, **RENT, times=None)
        wanted = before if reverted else other(before)
        world.write("lium.yaml", wanted.replace("  a:\n", "  b:\n") + "moved: [{from: fleet.a, to: fleet.b}]\n")
        await world.apply()
        assert pods(world) == had
        world.clear_faults()
        await world.pass_time(600)  # what was unknown may be sent again, under the name that it had
        await mended(world)
        assert (pods(world) == had) is reverted
        await emptied(world)

    told(story, manifest=before, expected=("b-0",) if answer is FULL and not reverted else ("a-0",))


@pytest.mark.parametrize("third", [UNSEEN, DEPOSED])
def test_of_several_the_one_that_does_the_work_stays(third: Point) -> None:
    """B has taken A's place, which is still there; then C is to take B's, and does not come to it."""
    task = "tasks:\n  train: {fleet: a, commands: [train], wait: started}\n"

    async def story(world: World) -> None:
        world.awaits_tasks = False
        assert (await world.apply()).code == 0
        (a,) = pods(world)
        await world.apply(request=REPLACE, crash_on=SUCCEEDED)
        await world.pass_time(1)
        (b,) = set(pods(world)) - {a}
        assert (await world.apply(request=PlanRequest(targets=("task.train",)))).code == 0
        await world.apply(request=REPLACE, crash_on=third)
        await world.pass_time(1)
        ran = await world.apply()
        assert a not in pods(world)
        if third == DEPOSED:
            assert pods(world) == [b]
        else:
            (end,) = [action for action in ran.plans[0].actions if action.deposed_id == b]
            assert end.depends_on, "it goes only once its successor is ready"

    manifest = fleet(1, more=FIRST + BOOTSTRAP, tail=task)
    told(story, manifest=manifest, behaviours=(Behaviour("train", 72000.0),))


@pytest.mark.parametrize("then", ["another name", "released"])
def test_one_that_was_only_to_be_replaced_is_guarded_like_any_other(then: str) -> None:
    before = fleet(1, more=FIRST)

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        had = pods(world)
        await world.apply(request=REPLACE, crash_on=DEPOSED)
        await world.pass_time(1)
        renamed = before.replace("  a:\n", "  b:\n")
        world.write(
            "lium.yaml", renamed if then != "released" else f"{HEAD}removed: [{{from: fleet.a, destroy: false}}]\n"
        )
        ran = await world.apply()
        assert ran.code == (0 if then == "released" else ExitCode.UNSAFE), ran.words
        assert pods(world) == had

    told(story, manifest=before, expected=())


def test_a_rescue_ends_where_the_old_pod_is_what_is_asked_for() -> None:
    retry = "    retry: {on_events: [no-capacity, interruption], duration: 5h}\n"
    before = fleet(1, more=FIRST + retry + BOOTSTRAP.replace("make ready", "make new"))

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        (old,) = pods(world)
        await world.apply(request=REPLACE, crash_on=UNSEEN)
        await world.pass_time(1)

        def lose() -> None:
            (new,) = [charge for charge in world.open_charges("pod") if charge.object_id != old]
            world.fault({"do": "reclaim", "pod": new.name})

        asyncio.get_running_loop().call_later(100, lambda: world.outside.copy().run(lose))
        ran = await world.apply()
        assert ran.took_s < 3600
        assert pods(world) == [old]
        await mended(world)

    told(story, manifest=before, behaviours=(Behaviour("make new", 120.0),))


def test_what_was_to_be_replaced_is_no_successor_of_what_was_taken_away() -> None:
    retry = "    retry: {on_events: [no-capacity, interruption], duration: 10m}\n"
    task = "tasks:\n  train: {fleet: a, commands: [train], wait: completed}\n"
    before = fleet(1, more=FIRST + retry + BOOTSTRAP, tail=task)

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        (old,) = pods(world)
        world.write("lium.yaml", other(before).replace("make ready", "make new"))
        began = len([effect for effect in world.machines.effects if effect.pod_id == old])

        def lose() -> None:
            (new,) = [charge for charge in world.open_charges("pod") if charge.object_id != old]
            world.fault({"do": "reclaim", "pod": new.name})
            world.fault(FULL, **RENT, times=None)

        asyncio.get_running_loop().call_later(80, lambda: world.outside.copy().run(lose))
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert pods(world) == [old]
        assert len([effect for effect in world.machines.effects if effect.pod_id == old]) == began
        world.clear_faults()
        await mended(world)

    told(story, manifest=before, behaviours=(Behaviour("make new", 120.0), Behaviour("train", 60.0)))


@pytest.mark.parametrize("command", ["apply", "destroy"])
@pytest.mark.parametrize("at", [UNSEEN, ("POST /executors/*/rent", "answered", 1)])
def test_protection_that_is_lifted_in_the_same_apply_stays_lifted(command: str, at: Point) -> None:
    before = fleet(1, more="    lifecycle: {create_before_destroy: true, prevent_destroy: true}\n")

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.write("lium.yaml", other(before).replace("prevent_destroy: true", "prevent_destroy: false"))
        await world.apply(crash_on=at)
        await world.pass_time(1)
        ran = await world.run(command)
        assert ran.code == 0, ran.words
        assert len(pods(world)) == (command == "apply")

    told(story, manifest=before)


def test_a_successor_that_is_out_of_sight_for_a_moment_stays() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        (old,) = pods(world)
        await world.apply(request=PlanRequest(replace=("fleet.a[0]",)), crash_on=SUCCEEDED)
        (new,) = set(pods(world)) - {old}
        world.lium.world.pods.change(new, hidden_until=world.now() + timedelta(seconds=60))
        await world.pass_time(1)
        assert (await world.apply()).code == ExitCode.UNKNOWN_OUTCOME
        assert len(pods(world)) == 2
        await world.pass_time(120)
        await mended(world)
        assert pods(world) == [new]

    told(story, manifest=fleet(1, more=FIRST))


def test_one_past_its_end_does_not_stand_again_though_nobody_looked() -> None:
    before = fleet(1, more=FIRST)

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        await world.pass_time(23 * 3600)
        world.write("lium.yaml", other(before))
        await world.apply(crash_on=SUCCEEDED)
        await world.pass_time(2 * 3600)
        assert len(pods(world)) == 1
        world.write("lium.yaml", before)
        await world.apply(request=PlanRequest(refresh=False))
        assert len(pods(world)) == 1, "the only pod, destroyed for one that has expired"

    told(story, manifest=before)


def test_who_writes_the_same_template_back_loses_no_container() -> None:
    before = (
        f"{HEAD}templates:\n  t: {{image: ubuntu:22.04}}\n"
        f"fleets:\n  a:\n    resources: {{gpu: 'RTX4090:1'}}\n    max_price: 1.00\n    template: t\n    ttl: 24h\n{FIRST}"
    )

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        pod, template = record(world).id, record(world, "template.t").id
        world.write("lium.yaml", other(before).replace("22.04", "24.04"))
        await world.apply(crash_on=UNSEEN)
        await world.pass_time(1)
        world.write("lium.yaml", before)
        await mended(world)
        assert (record(world).id, record(world, "template.t").id) == (pod, template)
        assert not [row for row in world.lium.world.requests if "switch-template" in row.path]

    told(story, manifest=before)


def test_a_task_runs_once_after_a_replacement_that_found_nothing() -> None:
    task = "tasks:\n  train: {fleet: a, commands: [train], wait: started}\n"
    a = fleet(1, more=FIRST)
    b = a.replace("  a:\n", "  b:\n")

    async def story(world: World) -> None:
        world.awaits_tasks = False
        assert (await world.apply()).code == 0
        world.fault(FULL, **RENT, times=None)
        assert (await world.apply(request=PlanRequest(replace=("fleet.a[0]",)))).code == ExitCode.PARTIAL
        world.clear_faults()
        released = "removed: [{from: fleet.a, destroy: false}]\n"
        world.write("lium.yaml", b + task.replace("fleet: a", "fleet: b") + released)
        assert (await world.apply()).code == 0
        commands = [command for machine in world.machines._machines.values() for command in machine.commands.values()]
        assert len([command for command in commands if not command.ended(world.clock)]) == 1

    both = a + b.partition("fleets:\n")[2] + task
    told(story, manifest=both, expected=("a-0", "b-0"), behaviours=(Behaviour("train", 72000.0),))


def test_a_renewal_is_no_yes_to_a_new_pod() -> None:
    renewed = "    ttl_renew: true\n"

    async def story(world: World) -> None:
        world.configure(no_rent_idempotency=True)
        assert (await world.apply()).code == 0
        await world.pass_time(3600)
        world.fault({"do": "delay", "where": "before", "seconds": 60}, method="PUT", path="pods/*/switch-template")
        world.write("lium.yaml", fleet(2, more=renewed).replace("22.04", "24.04"))
        world.fault(LOST, **RENT)
        await world.apply(crash_on=SENT)
        world.write("lium.yaml", fleet(2, more=renewed))
        world.fault({"do": "break", "pod": "*-a-0"}, at=200)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "replace fleet.a[0] is needed too" in ran.words
        await mended(world)

    told(story, manifest=fleet(1, more=renewed), expected=tails(2))


def test_successors_that_fail_one_after_the_other_do_not_pile_up() -> None:
    before = fleet(1, more=FIRST + BOOTSTRAP)

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        (old,) = pods(world)
        world.write("lium.yaml", before.replace("make ready", "make it fail"))
        for _ in range(4):
            await world.apply(request=PlanRequest(replace=("fleet.a[0]",)))
            assert len(pods(world)) <= 3
        await world.apply()
        assert len(pods(world)) == 2
        assert old in pods(world)
        world.write("lium.yaml", before)
        await mended(world)

    told(story, manifest=before, behaviours=(FAILS,))


def test_a_useless_successor_goes_though_the_old_one_does_not_stand_a_second_bootstrap() -> None:
    before = fleet(1, more=FIRST + BOOTSTRAP)

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        had = pods(world)
        world.write("lium.yaml", other(before).replace("make ready", "make it fail"))
        await world.apply()
        world.write("lium.yaml", before)
        world.machines.behaviours[:] = [Behaviour("make ready", exit_status=1)]
        await world.apply()
        assert pods(world) == had

    told(story, manifest=before, behaviours=(FAILS,))
