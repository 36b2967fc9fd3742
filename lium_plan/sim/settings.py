"""The knobs of the local Lium that can be turned while it runs (`POST /_sim/config`). Defaults behave as the real
service does; durations are the server's seconds, divided by `speed` when they are waited for."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_SECONDS = 10 * 365 * 86_400
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS)]
Dollars = Annotated[float, Field(ge=-1e9, le=1e9)]


class Market(StrEnum):
    CALM = "calm"
    """Nobody else rents, prices hold, every machine works. The default: a demonstration must not depend on luck."""
    LIVELY = "lively"
    """Other renters come and go, prices move, spot pods are reclaimed, 1.6 % of pods never show SSH, some break."""


class SharedLimiter(StrEnum):
    """Whether rents and template creations count against one limit (contract §15.2)."""

    OFF = "off"
    COUNT = "count"
    REFUSE = "refuse"


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    speed: float = Field(
        default=1.0,
        ge=0.01,
        le=1_000_000,
        description="Divides durations and rate windows, never a timestamp or a TTL.",
    )
    market: Market = Market.CALM
    balance_usd: Dollars = Field(default=100.0, description="What an account has when it is opened.")
    create_seconds: Seconds | None = Field(default=None, description="None: seeded, median 20 s.")
    delete_seconds: Seconds | None = Field(default=None, description="None: seeded, median 36 s.")
    reboot_seconds: Seconds = Field(default=15.0)
    ssh_delay_seconds: Seconds | None = Field(
        default=None, description="From RUNNING to the banner. None: seeded, median 4 s."
    )
    creation_failed_retention_seconds: Seconds = Field(default=180.0)
    feed_refresh_seconds: Seconds = Field(default=60.0)
    latency_seconds: Seconds = Field(default=0.0, description="Before every answer; not scaled.")
    list_lag_seconds: Seconds = Field(
        default=0.0, description="How long a new pod is missing from the list; not scaled."
    )
    rent_lock_seconds: Seconds = Field(default=0.0, description="After a rent, others get node_rent_in_progress.")
    rents_per_minute: int = Field(default=0, ge=0, description="0: no limit of its own.")
    template_limits: bool = Field(default=True, description="1 per 5 s, 5 per 60 s, 20 per hour and account.")
    pods_limit_per_minute: int = Field(default=60, ge=0, description="GET /pods per account; 0: none.")
    feed_limit_per_minute: int = Field(default=60, ge=0, description="Public feed per address; 0: none.")
    retry_after: bool = Field(default=True, description="Whether a 429 carries Retry-After.")
    shared_limiter: SharedLimiter = SharedLimiter.OFF
    pod_state_conflict_while_creating: bool = Field(default=False, description="DELETE of a PENDING pod is 409.")
    events_forbidden: bool = Field(default=False, description="Event routes answer 403 whatever the key's scopes.")
    normalise_templates: bool = Field(
        default=False,
        description="Stored templates differ from what was sent: defaults, order, spelling, trimmed text.",
    )
    ssh_never_share: float = Field(default=0.0, ge=0, le=1, description="Share of new pods that never show a banner.")
    volume_mount_fails: bool = Field(default=False, description="New pods lack /mnt; the pod runs anyway.")
    spent_budget_removes_pods: bool = Field(
        default=True, description="A key's pods are removed, like by a schedule, when a budget of it is used up."
    )
    empty_balance_removes_pods: bool = Field(
        default=False, description="The account's pods are removed when its balance has come to nothing."
    )
    no_rent_idempotency: bool = Field(
        default=False, description="GET /version without rent_idempotency; keys are ignored."
    )
    date_skew_seconds: float = Field(
        default=0.0, ge=-MOST_SECONDS, le=MOST_SECONDS, description="Added to the Date header only."
    )
