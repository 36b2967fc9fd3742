"""Templates, volumes, registry credentials and SSH keys (contract §2.9–§2.12, §3.3)."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from lium_plan.sim.api.schemas.base import Done as Done
from lium_plan.sim.api.schemas.base import Row, Stamp


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
