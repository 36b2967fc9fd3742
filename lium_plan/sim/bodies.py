"""Request bodies (contract §2). Unknown keys are dropped silently, as the server does."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator
from pydantic.json_schema import SkipJsonSchema


class Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""Read by `stamps.parse`, which takes a moment without a zone too."""


def _key_lines(value: list[str] | str) -> list[str]:
    keys = [value] if isinstance(value, str) else value
    lines = [line.strip() for key in keys for line in key.splitlines() if line.strip()]
    if not lines:
        raise ValueError("at least one public key is required")
    return lines


_Key = Annotated[str, StringConstraints(min_length=1)]
PublicKeys = Annotated[Annotated[list[str], Field(min_length=1)] | _Key, AfterValidator(_key_lines)]
"""A list or one string (contract §15.6); lines of keys afterwards."""


class RentOptions(Body):
    """What every rent says but for the node (contract §2.4.1)."""

    pod_name: Name
    template_id: UUID | None = None
    dockerfile_content: str | None = None
    build_context_sha256: str | None = None
    volume_id: UUID | None = None
    user_public_key: PublicKeys
    initial_port_count: int | None = Field(default=None, ge=0, le=1000)
    enable_volume_encryption: bool | None = None
    backup_log_id: UUID | None = None
    restore_path: str | None = None
    enable_backups: bool = True
    termination_hours: int | None = None
    enable_jupyter: bool = False
    skip_add_agent_ssh_key: bool = False

    @property
    def public_keys(self) -> tuple[str, ...]:
        return tuple(self.user_public_key)


class RentBody(RentOptions):
    gpu_count: int | None = None


class SpecBody(RentOptions):
    """`POST /executors/rent-by-spec` (contract §2.5)."""

    gpu_type: Name
    gpu_count: int = Field(default=1, ge=1)
    min_vram_gb: float | None = None
    min_cpus: int | None = None
    min_ram_gb: float | None = None
    min_disk_gb: float | None = None
    min_download_mbps: float | None = None
    min_ports: int | None = None
    max_price_per_gpu_hour: float | None = None
    country: str | None = None
    docker_in_docker: bool = False
    dry_run: bool = False


class ClusterBody(Body):
    """`POST /executors/cluster/rent` (contract §2.6)."""

    pod_name: Name
    template_id: UUID
    executor_uuids: list[UUID] = Field(min_length=2)
    user_public_key: PublicKeys
    initial_port_count: int | None = Field(default=None, ge=0, le=1000)
    enable_volume_encryption: bool | None = None
    enable_backups: bool = True

    @field_validator("executor_uuids")
    @classmethod
    def _distinct(cls, value: list[UUID]) -> list[UUID]:
        if len(set(value)) != len(value):
            raise ValueError("nodes must be distinct")
        return value


Category = Literal["DOCKER", "PYTORCH", "NVIDIA", "TENSOR_FLOW", "OPEN_AI", "UBUNTU"]
Port = Annotated[int, Field(ge=1, le=65535)]


class TemplateBody(Body):
    """`POST /templates` (contract §2.9.3)."""

    name: Name
    docker_image: Annotated[str, StringConstraints(min_length=1, max_length=512, strip_whitespace=True)]
    docker_image_tag: str = "latest"
    docker_image_digest: str = ""
    internal_ports: list[Port] = []
    startup_commands: str = ""
    entrypoint: str | list[str] = ""
    environment: dict[str, str] = {}
    volumes: list[str] = ["/workspace"]
    category: Category = "UBUNTU"
    is_private: bool = True
    one_time_template: bool = False
    is_temporary: bool = False
    container_start_immediately: bool = True
    description: str = ""
    readme: str = ""
    docker_credential_id: UUID | None = None
    docker_image_size: int | None = None
    supports_docker: bool = False
    supports_volume_encryption: bool = False
    verify_ssh_connection: bool = True

    @field_validator("entrypoint")
    @classmethod
    def _first_token(cls, value: str | list[str]) -> str:
        return value if isinstance(value, str) else (value[0] if value else "")


class TemplateUpdate(Body):
    """`PUT /templates/{id}`: the full object; nulls are rejected (contract §2.9.5)."""

    name: Name
    docker_image: Annotated[str, StringConstraints(min_length=1, max_length=512, strip_whitespace=True)]
    docker_image_tag: str = "latest"
    docker_image_digest: str = ""
    internal_ports: list[Port] = []
    startup_commands: str = ""
    entrypoint: str = ""
    environment: dict[str, str] = {}
    volumes: list[str] = ["/workspace"]
    category: Category = "UBUNTU"
    is_private: bool = True
    one_time_template: bool = False
    container_start_immediately: bool = True
    description: str = ""
    readme: str = ""
    docker_credential_id: UUID | SkipJsonSchema[None] = None
    docker_image_size: int | SkipJsonSchema[None] = None
    supports_docker: bool = False
    supports_volume_encryption: bool = False

    @field_validator("*", mode="before")
    @classmethod
    def _no_null(cls, value: object) -> object:
        if value is None:
            raise ValueError("null is not allowed; leave the field out")
        return value


VolumeName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9\-_. ,()!?/]+$")]


class VolumeBody(Body):
    name: VolumeName
    description: str = ""


class VolumeUpdate(Body):
    name: VolumeName | None = None
    description: str | None = None


class CredentialBody(Body):
    docker_username: Name
    docker_password: Annotated[str, StringConstraints(min_length=1)]


class SshKeyBody(Body):
    name: Name
    public_key: Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


class SshKeyUpdate(Body):
    name: Name | None = None
    public_key: Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)] | None = None


class RemovalBody(Body):
    removal_scheduled_at: Moment


class FeedbackBody(Body):
    feedback_text: str | None = None
    rating: int | None = Field(default=None, ge=1, le=5)
    reason: str | None = None


class RebootBody(Body):
    volume_id: UUID | None = None


class SwitchBody(Body):
    template_id: UUID


class JupyterBody(Body):
    jupyter_internal_port: Port


class ResetGpuBody(Body):
    gpu_indices: list[int] | None = None


class MachineRequestBody(Body):
    machine_name: Name
    gpu_count: int | None = Field(default=None, ge=1)


class LoginBody(Body):
    email: str
    password: str


class KeyBody(Body):
    name: Name
    scopes: list[Literal["read", "rent", "manage", "billing"]] | None = None
    daily_budget_usd: float | None = Field(default=None, ge=1)
    monthly_budget_usd: float | None = Field(default=None, ge=1)
    max_budget_usd: float | None = Field(default=None, ge=1)
    pod_visibility: Literal["own", "account"] = "account"
    expires_at: Moment | None = None


class KeyUpdate(Body):
    name: Name | None = None
    scopes: list[Literal["read", "rent", "manage", "billing"]] | None = None
    daily_budget_usd: float | None = Field(default=None, ge=1)
    monthly_budget_usd: float | None = Field(default=None, ge=1)
    max_budget_usd: float | None = Field(default=None, ge=1)
    pod_visibility: Literal["own", "account"] | None = None
    is_active: bool | None = None


class BackupConfigBody(Body):
    pod_id: UUID
    backup_frequency_hours: int = Field(default=6, ge=1)
    retention_days: int = Field(default=7, ge=1)
    backup_path: str


class BackupConfigUpdate(Body):
    backup_frequency_hours: int | None = Field(default=None, ge=1)
    retention_days: int | None = Field(default=None, ge=1)
    backup_path: str | None = None
    is_active: bool | None = None


class BackupBody(Body):
    name: str = ""
    description: str = ""


class RestoreBody(Body):
    backup_id: UUID
    restore_path: str
