"""The account: who am I, what happened, what did it cost (contract §2.8, §2.14)."""

from __future__ import annotations

from datetime import date
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse, Response

from lium_plan.sim import money, statements
from lium_plan.sim.api.access import Reader, TheWorld
from lium_plan.sim.api.pods import forbidden_events
from lium_plan.sim.api.schemas import account as schemas
from lium_plan.sim.api.schemas.base import REFUSALS
from lium_plan.sim.bodies import Moment
from lium_plan.sim.records import AuditItem
from lium_plan.sim.refusal import invalid
from lium_plan.sim.render import event_row, user_row
from lium_plan.sim.rows import Json
from lium_plan.sim.stamps import naive, parse
from lium_plan.sim.world import World

router = APIRouter(tags=["account"], responses=REFUSALS)


@router.get("/users/me", response_model=schemas.User)
async def me(world: TheWorld, caller: Reader) -> Response:
    balance = float(round(money.balance(world, caller.account.id), 6))
    return JSONResponse(user_row(caller.account, balance))


@router.get("/users/me/events", response_model=list[schemas.Event])
async def my_events(
    world: TheWorld,
    caller: Reader,
    since: Moment | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    pod_id: UUID | None = None,
    api_key_id: UUID | None = None,
) -> Response:
    """Newest first; `since` is included."""
    if world.settings.events_forbidden:
        raise forbidden_events(caller.key.name)
    moment = None if since is None else parse(since, "since")
    rows: list[Json] = []
    for event in reversed(world.events.where("account", caller.account.id)):
        if len(rows) == limit or (moment is not None and event.created_at < moment):
            break
        if pod_id is not None and event.pod_id != str(pod_id):
            continue
        if api_key_id is not None and event.key_id != str(api_key_id):
            continue
        rows.append(dict(event_row(world, event)))
    return JSONResponse(rows)


@router.get("/account/audit", response_model=schemas.AuditPage)
async def audit(
    world: TheWorld,
    caller: Reader,
    since: Moment | None = None,
    until: Moment | None = None,
    action: str = "",
    source: str | None = None,
    api_key_id: UUID | None = None,
    resource_id: str | None = None,
    cursor: Annotated[int | None, Query(ge=0)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """Newest first; `action` is a prefix."""
    first = None if since is None else parse(since, "since")
    last = None if until is None else parse(until, "until")
    fitting = [
        item
        for item in reversed(world.audit.where("account", caller.account.id))
        if (first is None or item.created_at >= first)
        and (last is None or item.created_at <= last)
        and item.action.startswith(action)
        and (source is None or item.source == source)
        and (api_key_id is None or item.key_id == str(api_key_id))
        and (resource_id is None or item.resource_id == resource_id)
        and (cursor is None or item.serial < cursor)
    ]
    page = fitting[:limit]
    more = len(fitting) > limit
    return JSONResponse(
        {
            "items": [_audit_row(world, item) for item in page],
            "next_cursor": str(page[-1].serial) if more else None,
        }
    )


def _audit_row(world: World, item: AuditItem) -> dict[str, Json]:
    key = None if item.key_id is None else world.keys[item.key_id]
    return {
        "action": item.action,
        "actor": None if key is None else {"auth": "api_key", "api_key_id": key.id, "api_key_name": key.name},
        "source": item.source,
        "ip": item.ip,
        "user_agent": item.user_agent,
        "request_id": item.request_id,
        "method": item.method,
        "route": item.route,
        "status_code": item.status_code,
        "resource_type": item.resource_type,
        "resource_id": item.resource_id,
        "summary": item.summary,
        "created_at": naive(item.created_at, item.serial),
    }


@router.get("/billing/statement", response_model=schemas.BillingStatement)
async def billing_statement(
    world: TheWorld,
    caller: Reader,
    start_day: date | None = None,
    end_day: date | None = None,
    api_key_id: UUID | None = None,
) -> Response:
    """Both days included; without them, from the first of this month until today."""
    end = end_day or world.now.date()
    start = start_day or end.replace(day=1)
    if start > end:
        raise invalid("start_day", "start_day must not be after end_day")
    key_id = None if api_key_id is None else str(api_key_id)
    return JSONResponse(statements.billing_statement(world, caller.account.id, start=start, end=end, key_id=key_id))
