"""What reading commands ask and get: questions to the market and answers about it, pods, and the set-up.

Plain values whose fields are those of the commands' JSON documents. Fetches nothing, formats nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from lium_plan.diagnostics import Diagnostic

if TYPE_CHECKING:
    from lium_plan.kinds.pod.offers import Offer, Skipped
    from lium_plan.requests import Sources


@dataclass(frozen=True, slots=True)
class OffersQuery:
    """The filters of `offers`, as written by the user: `None` and empty mean no constraint.

    `gpu`, `cpu`, `memory`, `disk`, `min_download` use the manifest's spelling (`H100:80GB:8`, `8..32`, `500Mbps`).
    """

    gpu: str | None = None
    cpu: str | None = None
    memory: str | None = None
    disk: str | None = None
    regions: tuple[str, ...] = ()
    spot_policy: str | None = None
    max_price_usd: Decimal | None = None
    """Per pod and hour."""
    min_download: str | None = None
    nvlink: bool = False
    reliable: bool = False
    min_cuda: Decimal | None = None
    fleet: str | None = None
    """Take the constraints of this fleet of the manifest; the other filters narrow them."""
    sources: Sources | None = None
    """The manifest, only with `fleet`."""


@dataclass(frozen=True, slots=True)
class OffersAnswer:
    """What can be rented. `exclusions`: how many offers each constraint left out, most first."""

    generated_at: datetime
    nodes: int
    offers: tuple[Offer, ...]
    """Cheapest first."""
    skipped: tuple[Skipped, ...]
    exclusions: tuple[tuple[str, int], ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What `nvidia-smi` on a pod says, over all its GPUs."""

    utilisation_percent: int
    memory_used_mib: int
    memory_total_mib: int


@dataclass(frozen=True, slots=True)
class PodStatus:
    """One pod of the stack, as it is now."""

    address: str
    id: str
    name: str
    phase: str
    """The server's word, e.g. `RUNNING`."""
    status: str
    """Ours: pending, ready, bootstrap-failed, failed, broken, deposed, deleting, unreachable, unknown, expired."""
    age_s: float
    price_per_hour_usd: Decimal
    spent_usd: Decimal
    ttl_left_s: float | None
    """None: it has no time to live."""
    drift: tuple[str, ...]
    node_id: str
    gpu: str
    gpu_count: int
    use: GpuUse | None = None
    """Only with `--gpu`, and when the pod answered."""


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    pods: tuple[PodStatus, ...]
    total_per_hour_usd: Decimal
    total_spent_usd: Decimal
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `doctor`. `ok` None: it could not be established (no key, no connection)."""

    name: str
    ok: bool | None
    detail: str
    cure: str | None = None
