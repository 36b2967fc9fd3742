"""`/_sim/…`: looking into the world, and turning it."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from starlette.responses import HTMLResponse, JSONResponse, Response

from lium_plan.sim import faults, lifecycle, money, objects, templates
from lium_plan.sim.accounts import Caller, account_named, open_account
from lium_plan.sim.api.access import TheSimulator, TheWorld
from lium_plan.sim.api.workspaces import make_key
from lium_plan.sim.bodies import CredentialBody, KeyBody, RentBody, SshKeyBody, TemplateBody, VolumeBody
from lium_plan.sim.control.page import page
from lium_plan.sim.market import available, is_listed
from lium_plan.sim.refusal import Refusal
from lium_plan.sim.renting import find_node, rent
from lium_plan.sim.rows import Charge, Json, Pod
from lium_plan.sim.settings import Dollars, Seconds, Settings
from lium_plan.sim.stamps import zulu
from lium_plan.sim.twist import Twist
from lium_plan.sim.world import World

router = APIRouter()


class ChargeView(BaseModel):
    """One stretch of one price; an object without a price per hour has 0. `to` is null while it exists."""

    kind: Literal["pod", "template", "volume", "credential"]
    id: str
    name: str
    node_id: str | None
    account: str
    gpu_count: int | None
    price_per_hour_usd: float
    since: str = Field(serialization_alias="from")
    to: str | None
    amount_usd: float
    credited: bool = Field(description="Given back: a failed or cancelled creation, a broken pod.")


@router.get("/ledger", response_model=list[ChargeView])
async def ledger(world: TheWorld, account: str | None = None, open_only: bool = False) -> Response:
    """Everything that ever existed, in the order of its beginning, and what it cost until now."""
    rows = [
        _charge_view(world, charge)
        for charge in world.charges
        if (account is None or world.accounts[charge.account_id].name == account)
        and (not open_only or charge.until is None)
    ]
    return JSONResponse([row.model_dump(mode="json", by_alias=True) for row in rows])


def _charge_view(world: World, charge: Charge) -> ChargeView:
    return ChargeView.model_construct(
        kind=charge.kind,
        id=charge.object_id,
        name=charge.name,
        node_id=charge.node_id,
        account=world.accounts[charge.account_id].name,
        gpu_count=charge.gpu_count,
        price_per_hour_usd=float(charge.price_per_hour),
        since=zulu(charge.since),
        to=zulu(charge.until),
        amount_usd=float(round(money.amount(world, charge), 9)),
        credited=charge.credited,
    )


@router.get("/world")
async def show_world(simulator: TheSimulator) -> Response:
    """The whole state, for looking at: time, settings, accounts, nodes, living objects, waiting faults."""
    world = simulator.world
    living = world.pods.where("alive", True)
    return JSONResponse(
        {
            "now": zulu(world.now),
            "seed": world.seed,
            "machines": simulator.runtime.mode,
            "settings": world.settings.model_dump(mode="json"),
            "accounts": [_account(world, account.id) for account in world.accounts],
            "nodes": [
                {
                    "id": node.id,
                    "machine_name": node.machine_name,
                    "gpu_count": node.gpu_count,
                    "available_gpu_count": available(world, node),
                    "min_rentable": node.min_rentable,
                    "price_per_gpu_hour_usd": float(node.price_per_gpu),
                    "tier": node.tier,
                    "state": node.state.value,
                    "listed": is_listed(world, node),
                    "others": node.others,
                }
                for node in world.nodes
            ],
            "pods": [_pod(world, pod) for pod in living],
            "templates": [
                _named(row.id, row.name, row.user_id, world) for row in world.templates if row.deleted_at is None
            ],
            "volumes": [
                _named(row.id, row.name, row.account_id, world) for row in world.volumes if row.deleted_at is None
            ],
            "credentials": [
                _named(row.id, row.username, row.user_id, world) for row in world.credentials if row.deleted_at is None
            ],
            "timers": [{"due": zulu(timer.due), "kind": timer.kind.value, "ref": timer.ref} for timer in world.timers],
            "faults": [_fault(row) for row in world.faults],
        }
    )


def _account(world: World, account_id: str) -> dict[str, Json]:
    account = world.accounts[account_id]
    running = sum(float(charge.price_per_hour) for charge in money.open_charges(world, account_id))
    return {
        "name": account.name,
        "id": account.id,
        "balance_usd": float(round(money.balance(world, account_id), 6)),
        "per_hour_usd": round(running, 5),
    }


def _pod(world: World, pod: Pod) -> dict[str, Json]:
    return {
        "id": pod.id,
        "name": pod.name,
        "account": world.accounts[pod.account_id].name,
        "node_id": pod.node_id,
        "gpu_count": pod.gpu_count,
        "price_per_hour_usd": float(pod.price_per_hour),
        "status": pod.status.value,
        "phase": lifecycle.phase(world, pod),
        "container": pod.container.value,
        "generation": pod.generation,
        "host": pod.host,
        "ports": {str(inner): outer for inner, outer in pod.ports.items()},
        "template_id": pod.template_id,
        "volume_id": pod.volume_id,
        "created_at": zulu(pod.created_at),
        "removal_scheduled_at": zulu(pod.removal_scheduled_at),
        "stuck_delete": pod.stuck_delete,
    }


def _named(row_id: str, name: str, account_id: str | None, world: World) -> dict[str, Json]:
    return {
        "id": row_id,
        "name": name,
        "account": None if account_id is None else world.accounts[account_id].name,
    }


def _fault(row: Any) -> dict[str, Json]:
    return {"id": row.id, "matched": row.matched, "fired": row.fired, **json.loads(row.spec)}


class RequestView(BaseModel):
    """`status` is null while it is being answered, and when its answer was lost."""

    at: str
    method: str
    path: str
    query: str
    status: int | None
    account: str | None
    idempotency_key: str | None
    body: JsonValue


@router.get("/requests", response_model=list[RequestView])
async def requests(
    world: TheWorld,
    method: str | None = None,
    path: str | None = None,
    limit: Annotated[int, Query(ge=1)] = 20_000,
) -> Response:
    """API requests as they came in, oldest first: the last 20000, of which at most 5000 reads. Paths are below the base
    URL; `path` is a glob as in faults."""
    rows = [
        row
        for row in world.requests
        if (method is None or row.method == method) and (path is None or faults.path_fits(path, row.path))
    ]
    return _any_text(
        [
            {
                "at": zulu(row.at),
                "method": row.method,
                "path": row.path,
                "query": row.query,
                "status": row.status,
                "account": row.account,
                "idempotency_key": row.idempotency_key,
                "body": _decoded(row.body),
            }
            for row in rows[-limit:]
        ]
    )


def _any_text(rows: list[Json]) -> Response:
    """What clients sent may hold what no JSON may, NaN and half a surrogate pair: the first as null, that escaped."""
    return Response(json.dumps(rows), media_type="application/json")


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _decoded(body: str | None) -> Json:
    if body is None:
        return None
    try:
        decoded: Json = json.loads(body, parse_constant=lambda name: None, parse_float=_finite)
    except (ValueError, RecursionError):
        return body
    return decoded


@router.post("/faults", openapi_extra={"x-note": "One fault or a list."})
async def add_faults(world: TheWorld, body: faults.FaultSpec | list[faults.FaultSpec]) -> Response:
    """Arm faults, or do at once what has no trigger."""
    specs = body if isinstance(body, list) else [body]
    try:
        ids = [faults.add(world, spec) for spec in specs]
    except (ValueError, ValidationError) as problem:
        raise HTTPException(422, str(problem)) from None
    return JSONResponse({"ids": ids})


@router.get("/faults")
async def list_faults(world: TheWorld) -> Response:
    return JSONResponse([_fault(row) for row in world.faults])


@router.delete("/faults")
async def clear_faults(world: TheWorld) -> Response:
    """Disarm all of them."""
    world.faults.clear()
    return JSONResponse({"success": True})


@router.get("/config", response_model=Settings)
async def show_config(world: TheWorld) -> Response:
    return JSONResponse(world.settings.model_dump(mode="json"))


@router.post("/config", response_model=Settings)
async def change_config(world: TheWorld, body: dict[str, JsonValue]) -> Response:
    """Some knobs (see the answer for all of them); the others keep their values."""
    try:
        faults.apply_settings(world, faults.merged_settings(world.settings, body))
    except ValidationError as problem:
        raise HTTPException(422, str(problem)) from None
    return JSONResponse(world.settings.model_dump(mode="json"))


class Advance(BaseModel):
    seconds: Seconds = Field(description="At most ten years.")


@router.post("/advance")
async def advance(simulator: TheSimulator, body: Advance) -> Response:
    """Jump forward in time: everything that becomes due on the way happens, each at its moment."""
    await simulator.jump(body.seconds)
    return JSONResponse({"now": zulu(simulator.world.now)})


class AccountBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    verified: bool = True
    balance_usd: Dollars | None = None


class NewObject(BaseModel):
    """Something put on an account without a request of its owner.

    `body` is what the API's route would take; for a `pod` it also has `executor_id`, for a `key` it is that of
    `POST /keys`, for an `account` it is `{verified, balance_usd}`. `twist` as in faults.
    """

    model_config = ConfigDict(extra="forbid")

    kind: Literal["pod", "template", "volume", "credential", "ssh_key", "key", "account"]
    account: str = "local"
    body: dict[str, JsonValue] = {}
    twist: Twist = Twist()


@router.post("/objects")
async def add_object(world: TheWorld, body: NewObject) -> Response:
    """Foreign things on an account: made with none of the API's limits or balance checks."""
    account = account_named(world, body.account)
    caller = Caller(account, open_account(world, body.account), session=True)
    try:
        return JSONResponse(_add(world, caller, body))
    except ValidationError as problem:
        raise HTTPException(422, str(problem)) from None
    except Refusal as problem:
        raise HTTPException(problem.status, problem.message) from None


def _add(world: World, caller: Caller, wanted: NewObject) -> dict[str, Json]:
    body, twist = dict(wanted.body), wanted.twist
    match wanted.kind:
        case "pod":
            node = find_node(world, str(body.pop("executor_id", "")))
            options = RentBody.model_validate(body)
            return {"id": rent(world, caller, node, options, gpu_count=options.gpu_count, twist=twist).id}
        case "template":
            return {"id": templates.create_template(world, caller, TemplateBody.model_validate(body), twist).id}
        case "volume":
            return {"id": objects.create_volume(world, caller, VolumeBody.model_validate(body), twist).id}
        case "credential":
            return {"id": objects.create_credential(world, caller, CredentialBody.model_validate(body), twist).id}
        case "ssh_key":
            return {"id": objects.create_ssh_key(world, caller, SshKeyBody.model_validate(body), twist).id}
        case "key":
            key = make_key(world, caller.account.id, KeyBody.model_validate(body))
            return {"id": key.id, "key": key.secret}
        case "account":
            account = AccountBody.model_validate(body)
            world.accounts.change(caller.account.id, verified=account.verified)
            if account.balance_usd is not None:
                money.set_balance(world, caller.account.id, Decimal(str(account.balance_usd)))
            return {"id": caller.account.id, "key": caller.key.secret}


@router.post("/reset")
async def reset(simulator: TheSimulator) -> Response:
    """A new world from the same beginning: same seed, same nodes, no accounts, no pods."""
    await simulator.reset()
    return JSONResponse({"success": True, "now": zulu(simulator.world.now)})


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
async def show_page(simulator: TheSimulator) -> Response:
    return HTMLResponse(page(simulator.world, machines=simulator.runtime.mode))
