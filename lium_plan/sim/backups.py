"""Backups and restores (contract §2.13): records that complete after a while; no content is kept."""

from __future__ import annotations

from lium_plan.sim import containers, lifecycle
from lium_plan.sim.bodies import BackupConfigBody, BackupConfigUpdate
from lium_plan.sim.records import BackupConfig, Timer, TimerKind, Transfer
from lium_plan.sim.refusal import Refusal, conflict, invalid, not_found
from lium_plan.sim.rows import Json, Pod, PodStatus
from lium_plan.sim.stamps import naive
from lium_plan.sim.world import World

TRANSFER_S = 20.0


def check_path(world: World, pod: Pod, path: str, *, field: str) -> None:
    """Raises Refusal 422 for a path outside the pod's local volume."""
    root = containers.local_volume(world.templates[pod.template_id])
    if ".." in path.split("/") or not (path == root or path.startswith(f"{root}/")):
        raise invalid(field, f"Path must be under {root}")


def configure(world: World, pod: Pod, body: BackupConfigBody) -> BackupConfig:
    lifecycle.check_changeable(pod)
    check_path(world, pod, body.backup_path, field="backup_path")
    for config in world.backup_configs.where("pod", pod.id):
        if config.deleted_at is None:
            raise Refusal(409, None, "This pod has a backup configuration already")
    return world.backup_configs.put(
        BackupConfig(
            world.new_id(),
            pod.account_id,
            pod.id,
            body.backup_frequency_hours,
            body.retention_days,
            body.backup_path,
            world.now,
            world.now,
        )
    )


def reconfigure(world: World, config: BackupConfig, body: BackupConfigUpdate) -> BackupConfig:
    given = body.model_dump(exclude_none=True)
    names = {"backup_frequency_hours": "frequency_hours", "backup_path": "path"}
    if body.backup_path is not None:
        check_path(world, world.pods[config.pod_id], body.backup_path, field="backup_path")
    changes = {names.get(name, name): value for name, value in given.items()}
    return world.backup_configs.change(config.id, updated_at=world.now, **changes)


def begin(world: World, pod: Pod, *, name: str, path: str | None = None, restore_of: str | None = None) -> Transfer:
    """A backup, or a restore of `restore_of` to `path`. Raises Refusal 404, 409 or 422."""
    lifecycle.check_changeable(pod)
    if pod.status is not PodStatus.RUNNING:
        raise conflict(f"Pod is {pod.status.value}, it must be RUNNING")
    config = next((row for row in world.backup_configs.where("pod", pod.id) if row.deleted_at is None), None)
    if restore_of is None and config is None:
        raise not_found("Backup configuration")
    running = [row for row in world.transfers.where("pod", pod.id) if row.status == "IN_PROGRESS"]
    if running:
        raise Refusal(
            409,
            "operation_in_progress",
            "Another backup or restore is running",
            data={"message": "Another backup or restore is running", "active_operation_id": running[0].id},
        )
    if restore_of is not None:
        backup = world.transfers.get(restore_of)
        if backup is None or backup.account_id != pod.account_id or backup.restore_of is not None:
            raise not_found("Backup")
        check_path(world, pod, path or "", field="restore_path")
    transfer = world.transfers.put(
        Transfer(
            id=world.new_id(),
            serial=world.next_serial(),
            account_id=pod.account_id,
            pod_id=pod.id,
            config_id=None if config is None else config.id,
            name=name,
            status="IN_PROGRESS",
            path=path or (config.path if config else "/root"),
            created_at=world.now,
            restore_of=restore_of,
        )
    )
    world.schedule(world.now + world.took(TRANSFER_S), TimerKind.BACKUP_DONE, transfer.id)
    return transfer


def on_done(world: World, timer: Timer) -> None:
    transfer = world.transfers.get(timer.ref)
    if transfer is None or transfer.status != "IN_PROGRESS":
        return
    alive = world.pods[transfer.pod_id].status is PodStatus.RUNNING
    world.transfers.change(transfer.id, status="COMPLETED" if alive else "FAILED", completed_at=world.now)


def cancel(world: World, transfer: Transfer) -> None:
    if transfer.status == "IN_PROGRESS":
        world.transfers.change(transfer.id, status="CANCELLED", completed_at=world.now)


def config_row(config: BackupConfig) -> dict[str, Json]:
    return {
        "id": config.id,
        "pod_executor_id": config.pod_id,
        "backup_frequency_hours": config.frequency_hours,
        "retention_days": config.retention_days,
        "backup_path": config.path,
        "is_active": config.is_active,
        "created_at": naive(config.created_at, 0),
        "updated_at": naive(config.updated_at, 0),
    }


def transfer_row(world: World, row: Transfer) -> dict[str, Json]:
    done = row.status == "COMPLETED"
    end = row.completed_at or world.now
    shown: dict[str, Json] = {
        "id": row.id,
        "backup_config_id": row.config_id,
        "status": row.status,
        "started_at": naive(row.created_at, row.serial),
        "completed_at": naive(row.completed_at, row.serial),
        "error_message": None,
        "progress": 100 if done else 50,
        "backup_volume_id": None,
        "created_at": naive(row.created_at, row.serial),
        "stage": "done" if done else "transferring",
        "total_files": 0,
        "processed_files": 0,
        "total_bytes": 0,
        "processed_bytes": 0,
        "deletion_state": None,
        "physical_cleanup_at": None,
        "status_message": None,
        "elapsed_seconds": (end - row.created_at).total_seconds(),
        "throughput_bytes_per_second": None,
        "estimated_remaining_seconds": None,
    }
    if row.restore_of is not None:
        shown |= {
            "backup_id": row.restore_of,
            "pod_id": row.pod_id,
            "logs": [],
            "restore_path": row.path,
            "backup_engine": "restic",
            "restore_mode": "in_place",
            "last_heartbeat_at": naive(end, row.serial),
        }
    return shown
