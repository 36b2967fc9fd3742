"""What whole runs tell: the audit log, and the events for machines."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import jsonschema

from lium_plan.diagnostics import ExitCode
from lium_plan.requests import PlanRequest
from lium_plan.views.document_schemas import document_schema
from lium_plan.views.events_json import EventStream
from tests.simulation.manifests import BOOTSTRAP, VOLUME, VOLUMES, fleet
from tests.simulation.telling import record, told
from tests.support.world import Ran, World
from tests.support.world_machines import Behaviour


def lines(world: World) -> list[str]:
    return [f"{event.action} {event.address}: {event.result}" for event in world.store().events()]


def test_a_time_to_live_that_is_set_again_or_changed_is_told() -> None:
    async def story(world: World) -> None:
        await world.apply()
        made = lines(world)
        pod_id = str(record(world).id)
        end = world.lium.world.pods[pod_id].removal_scheduled_at
        assert end is not None
        world.lium.world.pods.change(pod_id, removal_scheduled_at=None, removal_follows_boot=False)
        assert (await world.apply()).code == 0
        (repaired,) = lines(world)[len(made) :]
        assert repaired == f"update fleet.a[0]: done: ends {end:%Y-%m-%d %H:%M}Z"
        world.write("lium.yaml", fleet(1).replace("ttl: 24h", "ttl: 30h"))
        assert (await world.apply()).code == 0
        later = end + timedelta(hours=6)
        assert lines(world)[len(made) + 1 :] == [f"update fleet.a[0]: done: ends {later:%Y-%m-%d %H:%M}Z"]
        assert (await world.apply()).code == 0
        assert len(lines(world)) == len(made) + 2, "a run that changes nothing says nothing"

    told(story)


def test_a_bootstrap_that_failed_is_not_told_as_done() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == ExitCode.PARTIAL
        runs = [line for line in lines(world) if line.startswith("run ")]
        assert runs == ["run fleet.a[0].bootstrap: failed: exit code 3"]
        assert (await world.apply()).code == 0
        assert lines(world)[-1] == "run fleet.a[0].bootstrap: done"

    failing = (Behaviour("make ready", exit_status=3, times=1),)
    told(story, manifest=fleet(more=BOOTSTRAP), behaviours=failing)


def test_what_a_refresh_takes_over_is_told() -> None:
    async def story(world: World) -> None:
        await world.apply()
        made = lines(world)
        pod_id = str(record(world).id)
        end = world.lium.world.pods[pod_id].removal_scheduled_at
        assert end is not None
        world.lium.world.pods.change(pod_id, removal_scheduled_at=end + timedelta(hours=2))
        assert (await world.apply(request=PlanRequest(refresh_only=True))).code == 0
        (adopted,) = lines(world)[len(made) :]
        assert adopted.startswith("adopt fleet.a[0]: done: removal_at: ")
        event = world.store().events()[-1]
        assert (event.id, event.price_per_hour_usd is not None) == (pod_id, True)
        await world.apply()

    told(story)


def test_a_first_apply_tells_each_thing_once() -> None:
    async def story(world: World) -> None:
        await world.apply()
        assert sorted(line.partition(":")[0].split("-")[0] for line in lines(world)) == [
            "create template.image",
            "rent fleet.a[0]",
        ]

    told(story)


def lines_of(ran: Ran) -> list[dict[str, Any]]:
    stream = EventStream()
    told = [line for event in ran.events for line in stream.lines(event)]
    rows: list[dict[str, Any]] = json.loads(json.dumps(told + stream.closing(ran.events[-1].at, ran.code)))
    return rows


def test_every_event_of_a_run_is_described_by_its_schema() -> None:
    schema = document_schema("events")
    exact = jsonschema.Draft202012Validator({**schema, "additionalProperties": False})

    async def story(world: World) -> None:
        made = await world.apply()
        world.fault({"do": "answer", "status": 409, "code": "node_unavailable"}, method="POST", path="executors/*/rent")
        failed = await world.apply(request=PlanRequest(replace=("fleet.a[0]",)))
        world.clear_faults()
        await world.apply()
        gone = await world.destroy()
        rows = [row for ran in (made, failed, gone) for row in lines_of(ran)]
        assert [error.message for row in rows for error in exact.iter_errors(row)] == []
        assert {"version", "planned_change", "phase", "apply_complete", "proof"} <= {row["type"] for row in rows}
        assert list(exact.iter_errors({**rows[0], "type": "explosion"}))

    told(story, manifest=fleet(1, more=BOOTSTRAP + VOLUME, tail=VOLUMES))
