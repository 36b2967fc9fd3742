"""Backups and restores (contract §2.13)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse, Response

from lium_plan.sim import backups
from lium_plan.sim.accounts import Caller
from lium_plan.sim.api.access import Manager, Reader, TheWorld, living_pod, past_pod
from lium_plan.sim.api.schemas import backups as schemas
from lium_plan.sim.api.schemas.base import REFUSALS
from lium_plan.sim.bodies import BackupBody, BackupConfigBody, BackupConfigUpdate, RestoreBody
from lium_plan.sim.records import BackupConfig, Transfer
from lium_plan.sim.refusal import not_found
from lium_plan.sim.rows import Json
from lium_plan.sim.world import World

router = APIRouter(tags=["backups"], responses=REFUSALS)

Page = Annotated[int, Query(ge=1)]
Limit = Annotated[int, Query(ge=1, le=100)]


def _config(world: World, caller: Caller, config_id: UUID) -> BackupConfig:
    config = world.backup_configs.get(str(config_id))
    if config is None or config.account_id != caller.account.id or config.deleted_at is not None:
        raise not_found("Backup configuration")
    return config


def _transfer(world: World, caller: Caller, transfer_id: UUID, *, restore: bool) -> Transfer:
    row = world.transfers.get(str(transfer_id))
    if row is None or row.account_id != caller.account.id or row.deleted_at is not None:
        raise not_found("Restore" if restore else "Backup")
    if (row.restore_of is not None) is not restore:
        raise not_found("Restore" if restore else "Backup")
    return row


def _paged(world: World, rows: Iterable[Transfer], page: int, limit: int, *, restore: bool) -> Response:
    fitting = [row for row in rows if row.deleted_at is None and (row.restore_of is not None) is restore]
    fitting.reverse()
    items: list[Json] = [dict(backups.transfer_row(world, row)) for row in fitting[(page - 1) * limit : page * limit]]
    return JSONResponse({"items": items, "has_next": len(fitting) > page * limit})


@router.post("/backup-configs", response_model=schemas.BackupConfig)
async def create_config(world: TheWorld, caller: Manager, body: BackupConfigBody) -> Response:
    pod = living_pod(world, caller, body.pod_id)
    return JSONResponse(backups.config_row(backups.configure(world, pod, body)))


@router.get("/backup-configs", response_model=list[schemas.BackupConfig])
async def list_configs(world: TheWorld, caller: Reader) -> Response:
    rows = [row for row in world.backup_configs if row.account_id == caller.account.id and row.deleted_at is None]
    return JSONResponse([backups.config_row(row) for row in rows])


@router.get("/backup-configs/pod/{pod_id}", response_model=schemas.BackupConfig)
async def config_of_pod(world: TheWorld, caller: Reader, pod_id: UUID) -> Response:
    pod = past_pod(world, caller, pod_id)
    for row in world.backup_configs.where("pod", pod.id):
        if row.deleted_at is None:
            return JSONResponse(backups.config_row(row))
    raise not_found("Backup configuration")


@router.put("/backup-configs/{config_id}", response_model=schemas.BackupConfig)
async def update_config(world: TheWorld, caller: Manager, config_id: UUID, body: BackupConfigUpdate) -> Response:
    config = _config(world, caller, config_id)
    return JSONResponse(backups.config_row(backups.reconfigure(world, config, body)))


@router.delete("/backup-configs/{config_id}", response_model=schemas.Done)
async def delete_config(world: TheWorld, caller: Manager, config_id: UUID) -> Response:
    world.backup_configs.change(_config(world, caller, config_id).id, deleted_at=world.now)
    return JSONResponse({"success": True})


@router.post("/pods/{pod_id}/backup", response_model=schemas.BackupLog)
async def backup(world: TheWorld, caller: Manager, pod_id: UUID, body: BackupBody) -> Response:
    pod = living_pod(world, caller, pod_id)
    return JSONResponse(backups.transfer_row(world, backups.begin(world, pod, name=body.name)))


@router.get("/backup-logs/", response_model=schemas.BackupPage)
async def list_backups(world: TheWorld, caller: Reader, page: Page = 1, limit: Limit = 20) -> Response:
    rows = world.transfers.where("account", caller.account.id)
    return _paged(world, rows, page, limit, restore=False)


@router.get("/backup-logs/pod/{pod_id}", response_model=schemas.BackupPage)
async def backups_of_pod(world: TheWorld, caller: Reader, pod_id: UUID, page: Page = 1, limit: Limit = 20) -> Response:
    pod = past_pod(world, caller, pod_id)
    return _paged(world, world.transfers.where("pod", pod.id), page, limit, restore=False)


@router.get("/backup-logs/{log_id}", response_model=schemas.BackupLog)
async def show_backup(world: TheWorld, caller: Reader, log_id: UUID) -> Response:
    return JSONResponse(backups.transfer_row(world, _transfer(world, caller, log_id, restore=False)))


@router.delete("/backup-logs/{log_id}", response_model=schemas.Done)
async def delete_backup(world: TheWorld, caller: Manager, log_id: UUID) -> Response:
    row = _transfer(world, caller, log_id, restore=False)
    world.transfers.change(row.id, deleted_at=world.now, status="DELETED")
    return JSONResponse({"success": True})


@router.post("/backup-logs/{log_id}/cancel", response_model=schemas.Done)
async def cancel_backup(world: TheWorld, caller: Manager, log_id: UUID) -> Response:
    backups.cancel(world, _transfer(world, caller, log_id, restore=False))
    return JSONResponse({"success": True})


@router.post("/pods/{pod_id}/restore", response_model=schemas.RestoreLog)
async def restore(world: TheWorld, caller: Manager, pod_id: UUID, body: RestoreBody) -> Response:
    pod = living_pod(world, caller, pod_id)
    row = backups.begin(world, pod, name="", path=body.restore_path, restore_of=str(body.backup_id))
    return JSONResponse(backups.transfer_row(world, row))


@router.get("/pods/{pod_id}/restore-logs", response_model=schemas.RestorePage)
async def restores_of_pod(world: TheWorld, caller: Reader, pod_id: UUID, page: Page = 1, limit: Limit = 20) -> Response:
    pod = past_pod(world, caller, pod_id)
    return _paged(world, world.transfers.where("pod", pod.id), page, limit, restore=True)


@router.post("/restore-logs/{log_id}/cancel", response_model=schemas.Done)
async def cancel_restore(world: TheWorld, caller: Manager, log_id: UUID) -> Response:
    backups.cancel(world, _transfer(world, caller, log_id, restore=True))
    return JSONResponse({"success": True})
