"""What the local Lium remembers, as frozen rows. A change is a new row put in its table, so that nothing changes
without the store seeing it. Rows know no wire format (see `render`) and no rules (see the modules that put them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Scope(StrEnum):
    READ = "read"
    RENT = "rent"
    MANAGE = "manage"
    BILLING = "billing"


DEFAULT_SCOPES = (Scope.READ, Scope.RENT, Scope.MANAGE)


class PodStatus(StrEnum):
    """Contract §4.1. There is no DELETED: a removed pod's row is gone."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    REBOOT_PENDING = "REBOOT_PENDING"
    REBOOT_FAILED = "REBOOT_FAILED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    CREATION_FAILED = "CREATION_FAILED"
    BROKEN = "BROKEN"
    DELETING = "DELETING"


class NodeState(StrEnum):
    """Why a node can't be rented although it has free GPUs."""

    OK = "ok"
    OFFLINE = "offline"
    PAUSED = "paused"
    BANNED = "banned"
    UNVERIFIED = "unverified"
    SLOW = "slow"


class ContainerState(StrEnum):
    """What the machines behind a pod were last asked for."""

    NONE = "none"
    STARTING = "starting"
    UP = "up"


@dataclass(frozen=True, slots=True)
class Account:
    id: str
    name: str
    balance_usd: Decimal
    """Before the running charges, see `money.balance`."""
    workspace_id: str
    workspace_name: str
    opened_at: datetime
    verified: bool = True


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    account_id: str
    name: str
    secret: str
    created_at: datetime
    scopes: tuple[Scope, ...] = DEFAULT_SCOPES
    own_pods_only: bool = False
    """`pod_visibility: own`: the key sees only the pods it rented."""
    daily_budget_usd: Decimal | None = None
    monthly_budget_usd: Decimal | None = None
    max_budget_usd: Decimal | None = None
    is_active: bool = True
    expires_at: datetime | None = None
    deleted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Place:
    country: str | None = None
    country_code: str | None = None
    region: str | None = None
    region_name: str | None = None
    city: str | None = None
    lat: float | None = None
    lon: float | None = None
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A host and its true facts; feed and catalogue round them (contract §2.2, §3.1)."""

    id: str
    machine_name: str
    """Full name, `NVIDIA H100 80GB HBM3`."""
    gpu_model: str
    """The feed's short name, `H100 80GB HBM3`."""
    gpu_count: int
    gpu_memory_mib: int
    price_per_gpu: Decimal
    min_rentable: int
    """Equals `gpu_count` on a host that does not split."""
    tier: str
    place: Place
    cpu_count: int
    cpu_model: str
    ram_kib: int
    disk_kib: int
    disk_free_kib: int
    ports: int
    """Free external TCP ports when no pod of ours is on it."""
    download_mbps: float
    upload_mbps: float
    ip: str
    driver: str
    cuda: float
    reliability: float | None
    nvlink: bool
    sysbox: bool
    uptime_minutes: int
    frequent_rent_failures: bool = False
    fabric: str | None = None
    state: NodeState = NodeState.OK
    others: int = 0
    """GPUs that other people rent."""
    pending_price: Decimal | None = None
    pending_price_at: datetime | None = None
    feed_nulls: tuple[str, ...] = ()
    """Feed fields that this provider does not report: shown as null (missing when prefixed with `-`)."""
    verified_at: datetime | None = None
    rent_locked_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Template:
    id: str
    user_id: str | None
    """None: one of the platform's own."""
    serial: int
    name: str
    description: str | None
    docker_image: str
    docker_image_tag: str
    docker_image_digest: str
    docker_image_size: int | None
    category: str
    volumes: tuple[str, ...] | None
    environment: Mapping[str, str] | None
    entrypoint: str | None
    internal_ports: tuple[int, ...]
    is_private: bool
    one_time_template: bool
    is_temporary: bool
    container_start_immediately: bool
    startup_commands: str | None
    readme: str | None
    docker_credential_id: str | None
    status: str
    supports_volume_encryption: bool
    supports_docker: bool
    created_at: datetime
    updated_at: datetime
    hidden_until: datetime | None = None
    deleted_at: datetime | None = None
    listed_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Volume:
    id: str
    account_id: str
    serial: int
    name: str
    description: str
    created_at: datetime
    updated_at: datetime
    size_bytes: int = 0
    file_count: int = 0
    hidden_until: datetime | None = None
    deleted_at: datetime | None = None
    listed_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Credential:
    id: str
    user_id: str
    serial: int
    username: str
    password: str
    created_at: datetime
    updated_at: datetime
    hidden_until: datetime | None = None
    deleted_at: datetime | None = None
    listed_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class SshKey:
    id: str
    account_id: str
    serial: int
    name: str
    public_key: str
    created_at: datetime
    hidden_until: datetime | None = None
    deleted_at: datetime | None = None
    listed_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Pod:
    id: str
    account_id: str
    key_id: str
    serial: int
    name: str
    node_id: str
    gpu_count: int
    price_per_hour: Decimal
    status: PodStatus
    created_at: datetime
    updated_at: datetime
    template_id: str
    volume_id: str | None
    public_keys: tuple[str, ...]
    extra_ports: int
    termination_hours: int | None
    removal_scheduled_at: datetime | None
    removal_follows_boot: bool
    """The TTL given with the rent starts again at RUNNING (contract U11), unless it was rescheduled."""
    enable_jupyter: bool
    enable_backups: bool
    enable_volume_encryption: bool
    skip_add_agent_ssh_key: bool
    generation: int = 1
    container: ContainerState = ContainerState.NONE
    host: str | None = None
    ssh_user: str = "root"
    ports: Mapping[int, int] = field(default_factory=dict)
    starts_at: datetime | None = None
    """When the creation or reboot that is under way began, and when it should be ready."""
    ready_at: datetime | None = None
    fails_with: str | None = None
    fails_at_step: str | None = None
    ssh_delay_s: float = 0.0
    """In the server's seconds; divided by the speed when the container starts."""
    ssh_mode: str = "none"
    """How this pod's SSH misbehaves from its start on, see `runtime.SshFault`."""
    volume_mount_fails: bool = False
    stuck_delete: bool = False
    conflict_on_delete: bool = False
    detail_404: bool = False
    notice_at: datetime | None = None
    close_reason: str | None = None
    jupyter_status: str | None = None
    jupyter_url: str | None = None
    cluster_id: str | None = None
    cluster_node_index: int | None = None
    dockerfile: str | None = None
    gpu_reset_id: str | None = None
    gpu_reset_until: datetime | None = None
    linger_s: float = 0.0
    """How long lists still show the pod after its row is gone."""
    visible_gpus: int | None = None
    """GPUs the container shows, when it isn't what was ordered."""
    hidden_until: datetime | None = None
    deleted_at: datetime | None = None
    """When the row went away."""
    listed_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Charge:
    """One stretch of one price. Open while `until` is None. Objects without a price have a zero one, so that the
    ledger is also the list of everything that ever existed."""

    id: str
    kind: str
    object_id: str
    name: str
    account_id: str
    key_id: str | None
    node_id: str | None
    gpu_count: int | None
    price_per_hour: Decimal
    since: datetime
    until: datetime | None = None
    credited: bool = False
    """Given back: a creation that failed or was cancelled, a pod that broke (contract §4.1)."""


@dataclass(frozen=True, slots=True)
class Event:
    id: str
    serial: int
    account_id: str
    created_at: datetime
    event_type: str
    sub_event_type: str
    pod_id: str | None = None
    pod_name: str | None = None
    key_id: str | None = None
    """None: the platform itself acted."""
    from_status: str | None = None
    to_status: str | None = None
    reason: str | None = None
    detail: str | None = None
    error: str | None = None
