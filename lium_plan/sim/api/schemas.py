"""The shapes of answers, for the OpenAPI document alone (contract §1.3, §2, §3).

Every field that an answer always has is required, null where it may be null; a field with a default may be missing.
Nothing is checked against these while serving: a test does that, and holds the lists of fields beside the contract's.
"""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from lium_plan.sim.rows import PodStatus

Stamp = str
"""Naive ISO 8601, which is no RFC 3339 date-time."""


class Row(BaseModel):
    """Fields are only ever added, so that more of them are allowed."""

    model_config = ConfigDict(extra="allow")


# -- refusals -----------------------------------------------------------------------------------------------------


class ErrorBody(Row):
    code: str | None
    message: str
    hint: str | None
    request_id: str


class FieldError(Row):
    field: str
    message: str


class Envelope(Row):
    success: Literal[False]
    error: ErrorBody
    message: str | dict[str, Any]
    status_code: int
    validation_errors: list[FieldError] = []


class FlatRefusal(Row):
    """The 409 of rent-by-spec."""

    success: Literal[False]
    code: str
    message: str


class Detail(Row):
    """What the framework itself says of an unknown route or method."""

    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "Refused",
        "model": Envelope | FlatRefusal | Detail,
        "content": {"text/plain": {"schema": {"type": "string"}}},
    },
    "5XX": {"description": "The server's fault", "model": Envelope},
}


class Done(Row):
    success: bool


# -- the service and its catalogue --------------------------------------------------------------------------------


class Version(Row):
    started_at: str
    uptime_seconds: float
    features: list[str]


class FeedNode(Row):
    """Only these two are never null; a provider may leave out any other."""

    id: UUID
    rent_url: str
    gpu_model: str | None = None
    gpu_count: int | None = None
    available_gpu_count: int | None = None
    min_rentable_gpu_count: int | None = None
    price_per_gpu_hour: float | None = None
    price_per_node_hour: float | None = None
    gpu_memory_gb: int | None = None
    cpu_count: int | None = None
    ram_gb: int | None = None
    disk_gb: int | None = None
    disk_free_gb: int | None = None
    network_download_mbps: float | None = None
    tier: Literal["secure", "spot"] | None = None
    country: str | None = None
    country_code: str | None = None
    region: str | None = None
    city: str | None = None


class FeedDocument(Row):
    generated_at: str
    count: int
    nodes: list[FeedNode]


class Location(Row):
    country: str | None
    country_code: str | None
    region: str | None
    region_name: str | None
    city: str | None
    zip: str | None
    lat: float | None
    lon: float | None
    timezone: str | None


class GpuDetail(Row):
    name: str
    capacity: int
    cuda: str
    power_limit: float
    graphics_speed: int
    memory_speed: int
    pcie: int
    pcie_speed: int
    uuid: str


class GpuSpecs(Row):
    count: int
    driver: str
    cuda_driver: int
    details: list[GpuDetail]


class CpuSpecs(Row):
    count: int
    model: str


class RamSpecs(Row):
    total: int
    free: int
    available: int


class DiskSpecs(Row):
    total: int
    used: int
    free: int


class NetworkSpecs(Row):
    upload_speed: float
    download_speed: float


class Specs(Row):
    gpu: GpuSpecs
    cpu: CpuSpecs
    ram: RamSpecs
    hard_disk: DiskSpecs
    network: NetworkSpecs
    available_port_count: int
    sysbox_runtime: bool
    is_spot: bool


class Interconnect(Row):
    gpu_count: int
    gpu_pairs: int
    nvlink: bool
    nvlink_links: int
    nvlink_pairs: int
    nvlink_active_links: int
    pcie_class: str
    p2p: bool
    p2p_pairs: int
    p2p_ok_pairs: int
    matrix: list[list[str]] | None


class Executor(Row):
    id: UUID
    machine_name: str
    price_per_gpu: float
    price_per_hour: float
    gpu_count: int
    available_gpu_count: int
    min_gpu_count_for_rental: int | None
    tier: Literal["secure", "spot"]
    reliability_score: float | None
    max_cuda_version: float | None
    executor_ip_address: str
    location: Location
    effective_upload_speed_mbps: float | None
    effective_download_speed_mbps: float | None
    nvlink: bool | None
    interconnect: Interconnect | None = Field(default=None, description="Absent with `view=summary`.")
    gpu_power_limited: bool | None
    gpu_power_limit_w: int | None
    gpu_power_limit_default_w: int | None
    frequent_rent_failures: bool | None
    last_verified_at: Stamp | None
    status: str
    is_whole_host_free: bool
    has_no_pending_rental: bool
    pending_price_per_hour: float | None
    price_change_effective_date: Stamp | None
    uptime_in_minutes: int | None
    validator_hotkey: str
    miner_hotkey: str
    specs: Specs


class QuoteLine(Row):
    item: str
    unit: str
    rate_usd: float | None
    quantity: float
    amount_usd: float | None
    note: str


class Quote(Row):
    executor_id: UUID
    gpu_count: int
    hours: float
    price_per_hour: float
    lines: list[QuoteLine]
    total_usd: float
    pod_balance_floor_usd: float
    rent_balance_required_usd: float | None
    allocation: dict[str, str] | None


class DefaultImage(Row):
    docker_image: str
    docker_image_tag: str


class Estimate(Row):
    estimated_seconds: int
    is_slow_machine: bool
    warning_message: str | None
    is_cached_template: bool
    docker_image_size: int | None


class Fabric(Row):
    fabric_id: str
    fabric_type: Literal["infiniband", "roce"]
    link_rate: str | None
    fabric_measured: bool
    node_count: int
    nodes: list[Executor]


class Count(Row):
    count: int


class TotalCount(Row):
    total_count: int


class Machine(Row):
    name: str
    price: float
    rental_rate: float
    total_gpu_count: int


class Bucket(Row):
    max_cap: int
    unrented_count: int
    hourly_rate: float


class Capacity(Row):
    base_model: str
    buckets: dict[str, Bucket]


class Notified(Row):
    provider_notified_count: int
    confirmation: str


# -- renting ------------------------------------------------------------------------------------------------------


class Rented(Row):
    success: Literal[True]
    pod_id: UUID


class ClusterRented(Row):
    success: bool
    pod_ids: list[UUID]


class Alternative(Row):
    id: UUID
    machine_name: str
    gpu_count: int
    available_gpu_count: int
    price_per_gpu: float
    price_per_hour: float
    download_mbps: float
    country_code: str | None


class SpecRented(Row):
    success: Literal[True]
    dry_run: bool
    pod_id: UUID | None
    template_id: UUID | None
    price_per_hour: float
    selected_executor: Executor
    candidates: int
    attempts: int
    alternatives_considered: list[Alternative]


class Member(Row):
    pod_id: UUID
    pod_name: str
    cluster_node_index: int
    success: bool
    message: str


class ClusterRemoved(Row):
    pods: list[Member]


class BuildContext(Row):
    sha256: str


# -- objects ------------------------------------------------------------------------------------------------------


class PodTemplate(Row):
    id: UUID
    name: str
    description: str | None
    docker_image: str
    docker_image_tag: str | None
    category: str
    docker_image_digest: str | None
    volumes: list[str] | None
    environment: dict[str, str] | None
    entrypoint: str | None
    internal_ports: list[int]
    is_private: bool
    startup_commands: str | None


class Template(PodTemplate):
    user_id: UUID | None
    docker_image_size: int | None
    one_time_template: bool
    is_temporary: bool
    container_start_immediately: bool
    readme: str | None
    docker_credential_id: UUID | None
    status: Literal["CREATED", "UPDATED", "VERIFY_PENDING", "VERIFY_SUCCESS", "VERIFY_FAILED"]
    verification_logs: str | None
    supports_volume_encryption: bool
    supports_docker: bool
    created_at: Stamp
    updated_at: Stamp


class Volume(Row):
    id: UUID
    name: str
    description: str
    created_at: Stamp
    updated_at: Stamp
    current_size_bytes: int
    current_file_count: int
    current_size_gb: float
    current_size_mb: float
    last_metrics_update: Stamp | None


class DockerCredential(Row):
    id: UUID
    user_id: UUID
    username: str
    password: str
    created_at: Stamp
    updated_at: Stamp


class SshKey(Row):
    id: UUID
    name: str
    public_key: str
    created_at: Stamp


# -- pods ---------------------------------------------------------------------------------------------------------


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


# -- backups ------------------------------------------------------------------------------------------------------


class BackupConfig(Row):
    id: UUID
    pod_executor_id: UUID
    backup_frequency_hours: int
    retention_days: int
    backup_path: str
    is_active: bool
    created_at: Stamp
    updated_at: Stamp


class BackupLog(Row):
    id: UUID
    backup_config_id: UUID | None
    status: str
    started_at: Stamp
    completed_at: Stamp | None
    error_message: str | None
    progress: float
    backup_volume_id: str | None
    created_at: Stamp
    stage: str
    total_files: int
    processed_files: int
    total_bytes: int
    processed_bytes: int
    deletion_state: str | None
    physical_cleanup_at: Stamp | None
    status_message: str | None
    elapsed_seconds: float
    throughput_bytes_per_second: float | None
    estimated_remaining_seconds: float | None


class RestoreLog(BackupLog):
    backup_id: UUID
    pod_id: UUID
    logs: list[str]
    restore_path: str
    backup_engine: str
    restore_mode: str
    last_heartbeat_at: Stamp | None


class BackupPage(Row):
    items: list[BackupLog]
    has_next: bool


class RestorePage(Row):
    items: list[RestoreLog]
    has_next: bool


# -- the account --------------------------------------------------------------------------------------------------


class UserWorkspace(Row):
    id: str
    name: str
    role: str
    billing_owner_user_id: UUID
    is_personal: bool


class User(Row):
    id: UUID
    name: str
    email: str
    balance: float
    stripe_customer_id: str | None
    email_verified: bool
    admin: bool
    workspace: UserWorkspace


class AuditItem(Row):
    action: str
    actor: Actor | None
    source: str | None
    ip: str
    user_agent: str | None
    request_id: str
    method: str
    route: str
    status_code: int
    resource_type: str
    resource_id: str | None
    summary: str
    created_at: Stamp


class AuditPage(Row):
    items: list[AuditItem]
    next_cursor: str | None


class BilledDay(Row):
    billing_day: str
    amount: float
    billed_seconds: float
    price_per_hour: float
    billed_until: Stamp


class BilledPod(Row):
    pod_id: UUID
    pod_name: str
    gpu_name: str
    gpu_count: int
    executor_id: UUID
    created_at: Stamp
    removed_at: Stamp | None
    close_reason: str | None
    removed: bool
    billed_seconds: float
    billed_until: Stamp | None
    total: float
    api_key_id: str | None
    api_key_name: str | None
    price_segments: list[Segment]
    days: list[BilledDay]


class BillingStatement(Row):
    start_day: str
    end_day: str
    total: float
    pods: list[BilledPod]


class Token(Row):
    token: str


class Workspace(Row):
    id: str
    name: str
    role: Literal["owner", "admin", "member"]
    billing_owner_user_id: UUID
    pending_billing_owner_user_id: UUID | None
    created_at: Stamp


class WorkspaceMember(Row):
    user_id: UUID
    name: str
    email: str
    role: Literal["owner", "admin", "member"]
    is_billing_owner: bool
    joined_at: Stamp


class Scopes(Row):
    scopes: list[str]
    default: list[str]


class Key(Row):
    id: UUID
    user_id: UUID
    name: str
    is_active: bool
    created_at: Stamp
    expires_at: Stamp | None
    last_used: Stamp | None
    scopes: list[str]
    workspace_id: str
    created_by_user_id: UUID
    daily_budget_usd: float | None
    monthly_budget_usd: float | None
    max_budget_usd: float | None
    spent_today_usd: float
    spent_total_usd: float
    pod_visibility: Literal["own", "account"]


class NewKey(Key):
    key: str


class BudgetRefusal(Row):
    id: UUID
    api_key_id: UUID
    event: str
    created_at: Stamp
    window: Literal["daily", "monthly", "max"]
    route: Literal["rent", "pod extend", "topup"]
    amount_usd: float
    budget_usd: float
    spent_usd: float


class BudgetRefusals(Row):
    refusals: list[BudgetRefusal]
