"""A pod's life as the API shows it (contract §2.7, §4)."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from lium_plan.sim.bare import BareRuntime
from tests.sim.lab import Lab, in_lab, refusal


def containers(lab: Lab) -> BareRuntime:
    runtime = lab.lium.simulator.runtime
    assert isinstance(runtime, BareRuntime)
    return runtime


async def reasons(lab: Lab, pod_id: str) -> list[tuple[str, str | None, str | None]]:
    events = await lab.get(f"/pods/{pod_id}/events")
    return [(event["sub_event_type"], event["to_status"], event["reason"]) for event in events]


def test_deleting_takes_a_while_and_ends_in_404() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.running()
        assert pod_id in containers(lab).running
        answer = await lab.call("DELETE", f"/pods/{pod_id}")
        assert answer.json()["success"] is True
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "DELETING"
        assert [row["status"] for row in await lab.get("/pods")] == ["DELETING"]
        assert (await lab.call("DELETE", f"/pods/{pod_id}")).status_code == 200
        await asyncio.sleep(1)
        assert pod_id not in containers(lab).running
        await asyncio.sleep(80)
        assert refusal(await lab.call("GET", f"/pods/{pod_id}")) == (404, "not_found")
        assert refusal(await lab.call("DELETE", f"/pods/{pod_id}")) == (404, "not_found")
        assert await lab.get("/pods") == []
        assert await reasons(lab, pod_id) == [
            ("pod-rent.requested", "PENDING", "user_initiated"),
            ("pod-create.success", "RUNNING", None),
            ("pod-delete.requested", "DELETING", "user_initiated"),
            ("pod-delete.success", "DELETED", "user_initiated"),
        ]

    in_lab(body)


def test_times_of_creation_and_deletion_are_real_ones_and_speed_divides_them() -> None:
    async def measure(lab: Lab, times: list[tuple[float, float]]) -> None:
        node, template = lab.node(), await lab.template()
        for _ in range(5):
            pod_id = await lab.rent(node, template_id=template)
            await asyncio.sleep(60)
            await lab.call("DELETE", f"/pods/{pod_id}")
            await asyncio.sleep(80)
            moments = [event.created_at for event in lab.world.events.where("pod", pod_id)]
            rented, ready, deleted, gone = moments
            times.append(((ready - rented).total_seconds(), (gone - deleted).total_seconds()))

    slow: list[tuple[float, float]] = []
    fast: list[tuple[float, float]] = []
    in_lab(lambda lab: measure(lab, slow))
    in_lab(lambda lab: measure(lab, fast), speed=10)
    for created, deleted in slow:
        assert 11.9 < created < 55.1
        assert 19 < deleted < 71
    assert len({round(created, 1) for created, _ in slow}) > 1
    for (created, deleted), (fast_created, fast_deleted) in zip(slow, fast, strict=True):
        assert fast_created == pytest.approx(created / 10, abs=0.01)
        assert fast_deleted == pytest.approx(deleted / 10, abs=0.01)


def test_a_pod_can_be_deleted_while_it_is_created() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent()
        await asyncio.sleep(5)
        assert (await lab.call("DELETE", f"/pods/{pod_id}")).status_code == 200
        await asyncio.sleep(120)
        assert await lab.get("/pods") == []
        assert pod_id not in containers(lab).running
        statement = await lab.get(f"/pods/{pod_id}/statement")
        assert (statement["removed"], statement["total"]) == (True, 0.0)

    in_lab(body)


def test_the_conflict_knob() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent()
        assert refusal(await lab.call("DELETE", f"/pods/{pod_id}")) == (409, "pod_state_conflict")
        await asyncio.sleep(60)
        assert (await lab.call("DELETE", f"/pods/{pod_id}")).status_code == 200

    in_lab(body, pod_state_conflict_while_creating=True)


def test_a_time_to_live_starts_again_at_running_and_ends_the_pod() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent(termination_hours=1)
        row = await lab.get(f"/pods/{pod_id}")
        created = datetime.fromisoformat(row["created_at"])
        at_rent = datetime.fromisoformat(row["removal_scheduled_at"])
        assert abs(at_rent - created - timedelta(hours=1)) < timedelta(seconds=1)
        await asyncio.sleep(60)
        row = await lab.get(f"/pods/{pod_id}")
        at_boot = datetime.fromisoformat(row["removal_scheduled_at"])
        assert timedelta(seconds=10) < at_boot - at_rent < timedelta(seconds=60)
        await asyncio.sleep(3600)
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "DELETING"
        assert ("pod-delete.requested", "DELETING", "scheduled_termination") in await reasons(lab, pod_id)
        actors = [event["actor"] for event in await lab.get(f"/pods/{pod_id}/events")]
        assert actors[0]["api_key_name"] == "default"
        assert actors[-1] is None

    in_lab(body)


def test_speed_does_not_touch_a_time_to_live() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent(termination_hours=1)
        await asyncio.sleep(3500)
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "RUNNING"
        await asyncio.sleep(101)
        assert (await lab.call("GET", f"/pods/{pod_id}")).status_code in (200, 404)
        assert (await lab.get(f"/pods/{pod_id}/events"))[-1]["sub_event_type"].startswith("pod-delete")

    in_lab(body, speed=100)


def test_removal_can_be_scheduled_moved_and_cancelled() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent(termination_hours=1)
        path = f"/pods/{pod_id}/schedule-removal"
        now = lab.world.now
        later = (now + timedelta(hours=3)).isoformat().replace("+00:00", "Z")
        row = await lab.post(path, {"removal_scheduled_at": later})
        assert row["removal_scheduled_at"] + "Z" == later
        assert await lab.post(path, {"removal_scheduled_at": later}) == row
        await asyncio.sleep(60)
        assert (await lab.get(f"/pods/{pod_id}"))["removal_scheduled_at"] == row["removal_scheduled_at"]
        past = await lab.call("POST", path, {"removal_scheduled_at": "2020-01-01T00:00:00Z"})
        assert past.status_code == 400
        assert refusal(await lab.call("POST", path, {"removal_scheduled_at": "soon"})) == (422, "validation_error")
        await asyncio.sleep(3600)
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "RUNNING"
        assert (await lab.call("DELETE", path)).status_code == 200
        await asyncio.sleep(4 * 3600)
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "RUNNING"
        await lab.call("DELETE", f"/pods/{pod_id}")
        deleting = await lab.call("POST", path, {"removal_scheduled_at": "2099-01-01T00:00:00Z"})
        assert refusal(deleting) == (409, "pod_state_conflict")

    in_lab(body)


@pytest.mark.parametrize(
    ("image", "fields", "word"),
    [
        ("limsim/fails-often", {}, "failed to register layer"),
        ("limsim/private-thing", {}, "pull access denied"),
        ("pytorch/pytorch", {}, "is restarting"),
        ("docker.io/library/ubuntu", {"docker_image_tag": "24.04"}, "is restarting"),
        ("python", {"startup_commands": "echo hello"}, "is restarting"),
    ],
)
def test_images_that_come_to_nothing(image: str, fields: dict[str, object], word: str) -> None:
    async def body(lab: Lab) -> None:
        template = await lab.template(docker_image=image, **fields)
        pod_id = await lab.rent(template_id=template)
        await asyncio.sleep(60)
        row = await lab.get(f"/pods/{pod_id}")
        assert row["status"] == "CREATION_FAILED"
        assert word in row["last_event"]["error"]
        assert "failure_step" in row["last_event"]["error"]
        await asyncio.sleep(181)
        assert refusal(await lab.call("GET", f"/pods/{pod_id}")) == (404, "not_found")
        events = await lab.get(f"/pods/{pod_id}/events")
        assert [event["sub_event_type"] for event in events] == [
            "pod-rent.requested",
            "pod-create.failed",
            "pod-delete.success",
        ]
        assert (await lab.get(f"/pods/{pod_id}/statement"))["total"] == 0.0

    in_lab(body)


@pytest.mark.parametrize(
    ("image", "fields"),
    [
        ("pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime", {"startup_commands": "sleep infinity"}),
        ("python:3.11-slim", {"entrypoint": "/bin/sh", "startup_commands": "-c 'exec sleep infinity'"}),
        ("limsim/plain@sha256:" + "0" * 64, {}),
        ("some.registry:5000/team/image", {}),
    ],
)
def test_images_that_run(image: str, fields: dict[str, object]) -> None:
    async def body(lab: Lab) -> None:
        template = await lab.template(docker_image=image, docker_image_tag="", **fields)
        pod_id = await lab.running(template_id=template)
        container = containers(lab).running[pod_id]
        assert container.image.startswith(image.partition("@")[0].partition(":2")[0].partition(":3")[0])
        assert container.command == fields.get("startup_commands", "")

    in_lab(body)


@pytest.mark.parametrize(("password", "status"), [("demo", "RUNNING"), ("wrong", "CREATION_FAILED")])
def test_private_images_need_the_right_credential(password: str, status: str) -> None:
    async def body(lab: Lab) -> None:
        login = {"docker_username": "demo", "docker_password": password}
        credential = await lab.post("/docker-credentials/", login)
        template = await lab.template(docker_image="limsim/private-x", docker_credential_id=credential["id"])
        pod_id = await lab.rent(template_id=template)
        await asyncio.sleep(60)
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == status

    in_lab(body)


def test_slow_images_take_five_times_as_long() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent(template_id=await lab.template(docker_image="limsim/slow-one"))
        await asyncio.sleep(52)
        row = await lab.get(f"/pods/{pod_id}")
        assert (row["status"], row["phase"]) != ("RUNNING", None)
        await asyncio.sleep(250)
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "RUNNING"

    in_lab(body)


def test_what_a_container_gets() -> None:
    async def body(lab: Lab) -> None:
        volume = await lab.post("/volumes", {"name": "data"})
        template = await lab.template(
            internal_ports=[8888, 22],
            environment={"TOKEN": "x", "PATH": "/evil", "EMPTY": ""},
            volumes=["/workspace"],
        )
        pod_id = await lab.running(template_id=template, volume_id=volume["id"], initial_port_count=2, gpu_count=2)
        container = containers(lab).running[pod_id]
        assert container.environment == {"TOKEN": "x"}
        assert container.internal_ports == (8888, 22)
        assert (container.extra_ports, container.local_volume, container.volume_id, container.gpu_count) == (
            2,
            "/workspace",
            volume["id"],
            2,
        )
        row = await lab.get(f"/pods/{pod_id}")
        assert set(row["ports_mapping"]) == {"22", "8888", "20000", "20001"}
        assert row["volume"]["name"] == "data"
        assert row["local_volume_path"] == "/workspace"

    in_lab(body)


def test_no_ports_asked_for_means_the_default_ones() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.running(template_id=await lab.template(internal_ports=[]))
        ports = (await lab.get(f"/pods/{pod_id}"))["ports_mapping"]
        assert set(ports) == {"22", "20000", "20001", "20002", "20003"}

    in_lab(body)


def test_reboot_and_switch_template_replace_the_container() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent()
        assert refusal(await lab.call("POST", f"/pods/{pod_id}/reboot", {})) == (409, "pod_state_conflict")
        await asyncio.sleep(60)
        row = await lab.post(f"/pods/{pod_id}/reboot", {})
        assert (row["status"], row["ssh_connect_cmd"]) == ("REBOOT_PENDING", None)
        await asyncio.sleep(20)
        assert containers(lab).running[pod_id].generation == 2
        other = await lab.template(docker_image="limsim/other")
        switched = await lab.call("PUT", f"/pods/{pod_id}/switch-template", {"template_id": other})
        assert switched.json()["template_id"] == other
        assert "executor_id" not in switched.json()
        await asyncio.sleep(20)
        row = await lab.get(f"/pods/{pod_id}")
        assert (row["status"], row["template"]["id"]) == ("RUNNING", other)
        assert containers(lab).running[pod_id].image == "limsim/other:latest"
        assert containers(lab).host_keys[pod_id] == 3
        assert len(await lab.ledger()) == 1

    in_lab(body)


def test_a_template_edit_reboots_its_pods_and_a_bad_one_leaves_reboot_failed_billing() -> None:
    async def body(lab: Lab) -> None:
        template = await lab.template()
        pod_id = await lab.running(template_id=template)
        await lab.call("PUT", f"/templates/{template}", {"name": "t", "docker_image": "limsim/fails-now"})
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "REBOOT_PENDING"
        await asyncio.sleep(30)
        assert (await lab.get(f"/pods/{pod_id}"))["status"] == "REBOOT_FAILED"
        assert (await lab.ledger())[0]["to"] is None
        assert (await lab.call("DELETE", f"/pods/{pod_id}")).status_code == 200

    in_lab(body)


def test_a_volume_is_attached_at_reboot() -> None:
    async def body(lab: Lab) -> None:
        volume = (await lab.post("/volumes", {"name": "v"}))["id"]
        pod_id = await lab.running()
        await lab.post(f"/pods/{pod_id}/reboot", {"volume_id": volume})
        await asyncio.sleep(20)
        assert containers(lab).running[pod_id].volume_id == volume

    in_lab(body)


def test_a_broken_pod_allows_nothing_but_its_removal() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.running()
        other = await lab.template()
        await lab.fault({"do": "break", "pod": pod_id})
        calls: list[tuple[str, str, dict[str, Any] | None]] = [
            ("POST", f"/pods/{pod_id}/reboot", {}),
            ("PUT", f"/pods/{pod_id}/switch-template", {"template_id": other}),
            ("POST", f"/pods/{pod_id}/schedule-removal", {"removal_scheduled_at": "2099-01-01T00:00:00Z"}),
            ("DELETE", f"/pods/{pod_id}/schedule-removal", None),
            ("POST", f"/pods/{pod_id}/install-jupyter", {"jupyter_internal_port": 22}),
            ("POST", f"/pods/{pod_id}/reset-gpu", {"gpu_indices": None}),
        ]
        for method, path, sent in calls:
            assert refusal(await lab.call(method, path, sent)) == (400, None), path
        assert (await lab.call("DELETE", f"/pods/{pod_id}")).status_code == 200

    in_lab(body)


def test_jupyter_logs_and_gpu_reset() -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent(template_id=await lab.template(internal_ports=[22, 8888]))
        early = await lab.call("GET", f"/pods/{pod_id}/logs")
        assert refusal(early) == (404, "not_found")
        assert early.json()["message"] == "Pod container not deployed yet"
        await asyncio.sleep(60)
        logs = await lab.call("GET", f"/pods/{pod_id}/logs?tail=5&follow=false")
        assert logs.text.startswith('data: {"log": "container of limsim/plain')
        await lab.post(f"/pods/{pod_id}/install-jupyter", {"jupyter_internal_port": 8888})
        await asyncio.sleep(11)
        row = await lab.get(f"/pods/{pod_id}")
        assert row["jupyter_installation_status"] == "SUCCESS"
        assert str(row["ports_mapping"]["8888"]) in row["jupyter_url"]
        bad = await lab.call("POST", f"/pods/{pod_id}/reset-gpu", {"gpu_indices": [7]})
        assert refusal(bad) == (400, "invalid_gpu_index")
        begun = await lab.call("POST", f"/pods/{pod_id}/reset-gpu", {"gpu_indices": [0]})
        assert begun.status_code == 202
        again = await lab.call("POST", f"/pods/{pod_id}/reset-gpu", {"gpu_indices": [0]})
        assert refusal(again) == (429, "rate_limited")
        path = f"/pods/{pod_id}/reset-gpu/{begun.json()['request_id']}"
        assert (await lab.get(path))["status"] == "running"
        await asyncio.sleep(13)
        assert (await lab.get(path))["gpus"][0]["result"] == "reset"

    in_lab(body)


def test_ids_that_are_no_uuids_are_422_and_unknown_routes_are_plain_404() -> None:
    async def body(lab: Lab) -> None:
        assert refusal(await lab.call("GET", "/pods/abc")) == (422, "validation_error")
        nowhere = await lab.call("GET", "/nowhere")
        assert (nowhere.status_code, nowhere.json()) == (404, {"detail": "Not Found"})
        wrong = await lab.call("PATCH", "/pods")
        assert (wrong.status_code, wrong.json()) == (405, {"detail": "Method Not Allowed"})
        slash = await lab.call("GET", "/docker-credentials")
        assert (slash.status_code, slash.headers["location"]) == (307, "http://lium.test/api/docker-credentials/")
        assert (await lab.call("GET", "/templates/")).status_code == 307
        assert nowhere.headers["X-Request-Id"]

    in_lab(body)


def test_request_ids_are_echoed() -> None:
    async def body(lab: Lab) -> None:
        answer = await lab.call("GET", "/pods", X_Request_Id="mine-1")
        assert answer.headers["X-Request-Id"] == "mine-1"
        refused = await lab.call("GET", "/users/me", key="nobody", X_Request_Id="mine-2")
        assert refused.json()["error"]["request_id"] == "mine-2"

    in_lab(body)


def test_backups_and_restores() -> None:
    async def body(lab: Lab) -> None:
        template = await lab.template(volumes=["/root"])
        pod_id = await lab.running(template_id=template)
        for path in ("/mnt", "/root/../etc", "/tmp"):
            wanted = {"pod_id": pod_id, "backup_path": path}
            assert refusal(await lab.call("POST", "/backup-configs", wanted)) == (422, "validation_error")
        config = await lab.post("/backup-configs", {"pod_id": pod_id, "backup_path": "/root/work"})
        assert (await lab.get(f"/backup-configs/pod/{pod_id}"))["id"] == config["id"]
        log = await lab.post(f"/pods/{pod_id}/backup", {"name": "one"})
        busy = await lab.call("POST", f"/pods/{pod_id}/backup", {"name": "two"})
        assert busy.status_code == 409
        assert busy.json()["message"]["active_operation_id"] == log["id"]
        await asyncio.sleep(21)
        assert (await lab.get(f"/backup-logs/{log['id']}"))["status"] == "COMPLETED"
        page = await lab.get(f"/backup-logs/pod/{pod_id}?page=1&limit=1")
        assert (len(page["items"]), page["has_next"]) == (1, False)
        restore = await lab.post(f"/pods/{pod_id}/restore", {"backup_id": log["id"], "restore_path": "/root/back"})
        await lab.post(f"/restore-logs/{restore['id']}/cancel", {})
        rows = (await lab.get(f"/pods/{pod_id}/restore-logs"))["items"]
        assert [row["status"] for row in rows] == ["CANCELLED"]

    in_lab(body)


@pytest.mark.parametrize(("text", "status"), [("see http://10.1.2.3/x", 403), ("../../etc", 403), ("thanks", 200)])
def test_the_firewall_looks_into_bodies_of_deletions(text: str, status: int) -> None:
    async def body(lab: Lab) -> None:
        pod_id = await lab.rent()
        answer = await lab.call("DELETE", f"/pods/{pod_id}", {"feedback_text": text})
        assert answer.status_code == status
        assert (answer.text == "Request blocked") is (status == 403)

    in_lab(body)
