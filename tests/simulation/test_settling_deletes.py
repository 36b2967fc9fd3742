"""Open deletes and template switches, and what proves that a pod is gone."""

from __future__ import annotations

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.sim.rows import PodStatus
from tests.simulation.leftovers import missing, phases, without
from tests.simulation.manifests import fleet
from tests.simulation.telling import emptied, mended, record, rents, told
from tests.support.world import World


@pytest.mark.parametrize("phase", ["on its way", "answered"])
def test_an_open_delete_goes_on(phase: str) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        killed = await world.destroy(crash_on=("DELETE /pods/*", phase, 1))
        assert killed.code is None
        gone = await emptied(world)
        assert gone.report is not None
        assert [proof.gone for proof in gone.report.proofs] == [True]

    told(story)


def test_an_open_delete_of_a_pod_that_went_meanwhile_is_proved() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        await world.destroy(crash_on=("DELETE /pods/*", "on its way", 1))
        await world.pass_time(600)
        assert world.open_charges("pod") == ()
        gone = await emptied(world)
        assert any("settled: " in phase for phase in phases(gone))

    told(story)


def test_a_deleted_pod_that_is_still_shown_is_not_taken_for_gone() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        pod_id = record(world).id
        await world.destroy(crash_on=("DELETE /pods/*", "on its way", 1))
        world.fault({"do": "stick", "pod": "*-a-0"})
        await world.pass_time(60)
        stuck = await world.destroy()
        assert stuck.code == ExitCode.PARTIAL
        assert record(world).id == pod_id
        world.fault({"do": "unstick", "pod": "*"})
        await world.pass_time(5)
        await emptied(world)

    told(story)


def test_a_template_switch_whose_answer_nobody_read() -> None:
    for phase in ("on its way", "answered"):

        async def story(world: World, phase: str = phase) -> None:
            assert (await world.apply()).code == 0
            pod_id = record(world).id
            world.write("lium.yaml", fleet().replace("ubuntu:22.04", "ubuntu:24.04"))
            killed = await world.apply(crash_on=("PUT /pods/*/switch-template", phase, 1))
            assert killed.code is None
            await world.pass_time(1)
            ran = await world.apply()
            assert ran.code == 0, ran.words
            assert "settled: the template was switched" in phases(ran)
            assert record(world).id == pod_id
            await mended(world)
            assert next(pod for pod in world.lium.world.pods if pod.id == pod_id).status is PodStatus.RUNNING
            await emptied(world)

        told(story)


def test_after_a_switch_the_new_host_key_is_taken_also_where_no_event_tells_of_it() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        pod_id = record(world).id
        world.configure(events_forbidden=True)
        world.fault({"do": "answer", "status": 403}, method="GET", path="pods/*/events", times=None)
        world.write("lium.yaml", fleet().replace("ubuntu:22.04", "ubuntu:24.04"))
        assert (await world.apply(crash_on=("PUT /pods/*/switch-template", "answered", 1))).code is None
        await world.pass_time(1)
        await mended(world)
        assert (record(world).id, len(rents(world))) == (pod_id, 1), "it is not given back for another"
        await emptied(world)

    told(story)


def test_a_template_switch_that_never_arrived_is_done_again() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.write("lium.yaml", fleet().replace("ubuntu:22.04", "ubuntu:24.04"))
        switch = ("PUT /pods/*/switch-template", "on its way", 1)
        world.fault({"do": "lose_reply", "where": "before"}, method="PUT", path="pods/*/switch-template")
        assert (await world.apply(crash_on=switch)).code is None
        await world.pass_time(1)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert "settled: the pod still has its old template" in phases(ran)
        await mended(world)
        await emptied(world)

    told(story)


@pytest.mark.parametrize(("status", "code"), [(401, "permission"), (403, "permission")])
def test_a_delete_that_the_key_may_not_send_ends_and_the_pod_stays_known(status: int, code: str) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": status}, method="DELETE", path="pods/*", times=None)
        refused = await world.destroy()
        assert refused.code == ExitCode.PARTIAL, refused.words
        assert code in refused.words
        assert refused.took_s < 60, "trying again would not help"
        assert record(world).id == world.open_charges("pod")[0].object_id
        state = world.state()
        assert state is not None
        assert not state.open
        world.clear_faults()
        await emptied(world)

    told(story)


@pytest.mark.parametrize(("where", "sent"), [("before", 2), ("after", 1)])
def test_a_delete_that_is_answered_404_is_sent_again_where_the_pod_runs_on(where: str, sent: int) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 404, "where": where}, method="DELETE", path="pods/*")
        await emptied(world)
        deletes = [row for row in world.lium.world.requests if row.method == "DELETE" and "/pods/" in row.path]
        assert len(deletes) == sent

    told(story)


# --- is it gone? --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("silent", [("events",), ("statement",)])
def test_a_missing_pod_is_gone_when_one_source_says_so(silent: tuple[str, ...]) -> None:
    async def story(world: World) -> None:
        without(world, *silent)
        again = await missing(world, 3600)
        assert again.code == 0, again.words
        assert len(rents(world)) == 2
        await mended(world)

    told(story)


def test_a_missing_pod_that_nothing_tells_of_is_not_rented_again() -> None:
    async def story(world: World) -> None:
        without(world, "events", "statement")
        unsure = await missing(world, 3600)
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        assert "nothing the server says proves that it is gone" in unsure.words
        assert len(rents(world)) == 1
        assert record(world).id is not None
        # When its time to live is over it is gone, whatever else is said.
        await world.pass_time(24 * 3600)
        assert (await world.apply()).code == 0
        assert len(rents(world)) == 2

    told(story)


def test_a_missing_pod_whose_detail_is_shown_is_not_gone() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 200, "body": []}, method="GET", path="pods", times=None)
        unsure = await world.apply()
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        assert "the list lacks it, and yet its detail is shown" in unsure.words
        world.clear_faults()
        await mended(world)
        assert len(rents(world)) == 1

    told(story)


def test_a_missing_pod_whose_detail_can_not_be_read_is_not_gone() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.fault({"do": "answer", "status": 200, "body": []}, method="GET", path="pods", times=None)
        world.fault({"do": "answer", "status": 403}, method="GET", path="pods/*", times=None)
        unsure = await world.apply()
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        assert len(rents(world)) == 1

    told(story)
