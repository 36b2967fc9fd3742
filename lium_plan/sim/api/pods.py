"""Pods after the rent (contract §2.7, §2.8.2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from lium_plan.sim import gpus, lifecycle, money, renting, statements, throttle
from lium_plan.sim.api.access import (
    PodChanger,
    Reader,
    TheExchange,
    TheSimulator,
    TheWorld,
    living_pod,
    past_pod,
)
from lium_plan.sim.api.schemas import pods as schemas
from lium_plan.sim.api.schemas.base import REFUSALS
from lium_plan.sim.bodies import (
    FeedbackBody,
    JupyterBody,
    RebootBody,
    RemovalBody,
    ResetGpuBody,
    SwitchBody,
)
from lium_plan.sim.listing import shown
from lium_plan.sim.refusal import Refusal, conflict, not_found
from lium_plan.sim.render import event_row, pod_row
from lium_plan.sim.rows import ContainerState, Json, PodStatus
from lium_plan.sim.simulator import Simulator
from lium_plan.sim.stamps import parse
from lium_plan.sim.templates import visible_template

router = APIRouter(tags=["pods"], responses=REFUSALS)


@router.get("/pods", response_model=list[schemas.Pod])
async def list_pods(simulator: TheSimulator, caller: Reader, api_key_id: UUID | None = None) -> Response:
    """Every pod the key sees, DELETING ones too."""
    world = simulator.world
    throttle.take_per_minute(world, caller.account.id, "pods", world.settings.pods_limit_per_minute)
    account_id = caller.account.id
    rows = (*world.pods.where("account", account_id), *world.pods.where("ghost", account_id))
    seen = (
        pod for pod in shown(world, rows) if caller.sees(pod) and (api_key_id is None or pod.key_id == str(api_key_id))
    )
    return Response(simulator.pod_rows.listing(world, seen), media_type="application/json")


@router.get("/pods/{pod_id}", response_model=schemas.PodDetail)
async def show_pod(world: TheWorld, caller: Reader, pod_id: UUID) -> Response:
    pod = living_pod(world, caller, pod_id)
    if pod.detail_404:
        raise not_found("Pod")
    return JSONResponse(pod_row(world, pod, detail=True))


@router.delete("/pods/{pod_id}", response_model=schemas.Done)
async def delete_pod(
    world: TheWorld,
    caller: PodChanger,
    exchange: TheExchange,
    pod_id: UUID,
    body: Annotated[FeedbackBody | None, Body()] = None,
) -> Response:
    """Accepted now, done later; asking again is fine."""
    pod = living_pod(world, caller, pod_id)
    caller.may_change(pod)
    creating = pod.status is PodStatus.PENDING
    if creating and (pod.conflict_on_delete or world.settings.pod_state_conflict_while_creating):
        raise conflict("Pod is still being created")
    if exchange.twist.stuck_delete:
        world.pods.change(pod.id, stuck_delete=True)
    if exchange.twist.linger_seconds:
        world.pods.change(pod.id, linger_s=exchange.twist.linger_seconds)
    lifecycle.request_removal(world, world.pods[pod.id], reason="user_initiated", key_id=caller.key.id)
    return JSONResponse({"success": True, "message": "Pod is being deleted"})


@router.delete("/executors/{executor_id}/rent", include_in_schema=False)
async def delete_rent(world: TheWorld, caller: PodChanger, executor_id: UUID) -> Response:
    """The legacy spelling: every pod of the account on the node."""
    pods = [pod for pod in world.pods.where("node", str(executor_id)) if caller.sees(pod)]
    if not pods:
        raise not_found("Pod")
    for pod in pods:
        caller.may_change(pod)
        lifecycle.request_removal(world, pod, reason="user_initiated", key_id=caller.key.id)
    return JSONResponse({"success": True})


@router.post("/pods/{pod_id}/reboot", response_model=schemas.Pod)
async def reboot(
    world: TheWorld, caller: PodChanger, pod_id: UUID, body: Annotated[RebootBody | None, Body()] = None
) -> Response:
    """A fresh container: another host key, maybe other ports."""
    pod = living_pod(world, caller, pod_id)
    caller.may_change(pod)
    lifecycle.check_rebootable(pod)
    changes: dict[str, object] = {}
    if body is not None and body.volume_id is not None:
        volume_id = str(body.volume_id)
        if pod.volume_id not in (None, volume_id):
            raise Refusal(409, None, f"Pod already has volume {pod.volume_id}; a pod has one volume at most")
        renting.check_attachable(world, caller, volume_id, but_pod=pod.id)
        changes["volume_id"] = volume_id
    pod = lifecycle.reboot(world, pod, key_id=caller.key.id, why="reboot", **changes)
    return JSONResponse(pod_row(world, pod))


_SWITCHED = (
    "pod_name status ssh_connect_cmd ports_mapping created_at updated_at gpu_name gpu_count "
    "enable_volume_encryption volume_encryption_status local_volume_path"
)


@router.put("/pods/{pod_id}/switch-template", response_model=schemas.SwitchedPod)
async def switch_template(world: TheWorld, caller: PodChanger, pod_id: UUID, body: SwitchBody) -> Response:
    """Another template on the same node at the same price; the container is replaced."""
    pod = living_pod(world, caller, pod_id)
    caller.may_change(pod)
    lifecycle.check_rebootable(pod)
    template = visible_template(world, caller, str(body.template_id))
    if template is None:
        raise Refusal(404, "template_not_found", "Template not found")
    pod = lifecycle.reboot(world, pod, key_id=caller.key.id, why="template was switched", template_id=template.id)
    row = pod_row(world, pod)
    return JSONResponse({"id": pod.id, **{name: row[name] for name in _SWITCHED.split()}, "template_id": template.id})


@router.post("/pods/{pod_id}/schedule-removal", response_model=schemas.Pod)
async def schedule_removal(world: TheWorld, caller: PodChanger, pod_id: UUID, body: RemovalBody) -> Response:
    """Works in any status but DELETING and BROKEN, also before RUNNING; repeating it changes nothing."""
    pod = living_pod(world, caller, pod_id)
    caller.may_change(pod)
    lifecycle.check_changeable(pod)
    at = parse(body.removal_scheduled_at, "removal_scheduled_at")
    if at <= world.now:
        raise Refusal(400, None, "removal_scheduled_at must be in the future")
    if pod.removal_scheduled_at is not None and at > pod.removal_scheduled_at:
        money.check_budget(world, caller.key, pod.price_per_hour, route="pod extend")
    pod = lifecycle.schedule_removal(world, pod, at)
    return JSONResponse(pod_row(world, pod))


@router.delete("/pods/{pod_id}/schedule-removal", response_model=schemas.Pod)
async def cancel_removal(world: TheWorld, caller: PodChanger, pod_id: UUID) -> Response:
    pod = living_pod(world, caller, pod_id)
    caller.may_change(pod)
    lifecycle.check_changeable(pod)
    return JSONResponse(pod_row(world, lifecycle.cancel_removal(world, pod)))


@router.post("/pods/{pod_id}/install-jupyter", response_model=schemas.Pod)
async def install_jupyter(world: TheWorld, caller: PodChanger, pod_id: UUID, body: JupyterBody) -> Response:
    pod = living_pod(world, caller, pod_id)
    caller.may_change(pod)
    lifecycle.check_changeable(pod)
    if pod.status is not PodStatus.RUNNING or body.jupyter_internal_port not in pod.ports:
        raise Refusal(400, None, f"Port {body.jupyter_internal_port} is not exposed by this pod")
    lifecycle.install_jupyter(world, pod)
    return JSONResponse(pod_row(world, world.pods[pod.id]))


@router.get(
    "/pods/{pod_id}/logs",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def logs(
    request: Request,
    simulator: TheSimulator,
    caller: Reader,
    pod_id: UUID,
    tail: Annotated[int, Query(ge=1, le=10_000)] = 100,
    follow: bool = False,
) -> Response:
    """What the container's first process printed, as server-sent events."""
    pod = living_pod(simulator.world, caller, pod_id)
    if pod.container is not ContainerState.UP:
        raise Refusal(404, "not_found", "Pod container not deployed yet")
    return StreamingResponse(_log_lines(simulator, pod.id, tail, follow), media_type="text/event-stream")


_FOLLOW_EVERY_S = 1.0


async def _log_lines(simulator: Simulator, pod_id: str, tail: int, follow: bool) -> AsyncIterator[str]:
    lines = await simulator.runtime.output(pod_id, tail)
    for line in lines:
        yield _log_event(line)
    while follow and simulator.world.pods[pod_id].container is ContainerState.UP:
        await asyncio.sleep(_FOLLOW_EVERY_S)
        now = await simulator.runtime.output(pod_id, 10_000)
        for line in now[_overlap(lines, now) :]:
            yield _log_event(line)
        lines = now


def _overlap(old: tuple[str, ...], new: tuple[str, ...]) -> int:
    """How many of the first lines of `new` were the last of `old`."""
    for length in range(min(len(old), len(new)), 0, -1):
        if old[-length:] == new[:length]:
            return length
    return 0


def _log_event(line: str) -> str:
    return f"data: {json.dumps({'log': line})}\n\n"


@router.get("/pods/{pod_id}/statement", response_model=schemas.PodStatement)
async def statement(world: TheWorld, caller: Reader, pod_id: UUID) -> Response:
    """What the pod cost, also after it is gone."""
    return JSONResponse(statements.pod_statement(world, past_pod(world, caller, pod_id)))


@router.get("/pods/{pod_id}/record", response_model=schemas.PodRecord)
async def record(world: TheWorld, caller: Reader, pod_id: UUID) -> Response:
    return JSONResponse(statements.pod_record(world, past_pod(world, caller, pod_id)))


@router.get("/pods/{pod_id}/events", response_model=list[schemas.Event])
async def pod_events(world: TheWorld, caller: Reader, pod_id: UUID) -> Response:
    """Oldest first, also after the pod is gone."""
    if world.settings.events_forbidden:
        raise forbidden_events(caller.key.name)
    pod = past_pod(world, caller, pod_id)
    rows: list[Json] = [dict(event_row(world, event)) for event in world.events.where("pod", pod.id)]
    return JSONResponse(rows)


def forbidden_events(key_name: str) -> Refusal:
    return Refusal(403, "api_key_scope", f"API key '{key_name}' does not have the 'read' scope")


@router.post("/pods/{pod_id}/reset-gpu", response_model=schemas.ResetStarted, status_code=202)
async def reset_gpu(
    world: TheWorld, caller: PodChanger, pod_id: UUID, body: Annotated[ResetGpuBody | None, Body()] = None
) -> Response:
    pod = living_pod(world, caller, pod_id)
    caller.may_change(pod)
    request_id = gpus.begin_reset(world, pod, body.gpu_indices if body else None)
    return JSONResponse({"request_id": request_id, "status": "running"}, 202)


@router.get("/pods/{pod_id}/reset-gpu/{request_id}", response_model=schemas.ResetState)
async def show_reset(world: TheWorld, caller: Reader, pod_id: UUID, request_id: UUID) -> Response:
    return JSONResponse(gpus.reset_row(world, living_pod(world, caller, pod_id), str(request_id)))


@router.post("/pods/{pod_id}/feedback", response_model=schemas.Done)
async def feedback(world: TheWorld, caller: PodChanger, pod_id: UUID, body: FeedbackBody) -> Response:
    past_pod(world, caller, pod_id)
    return JSONResponse({"success": True})
