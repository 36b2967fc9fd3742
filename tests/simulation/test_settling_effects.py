"""Effects of every kind as a killed run may have left them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lium_plan.addresses import parse
from lium_plan.diagnostics import ExitCode
from lium_plan.kinds.protocol import Json, Record
from lium_plan.marks import keyed_hash
from lium_plan.state.journal import JournaledLedger, RunIdentity
from lium_plan.state.lock import this_process
from tests.simulation.leftovers import WITH_LOGIN, phases
from tests.simulation.manifests import VOLUMES, fleet
from tests.simulation.telling import mended, rents, told
from tests.support.world import CANARY_PASSWORD, World
from tests.support.world_machines import Behaviour

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


def test_what_is_renamed_has_its_new_name_though_nobody_can_say_whether_it_started() -> None:
    task = "tasks:\n  {}: {{fleet: a, commands: [make t], wait: completed}}\n"

    async def story(world: World) -> None:
        assert (await world.apply()).code == ExitCode.PARTIAL
        await world.apply(crash_on=("ssh start", "started", 1))
        world.fault({"do": "ssh", "pod": "*-a-0", "mode": "refuse"})
        moved = "moved: [{from: task.t, to: task.u}]\n"
        world.write("lium.yaml", fleet(1, tail=task.format("u") + moved))
        ran = await world.apply()
        assert ran.code == ExitCode.UNKNOWN_OUTCOME, ran.words
        assert {row.key for row in _records(world) if row.kind == "task"} == {"task.u[0]"}
        assert ran.report is not None
        assert [str(result.verb) for result in ran.report.results] == ["move"]

    told(story, manifest=fleet(1, tail=task.format("t")), behaviours=(Behaviour("make t", exit_status=1),))


def test_a_login_that_a_record_holds_is_not_what_another_open_creation_made() -> None:
    """It is equal, and was made after that creation had begun."""

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        state = world.state()
        assert state is not None
        before = {row.key: row.id for row in _records(world)}
        login = {"username": keyed_hash(state.salt, "robot"), "password": keyed_hash(state.salt, CANARY_PASSWORD)}
        foreign: list[Json] = [*world.foreign]
        await leave_open(world, "credential.t", "create", {"before": foreign, "inputs": {}, **login})
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert "settled: no new credential is listed" in phases(ran)
        assert {row.key: row.id for row in _records(world)} == before
        await mended(world)

    told(story, manifest=WITH_LOGIN, expected=())


def _records(world: World) -> list[Record]:
    state = world.state()
    assert state is not None
    return list(state.records.values())
