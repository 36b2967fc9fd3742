"""Pods, their history and what they cost (contract §2.7, §2.8.2, §3.2)."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import Field

from lium_plan.sim.api.schemas.base import Done as Done
from lium_plan.sim.api.schemas.base import Row, Stamp
from lium_plan.sim.api.schemas.catalogue import Location, Specs
from lium_plan.sim.api.schemas.objects import PodTemplate, Volume
from lium_plan.sim.rows import PodStatus


class Actor(Row):
    auth: str
    api_key_id: str
    api_key_name: str


class Event(Row):
    id: UUID
    created_at: Stamp
    event_type: str
    sub_event_type: str
    pod_id: UUID | None
    pod_name: str | None
    actor: Actor | None
    from_status: str | None
    to_status: str | None
    reason: str | None
    detail: str | None
    error: str | None


class PodExecutor(Row):
    """The whole host: fewer fields than in the catalogue."""

    id: UUID
    machine_name: str
    price_per_gpu: float | None
    executor_ip_address: str
    validator_hotkey: str
    miner_hotkey: str
    gpu_count: int
    tier: Literal["secure", "spot"]
    specs: Specs
    active: bool
    location: Location


class SwitchedPod(Row):
    id: UUID
    pod_name: str
    status: PodStatus
    ssh_connect_cmd: str | None
    ports_mapping: dict[str, int] | None
    created_at: Stamp
    updated_at: Stamp
    gpu_name: str
    gpu_count: str
    enable_volume_encryption: bool
    volume_encryption_status: Literal["ENABLED", "UNSUPPORTED_IMAGE", "DISABLED", "FAILED"] | None
    local_volume_path: str | None
    template_id: UUID


class Pod(Row):
    id: UUID
    executor_id: UUID
    ports_mapping: dict[str, int] | None = Field(description="Container port to external port.")
    pod_name: str
    ssh_connect_cmd: str | None
    gpu_name: str
    gpu_count: str
    cpu_name: str
    cpu_count: int
    ram_total: int
    status: PodStatus
    is_favorite: bool
    updated_at: Stamp
    created_at: Stamp
    removal_scheduled_at: Stamp | None
    termination_hours: int | None
    estimated_ready_seconds: int | None
    eta_basis: str | None
    phase: str | None
    jupyter_installation_status: str | None
    jupyter_url: str | None
    enable_jupyter: bool
    enable_volume_encryption: bool
    volume_encryption_status: Literal["ENABLED", "UNSUPPORTED_IMAGE", "DISABLED", "FAILED"] | None
    price: float
    cluster_id: UUID | None
    cluster_node_index: int | None
    cluster_overlay_ip: str | None
    api_key_id: str | None
    api_key_name: str | None
    created_by_api_key_id: str | None
    workspace_id: str
    local_volume_path: str | None
    template: PodTemplate
    executor: PodExecutor | None
    volume: Volume | None
    ssh_keys: list[str]
    notice_period: Stamp | None
    skip_add_agent_ssh_key: bool


class ExecutorStatus(Row):
    logs: list[str]


class PodDetail(Pod):
    last_event: Event | None
    executor_status: ExecutorStatus


class Segment(Row):
    price_per_hour: float
    billed_seconds: float
    amount: float


class PodStatement(Row):
    pod_id: UUID
    pod_name: str
    removed: bool
    created_at: Stamp
    removed_at: Stamp | None
    close_reason: str | None
    total: float
    billed_seconds: float
    price_segments: list[Segment]


class LaunchSnapshot(Row):
    gpu_driver: str
    cuda_driver: str
    gpu_interconnect: str


class PodRecord(PodStatement):
    gpu_name: str
    gpu_count: int
    image: str
    executor_id: UUID
    launch_snapshot: LaunchSnapshot


class ResetStarted(Row):
    request_id: UUID
    status: Literal["running", "done", "failed", "timeout"]


class ResetGpu(Row):
    index: int
    uuid: str
    result: Literal["reset", "latch_cleared", "failed"]
    detail: str | None


class ResetState(ResetStarted):
    gpus: list[ResetGpu]
    container_restarted: bool
    ok: bool | None
