"""Events: what happens while applying, as values. Views turn them into a table, plain lines or JSON lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic
from lium_plan.kinds.protocol import Json, Verb


class EventType(StrEnum):
    VERSION = "version"
    PLANNED_CHANGE = "planned_change"
    CHANGE_SUMMARY = "change_summary"
    APPLY_START = "apply_start"
    PHASE = "phase"
    APPLY_COMPLETE = "apply_complete"
    APPLY_ERRORED = "apply_errored"
    APPLY_SKIPPED = "apply_skipped"
    SUBSTITUTION = "substitution"
    DIAGNOSTIC = "diagnostic"
    PROOF = "proof"
    OUTPUTS = "outputs"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of `apply --json`. `details` holds what only some types have, e.g. `to_node_id`, `exit_code`."""

    type: EventType
    at: datetime
    seq: int
    address: Address | None = None
    verb: Verb | None = None
    phase: str | None = None
    price_per_hour_usd: Decimal | None = None
    message: str | None = None
    diagnostic: Diagnostic | None = None
    details: Mapping[str, Json] = field(default_factory=dict)


class ResultKind(StrEnum):
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ActionResult:
    """How one action of a run ended."""

    address: Address
    verb: Verb
    kind: ResultKind
    seconds: float
    cause: Diagnostic | None = None
    """For failed and unknown."""
    because: Address | None = None
    """For skipped: the failed action that it depended on."""
    note: str = ""
    """For done: why it was necessary, or that its pod is lost again. For interrupted: what goes on, or is billed."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A pod (or other resource) of a destroy: gone or not, and what it cost, by the server's own statement."""

    address: str
    id: str
    gone: bool
    removed_at: datetime | None = None
    total_usd: Decimal | None = None
    price_per_hour_usd: Decimal | None = None
    """What a leftover still costs."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """The end of an apply or destroy, for the closing table and the exit code."""

    run: str
    results: tuple[ActionResult, ...]
    running_per_hour_usd: Decimal
    running_pods: int
    open_effects: int = 0
    """Requests whose outcome nobody knows yet: the next run settles them."""
    open_per_hour_usd: Decimal = Decimal(0)
    """What those of them that are rents may cost, by their ceilings."""
    strays: int = 0
    """What the account still has of this stack though its state does not know it."""
    strays_per_hour_usd: Decimal = Decimal(0)
    elsewhere: int = 0
    """Pods of this stack that run under another state."""
    elsewhere_per_hour_usd: Decimal = Decimal(0)
    released: int = 0
    """Pods that its state gave up and that run on."""
    released_per_hour_usd: Decimal = Decimal(0)
    released_seen: bool = True
    """False: nobody has looked, and they are told as they were when they were given up."""
    stack: str = "default"
    proofs: tuple[Proof, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    exit_code: int = 0
    next_command: str | None = None
    """`lium-plan VERB`, without the options that were given: only the command line knows those."""
    shown_variables: Mapping[str, str] = field(default_factory=dict)
    """Variables from `--var` with their values, without those that are sensitive or not known to be none."""
    outputs: Mapping[str, Json] = field(default_factory=dict)
    """`{NAME: {value, sensitive, unknown}}`, as in every document."""
