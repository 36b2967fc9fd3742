"""Settling what an earlier run left open, and what a lost answer leaves: by lists, by events, by asking again, by time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal

import httpx
import pytest

from lium_plan.addresses import parse
from lium_plan.diagnostics import ExitCode
from lium_plan.kinds.protocol import Json, Record
from lium_plan.planning.plan import Plan
from lium_plan.sim.rows import PodStatus
from lium_plan.state.journal import JournaledLedger, RunIdentity
from lium_plan.state.lock import this_process
from tests.simulation.manifests import HEAD, VOLUME, VOLUMES, fleet, tails
from tests.simulation.telling import RENT, emptied, mended, record, rents, told
from tests.support.world import ACCOUNT, CANARY_PASSWORD, Ran, World

SENT = ("POST /executors/*/rent", "on its way", 1)
WITH_LOGIN = HEAD + (
    "templates:\n  t:\n    image: limsim/torch:2.4\n"
    "    registry_auth: {username: '${{ env.REG_USER }}', password: '${{ env.REG_PASS }}'}\n"
)


def keys(world: World) -> list[tuple[str | None, str]]:
    """(idempotency key, body) of every rent of ours, in order."""
    rows = (row for row in world.lium.world.requests if row.method == "POST" and row.path.endswith("/rent"))
    return [(row.idempotency_key, row.body) for row in rows if row.body and '"lp-' in row.body]


async def killed_with_a_rent_on_its_way(world: World, *, served: bool) -> None:
    """`served`: the server made the pod. Otherwise nothing of it arrived."""
    if not served:
        world.fault({"do": "lose_reply", "where": "before"}, **RENT)
    killed = await world.apply(crash_on=SENT)
    assert killed.code is None
    await world.pass_time(1)
    assert len(world.open_charges("pod")) == served


def phases(ran: Ran) -> list[str]:
    return [event.phase for event in ran.events if event.phase]


# --- an open rent ----------------------------------------------------------------------------------------------------


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
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "settle what an earlier run left open" in ran.words
        world.clear_faults()
        await mended(world)
        await emptied(world)

    told(story)


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


# --- an open delete --------------------------------------------------------------------------------------------------


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


# --- is it gone? -----------------------------------------------------------------------------------------------------


def without(world: World, *sources: str) -> None:
    """What could tell of a pod's end says nothing."""
    if "events" in sources:
        world.configure(events_forbidden=True)
    if "statement" in sources:
        world.fault({"do": "answer", "status": 404}, method="GET", path="pods/*/statement", times=None)


async def missing(world: World, after_s: float) -> Ran:
    """The pod's row goes at once, with no removal before it, and the next apply looks."""
    assert (await world.apply()).code == 0
    await world.pass_time(after_s)
    world.fault({"do": "vanish", "pod": "*-a-0"})
    await world.pass_time(5)
    return await world.apply()


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


# --- open creations --------------------------------------------------------------------------------------------------

CREATIONS = {
    "volume": ("POST /volumes", HEAD + VOLUMES, "volume.data", "volumes"),
    "template": ("POST /templates", fleet(), "template", "templates"),
    "credential": ("POST /docker-credentials/", WITH_LOGIN, "credential.t", "docker-credentials"),
}


@pytest.mark.parametrize("kind", CREATIONS)
@pytest.mark.parametrize("served", [True, False])
def test_an_open_creation_is_adopted_or_done_again(kind: str, served: bool) -> None:
    site, manifest, _, path = CREATIONS[kind]

    async def story(world: World) -> None:
        if not served:
            world.fault({"do": "lose_reply", "where": "before"}, method="POST", path=path)
        killed = await world.apply(crash_on=(site, "on its way", 1))
        assert killed.code is None, killed.words
        await world.pass_time(1)
        before = world.open_charges(kind)
        assert len(before) == served
        ran = await world.apply()
        assert ran.code == 0, ran.words
        made = list(world.open_charges(kind))
        assert len(made) == 1
        assert not served or made == list(before), "not a second one"
        said = f"settled: adopted {kind} " if served else f"settled: no {'new ' * (kind == 'credential')}{kind}"
        assert any(phase.startswith(said) for phase in phases(ran)), phases(ran)
        await mended(world)
        await emptied(world)

    told(story, manifest=manifest, expected=("a-0",) if kind == "template" else ())


def test_a_volume_is_kept_from_destruction_also_when_its_creation_was_settled() -> None:
    guarded = HEAD + "volumes:\n  data: {description: data, lifecycle: {prevent_destroy: true}}\n"

    async def story(world: World) -> None:
        killed = await world.apply(crash_on=("POST /volumes", "on its way", 1))
        assert killed.code is None
        await world.pass_time(1)
        assert (await world.apply()).code == 0
        assert record(world, "volume.data").protected
        assert (await world.destroy()).code == ExitCode.UNSAFE
        assert len(world.open_charges("volume")) == 1

    told(story, manifest=guarded, expected=())


def test_a_volume_without_a_pod_to_use_it_is_billed_and_known() -> None:
    async def story(world: World) -> None:
        await world.apply(crash_on=("POST /volumes", "answered", 1))
        await mended(world)
        assert record(world).depends_on
        await emptied(world)

    told(story, manifest=fleet(more=VOLUME, tail=VOLUMES))


# --- effects as a killed run may have left them ----------------------------------------------------------------------

EVERYTHING = (
    WITH_LOGIN
    + VOLUMES
    + (
        "fleets:\n  a:\n    resources: {gpu: 'RTX4090:1'}\n    template: t\n    volume: data\n    ttl: 24h\n"
        "    bootstrap: {commands: [make ready]}\n"
    )
)


async def leave_open(
    world: World, address: str, op: str, data: Mapping[str, Json], *, row: Record | None = None
) -> None:
    """Write down what a run wrote down that was killed before it knew more; `row` is a record that it had."""
    store = world.store()
    owner = this_process(who="ann@box", command="lium-plan apply", run="killed", since=world.now())
    with await store.lock(owner, timeout_s=0):
        state = store.load().state
        assert state is not None
        ledger = JournaledLedger(store, state, run=RunIdentity("killed", "ann@box", "apply"), now=world.now)
        if row is not None:
            ledger.put(row)
        ledger.begin(parse(address), op, data)


@pytest.mark.parametrize(
    ("address", "op", "said"),
    [
        ("fleet.a[0]", "depose", "the change is compared again"),
        ("fleet.a[0]", "delete", "it is still there"),
        ("volume.data", "update", "the change is compared again"),
        ("volume.data", "delete", "it is still there"),
        ("template.t", "delete", "it is still there"),
        ("credential.t", "update", "the password is sent again"),
        ("credential.t", "delete", "it is still there"),
        ("fleet.a[0].bootstrap", "run", "it did not finish"),
    ],
)
def test_what_is_as_it_was_is_settled_and_left_alone(address: str, op: str, said: str) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        before, sent = {row.key: row.id for row in _records(world)}, len(rents(world))
        await leave_open(world, address, op, {"id": before[address], "key": address})
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert f"settled: {said}" in phases(ran)
        assert {row.key: row.id for row in _records(world)} == before
        assert len(rents(world)) == sent
        state = world.state()
        assert state is not None
        assert not state.open
        await mended(world)

    told(story, manifest=EVERYTHING)


@pytest.mark.parametrize("key", ["volume.old", "template.old", "credential.old"])
@pytest.mark.parametrize("named", [True, False])
def test_what_went_is_forgotten(key: str, named: bool) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        gone = "00000000-0000-4000-8000-000000000000"
        row = Record(parse(key), gone, "ready", {})
        await leave_open(world, key, "delete", {"id": gone, **({"key": key} if named else {})}, row=row)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert "settled: it is gone" in phases(ran)
        assert key not in {row.key for row in _records(world)}
        await mended(world)

    told(story, manifest=EVERYTHING)


def test_an_open_delete_of_a_pod_that_no_list_shows_and_nothing_proves() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        await leave_open(world, "fleet.a[0]", "delete", {"id": "somebody-elses", "key": "fleet.a[0]"})
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert "settled: it is not listed, and not proved gone" in phases(ran)
        await mended(world)
        assert len(rents(world)) == 1

    told(story)


def _records(world: World) -> list[Record]:
    state = world.state()
    assert state is not None
    return list(state.records.values())


# --- several that could be it ----------------------------------------------------------------------------------------


async def somebody_makes(world: World, path: str, body: Mapping[str, object]) -> str:
    """Another user of the account makes something, by hand."""
    headers = {"X-API-KEY": f"sk_sim_{ACCOUNT}"}
    async with httpx.AsyncClient(
        transport=world.lium.transport, base_url=world.lium.base_url, headers=headers
    ) as client:
        return str((await client.post(path, json=body)).raise_for_status().json()["id"])


async def somebody_deletes(world: World, path: str) -> None:
    headers = {"X-API-KEY": f"sk_sim_{ACCOUNT}"}
    async with httpx.AsyncClient(
        transport=world.lium.transport, base_url=world.lium.base_url, headers=headers
    ) as client:
        (await client.delete(path)).raise_for_status()


def test_two_volumes_of_one_name_stop_with_8_and_are_named() -> None:
    async def story(world: World) -> None:
        killed = await world.apply(crash_on=("POST /volumes", "on its way", 1))
        assert killed.code is None
        await world.pass_time(1)
        (ours,) = world.open_charges("volume")
        twin = await somebody_makes(world, "/volumes", {"name": ours.name})
        unsure = await world.apply()
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        assert f"2 volumes are called {ours.name}" in unsure.words
        assert twin in unsure.words
        assert ours.object_id in unsure.words
        await somebody_deletes(world, f"/volumes/{twin}")
        await mended(world)
        assert record(world, "volume.data").id == ours.object_id

    told(story, manifest=HEAD + VOLUMES, expected=())


def test_two_logins_that_look_like_ours_stop_with_8_and_are_named() -> None:
    async def story(world: World) -> None:
        killed = await world.apply(crash_on=("POST /docker-credentials/", "on its way", 1))
        assert killed.code is None
        await world.pass_time(1)
        (ours,) = world.open_charges("credential")
        body = {"docker_username": "robot", "docker_password": CANARY_PASSWORD}
        twin = await somebody_makes(world, "/docker-credentials/", body)
        unsure = await world.apply()
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        assert "several new credentials look like ours" in unsure.words
        assert twin in unsure.words
        await somebody_deletes(world, f"/docker-credentials/{twin}")
        await mended(world)
        assert record(world, "credential.t").id == ours.object_id

    told(story, manifest=WITH_LOGIN, expected=())


def test_another_login_that_is_new_too_is_not_taken_for_ours() -> None:
    async def story(world: World) -> None:
        killed = await world.apply(crash_on=("POST /docker-credentials/", "on its way", 1))
        assert killed.code is None
        await world.pass_time(1)
        (ours,) = world.open_charges("credential")
        for name, word in (("robot", "another"), ("somebody", CANARY_PASSWORD)):
            body = {"docker_username": name, "docker_password": word}
            world.foreign |= {await somebody_makes(world, "/docker-credentials/", body)}
        await mended(world)
        assert record(world, "credential.t").id == ours.object_id

    told(story, manifest=WITH_LOGIN, expected=())


def test_a_login_that_somebodys_template_uses_is_not_adopted() -> None:
    async def story(world: World) -> None:
        killed = await world.apply(crash_on=("POST /docker-credentials/", "on its way", 1))
        assert killed.code is None
        await world.pass_time(1)
        (ours,) = world.open_charges("credential")
        template = await somebody_makes(
            world,
            "/templates",
            {"name": "theirs", "docker_image": "limsim/torch", "docker_credential_id": ours.object_id},
        )
        world.foreign |= {template}
        unsure = await world.apply()
        assert unsure.code == ExitCode.UNKNOWN_OUTCOME, unsure.words
        assert "is used by a template that is not in this state" in unsure.words

    told(story, manifest=WITH_LOGIN, expected=())


def test_a_login_that_is_listed_late_is_waited_for() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "twist", "twist": {"hide_seconds": 30}}, method="POST", path="docker-credentials")
        killed = await world.apply(crash_on=("POST /docker-credentials/", "on its way", 1))
        assert killed.code is None
        await mended(world)
        assert len(world.open_charges("credential")) == 1

    told(story, manifest=WITH_LOGIN, expected=())


# --- creating and deleting within a run ------------------------------------------------------------------------------


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


def test_a_creation_that_nobody_can_tell_of_is_not_tried_again() -> None:
    """Its answer was lost, and two are listed that could be it."""

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        (data,) = world.open_charges("volume")
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
