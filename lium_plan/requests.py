"""What a command asks of `operations`: plain values, so that the command line loads nothing to build them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the manifest and its variables come from."""

    files: tuple[str, ...] = (".",)
    variables: Mapping[str, str] = field(default_factory=dict)
    """From `--var`."""
    var_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The options that plan, apply and destroy share."""

    sources: Sources = Sources()
    destroying: bool = False
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()
    refresh: bool = True
    refresh_only: bool = False
    max_hourly_cost_usd: Decimal | None = None
    allow_destroy: tuple[str, ...] = ()
    allow_foreign_lineage: bool = False
    rename_project: bool = False
    fill: bool = False


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """What apply and destroy need besides a plan."""

    parallelism: int = 0
    """At most this many actions at once; 0: no limit but the server's."""
    lock_timeout_s: float = 0
    wait_timeout_s: float = 900
    """How long to wait for things to go."""
    destroy_new_on_failure: bool = False
    strict_offers: bool = False
    force_replace: bool = False
    plan_file: Path | None = None
