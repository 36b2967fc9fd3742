"""Login, workspaces and keys (contract §2.15). Any password opens `NAME@…`; workspaces have their owner alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from lium_plan.sim import money
from lium_plan.sim.accounts import TOKEN_PREFIX, Caller, find_session
from lium_plan.sim.api.access import Reader, SessionOnly, TheWorld, unauthorized
from lium_plan.sim.api.schemas import account as schemas
from lium_plan.sim.api.schemas.base import REFUSALS
from lium_plan.sim.bodies import KeyBody, KeyUpdate, LoginBody
from lium_plan.sim.refusal import invalid, not_found
from lium_plan.sim.render import key_row
from lium_plan.sim.rows import DEFAULT_SCOPES, ApiKey, Json, Scope
from lium_plan.sim.stamps import naive, parse
from lium_plan.sim.world import World

router = APIRouter(tags=["workspaces"], responses=REFUSALS)


@router.post("/users/login", response_model=schemas.Token)
async def login(world: TheWorld, body: LoginBody) -> Response:
    token = TOKEN_PREFIX + body.email.partition("@")[0]
    if find_session(world, token) is None:
        raise unauthorized()
    return JSONResponse({"token": token})


@router.get("/workspaces", response_model=list[schemas.Workspace])
async def list_workspaces(world: TheWorld, caller: Reader) -> Response:
    account = caller.account
    return JSONResponse(
        [
            {
                "id": account.workspace_id,
                "name": account.workspace_name,
                "role": "owner",
                "billing_owner_user_id": account.id,
                "pending_billing_owner_user_id": None,
                "created_at": naive(account.opened_at, 0),
            }
        ]
    )


@router.get("/workspaces/{workspace_id}/members", response_model=list[schemas.WorkspaceMember])
async def list_members(world: TheWorld, caller: Reader, workspace_id: UUID) -> Response:
    account = caller.account
    if str(workspace_id) != account.workspace_id:
        raise not_found("Workspace")
    return JSONResponse(
        [
            {
                "user_id": account.id,
                "name": account.name,
                "email": f"{account.name}@lium.invalid",
                "role": "owner",
                "is_billing_owner": True,
                "joined_at": naive(account.opened_at, 0),
            }
        ]
    )


@router.get("/keys/scopes", response_model=schemas.Scopes)
async def list_scopes() -> Response:
    return JSONResponse(
        {
            "scopes": [scope.value for scope in Scope],
            "default": [scope.value for scope in DEFAULT_SCOPES],
        }
    )


@router.get("/keys", response_model=list[schemas.Key])
async def list_keys(world: TheWorld, caller: Reader) -> Response:
    rows = world.keys.where("account", caller.account.id)
    return JSONResponse([_row(world, key) for key in rows if key.deleted_at is None])


def _row(world: World, key: ApiKey) -> dict[str, Json]:
    today = world.now.replace(hour=0, minute=0, second=0, microsecond=0)
    return key_row(
        world,
        key,
        spent_today=float(round(money.spent(world, key, since=today), 5)),
        spent_total=float(round(money.spent(world, key, since=None), 5)),
    )


def make_key(world: World, account_id: str, body: KeyBody) -> ApiKey:
    """Raises Refusal 422 for scopes or budgets that don't go together."""
    _check_scopes(body.scopes)
    _check_budgets(body.daily_budget_usd, body.monthly_budget_usd, body.max_budget_usd)
    expires_at: datetime | None = None if body.expires_at is None else parse(body.expires_at, "expires_at")
    return world.keys.put(
        ApiKey(
            id=world.new_id(),
            account_id=account_id,
            name=body.name,
            secret=f"sk_{world.dice.hex(40)}",
            created_at=world.now,
            scopes=DEFAULT_SCOPES if body.scopes is None else tuple(Scope(name) for name in body.scopes),
            own_pods_only=body.pod_visibility == "own",
            daily_budget_usd=_decimal(body.daily_budget_usd),
            monthly_budget_usd=_decimal(body.monthly_budget_usd),
            max_budget_usd=_decimal(body.max_budget_usd),
            expires_at=expires_at,
        )
    )


def _check_scopes(scopes: Sequence[str] | None) -> None:  # `billing` stands alone (contract §2.15.3)
    if scopes is not None and (not scopes or ("billing" in scopes and len(scopes) > 1)):
        raise invalid("scopes", "At least one scope is needed, and 'billing' stands alone")


def _check_budgets(daily: float | None, monthly: float | None, whole: float | None) -> None:
    given = [budget for budget in (daily, monthly, whole) if budget is not None]
    if given != sorted(given):
        raise invalid("daily_budget_usd", "Budgets must satisfy daily <= monthly <= max")


def _decimal(usd: float | None) -> Decimal | None:
    return None if usd is None else Decimal(str(usd))


@router.post("/keys", response_model=schemas.NewKey)
async def create_key(world: TheWorld, caller: SessionOnly, body: KeyBody) -> Response:
    """The answer is the only one that shows the key itself."""
    key = make_key(world, caller.account.id, body)
    return JSONResponse({**_row(world, key), "key": key.secret})


def _own(world: World, caller: Caller, key_id: UUID) -> ApiKey:
    key = world.keys.get(str(key_id))
    if key is None or key.account_id != caller.account.id or key.deleted_at is not None:
        raise not_found("API key")
    return key


@router.get("/keys/{key_id}", response_model=schemas.Key)
async def show_key(world: TheWorld, caller: Reader, key_id: UUID) -> Response:
    return JSONResponse(_row(world, _own(world, caller, key_id)))


@router.patch("/keys/{key_id}", response_model=schemas.Key)
async def update_key(world: TheWorld, caller: SessionOnly, key_id: UUID, body: KeyUpdate) -> Response:
    key = _own(world, caller, key_id)
    given = body.model_dump(exclude_unset=True)
    _check_scopes(body.scopes)
    changes: dict[str, object] = {}
    for name, value in given.items():
        if name.endswith("_budget_usd"):
            changes[name] = _decimal(value)
        elif value is not None and name == "scopes":
            changes[name] = tuple(Scope(scope) for scope in value)
        elif value is not None and name == "pod_visibility":
            changes["own_pods_only"] = value == "own"
        elif value is not None:
            changes[name] = value
    key = world.keys.change(key.id, **changes)
    money.watch(world, key.account_id)
    return JSONResponse(_row(world, key))


@router.delete("/keys/{key_id}", response_model=schemas.Done)
async def delete_key(world: TheWorld, caller: SessionOnly, key_id: UUID) -> Response:
    world.keys.change(_own(world, caller, key_id).id, deleted_at=world.now, is_active=False)
    return JSONResponse({"success": True})


@router.get("/keys/{key_id}/refusals", response_model=schemas.BudgetRefusals)
async def list_refusals(world: TheWorld, caller: Reader, key_id: UUID) -> Response:
    key = _own(world, caller, key_id)
    return JSONResponse(
        {
            "refusals": [
                {
                    "id": row.id,
                    "api_key_id": row.api_key_id,
                    "event": "api_key_budget_refused",
                    "created_at": naive(row.created_at, 0),
                    "window": row.window,
                    "route": row.route,
                    "amount_usd": float(row.amount_usd),
                    "budget_usd": float(row.budget_usd),
                    "spent_usd": float(round(row.spent_usd, 5)),
                }
                for row in world.budget_refusals.where("key", key.id)
            ]
        }
    )
