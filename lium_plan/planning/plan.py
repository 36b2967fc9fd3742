"""Plan: a frozen, ordered, serialisable value. Apply carries out exactly it, or refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, ExitCode
from lium_plan.kinds.pod.offers import Offer
from lium_plan.kinds.protocol import FieldChange, Json, Verb

UNREACHABLE = "unreachable"
"""Code of the diagnostic, and status of the drift, of what can't be told to be there or gone."""


@dataclass(frozen=True, slots=True)
class Action:
    """One remote effect (or one bookkeeping change) on one address."""

    address: Address
    verb: Verb
    title: str
    """What it is, in a few words: `pytorch/pytorch:2.4.0`, `2 commands, 1 file`."""
    reason: str = ""
    changes: tuple[FieldChange, ...] = ()
    offer: Offer | None = None
    alternatives: tuple[Offer, ...] = ()
    """Next choices within the ceiling, best first."""
    ceiling_per_hour_usd: Decimal | None = None
    """The price above which this rent is not sent, for the whole pod."""
    price_per_hour_usd: Decimal | None = None
    """What the resource costs now (destroy, replace) or will cost (create)."""
    depends_on: tuple[Address, ...] = ()
    """Addresses of other actions of this plan that come first."""
    deposed_id: str | None = None
    """For the deletion of a resource that a newer one at the same address has replaced."""
    counted: bool = True
    """False: happens every time (`run: always`, a renewed TTL) and is no change."""
    source: str | None = None
    """Of an action that changes the state alone, before all others: the key that a record is moved from, or the id of
    what is imported or refreshed."""
    releases: bool = False
    """Forgotten, and stays: it is kept among the released."""
    lacks_offer: bool = False
    """It is to be rented, and the market has nothing for it."""

    @property
    def tidies(self) -> bool:
        """Whether it only takes out of the state what is gone and nobody wants."""
        return self.verb is Verb.FORGET and not self.counted


@dataclass(frozen=True, slots=True)
class Drift:
    """A difference between state and what the API shows, whoever made it."""

    address: Address
    status: str
    changes: tuple[FieldChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Open:
    """An effect of an earlier run whose outcome is not known yet, and what apply will do about it."""

    address: Address
    since: datetime
    will: str


@dataclass(frozen=True, slots=True)
class Summary:
    create: int = 0
    update: int = 0
    reboot: int = 0
    replace: int = 0
    destroy: int = 0
    run: int = 0

    @property
    def total(self) -> int:
        return self.create + self.update + self.reboot + self.replace + self.destroy + self.run


@dataclass(frozen=True, slots=True)
class Cost:
    before_per_hour_usd: Decimal
    after_per_hour_usd: Decimal
    ceiling_per_hour_usd: Decimal | None = None
    """The stack's limit per hour; None: none was set."""
    until_ttl_usd: Decimal | None = None
    """The most that the pods can cost until their last TTL; None when one of them has none."""
    balance_usd: Decimal | None = None
    """Of the account; None: not known, or it needs none."""
    balance_floor_usd: Decimal | None = None
    """15 minutes of all that is open on the account afterwards: nothing is rented at that or less."""
    runway_s: float | None = None
    """How long the balance lasts then; None: nothing is used up, or it is not known."""


@dataclass(frozen=True, slots=True)
class OutputValue:
    value: Json
    sensitive: bool = False
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Market:
    """What the prices of this plan rest on."""

    nodes: int
    read_at: datetime


@dataclass(frozen=True, slots=True)
class Plan:
    project: str
    stack: str
    lineage: str | None
    """None before the first apply."""
    serial: int
    created_at: datetime
    destroying: bool
    actions: tuple[Action, ...]
    """In an order in which they could be carried out one by one."""
    drift: tuple[Drift, ...]
    open: tuple[Open, ...]
    summary: Summary
    cost: Cost
    rate_limit_wait_s: float
    market: Market | None
    outputs: Mapping[str, OutputValue]
    diagnostics: tuple[Diagnostic, ...] = ()
    refusal: ExitCode | None = None
    """UNSAFE (6) or UNKNOWN_OUTCOME (8) when guards refuse it; the reasons are among the diagnostics."""
    complete: bool = True
    """False: something wanted is not reached by these actions (no offer, a target left things out)."""
    errored: bool = False
    desired_digest: str = ""
    account_id: str | None = None
    server: str = ""
    options: Mapping[str, Json] | None = None
    """Targets, files, variables' names: what `apply PLANFILE` needs to read the manifest again."""

    @property
    def refresh_only(self) -> bool:
        """Whether it changes the state alone."""
        return bool((self.options or {}).get("refresh_only"))

    @property
    def applyable(self) -> bool:
        settles = bool(self.open) and not self.refresh_only
        return self.refusal is None and not self.errored and (bool(self.actions) or settles)

    @property
    def needs_consent(self) -> bool:
        """Whether it does anything that somebody should have said yes to."""
        return bool(self.open) or any(not action.tidies for action in self.actions)

    @property
    def has_changes(self) -> bool:
        """What `--detailed-exitcode` answers: counted actions, or something open."""
        return bool(self.open) or any(action.counted for action in self.actions)


def needs_a_human(plan: Plan) -> bool:
    """Whether something can't be told to be there or gone: plan and run then end with exit 8, whatever else is said."""
    return any(found.code == UNREACHABLE for found in plan.diagnostics)
