"""The shapes of the JSON documents: the views are typed by them, and schemas are made of them.

A field is never removed or renamed within format 1; readers must accept fields that they don't know.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

if sys.version_info >= (3, 12):
    from typing import NotRequired, TypedDict
else:
    # pydantic, which makes the schema and brings this along, needs it here.
    from typing import NotRequired

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
    """A resource of the state. Which attributes it has depends on its kind."""

    address: str
    kind: str
    id: str | None
    status: str
    attributes: dict[str, Value]
    depends_on: list[str]


class EntryRow(TypedDict):
    """The journal's begin of an effect: its number there, what it is, the run, and what was sent."""

    number: int
    op: str
    run: str
    data: dict[str, Value]


class OpenEffectRow(TypedDict):
    """An effect whose outcome is not recorded."""

    address: str
    since: str
    entry: EntryRow


class ReleasedRow(TypedDict):
    """What was given up and stays on the account; its price when it was given up."""

    kind: str
    id: str
    name: str
    since: str
    price_per_hour_usd: float | None


class StateDocument(TypedDict):
    """What `show --json` prints of a state. Where none can be read: no project and lineage, nothing in the lists."""

    format_version: str
    project: str | None
    stack: str
    lineage: str | None
    serial: int
    account_id: str | None
    resources: list[ResourceRow]
    open: list[OpenEffectRow]
    released: list[ReleasedRow]
    outputs: dict[str, OutputRow]
    diagnostics: list[DiagnosticRow]


class EventLine(TypedDict):
    """A line of `apply --json`, `destroy --json` and `--json-into`. Which fields there are depends on `type`."""

    type: Literal[
        "version", "planned_change", "change_summary", "apply_start", "phase", "apply_complete", "apply_errored",
        "apply_skipped", "substitution", "diagnostic", "proof", "outputs",
    ]  # fmt: skip
    at: str
    seq: int
    address: NotRequired[str]
    action: NotRequired[Literal["create", "update", "reboot", "replace", "destroy", "run", "adopt", "forget", "move"]]
    phase: NotRequired[str]
    price_per_hour_usd: NotRequired[float | None]
    message: NotRequired[str]
    diagnostic: NotRequired[DiagnosticRow]
    # version
    format_version: NotRequired[str]
    lium_plan: NotRequired[str]
    # the plan's change_summary
    create: NotRequired[int]
    update: NotRequired[int]
    reboot: NotRequired[int]
    replace: NotRequired[int]
    destroy: NotRequired[int]
    run: NotRequired[int]
    untouched_per_hour_usd: NotRequired[float]
    # the last change_summary
    exit_code: NotRequired[int]
    running_per_hour_usd: NotRequired[float]
    running_pods: NotRequired[int]
    open_effects: NotRequired[int]
    open_per_hour_usd: NotRequired[float]
    strays: NotRequired[int]
    done: NotRequired[int]
    failed: NotRequired[int]
    skipped: NotRequired[int]
    unknown: NotRequired[int]
    interrupted: NotRequired[int]
    # phase, apply_complete, apply_errored, apply_skipped
    elapsed_s: NotRequired[float]
    id: NotRequired[str | None]
    node_id: NotRequired[str]
    reason: NotRequired[str]
    # substitution
    from_node_id: NotRequired[str]
    to_node_id: NotRequired[str]
    # proof
    gone: NotRequired[bool]
    removed_at: NotRequired[str | None]
    total_usd: NotRequired[float | None]
    # outputs
    outputs: NotRequired[dict[str, OutputRow]]
