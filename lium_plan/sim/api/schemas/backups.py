"""Backups and restores (contract §2.13)."""

from __future__ import annotations

from uuid import UUID

from lium_plan.sim.api.schemas.base import Done as Done
from lium_plan.sim.api.schemas.base import Row, Stamp


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
