"""What the server's rows mean to us: one frozen value per resource, read tolerantly.

Missing, null and unknown keys, numbers as strings, naive timestamps (UTC, contract §0.2) and a `ports_mapping` that is
a JSON string are all read; an unknown status is kept as it is. Only a row that isn't an object or has no id can't be
used: `RowError`. Owns field names of the wire; refuses to judge (what a status means is the caller's).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from lium_plan.lium.fields import (
    RowError,
    as_bool,
    as_decimal,
    as_int,
    as_mapping,
    as_ports,
    as_strings,
    as_text,
    as_time,
    as_usd,
    as_uuid,
    identity,
    row_of,
)

__all__ = [
    "Account",
    "AccountEvent",
    "Credential",
    "Deletion",
    "Pod",
    "PublicFeed",
    "RentAnswer",
    "RowError",
    "SshKey",
    "Statement",
    "Template",
    "Version",
    "Volume",
]


_HOST_ADDRESS = "executor_ip_address"
_NOTHING: Mapping[str, object] = {}


class Deletion(StrEnum):
    """What a DELETE was answered. Neither is a proof that the thing is gone."""

    ACCEPTED = "accepted"
    """2xx: the server took the request; the thing may exist for a while."""
    GONE = "gone"
    """404 or 410: the server knows no such thing."""


@dataclass(frozen=True, slots=True)
class RentAnswer:
    """A rent answered 2xx. `pod_id` is None when the answer didn't name one: look the pod up by name."""

    pod_id: str | None
    replayed: bool
    """A stored answer to an earlier request with the same key."""


@dataclass(frozen=True, slots=True)
class PublicFeed:
    """The public list of rentable nodes (contract §2.2), rows as sent."""

    generated_at: datetime | None
    nodes: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod row (contract §3.2)."""

    id: str
    name: str = ""
    executor_id: str | None = None
    status: str = ""
    """As sent (contract §4.1); empty when the row had none."""
    gpu_count: int | None = None
    """Billed GPUs of the pod; None when the row doesn't say, which is not the same as a wrong number."""
    price_per_hour_usd: Decimal | None = None
    """Of the whole pod."""
    gpu_name: str | None = None
    ssh_connect_cmd: str | None = None
    ports: Mapping[int, int] = field(default_factory=dict)
    """Container port -> external port; empty before allocation."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    """When its row was last changed, by whomever."""
    removal_at: datetime | None = None
    """When the server will remove it by itself."""
    template_id: str | None = None
    template: Mapping[str, object] = field(default_factory=dict, repr=False)
    """The template's row, cut (contract §3.2). Its environment may hold secrets."""
    volume_id: str | None = None
    local_volume_path: str | None = None
    estimated_ready_s: int | None = None
    phase: str | None = None
    cluster_id: str | None = None
    api_key_id: str | None = None
    executor: Mapping[str, object] = field(default_factory=dict, repr=False)
    """The host's row (contract §3.1)."""

    @classmethod
    def from_row(cls, value: object, *, hosts: bool = True) -> Pod:
        """Without `hosts` the host's and the template's rows, most of a list, are left out but for the address."""
        row = row_of(value, "pod")
        id = as_uuid(row.get("id"))
        if id is None:  # it would become the record's
            raise RowError("a pod without a usable `id`")
        template, executor = as_mapping(row.get("template")), as_mapping(row.get("executor"))
        volume = as_mapping(row.get("volume"))
        return cls(
            id=id,
            name=as_text(row.get("pod_name")) or as_text(row.get("name")) or "",
            executor_id=as_text(row.get("executor_id")) or as_text(executor.get("id")),
            status=as_text(row.get("status")) or "",
            gpu_count=as_int(row.get("gpu_count")),
            price_per_hour_usd=as_usd(row.get("price")),
            gpu_name=as_text(row.get("gpu_name")),
            ssh_connect_cmd=as_text(row.get("ssh_connect_cmd")),
            ports=as_ports(row.get("ports_mapping")),
            created_at=as_time(row.get("created_at")),
            updated_at=as_time(row.get("updated_at")),
            removal_at=as_time(row.get("removal_scheduled_at")),
            template_id=as_text(row.get("template_id")) or as_text(template.get("id")),
            template=template if hosts else _NOTHING,
            volume_id=as_text(row.get("volume_id")) or as_text(volume.get("id")),
            local_volume_path=as_text(row.get("local_volume_path")),
            estimated_ready_s=as_int(row.get("estimated_ready_seconds")),
            phase=as_text(row.get("phase")),
            cluster_id=as_text(row.get("cluster_id")),
            api_key_id=as_text(row.get("api_key_id")) or as_text(row.get("created_by_api_key_id")),
            executor=executor if hosts else {_HOST_ADDRESS: executor.get(_HOST_ADDRESS)},
        )


@dataclass(frozen=True, slots=True)
class Template:
    """A template row (contract §3.3). Nulls of older rows are read as empty."""

    id: str
    name: str = ""
    user_id: str | None = None
    """None for the platform's own."""
    description: str = ""
    docker_image: str = ""
    docker_image_tag: str = ""
    docker_image_digest: str = ""
    docker_credential_id: str | None = None
    category: str = ""
    internal_ports: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    entrypoint: str = ""
    startup_commands: str = ""
    volumes: tuple[str, ...] = ()
    is_private: bool | None = None
    one_time_template: bool = False
    status: str = ""
    created_at: datetime | None = None
    told: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """The keys that its row has, but for those that are null."""

    @classmethod
    def from_row(cls, value: object) -> Template:
        row = row_of(value, "template")
        entrypoint = row.get("entrypoint")
        ports = (as_int(port) for port in _list(row.get("internal_ports")))
        return cls(
            id=identity(row, "template"),
            name=as_text(row.get("name")) or "",
            user_id=as_text(row.get("user_id")),
            description=as_text(row.get("description")) or "",
            docker_image=as_text(row.get("docker_image")) or "",
            docker_image_tag=as_text(row.get("docker_image_tag")) or "",
            docker_image_digest=as_text(row.get("docker_image_digest")) or "",
            docker_credential_id=as_text(row.get("docker_credential_id")),
            category=as_text(row.get("category")) or "",
            internal_ports=tuple(port for port in ports if port is not None),
            environment={
                str(name): text
                for name, item in as_mapping(row.get("environment")).items()
                if (text := as_text(item)) is not None
            },
            entrypoint=" ".join(as_strings(entrypoint)) if isinstance(entrypoint, list) else as_text(entrypoint) or "",
            startup_commands=as_text(row.get("startup_commands")) or "",
            volumes=as_strings(row.get("volumes")),
            is_private=as_bool(row.get("is_private")),
            one_time_template=as_bool(row.get("one_time_template")) is True,
            status=as_text(row.get("status")) or "",
            created_at=as_time(row.get("created_at")),
            told=frozenset(name for name, told in row.items() if told is not None),
        )


@dataclass(frozen=True, slots=True)
class Volume:
    """An S3 volume (contract §2.10). Its size is metered and lags (`measured_at`)."""

    id: str
    name: str = ""
    description: str = ""
    size_bytes: int | None = None
    file_count: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    measured_at: datetime | None = None

    @classmethod
    def from_row(cls, value: object) -> Volume:
        row = row_of(value, "volume")
        return cls(
            id=identity(row, "volume"),
            name=as_text(row.get("name")) or "",
            description=as_text(row.get("description")) or "",
            size_bytes=as_int(row.get("current_size_bytes")),
            file_count=as_int(row.get("current_file_count")),
            created_at=as_time(row.get("created_at")),
            updated_at=as_time(row.get("updated_at")),
            measured_at=as_time(row.get("last_metrics_update")),
        )


@dataclass(frozen=True, slots=True)
class Credential:
    """A registry login (contract §2.11). The server sends the password in clear: it is never shown."""

    id: str
    username: str = ""
    password: str = field(default="", repr=False)
    user_id: str | None = None
    created_at: datetime | None = None

    @classmethod
    def from_row(cls, value: object) -> Credential:
        row = row_of(value, "credential")
        return cls(
            id=identity(row, "credential"),
            username=as_text(row.get("username")) or as_text(row.get("docker_username")) or "",
            password=as_text(row.get("password")) or as_text(row.get("docker_password")) or "",
            user_id=as_text(row.get("user_id")),
            created_at=as_time(row.get("created_at")),
        )


@dataclass(frozen=True, slots=True)
class SshKey:
    """A public key registered on the account (contract §2.12)."""

    id: str
    name: str = ""
    public_key: str = ""
    created_at: datetime | None = None

    @classmethod
    def from_row(cls, value: object) -> SshKey:
        row = row_of(value, "ssh key")
        return cls(
            id=identity(row, "ssh key"),
            name=as_text(row.get("name")) or "",
            public_key=as_text(row.get("public_key")) or "",
            created_at=as_time(row.get("created_at")),
        )


@dataclass(frozen=True, slots=True)
class Account:
    """Who the key belongs to (contract §2.14)."""

    id: str
    workspace_id: str | None = None
    balance_usd: Decimal | None = None
    name: str = ""
    workspace_name: str = ""

    @classmethod
    def from_row(cls, value: object) -> Account:
        row = row_of(value, "account")
        workspace = as_mapping(row.get("workspace"))
        return cls(
            id=identity(row, "account"),
            workspace_id=as_text(workspace.get("id")) or as_text(row.get("workspace_id")),
            balance_usd=as_usd(row.get("balance")),
            name=as_text(row.get("name")) or "",
            workspace_name=as_text(workspace.get("name")) or "",
        )


@dataclass(frozen=True, slots=True)
class Version:
    """What the server can do (contract §2.1). Unknown features are kept; none named means none."""

    features: frozenset[str] = frozenset()
    started_at: datetime | None = None

    @classmethod
    def from_row(cls, value: object) -> Version:
        row = row_of(value, "version")
        return cls(
            features=frozenset(as_strings(row.get("features"))),
            started_at=as_time(row.get("started_at")),
        )


@dataclass(frozen=True, slots=True)
class AccountEvent:
    """One line of the account's or a pod's history (contract §2.8). It may lack an id."""

    id: str | None = None
    created_at: datetime | None = None
    event_type: str = ""
    sub_event_type: str = ""
    pod_id: str | None = None
    pod_name: str | None = None
    from_status: str | None = None
    to_status: str | None = None
    reason: str | None = None
    detail: str | None = None
    error: str | None = None

    @classmethod
    def from_row(cls, value: object) -> AccountEvent:
        row = row_of(value, "event")
        return cls(
            id=as_text(row.get("id")),
            created_at=as_time(row.get("created_at")),
            event_type=as_text(row.get("event_type")) or "",
            sub_event_type=as_text(row.get("sub_event_type")) or "",
            pod_id=as_text(row.get("pod_id")),
            pod_name=as_text(row.get("pod_name")),
            from_status=as_text(row.get("from_status")),
            to_status=as_text(row.get("to_status")),
            reason=as_text(row.get("reason")),
            detail=as_text(row.get("detail")),
            error=as_text(row.get("error")),
        )


@dataclass(frozen=True, slots=True)
class Statement:
    """What a pod cost, also after it is gone (contract §2.7.9)."""

    pod_id: str
    removed: bool = False
    """The server's word that it is removed; only a literal `true` counts."""
    removed_at: datetime | None = None
    total_usd: Decimal | None = None
    billed_s: Decimal | None = None
    pod_name: str = ""

    @classmethod
    def from_row(cls, value: object) -> Statement:
        row = row_of(value, "statement")
        return cls(
            pod_id=identity(row, "statement", key="pod_id"),
            removed=row.get("removed") is True,
            removed_at=as_time(row.get("removed_at")),
            total_usd=as_usd(row.get("total")),
            billed_s=as_decimal(row.get("billed_seconds")),
            pod_name=as_text(row.get("pod_name")) or "",
        )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
