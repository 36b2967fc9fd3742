"""Desired: what a manifest means. One resource per address, fleets as groups of members, limits, outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, Position
from lium_plan.expressions import Text
from lium_plan.kinds.protocol import Resource


@dataclass(frozen=True, slots=True)
class Fleet:
    """A set of pods with one spec. `names` when the manifest lists them, else a count from `minimum` to `maximum`."""

    name: str
    minimum: int
    maximum: int
    names: tuple[str, ...] | None
    scale_down: str = "newest"
    """Among healthy members: newest | oldest | most-expensive. Missing, broken and failed ones always go first."""
    ttl_renew: bool = False
    max_failures: int | None = None
    canary: bool = False
    update_parallel: int = 1
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of the whole stack; None is no limit."""

    max_hourly_cost_usd: Decimal | None = None
    max_total_cost_usd: Decimal | None = None
    require_ttl: bool = False
    max_destroy: str | None = None
    """`3` or `30%`, as written."""


@dataclass(frozen=True, slots=True)
class Move:
    """What was declared as `source` is now declared as `target`: both `fleet.x`, or both one address."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Removal:
    """`source`, a group (`fleet.x`) or one address, is declared no more, and that is meant."""

    source: str
    destroy: bool
    """False: released, it stays and is managed no more."""


@dataclass(frozen=True, slots=True)
class Import:
    """The remote object `id` is to be managed as `address`."""

    address: Address
    id: str
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class Desired:
    """The value that the planner compares with state. Built by `manifest.expand`; nothing in it is looked up later."""

    project: str
    stack: str
    resources: Mapping[Address, Resource]
    fleets: Mapping[str, Fleet]
    outputs: Mapping[str, Text]
    policy: Policy = Policy()
    digest: str = ""
    """sha256 over all that was written, secrets included by their own digest; a saved plan is bound to it."""
    diagnostics: tuple[Diagnostic, ...] = field(default=())
    """Warnings found on the way."""
    moved: tuple[Move, ...] = ()
    removed: tuple[Removal, ...] = ()
    imports: tuple[Import, ...] = ()
