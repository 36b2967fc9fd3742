"""The OpenAPI document: every field of the contract's rows is there and required, and every answer keeps to it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import pytest

from lium_plan.sim.app import _api
from tests.sim.lab import Lab, in_lab

DOCUMENT: dict[str, Any] = _api().openapi()
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]

ROWS = {
    "Executor": """
        id machine_name price_per_gpu price_per_hour gpu_count available_gpu_count
        min_gpu_count_for_rental tier reliability_score max_cuda_version executor_ip_address
        location effective_upload_speed_mbps effective_download_speed_mbps nvlink gpu_power_limited
        gpu_power_limit_w gpu_power_limit_default_w frequent_rent_failures last_verified_at status
        is_whole_host_free has_no_pending_rental pending_price_per_hour price_change_effective_date
        uptime_in_minutes validator_hotkey miner_hotkey specs
    """,
    "Location": "country country_code region region_name city zip lat lon timezone",
    "GpuSpecs": "count driver cuda_driver details",
    "GpuDetail": "name capacity cuda power_limit graphics_speed memory_speed pcie pcie_speed uuid",
    "CpuSpecs": "count model",
    "RamSpecs": "total free available",
    "DiskSpecs": "total used free",
    "NetworkSpecs": "upload_speed download_speed",
    "Specs": "gpu cpu ram hard_disk network available_port_count sysbox_runtime is_spot",
    "Interconnect": """
        gpu_count gpu_pairs nvlink nvlink_links nvlink_pairs nvlink_active_links pcie_class p2p
        p2p_pairs p2p_ok_pairs matrix
    """,
    "Pod": """
        id executor_id ports_mapping pod_name ssh_connect_cmd gpu_name gpu_count cpu_name cpu_count
        ram_total status is_favorite updated_at created_at removal_scheduled_at termination_hours
        estimated_ready_seconds eta_basis phase jupyter_installation_status jupyter_url
        enable_jupyter enable_volume_encryption volume_encryption_status price cluster_id
        cluster_node_index cluster_overlay_ip api_key_id api_key_name created_by_api_key_id
        workspace_id local_volume_path template executor volume ssh_keys notice_period
        skip_add_agent_ssh_key
    """,
    "PodDetail": "last_event executor_status",
    "PodExecutor": """
        id machine_name price_per_gpu executor_ip_address validator_hotkey gpu_count specs active
        location
    """,
    "PodTemplate": """
        id name description docker_image docker_image_tag category docker_image_digest volumes
        environment entrypoint internal_ports is_private startup_commands
    """,
    "Template": """
        id user_id name description docker_image docker_image_tag docker_image_digest
        docker_image_size category volumes environment entrypoint internal_ports is_private
        one_time_template is_temporary container_start_immediately startup_commands readme
        docker_credential_id status verification_logs supports_volume_encryption supports_docker
        created_at updated_at
    """,
    "Volume": """
        id name description created_at updated_at current_size_bytes current_file_count
        current_size_gb current_size_mb last_metrics_update
    """,
    "DockerCredential": "id user_id username password created_at updated_at",
    "SshKey": "id name public_key created_at",
    "BackupConfig": """
        id pod_executor_id backup_frequency_hours retention_days backup_path is_active created_at
        updated_at
    """,
    "BackupLog": """
        id backup_config_id status started_at completed_at error_message progress backup_volume_id
        created_at stage total_files processed_files total_bytes processed_bytes deletion_state
        physical_cleanup_at status_message elapsed_seconds throughput_bytes_per_second
        estimated_remaining_seconds
    """,
    "RestoreLog": "backup_id pod_id logs restore_path backup_engine restore_mode last_heartbeat_at",
    "Event": """
        id created_at event_type sub_event_type pod_id pod_name actor from_status to_status reason
        detail error
    """,
    "PodStatement": "pod_id pod_name removed created_at removed_at total billed_seconds",
    "PodRecord": """
        pod_id pod_name gpu_name gpu_count image executor_id created_at removed_at close_reason
        removed billed_seconds total price_segments launch_snapshot
    """,
    "LaunchSnapshot": "gpu_driver cuda_driver gpu_interconnect",
    "User": "id name email balance stripe_customer_id email_verified admin workspace",
    "UserWorkspace": "id name role billing_owner_user_id is_personal",
    "BillingStatement": "start_day end_day total pods",
    "BilledPod": """
        pod_id pod_name gpu_name gpu_count executor_id created_at removed_at close_reason removed
        billed_seconds billed_until total api_key_id api_key_name price_segments days
    """,
    "Key": """
        id user_id name is_active created_at expires_at last_used scopes workspace_id
        created_by_user_id daily_budget_usd max_budget_usd spent_today_usd spent_total_usd
        pod_visibility
    """,
    "Workspace": "id name role billing_owner_user_id pending_billing_owner_user_id created_at",
    "WorkspaceMember": "user_id name email role is_billing_owner joined_at",
    "Version": "started_at uptime_seconds features",
    "FeedDocument": "generated_at count nodes",
    "FeedNode": "id rent_url",
    "Quote": """
        executor_id gpu_count hours price_per_hour lines total_usd pod_balance_floor_usd
        rent_balance_required_usd allocation
    """,
    "Estimate": "estimated_seconds is_slow_machine warning_message is_cached_template docker_image_size",
    "SpecRented": """
        success dry_run pod_id template_id price_per_hour selected_executor candidates attempts
        alternatives_considered
    """,
    "Fabric": "fabric_id fabric_type link_rate fabric_measured node_count nodes",
    "Envelope": "success error message status_code",
    "ErrorBody": "code message hint request_id",
}
"""Contract §1.3, §2 and §3: the fields that an answer always has."""


@pytest.mark.parametrize("name", ROWS)
def test_every_field_of_the_contract_is_required(name: str) -> None:
    assert set(ROWS[name].split()) <= set(SCHEMAS[name]["required"])


def routes() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, route)
        for path, methods in DOCUMENT["paths"].items()
        for method, route in methods.items()
    ]


def test_every_answer_has_a_schema_that_asks_for_something() -> None:
    for method, path, route in routes():
        for status, answer in route["responses"].items():
            if not status.startswith("2"):
                continue
            if status == "204" or "text/event-stream" in answer["content"]:
                continue
            schema = answer["content"]["application/json"]["schema"]
            item = schema.get("items", schema)
            assert "$ref" in item, (method, path)
            assert SCHEMAS[item["$ref"].rpartition("/")[2]]["required"], (method, path)
        assert "4XX" in route["responses"], (method, path)


async def one_of_each(lab: Lab) -> dict[str, str]:
    """A world with one of everything; gives the ids that paths need."""
    credential = await lab.post("/docker-credentials/", {"docker_username": "u", "docker_password": "p"})
    template = await lab.template(docker_credential_id=credential["id"], environment={"A": "1"})
    volume = await lab.post("/volumes", {"name": "v"})
    node = lab.node()
    pod_id = await lab.running(node, template_id=template, volume_id=volume["id"], termination_hours=3)
    pending = await lab.rent(node)
    gone = await lab.rent(lab.node(spare=4))
    await lab.call("DELETE", f"/pods/{gone}")
    await lab.post("/ssh-keys", {"name": "k", "public_key": "ssh-ed25519 AAAA"})
    config = await lab.post(
        "/backup-configs",
        {"pod_id": pod_id, "backup_frequency_hours": 6, "retention_days": 7, "backup_path": "/workspace"},
    )
    backup = await lab.post(f"/pods/{pod_id}/backup", {"name": "b"})
    await asyncio.sleep(60)
    await lab.post(f"/pods/{pod_id}/restore", {"backup_id": backup["id"], "restore_path": "/workspace"})
    reset = await lab.post(f"/pods/{pod_id}/reset-gpu", {})
    key = (await lab.get("/keys"))[0]
    me = await lab.get("/users/me")
    assert (await lab.get(f"/pods/{pending}"))["status"] in ("PENDING", "RUNNING")
    return {
        "pod_id": pod_id,
        "template_id": template,
        "volume_id": volume["id"],
        "executor_id": node,
        "request_id": reset["request_id"],
        "config_id": config["id"],
        "log_id": backup["id"],
        "key_id": key["id"],
        "workspace_id": me["workspace"]["id"],
    }


def test_every_route_that_reads_keeps_to_its_schema() -> None:
    queries = {
        "/executors/{executor_id}/quote": "hours=2&volume_gb=3",
        "/executors/deployment-estimate": "executor_id={executor_id}&template_id={template_id}",
    }

    async def body(lab: Lab) -> None:
        ids = await one_of_each(lab)
        for method, path, route in routes():
            if method != "GET" or path.endswith("/logs"):
                continue
            url = path.format(**ids)
            if path in queries:
                url += "?" + queries[path].format(**ids)
            answer = await lab.call("GET", url)
            assert answer.status_code == 200, (url, answer.text)
            check(route, "200", answer.json(), url)

    in_lab(body)


def check(route: dict[str, Any], status: str, answer: object, where: str) -> None:
    schema = {
        **route["responses"][status]["content"]["application/json"]["schema"],
        "components": DOCUMENT["components"],
    }
    for problem in jsonschema.Draft202012Validator(schema).iter_errors(answer):
        raise AssertionError(f"{where}: {problem.message} at {list(problem.absolute_path)}")


def test_refusals_keep_to_theirs() -> None:
    async def body(lab: Lab) -> None:
        asked = [
            ("GET", "/pods/{pod_id}", await lab.call("GET", "/pods/00000000-0000-4000-8000-000000000000")),
            ("GET", "/pods/{pod_id}", await lab.call("GET", "/pods/x")),
            ("GET", "/pods", await lab.call("GET", "/pods", key="sk_wrong")),
            ("POST", "/volumes", await lab.call("POST", "/volumes", {})),
            (
                "POST",
                "/executors/rent-by-spec",
                await lab.call("POST", "/executors/rent-by-spec", {"gpu_type": "H100"}),
            ),
            (
                "POST",
                "/executors/rent-by-spec",
                await lab.call("POST", "/executors/rent-by-spec", await lab.rent_body(gpu_type="None at all")),
            ),
        ]
        for method, path, answer in asked:
            assert answer.status_code >= 400
            check(DOCUMENT["paths"][path][method.lower()], "4XX", answer.json(), f"{method} {path}")

    in_lab(body)


def test_a_list_says_of_a_pod_what_its_detail_says() -> None:
    """Lists keep rendered rows; whatever changes must show in them."""

    async def body(lab: Lab) -> None:
        volume = (await lab.post("/volumes", {"name": "v"}))["id"]
        template = await lab.template()
        node = lab.node()
        pod_id = await lab.rent(node, template_id=template, volume_id=volume)

        async def compare() -> None:
            detail = await lab.get(f"/pods/{pod_id}")
            del detail["last_event"], detail["executor_status"], detail["executor"]["disk_health_ok"]
            (row,) = [row for row in await lab.get("/pods") if row["id"] == pod_id]
            assert row == detail

        await compare()
        await asyncio.sleep(7)
        await compare()
        await asyncio.sleep(60)
        await compare()
        await lab.call("PUT", f"/volumes/{volume}", {"name": "renamed"})
        await compare()
        await lab.fault({"do": "price", "node": node, "per_gpu_hour_usd": 3, "announced_seconds": 600})
        await compare()
        await lab.rent(node)
        await compare()
        await lab.post(f"/pods/{pod_id}/schedule-removal", {"removal_scheduled_at": "2099-01-01T00:00:00Z"})
        await compare()
        row = await lab.get(f"/templates/{template}")
        sent = {"name": "other", "docker_image": row["docker_image"]}
        assert (await lab.call("PUT", f"/templates/{template}", sent)).status_code == 200
        await compare()
        assert json.loads((await lab.call("GET", "/pods")).content)[0]["template"]["name"] == "other"
        await lab.call("DELETE", f"/pods/{pod_id}")
        await compare()

    in_lab(body)
