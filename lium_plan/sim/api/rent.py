"""The three rent routes, and what comes before their rules: limits, budget, balance, idempotency.

Contract §1.7, §2.4–§2.6, §9.2.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import TypeVar
from uuid import UUID

from fastapi import APIRouter, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import JSONResponse, Response

from lium_plan.sim import clusters, money, renting, specs, throttle
from lium_plan.sim.accounts import Caller
from lium_plan.sim.api.access import Calling, Manager, Renter, TheExchange, TheWorld
from lium_plan.sim.api.envelope import envelope, validation_refusal
from lium_plan.sim.api.schemas import catalogue as schemas
from lium_plan.sim.api.schemas.base import REFUSALS
from lium_plan.sim.bodies import ClusterBody, RentBody, SpecBody
from lium_plan.sim.exchange import Exchange
from lium_plan.sim.records import Idempotency
from lium_plan.sim.refusal import Refusal
from lium_plan.sim.render import executor_row
from lium_plan.sim.rows import Json
from lium_plan.sim.twist import Twist
from lium_plan.sim.world import World

router = APIRouter(responses=REFUSALS)

RECORD_LIFE = timedelta(hours=24)
LOCK_LIFE = timedelta(seconds=300)

B = TypeVar("B", bound=BaseModel)

Act = Callable[[], dict[str, Json]]


BODIES = (RentBody, SpecBody, ClusterBody)
"""Validated after the balance and the key, so FastAPI doesn't see them; `_documented` and its document's schemas do."""


def _documented(model: type[BaseModel]) -> dict[str, Json]:
    key: dict[str, Json] = {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "schema": {"type": "string"},
        "description": "One for each rent that is meant: a repeat gets the first one's answer, for 24 hours.",
    }
    schema: dict[str, Json] = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {
        "parameters": [key],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
    }


async def _raw(request: Request) -> Json:
    """The body as far as it is JSON and says so, else None."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not re.fullmatch(r"application/([^/]+\+)?json", kind):
        return None
    try:
        body: Json = json.loads(await request.body())
    except (ValueError, RecursionError):
        return None
    return body


def _validated(model: type[B], raw: Json) -> B:
    if not isinstance(raw, dict):
        raise Refusal(422, "validation_error", "Validation error", fields=(("body", "Field required"),))
    try:
        return model.model_validate(raw)
    except ValidationError as problem:
        raise validation_refusal(problem.errors()) from None


def _check_money(world: World, caller: Caller, price_per_hour: Decimal) -> None:
    """In this order, and before the idempotency key is looked at (contract §9.2.2)."""
    if not caller.account.verified:
        raise Refusal(403, "account_not_verified", "Account is not verified")
    money.check_budget(world, caller.key, price_per_hour, route="rent")
    money.check_balance(world, caller.account.id, price_per_hour)


async def _idempotent(request: Request, world: World, caller: Caller, exchange: Exchange, act: Act) -> Response:
    """Run `act` once per key; a repeat gets the stored answer, be it a success or a refusal."""
    key = request.headers.get("idempotency-key")
    if key is None or world.settings.no_rent_idempotency:
        await exchange.inside()
        return JSONResponse(act())
    record_id = f"{caller.account.id}/{key}"
    body_hash = _body_hash(await request.body())
    record = world.idempotency.get(record_id)
    if record is not None and world.now - record.created_at < RECORD_LIFE:
        return _repeated(world, record, request.url.path, body_hash)
    record = world.idempotency.put(Idempotency(record_id, request.url.path, body_hash, world.now))
    try:
        await exchange.inside()
    except asyncio.CancelledError:
        world.idempotency.drop(record_id)
        raise
    try:
        status, answer = 200, act()
        headers: dict[str, str] = {}
    except Refusal as refusal:
        if refusal.status in (401, 402, 403, 429):
            world.idempotency.drop(record_id)
            raise
        status, answer, headers = refusal.status, envelope(refusal, exchange.request_id), refusal.headers
    response = JSONResponse(answer, status, headers=headers)
    if not exchange.unrecorded:
        world.idempotency.put(replace(record, status=status, body=bytes(response.body).decode()))
    return response


def _body_hash(body: bytes) -> str:
    try:
        body = json.dumps(json.loads(body), sort_keys=True).encode()
    except (ValueError, RecursionError):
        pass  # not JSON: compared byte by byte
    return hashlib.sha256(body).hexdigest()


def _repeated(world: World, record: Idempotency, route: str, body_hash: str) -> Response:
    if record.route != route or record.body_hash != body_hash:
        raise Refusal(422, "idempotency_key_reused", "This Idempotency-Key was used with a different request")
    if record.status is None or record.body is None:
        if world.now - record.created_at < LOCK_LIFE:
            raise Refusal(
                409, "idempotency_in_progress", "The first request with this Idempotency-Key is still running"
            )
        raise Refusal(
            409,
            "idempotency_outcome_unknown",
            "The outcome of the first request with this Idempotency-Key is not known",
        )
    return Response(
        record.body,
        record.status,
        headers={"Idempotent-Replayed": "true"},
        media_type="application/json",
    )


# Routes are matched in this order: the fixed paths come before the one with a parameter.


@router.post(
    "/executors/cluster/rent",
    response_model=schemas.ClusterRented,
    tags=["clusters"],
    openapi_extra=_documented(ClusterBody),
)
async def rent_cluster(request: Request, world: TheWorld, caller: Renter, exchange: TheExchange) -> Response:
    """Rent at least two whole nodes of one fabric, all or none."""
    raw = await _raw(request)
    throttle.take_rent(world, caller.account.id)
    ids = raw.get("executor_uuids") if isinstance(raw, dict) else None
    nodes = [str(node_id) for node_id in ids] if isinstance(ids, list) else []
    _check_money(world, caller, sum((renting.quoted_price(world, node, None) for node in nodes), Decimal(0)))

    def act() -> dict[str, Json]:
        pods = clusters.rent(world, caller, _validated(ClusterBody, raw), exchange.twist)
        return {"success": True, "pod_ids": [pod.id for pod in pods]}

    return await _idempotent(request, world, caller, exchange, act)


@router.post(
    "/executors/{executor_id}/rent", response_model=schemas.Rented, tags=["rent"], openapi_extra=_documented(RentBody)
)
async def rent(request: Request, world: TheWorld, caller: Renter, exchange: TheExchange, executor_id: UUID) -> Response:
    """Rent GPUs of one node. Omitting `gpu_count` rents all that are free."""
    raw = await _raw(request)
    throttle.take_rent(world, caller.account.id)
    wanted = raw.get("gpu_count") if isinstance(raw, dict) else None
    _check_money(world, caller, renting.quoted_price(world, str(executor_id), wanted))

    def act() -> dict[str, Json]:
        body = _validated(RentBody, raw)
        node = renting.find_node(world, str(executor_id))
        pod = renting.rent(world, caller, node, body, gpu_count=body.gpu_count, twist=exchange.twist)
        return {"success": True, "pod_id": pod.id}

    return await _idempotent(request, world, caller, exchange, act)


@router.post(
    "/executors/rent-by-spec", response_model=schemas.SpecRented, tags=["rent"], openapi_extra=_documented(SpecBody)
)
async def rent_by_spec(request: Request, world: TheWorld, caller: Renter, exchange: TheExchange) -> Response:
    """Rent the cheapest node that fits, within an atomic price cap."""
    raw = await _raw(request)
    if isinstance(raw, dict) and raw.get("dry_run") is True:
        return JSONResponse(_by_spec(world, caller, _validated(SpecBody, raw), exchange.twist))
    throttle.take_rent(world, caller.account.id)
    price = Decimal(0)
    try:
        price = specs.cheapest_price(world, _validated(SpecBody, raw))
    except Refusal:
        pass  # told after the key was looked at
    _check_money(world, caller, price)

    def act() -> dict[str, Json]:
        return _by_spec(world, caller, _validated(SpecBody, raw), exchange.twist)

    return await _idempotent(request, world, caller, exchange, act)


def _by_spec(world: World, caller: Caller, body: SpecBody, twist: Twist) -> dict[str, Json]:
    pick = specs.rent(world, caller, body, twist)
    return {
        "success": True,
        "dry_run": body.dry_run,
        "pod_id": pick.pod_id,
        "template_id": pick.template_id,
        "price_per_hour": float(pick.price_per_hour),
        "selected_executor": executor_row(world, pick.node, summary=True),
        "candidates": pick.candidates,
        "attempts": pick.attempts,
        "alternatives_considered": [specs.alternative_row(world, node, body.gpu_count) for node in pick.others],
    }


@router.delete("/clusters/{cluster_id}", response_model=schemas.ClusterRemoved, tags=["clusters"])
async def delete_cluster(world: TheWorld, caller: Manager, cluster_id: UUID) -> Response:
    return JSONResponse({"pods": clusters.remove(world, caller, str(cluster_id))})


_BYTES: dict[str, Json] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
"""Or `application/gzip`, which generators of clients don't know; the server looks at the bytes alone."""


@router.post(
    "/build-contexts",
    response_model=schemas.BuildContext,
    tags=["rent"],
    openapi_extra={"requestBody": {"required": True, "content": _BYTES}},
)
async def build_context(request: Request, caller: Calling) -> Response:
    """A gzip tarball; the answer's digest goes into a rent with a Dockerfile."""
    body = await request.body()
    if not body.startswith(b"\x1f\x8b"):
        raise Refusal(400, None, "Body is not gzip")
    return JSONResponse({"sha256": hashlib.sha256(body).hexdigest()})
