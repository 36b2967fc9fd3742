"""Created but not recorded, and locks: the cases of real tools that lost track of what they had made."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from lium_plan import operations
from lium_plan.diagnostics import ExitCode
from lium_plan.requests import ApplyRequest, PlanRequest, Sources
from lium_plan.sim.rows import PodStatus
from tests.simulation.manifests import BOOTSTRAP, HEAD, VOLUME, VOLUMES, fleet, tails
from tests.simulation.telling import RENT, emptied, find_point, mended, pods, record, rents, told
from tests.support.world import ACCOUNT, World
from tests.support.world_machines import Behaviour
from tests.support.world_oracles import all_done

TEMPLATED = (
    HEAD
    + VOLUMES
    + """\
templates:
  t:
    image: limsim/torch:2.4
    registry_auth: {username: "${{ env.REG_USER }}", password: "${{ env.REG_PASS }}"}
fleets:
  a: {resources: {gpu: "RTX4090:1"}, template: t, volume: data, ttl: 24h}
"""
)

# --- A: created but not recorded -------------------------------------------------------------------------------------


def test_a1_killed_after_the_server_acted_on_the_seventh_of_twenty_rents() -> None:
    point = find_point("POST /executors/*/rent", "answered", 7, nodes=20)

    async def story(world: World) -> None:
        killed = await world.apply(crash_at=point.number)
        assert killed.died_at == point
        known = {charge.name for charge in world.open_charges("pod")}
        assert len(known) >= 7
        await mended(world)
        now = {charge.name for charge in world.open_charges("pod")}
        assert len(now) == 20
        assert known <= now, "what had been made was kept"
        assert (await world.destroy()).code == 0

    told(story, nodes=20)


def test_a3_a_lost_answer_with_one_match_is_adopted() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "lose_reply", "where": "after"}, **RENT)
        await mended(world)
        assert len(rents(world)) == 1

    told(story)


def test_a3_a_lost_answer_without_a_match_is_settled_by_replay() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "lose_reply", "where": "before"}, **RENT)
        await mended(world)
        first, *more = rents(world)
        assert more == [first], "the same request once more, and nothing else"

    told(story)


def test_a3_two_matches_stop_with_8_and_say_what_to_look_at() -> None:
    point = find_point("POST /executors/*/rent", "answered", 1, nodes=1)

    async def story(world: World) -> None:
        await world.apply(crash_at=point.number)
        sent = next(row for row in reversed(tuple(world.lium.world.requests)) if row.path.endswith("/rent"))
        async with httpx.AsyncClient(transport=world.lium.transport, base_url=world.lium.base_url) as client:
            answer = await client.post(sent.path, content=sent.body, headers={"X-API-KEY": f"sk_sim_{ACCOUNT}"})
        twin = answer.json()["pod_id"]
        before = world.changes()
        unsure = await world.apply()
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME
        assert twin in unsure.words
        assert world.changes() == before, "nothing was sent"
        # A person deletes one of the two; then it goes on by itself.
        async with httpx.AsyncClient(transport=world.lium.transport, base_url=world.lium.base_url) as client:
            await client.delete(f"/pods/{twin}", headers={"X-API-KEY": f"sk_sim_{ACCOUNT}"})
        await world.pass_time(120)
        world.broken.clear()  # the two pods of one name are what this case is about
        await mended(world)

    told(story)


def test_a5_a_500_after_the_work_was_done_makes_no_second_pod() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "answer", "status": 500, "where": "after"}, **RENT)
        await mended(world)
        assert len(world.open_charges("pod")) == 1
        assert (
            len({charge.object_id for charge in world.lium.world.charges if charge.kind == "pod"}) == 2
        )  # and a foreign one

    told(story)


def test_a7_a_pod_that_is_not_listed_for_8_s_is_neither_dropped_nor_rented_again() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"hide_seconds": 8}}, **RENT)
        await mended(world)
        assert len(rents(world)) == 1

    told(story)


def test_a7_also_when_its_answer_was_lost() -> None:
    async def story(world: World) -> None:
        world.configure(list_lag_seconds=8)
        world.fault({"do": "lose_reply", "where": "after"}, **RENT)
        await mended(world)
        assert len(set(rents(world))) == 1

    told(story)


def test_a9_a_bootstrap_that_fails_leaves_the_pod_in_the_state() -> None:
    async def story(world: World) -> None:
        failed = await world.apply()
        assert failed.code == ExitCode.PARTIAL
        assert record(world).id in {charge.object_id for charge in world.open_charges("pod")}
        await mended(world)
        assert len(rents(world)) == 1, "the retry does not rent again"

    told(story, manifest=fleet(more=BOOTSTRAP), behaviours=(Behaviour("make ready", 2, 1, b"no\n", times=1),))


@pytest.mark.parametrize("twist", [{"volume_mount_fails": True}, {"visible_gpus": 0}, {"ssh": "silent"}])
def test_a9_a_pod_that_never_gets_ready_is_known_until_it_is_given_back(twist: dict[str, object]) -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": twist}, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert len(rents(world)) == 2
        all_done(world)

    told(story, manifest=fleet(more=VOLUME, tail=VOLUMES))


def test_a9_what_a_template_with_a_lost_answer_replaces_stays_known() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        before = record(world, "template.t").id
        world.write("lium.yaml", TEMPLATED.replace("torch:2.4", "torch:2.5"))
        world.fault({"do": "lose_reply", "where": "after"}, method="POST", path="templates")
        await mended(world)
        assert record(world, "template.t").id != before
        assert len(world.open_charges("template")) == 1, "the old one was deleted"
        await emptied(world)

    told(story, manifest=TEMPLATED)


@pytest.mark.parametrize("kind", ["template", "volume", "credential"])
def test_a3_what_is_created_after_the_client_stopped_waiting_is_not_created_twice(kind: str) -> None:
    route = "docker-credentials" if kind == "credential" else f"{kind}s"

    async def story(world: World) -> None:
        world.fault({"do": "delay", "seconds": 40}, method="POST", path=route)
        await mended(world)
        assert len(world.open_charges(kind)) == 1
        await emptied(world)

    told(story, manifest=TEMPLATED)


def test_a12_a_429_on_the_list_right_after_a_rent() -> None:
    async def story(world: World) -> None:
        limited = {"do": "answer", "status": 429, "headers": {"Retry-After": "7"}}
        world.fault(limited, method="GET", path="pods", after=1, times=2)
        world.fault({"do": "lose_reply", "where": "after"}, **RENT)
        await mended(world)
        assert len(rents(world)) == 1

    told(story)


def test_a_settlement_that_fails_leaves_no_other_behind() -> None:
    async def story(world: World) -> None:
        for path in ("volumes", "docker-credentials"):
            world.fault({"do": "delay", "seconds": 25}, method="POST", path=path)
        await world.apply(kill_after_s=5)
        state = world.state()
        assert state is not None
        assert len(state.open) == 2
        world.fault({"do": "answer", "status": 500}, method="GET", path="volumes", after=1, times=None)
        world.fault({"do": "delay", "seconds": 20}, method="GET", path="docker-credentials", after=1)
        failed = await world.apply()
        assert failed.code == ExitCode.UNKNOWN_OUTCOME, failed.words
        world.clear_faults()
        await mended(world)

    told(story, manifest=TEMPLATED)


# --- a replacement that stopped before its successor was ready --------------------------------------------------------

FIRST = "    lifecycle: {create_before_destroy: true}\n"
REPLACE = PlanRequest(replace=("fleet.a[0]",))
FULL = {"do": "answer", "status": 409, "code": "node_unavailable"}
NOBODY_KNOWS = {"do": "answer", "status": 409, "code": "idempotency_outcome_unknown"}


def test_an_old_pod_outlives_a_replacement_that_found_nothing() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        (old,) = pods(world)
        world.fault(FULL, **RENT, times=None)
        ran = await world.apply(request=REPLACE)
        assert ran.code == ExitCode.PARTIAL, ran.words
        await mended(world)
        assert pods(world) == [old], "what it has is what is wanted"
        world.clear_faults()
        assert (await world.apply(request=REPLACE)).code == 0
        assert old not in pods(world)
        await mended(world)

    told(story, manifest=fleet(1, more=FIRST))


def test_one_whose_replacement_was_killed_stands_at_its_address_again() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        (old,) = pods(world)
        killed = await world.apply(request=REPLACE, crash_on=("journal done", "after", 1))
        assert killed.code is None
        state = world.state()
        assert state is not None
        assert "fleet.a[0]" not in state.records
        await mended(world)
        assert pods(world) == [old]
        assert record(world).id == old

    told(story, manifest=fleet(1, more=FIRST))


def test_and_one_that_was_interrupted_whose_successor_then_fails() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        (old,) = pods(world)
        world.fault({"do": "twist", "twist": {"fails": "no space left on device"}}, **RENT, times=None)
        assert (await world.apply(request=REPLACE, interrupt_after_s=(3.0,))).code == ExitCode.INTERRUPTED
        assert len(pods(world)) == 2
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert pods(world) == [old]

    told(story, manifest=fleet(1, more=FIRST))


def test_two_that_were_left_at_one_address_go_once_it_has_a_pod() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        assert (await world.apply(request=REPLACE, interrupt_after_s=(3.0,))).code == ExitCode.INTERRUPTED
        before = pods(world)
        ran = await world.apply(request=REPLACE)
        assert ran.code == 0, ran.words
        assert len(before) == 2
        assert not set(pods(world)) & set(before)
        await mended(world)

    told(story, manifest=fleet(1, more=FIRST))


def test_an_old_pod_stays_while_nobody_knows_whether_its_successor_was_rented() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        (old,) = pods(world)
        world.fault({"do": "lose_reply", "where": "unrecorded"}, **RENT)
        await world.apply(request=REPLACE, crash_on=("POST /executors/*/rent", "on its way", 1))
        world.fault(NOBODY_KNOWS, **RENT, times=None)
        ran = await world.apply()
        assert ran.code == ExitCode.UNKNOWN_OUTCOME, ran.words
        assert pods(world) == [old]
        assert ran.report is not None
        assert ran.report.results == ()

    told(story, manifest=fleet(1, more=FIRST))


# --- on_failure: delete -----------------------------------------------------------------------------------------------

DELETING = "    bootstrap: {commands: [make ready], timeout: 5m, on_failure: delete, max_failures: 0}\n"
WORSE = (Behaviour("make ready", 10.0), Behaviour("make worse", 10.0, exit_status=1))


def test_a_protected_pod_is_not_given_back_and_that_is_said() -> None:
    protected = DELETING + "    lifecycle: {prevent_destroy: true}\n"

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        before = pods(world)
        world.write("lium.yaml", fleet(1, more=protected.replace("ready", "worse")))
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert pods(world) == before
        assert ran.report is not None
        (cause,) = [result.cause for result in ran.report.results if result.cause is not None]
        assert "its pod stays, for prevent_destroy protects it; log: " in str(cause.hint)

    told(story, manifest=fleet(1, more=protected), behaviours=WORSE)


def test_pods_that_were_there_before_are_not_given_back_for_what_was_not_begun() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        first, *others = pods(world)
        world.write("lium.yaml", fleet(3, more=DELETING.replace("ready", "worse")))
        ran = await world.apply(options=ApplyRequest(parallelism=1))
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert ran.words.count("max-failures: ") == 2
        assert pods(world) == others
        assert first not in pods(world)

    told(story, manifest=fleet(3, more=DELETING), expected=tails(3), behaviours=WORSE)


def test_those_that_the_run_has_rented_are() -> None:
    async def story(world: World) -> None:
        ran = await world.apply(options=ApplyRequest(parallelism=1))
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "max-failures: " in ran.words
        assert pods(world) == []

    told(story, manifest=fleet(3, more=DELETING.replace("ready", "worse")), expected=(), behaviours=WORSE)


# --- C: locks --------------------------------------------------------------------------------------------------------


def test_c1_a_killed_owner_leaves_nobody_stuck_and_a_living_one_is_named() -> None:
    async def story(world: World) -> None:
        await world.apply(kill_after_s=6)
        first = asyncio.create_task(world.apply())
        await world.pass_time(3)
        second = await world.apply()
        assert second.code == ExitCode.LOCKED
        assert "lium-plan apply" in second.words
        assert "that process is running" in second.words
        assert (await first).code == 0

    told(story)


def test_c1_waiting_for_the_lock() -> None:
    async def story(world: World) -> None:
        first = asyncio.create_task(world.apply())
        await world.pass_time(3)
        second = await world.apply(options=ApplyRequest(lock_timeout_s=600))
        assert (await first).code == second.code == 0
        assert len(rents(world)) == 1

    told(story)


@pytest.mark.parametrize("fault", ["stale", "manifest", "key", "unsafe", "declined"])
def test_c2_every_failing_path_releases_the_lock(fault: str) -> None:
    async def story(world: World) -> None:
        made = await world.apply()
        assert made.code == 0
        whole = (world.folder / "project" / "lium.yaml").read_text()
        if fault == "manifest":
            world.write("lium.yaml", "version: 1\nproject: [\n")
            assert (await world.apply()).code == ExitCode.ERROR
        elif fault == "key":
            world.fault({"do": "answer", "status": 401}, method="GET", path="**", times=None)
            assert (await world.apply()).code == ExitCode.ERROR
            world.clear_faults()
        elif fault == "unsafe":
            guarded = whole.replace("ttl: 24h", "ttl: 24h\n    lifecycle: {prevent_destroy: true}")
            world.write("lium.yaml", guarded)
            assert (await world.apply()).code == 0
            assert (await world.destroy()).code == ExitCode.UNSAFE
        elif fault == "declined":
            world.write("lium.yaml", whole.replace("ttl: 24h", "ttl: 30h"))
            assert (await world.apply(approve=lambda plan: False)).code == ExitCode.ERROR
        else:
            await _stale(world, whole)
        world.write("lium.yaml", whole)
        await mended(world)

    told(story)


async def _stale(world: World, whole: str) -> None:
    saved = world.folder / "plan.json"
    world.write("lium.yaml", whole.replace("ttl: 24h", "ttl: 30h"))
    await world.apply(approve=lambda plan: (operations.save_plan(plan, saved), False)[1])
    assert (await world.apply()).code == 0
    stale = await world.apply(options=ApplyRequest(plan_file=saved))
    assert stale.code == ExitCode.STALE, stale.words


def test_c7_reading_works_while_an_apply_runs() -> None:
    async def story(world: World) -> None:
        running = asyncio.create_task(world.apply())
        for _ in range(8):
            await world.pass_time(4)
            if world.state() is not None:
                state = operations.load_state(world.settings)
                assert state.project == "cases"
                assert operations.outputs(world.settings) is not None
                operations.events(world.settings)
            operations.validate(world.settings, Sources(("project",)))
        assert (await running).code == 0
        assert {row.status for row in world.lium.world.pods} >= {PodStatus.RUNNING}

    told(story)
