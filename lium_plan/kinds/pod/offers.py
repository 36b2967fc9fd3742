"""Offers: what can be rented, computed from the public feed, and what a fleet requires of one.

Every figure is a lower bound of what the pod will really have (contract §5.1); a node whose figures are missing or
make no sense is skipped with a reason, never guessed. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum

from lium_plan.kinds.pod.gpus import normalise

PRICE_QUANTUM = Decimal("0.00001")
FINE_UP_TO_USD = Decimal(10) ** 20
HALF = Decimal("0.5")


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
            ("gpu count", offer.gpu_count == self.gpu_count),
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
        if offer.gpu_count != self.gpu_count or (self.gpus and offer.gpu.lower() not in self.gpus):
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


def usable_memory_gib(host_gib: Decimal, count: int, total: int) -> int:
    """`memory.max` that the node sets at least, whole GiB, for `count` of its `total` GPUs (contract §5.1).

    The feed's figure is rounded to the nearest GiB, and the node rounds its 1 % reserve up: the host may have half
    a GiB less than it says, and its reserve may be that of half a GiB more.
    """
    reserve = max(4, math.ceil((host_gib + HALF) / 100))
    return max(1, _share(host_gib - HALF - reserve, count, total))


def _share(value: Decimal, count: int, total: int) -> int:
    """The whole part of `value * count / total`; the server's binary fractions may come out one lower."""
    return min(int(value * count / total), int(float(value) * (count / total)))


def expand_feed(generated_at: datetime, nodes: Iterable[Mapping[str, object]]) -> Feed:
    """All offers of a feed (rows of contract §2.2), cheapest first."""
    offers: list[Offer] = []
    skipped: list[Skipped] = []
    count = 0
    for row in nodes:
        count += 1
        found = expand_node(row)
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            offers.extend(found)
    return Feed(generated_at, tuple(sorted(offers, key=preference)), tuple(skipped), count)


def expand_node(row: Mapping[str, object]) -> tuple[Offer, ...] | Skipped:
    """One node's offers: one per GPU count that can be ordered (contract §5.2)."""
    node_id = row.get("id")
    if not isinstance(node_id, str) or not node_id:
        return Skipped(str(node_id or "?"), "no id")
    needed = ("gpu_count", "available_gpu_count", "price_per_gpu_hour", "gpu_memory_gb", "cpu_count", "ram_gb")
    figures = {name: _number(row.get(name)) for name in needed}
    bad = [name for name, value in figures.items() if value is None or value <= 0]
    if bad:
        return Skipped(node_id, f"{', '.join(bad)} missing or not positive")
    model = row.get("gpu_model")
    gpu = normalise(model) if isinstance(model, str) else None
    if gpu is None:
        return Skipped(node_id, f"unknown GPU model {model!r}")
    country = row.get("country_code")
    if not isinstance(country, str) or not country:
        return Skipped(node_id, "no country")
    free_disk = _number(row.get("disk_free_gb"))
    if free_disk is None or free_disk <= 0:
        return Skipped(node_id, "disk_free_gb missing or not positive")
    total = int(figures["gpu_count"] or 0)
    available = min(int(figures["available_gpu_count"] or 0), total)
    minimum = _number(row.get("min_rentable_gpu_count"))
    lowest = max(1, int(minimum)) if minimum else total
    if lowest > available:
        return Skipped(node_id, f"at least {lowest} GPUs must be ordered and {available} are free")
    region = row.get("region")
    location = f"{country}-{region}".lower() if isinstance(region, str) and region else country.lower()
    offers = tuple(
        offer
        for count in range(lowest, available + 1)
        if (offer := _slice(row, node_id, gpu, count, total, figures, free_disk, location)) is not None
    )
    return offers or Skipped(node_id, "no share of it has a whole CPU and 1 GB of disk")


def _slice(
    row: Mapping[str, object],
    node_id: str,
    gpu: str,
    count: int,
    total: int,
    figures: Mapping[str, Decimal | None],
    free_disk: Decimal,
    location: str,
) -> Offer | None:
    per_gpu = figures["price_per_gpu_hour"] or Decimal(0)
    cpu = _share(figures["cpu_count"] or Decimal(0), count, total)
    free = max(free_disk - HALF, Decimal(0))
    disk = _share(free, count, total * 3)
    if cpu < 1 or disk < 1:
        return None
    return Offer(
        node_id=node_id,
        gpu=gpu,
        gpu_count=count,
        gpu_memory_gib=gpu_memory_gib(gpu, int(figures["gpu_memory_gb"] or 0)),
        cpu=cpu,
        memory_gib=usable_memory_gib(figures["ram_gb"] or Decimal(0), count, total),
        disk_gb=disk,
        local_disk_gb=_share(free, count * 2, total * 3),
        price_per_hour_usd=(per_gpu * count).quantize(PRICE_QUANTUM),
        price_per_gpu_hour_usd=per_gpu.quantize(PRICE_QUANTUM),
        location=location,
        tier=Tier.SPOT if row.get("tier") == "spot" else Tier.SECURE,
        download_mbps=_number(row.get("network_download_mbps")),
    )


def gpu_memory_gib(gpu: str, reported: int) -> int:
    """The feed says 140 for an H200, which has 141 (contract §2.2)."""
    return 141 if gpu == "H200" and reported == 140 else reported


def _number(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    number = Decimal(str(value))
    return number if number.is_finite() else None


def enrich(feed: Feed, rows: Iterable[Mapping[str, object]]) -> Feed:
    """The offers with what only the catalogue's rows tell (contract §3.1); a node without a row stays as it is."""
    by_id = {row["id"]: row for row in rows if isinstance(row.get("id"), str)}
    return replace(
        feed,
        offers=tuple(sorted((_enriched(offer, by_id.get(offer.node_id)) for offer in feed.offers), key=preference)),
    )


def _enriched(offer: Offer, row: Mapping[str, object] | None) -> Offer:
    if row is None:
        return offer
    pending = _number(row.get("pending_price_per_hour"))
    failing, nvlink = row.get("frequent_rent_failures"), row.get("nvlink")
    download = _number(row.get("effective_download_speed_mbps"))
    return replace(
        offer,
        reliability=_number(row.get("reliability_score")),
        cuda=_number(row.get("max_cuda_version")),
        nvlink=nvlink if isinstance(nvlink, bool) else None,
        reliable=not failing if isinstance(failing, bool) else None,
        download_mbps=download if download is not None else offer.download_mbps,
        pending_price_per_hour_usd=_share_of_pending(offer, row, pending),
        pending_price_at=_time(row.get("price_change_effective_date")),
    )


def _share_of_pending(offer: Offer, row: Mapping[str, object], pending: Decimal | None) -> Decimal | None:
    """The announced price is of the whole host, like `price_per_hour` beside it (contract §2.4.5, §3.1)."""
    total = _number(row.get("gpu_count"))
    if pending is None or total is None or total <= 0:
        return None
    return (pending * offer.gpu_count / total).quantize(PRICE_QUANTUM)


def _time(value: object) -> datetime | None:
    """A naive timestamp of the server means UTC (contract §0.2)."""
    if not isinstance(value, str):
        return None
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return None
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)
