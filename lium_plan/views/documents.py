"""The shapes of the JSON documents: the views are typed by them, and `schemas/plan.schema.json` is made of them.

A field is never removed or renamed within format 1; readers must accept fields that they don't know.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:
    # pydantic, which makes the schema and brings this along, needs it here.
    from typing_extensions import TypedDict

FORMAT_VERSION = "1.0"

Document = dict[str, Any]
"""A whole document, ready for `json.dumps`."""

Value = Any
"""Any JSON value."""


class DiagnosticRow(TypedDict):
    severity: str
    code: str
    message: str
    address: str | None
    file: str | None
    line: int | None
    column: int | None
    hint: str | None


class OfferRow(TypedDict):
    """A rentable slice of a node. Money in USD for the whole slice and for one GPU; memory in GiB, disk in GB."""

    node_id: str
    gpu: str
    gpu_count: int
    gpu_memory_gib: int
    cpu: int
    memory_gib: int
    disk_gb: int
    local_disk_gb: int
    price_per_hour_usd: float
    price_per_gpu_hour_usd: float
    location: str
    spot: bool
    tier: Literal["secure", "spot"]
    download_mbps: float | None
    reliability: float | None
    cuda: float | None


class ChangeRow(TypedDict):
    """One field. `unknown`: known after apply; `sensitive`: both values are stand-ins."""

    path: str
    before: Value
    after: Value
    unknown: bool
    sensitive: bool


class ActionRow(TypedDict):
    address: str
    kind: Literal["volume", "credential", "template", "pod", "bootstrap", "task"]
    action: Literal["create", "update", "reboot", "replace", "destroy", "run", "adopt", "forget", "move"]
    reason: str
    changes: list[ChangeRow]
    offer: OfferRow | None
    alternatives: list[OfferRow]
    ceiling_per_hour_usd: float | None
    depends_on: list[str]


class DriftRow(TypedDict):
    address: str
    status: str
    changes: list[ChangeRow]


class OpenRow(TypedDict):
    """An effect of an earlier run whose outcome is not known, and what apply will do about it."""

    address: str
    since: str
    will: str


class SummaryRow(TypedDict):
    create: int
    update: int
    reboot: int
    replace: int
    destroy: int
    run: int


class CostRow(TypedDict):
    before_per_hour_usd: float
    after_per_hour_usd: float
    ceiling_per_hour_usd: float | None
    until_ttl_usd: float | None
    balance_usd: float | None
    balance_floor_usd: float | None
    runway_s: float | None


class OutputRow(TypedDict):
    value: Value
    sensitive: bool
    unknown: bool


class PlanDocument(TypedDict):
    """What `plan --json` and `show PLANFILE --json` print, and the public part of a saved plan."""

    format_version: str
    project: str
    stack: str
    lineage: str | None
    serial: int
    created_at: str
    applyable: bool
    complete: bool
    errored: bool
    actions: list[ActionRow]
    drift: list[DriftRow]
    open: list[OpenRow]
    summary: SummaryRow
    cost: CostRow
    rate_limit_wait_s: float
    outputs: dict[str, OutputRow]
    diagnostics: list[DiagnosticRow]


class ResourceRow(TypedDict):
    address: str
    kind: str
    id: str | None
    status: str
    attributes: dict[str, Value]
    depends_on: list[str]
