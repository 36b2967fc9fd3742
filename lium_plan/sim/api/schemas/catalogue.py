"""The service, its nodes and renting (contract §2.1–§2.6, §3.1)."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import Field

from lium_plan.sim.api.schemas.base import Row, Stamp


class Version(Row):
    started_at: Stamp
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
