"""What the local Lium remembers about what happened and what is to come: requests, keys used, timers, armed faults.

Frozen rows like those of `rows`, which holds the things themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum


class TimerKind(StrEnum):
    POD_READY = "pod-ready"
    POD_FAILS = "pod-fails"
    POD_GONE = "pod-gone"
    POD_FAILED_FORGOTTEN = "pod-failed-forgotten"
    POD_REMOVAL = "pod-removal"
    POD_RECLAIMED = "pod-reclaimed"
    PRICE_CHANGE = "price-change"
    MARKET = "market"
    BACKUP_DONE = "backup-done"
    JUPYTER_DONE = "jupyter-done"
    SCENARIO = "scenario"
    MONEY_ENDS = "money-ends"


@dataclass(frozen=True, slots=True)
class Timer:
    id: str
    due: datetime
    serial: int
    kind: TimerKind
    ref: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A fault that waits for its moment; `spec` is the JSON of `faults.FaultSpec`."""

    id: str
    serial: int
    spec: str
    matched: int = 0
    """Requests that fitted so far."""
    fired: int = 0


@dataclass(frozen=True, slots=True)
class Idempotency:
    """One use of an `Idempotency-Key` (contract §1.7). `status` is None while the first request is running."""

    id: str
    """`account/key`."""
    route: str
    body_hash: str
    created_at: datetime
    status: int | None = None
    body: str | None = None


@dataclass(frozen=True, slots=True)
class RequestSeen:
    """One request as the server received it, for `GET /_sim/requests`. `status` is None when the answer was lost."""

    id: str
    at: datetime
    method: str
    path: str
    query: str
    account: str | None
    idempotency_key: str | None
    body: str | None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class AuditItem:
    id: str
    serial: int
    account_id: str
    key_id: str | None
    created_at: datetime
    action: str
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


@dataclass(frozen=True, slots=True)
class BudgetRefusal:
    id: str
    api_key_id: str
    created_at: datetime
    window: str
    route: str
    amount_usd: Decimal
    budget_usd: Decimal
    spent_usd: Decimal


@dataclass(frozen=True, slots=True)
class BackupConfig:
    id: str
    account_id: str
    pod_id: str
    frequency_hours: int
    retention_days: int
    path: str
    created_at: datetime
    updated_at: datetime
    is_active: bool = True
    deleted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """A backup, or a restore when `restore_of` names the backup."""

    id: str
    serial: int
    account_id: str
    pod_id: str
    config_id: str | None
    name: str
    status: str
    path: str
    created_at: datetime
    restore_of: str | None = None
    completed_at: datetime | None = None
    deleted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Meta:
    """The one row that makes a reloaded world go on where it stopped."""

    id: str
    format: int
    seed: int
    started_at: datetime
    now: datetime
    clock_shift_s: float = 0.0
    drawn: int = 0
    serial: int = 0
