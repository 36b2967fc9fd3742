"""Offers: what can be rented, and what a fleet requires of one. `feed` makes them from what the server lists. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

PRICE_QUANTUM = Decimal("0.00001")
FINE_UP_TO_USD = Decimal(10) ** 20


class Tier(StrEnum):
    SECURE = "secure"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Offer:
    """A rentable slice of a node: `gpu_count` GPUs at a price per hour for all of them together."""

    node_id: str
    gpu: str
    gpu_count: int
    gpu_memory_gib: int
    cpu: int
    memory_gib: int
    disk_gb: int
    """Quota of the container filesystem `/`."""
    local_disk_gb: int
    """Quota of the local volume, a separate one: never added to `disk_gb`."""
    price_per_hour_usd: Decimal
    price_per_gpu_hour_usd: Decimal
    location: str
    """`us-ms`, or only the country where the region is unknown."""
    tier: Tier
    download_mbps: Decimal | None = None
    reliability: Decimal | None = None
    cuda: Decimal | None = None
    nvlink: bool | None = None
    reliable: bool | None = None
    pending_price_per_hour_usd: Decimal | None = None
    pending_price_at: datetime | None = None

    @property
    def spot(self) -> bool:
        return self.tier is Tier.SPOT


@dataclass(frozen=True, slots=True)
class Skipped:
    """A node of the feed that gives no offer, and why."""

    node_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Feed:
    """One reading of the market."""

    generated_at: datetime
    """When the server made it."""
    offers: tuple[Offer, ...]
    """Cheapest first."""
    skipped: tuple[Skipped, ...]
    nodes: int
    """Rows in the feed, usable or not."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """An inclusive range; None is open on that side."""

    minimum: Decimal | None = None
    maximum: Decimal | None = None

    def holds(self, value: Decimal | int) -> bool:
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)

    def __str__(self) -> str:
        low = "" if self.minimum is None else f"{self.minimum.normalize():f}"
        high = "" if self.maximum is None else f"{self.maximum.normalize():f}"
        return low if low == high and low else f"{low}..{high}"


ANY = Bounds()


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a fleet asks of an offer. Empty tuples and None: no constraint."""

    gpus: tuple[str, ...]
    """Normalised names; empty: any."""
    gpu_count: int
    """0: any."""
    gpu_memory: Bounds = ANY
    cpu: Bounds = ANY
    memory: Bounds = ANY
    disk: Bounds = ANY
    regions: tuple[str, ...] = ()
    tiers: tuple[Tier, ...] = (Tier.SECURE,)
    max_price_usd: Decimal | None = None
    """USD per pod and hour."""
    node_ids: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    min_download_mbps: Decimal | None = None
    nvlink: bool = False
    reliable: bool = False
    min_cuda: Decimal | None = None

    def violations(self, offer: Offer) -> tuple[str, ...]:
        """The names of the constraints that exclude the offer, in the manifest's words; empty: it fits."""
        checks = (
            ("gpu", not self.gpus or offer.gpu.lower() in self.gpus),
            ("gpu memory", self.gpu_memory.holds(offer.gpu_memory_gib)),
            ("gpu count", self.gpu_count in (0, offer.gpu_count)),
            ("cpu", self.cpu.holds(offer.cpu)),
            ("memory", self.memory.holds(offer.memory_gib)),
            ("disk", self.disk.holds(offer.disk_gb)),
            ("regions", not self.regions or any(_inside(offer.location, region) for region in self.regions)),
            ("spot_policy", offer.tier in self.tiers),
            ("max_price", self.max_price_usd is None or offer.price_per_hour_usd <= self.max_price_usd),
            ("node_ids", not self.node_ids or offer.node_id in self.node_ids),
            ("exclude_nodes", offer.node_id not in self.exclude_nodes),
            ("min_download", _at_least(offer.download_mbps, self.min_download_mbps)),
            ("nvlink", not self.nvlink or offer.nvlink is True),
            ("reliable", not self.reliable or offer.reliable is not False),
            ("min_cuda", _at_least(offer.cuda, self.min_cuda)),
        )
        return tuple(name for name, holds in checks if not holds)

    def fits(self, offer: Offer) -> bool:
        # Nearly all offers of a market differ in these two, and a plan asks this of every offer for every fleet.
        if self.gpu_count not in (0, offer.gpu_count) or (self.gpus and offer.gpu.lower() not in self.gpus):
            return False
        return not self.violations(offer)


def _inside(location: str, region: str) -> bool:
    return location == region or location.startswith(region + "-")


def _at_least(value: Decimal | None, minimum: Decimal | None) -> bool:
    return minimum is None or (value is not None and value >= minimum)


def preference(offer: Offer) -> tuple[Decimal, Decimal, Decimal, str]:
    """The order in which offers are taken: price, then reliability, download speed, and id for a stable tie."""
    return (
        offer.price_per_hour_usd,
        -(offer.reliability or Decimal(0)),
        -(offer.download_mbps or Decimal(0)),
        offer.node_id,
    )


def in_quanta(amount_usd: Decimal) -> Decimal:
    """To 5 decimals, as the server counts; a number too large for that has no such decimals."""
    return amount_usd.quantize(PRICE_QUANTUM) if abs(amount_usd) < FINE_UP_TO_USD else amount_usd
