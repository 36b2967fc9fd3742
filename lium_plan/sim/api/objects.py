"""Templates, volumes, registry credentials and SSH keys (contract §2.9–§2.12)."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body
from starlette.responses import JSONResponse, Response

from lium_plan.sim import objects, templates, throttle
from lium_plan.sim.api.access import Anyone, Manager, Reader, TheExchange, TheWorld
from lium_plan.sim.api.schemas import objects as schemas
from lium_plan.sim.api.schemas.base import REFUSALS
from lium_plan.sim.bodies import (
    CredentialBody,
    SshKeyBody,
    SshKeyUpdate,
    TemplateBody,
    TemplateUpdate,
    VolumeBody,
    VolumeUpdate,
)
from lium_plan.sim.listing import shown
from lium_plan.sim.refusal import not_found
from lium_plan.sim.render import credential_row, ssh_key_row, template_row, volume_row

router = APIRouter(responses=REFUSALS)


# -- templates ----------------------------------------------------------------------------------------------------


@router.get("/templates", response_model=list[schemas.Template], tags=["templates"])
async def list_templates(world: TheWorld, caller: Anyone) -> Response:
    """The platform's, other people's public ones, and the account's own."""
    return JSONResponse([template_row(row) for row in templates.visible_templates(world, caller)])


@router.post("/templates", response_model=schemas.Template, tags=["templates"])
async def create_template(world: TheWorld, caller: Manager, exchange: TheExchange, body: TemplateBody) -> Response:
    throttle.take_template(world, caller.account.id)
    return JSONResponse(template_row(templates.create_template(world, caller, body, exchange.twist)))


@router.get("/templates/{template_id}", response_model=schemas.Template, tags=["templates"])
async def show_template(world: TheWorld, caller: Reader, template_id: UUID) -> Response:
    template = templates.visible_template(world, caller, str(template_id))
    if template is None:
        raise not_found("Template")
    return JSONResponse(template_row(template))


@router.put("/templates/{template_id}", response_model=schemas.Template, tags=["templates"])
async def update_template(world: TheWorld, caller: Manager, template_id: UUID, body: TemplateUpdate) -> Response:
    """The full object; pods that use it are rebooted."""
    template = templates.own_template(world, caller, str(template_id))
    return JSONResponse(template_row(templates.update_template(world, caller, template, body)))


@router.delete("/templates/{template_id}", response_model=schemas.Done, tags=["templates"])
async def delete_template(world: TheWorld, caller: Manager, exchange: TheExchange, template_id: UUID) -> Response:
    template = templates.own_template(world, caller, str(template_id))
    templates.delete_template(world, caller, template, exchange.twist)
    return JSONResponse({"success": True})


# -- volumes ------------------------------------------------------------------------------------------------------


@router.get("/volumes", response_model=list[schemas.Volume], tags=["volumes"])
async def list_volumes(world: TheWorld, caller: Reader) -> Response:
    rows = shown(world, world.volumes.where("account", caller.account.id))
    return JSONResponse([volume_row(row) for row in rows])


@router.post("/volumes", response_model=schemas.Volume, tags=["volumes"])
async def create_volume(world: TheWorld, caller: Manager, exchange: TheExchange, body: VolumeBody) -> Response:
    return JSONResponse(volume_row(objects.create_volume(world, caller, body, exchange.twist)))


@router.get("/volumes/{volume_id}", response_model=schemas.Volume, tags=["volumes"])
async def show_volume(world: TheWorld, caller: Reader, volume_id: UUID) -> Response:
    return JSONResponse(volume_row(objects.own_volume(world, caller, str(volume_id))))


@router.put("/volumes/{volume_id}", response_model=schemas.Volume, tags=["volumes"])
async def update_volume(world: TheWorld, caller: Manager, volume_id: UUID, body: VolumeUpdate) -> Response:
    volume = objects.own_volume(world, caller, str(volume_id))
    return JSONResponse(volume_row(objects.update_volume(world, volume, body)))


@router.delete("/volumes/{volume_id}", response_model=schemas.Done, tags=["volumes"])
async def delete_volume(world: TheWorld, caller: Manager, exchange: TheExchange, volume_id: UUID) -> Response:
    volume = objects.own_volume(world, caller, str(volume_id))
    objects.delete_volume(world, caller, volume, exchange.twist)
    return JSONResponse({"success": True})


# -- registry credentials: the list has a slash at its end, the items have none -----------------------------------


@router.get("/docker-credentials/", response_model=list[schemas.DockerCredential], tags=["docker-credentials"])
async def list_credentials(world: TheWorld, caller: Manager) -> Response:
    """Passwords in clear, as the server does."""
    rows = shown(world, world.credentials.where("account", caller.account.id))
    return JSONResponse([credential_row(row) for row in rows])


@router.post("/docker-credentials/", response_model=schemas.DockerCredential, tags=["docker-credentials"])
async def create_credential(
    world: TheWorld,
    caller: Manager,
    exchange: TheExchange,
    body: Annotated[CredentialBody | None, Body()] = None,
) -> Response:
    """Without a body: the account's default credential."""
    if body is None:
        return JSONResponse(credential_row(objects.default_credential(world, caller)))
    return JSONResponse(credential_row(objects.create_credential(world, caller, body, exchange.twist)))


@router.put("/docker-credentials/{credential_id}", response_model=schemas.DockerCredential, tags=["docker-credentials"])
async def update_credential(world: TheWorld, caller: Manager, credential_id: UUID, body: CredentialBody) -> Response:
    credential = objects.own_credential(world, caller, str(credential_id))
    return JSONResponse(credential_row(objects.update_credential(world, credential, body)))


@router.delete("/docker-credentials/{credential_id}", status_code=204, tags=["docker-credentials"])
async def delete_credential(world: TheWorld, caller: Manager, exchange: TheExchange, credential_id: UUID) -> Response:
    credential = objects.own_credential(world, caller, str(credential_id))
    objects.delete_credential(world, caller, credential, exchange.twist)
    return Response(status_code=204)


# -- ssh keys -----------------------------------------------------------------------------------------------------


@router.get("/ssh-keys", response_model=list[schemas.SshKey], tags=["ssh-keys"])
async def list_ssh_keys(world: TheWorld, caller: Reader) -> Response:
    rows = shown(world, world.ssh_keys.where("account", caller.account.id))
    return JSONResponse([ssh_key_row(row) for row in rows])


@router.post("/ssh-keys", response_model=schemas.SshKey, tags=["ssh-keys"])
async def create_ssh_key(world: TheWorld, caller: Manager, exchange: TheExchange, body: SshKeyBody) -> Response:
    """Not idempotent: duplicates pile up."""
    return JSONResponse(ssh_key_row(objects.create_ssh_key(world, caller, body, exchange.twist)))


@router.put("/ssh-keys/{key_id}", response_model=schemas.SshKey, tags=["ssh-keys"])
async def update_ssh_key(world: TheWorld, caller: Manager, key_id: UUID, body: SshKeyUpdate) -> Response:
    key = objects.own_ssh_key(world, caller, str(key_id))
    return JSONResponse(ssh_key_row(objects.update_ssh_key(world, key, body)))


@router.delete("/ssh-keys/{key_id}", response_model=schemas.Done, tags=["ssh-keys"])
async def delete_ssh_key(world: TheWorld, caller: Manager, exchange: TheExchange, key_id: UUID) -> Response:
    key = objects.own_ssh_key(world, caller, str(key_id))
    objects.delete_ssh_key(world, key, exchange.twist)
    return JSONResponse({"success": True})
