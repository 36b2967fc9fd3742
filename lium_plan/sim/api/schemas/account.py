"""The account, its workspace and keys (contract §2.8, §2.14, §2.15)."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from lium_plan.sim.api.schemas.base import Done as Done
from lium_plan.sim.api.schemas.base import Row, Stamp
from lium_plan.sim.api.schemas.pods import Actor, Segment
from lium_plan.sim.api.schemas.pods import Event as Event


class UserWorkspace(Row):
    id: str
    name: str
    role: str
    billing_owner_user_id: UUID
    is_personal: bool


class User(Row):
    id: UUID
    name: str
    email: str
    balance: float
    stripe_customer_id: str | None
    email_verified: bool
    admin: bool
    workspace: UserWorkspace


class AuditItem(Row):
    action: str
    actor: Actor | None
    source: str | None
    ip: str
    user_agent: str | None
    request_id: str
    method: str
    route: str
    status_code: int
    resource_type: str
    resource_id: str | None
    summary: str
    created_at: Stamp


class AuditPage(Row):
    items: list[AuditItem]
    next_cursor: str | None


class BilledDay(Row):
    billing_day: str
    amount: float
    billed_seconds: float
    price_per_hour: float
    billed_until: Stamp


class BilledPod(Row):
    pod_id: UUID
    pod_name: str
    gpu_name: str
    gpu_count: int
    executor_id: UUID
    created_at: Stamp
    removed_at: Stamp | None
    close_reason: str | None
    removed: bool
    billed_seconds: float
    billed_until: Stamp | None
    total: float
    api_key_id: str | None
    api_key_name: str | None
    price_segments: list[Segment]
    days: list[BilledDay]


class BillingStatement(Row):
    start_day: str
    end_day: str
    total: float
    pods: list[BilledPod]


class Token(Row):
    token: str


class Workspace(Row):
    id: str
    name: str
    role: Literal["owner", "admin", "member"]
    billing_owner_user_id: UUID
    pending_billing_owner_user_id: UUID | None
    created_at: Stamp


class WorkspaceMember(Row):
    user_id: UUID
    name: str
    email: str
    role: Literal["owner", "admin", "member"]
    is_billing_owner: bool
    joined_at: Stamp


class Scopes(Row):
    scopes: list[str]
    default: list[str]


class Key(Row):
    id: UUID
    user_id: UUID
    name: str
    is_active: bool
    created_at: Stamp
    expires_at: Stamp | None
    last_used: Stamp | None
    scopes: list[str]
    workspace_id: str
    created_by_user_id: UUID
    daily_budget_usd: float | None
    monthly_budget_usd: float | None
    max_budget_usd: float | None
    spent_today_usd: float
    spent_total_usd: float
    pod_visibility: Literal["own", "account"]


class NewKey(Key):
    key: str


class BudgetRefusal(Row):
    id: UUID
    api_key_id: UUID
    event: str
    created_at: Stamp
    window: Literal["daily", "monthly", "max"]
    route: Literal["rent", "pod extend", "topup"]
    amount_usd: float
    budget_usd: float
    spent_usd: float


class BudgetRefusals(Row):
    refusals: list[BudgetRefusal]
