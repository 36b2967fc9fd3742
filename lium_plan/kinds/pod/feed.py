"""From the server's lists of nodes to offers: one for each GPU count of a node that can be ordered.

Every figure of CPU, memory and disk is a lower bound of what the pod will really have (contract §5.1). A node whose
figures are missing or make no sense is skipped with a reason, never guessed. Rows are read as the catalogue of dstack
reads them, so that both see the same market; it differs in one thing, on purpose: the reserve of a large host is
rounded up, as the node itself does. Pure but for what `NodeMemory` remembers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

from lium_plan.kinds.pod.gpus import listed_model, memory_gib
from lium_plan.kinds.pod.offers import Feed, Offer, Skipped, Tier, in_quanta, preference

MOST_GPUS = 10_000
"""No host has more; a row that says so is not expanded into so many offers."""
HALF = Decimal("0.5")
"""Memory and free disk are rounded to the nearest: so much may be missing."""


class _Impossible(Exception):
    """Why a row gives no offer."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A row that makes sense. Sizes in GiB and GB as the feed rounds them."""

    id: str
    gpu: str
    gpu_memory_gib: int
    total: int
    lowest: int
    highest: int
    price_per_gpu_hour_usd: float
    cpus: int
    ram: Decimal
    free_disk: Decimal
    location: str
    tier: Tier
    download_mbps: Decimal | None


def gathered(generated_at: datetime, found: Sequence[tuple[Offer, ...] | Skipped]) -> Feed:
    """One reading, from what each of its nodes gave."""
    skipped = tuple(one for one in found if isinstance(one, Skipped))
    offers = sorted((offer for one in found if not isinstance(one, Skipped) for offer in one), key=preference)
    return Feed(generated_at, tuple(offers), skipped, len(found))


def expand_node(row: object) -> tuple[Offer, ...] | Skipped:
    """One node's offers, or why there is none (contract §5.2)."""
    if not isinstance(row, Mapping):
        return Skipped("?", "it is not an object")
    node_id = str(row.get("id") or "")
    if not node_id:
        return Skipped("?", "no id")
    try:
        node = _read(node_id, row)
        offers = tuple(_slices(node))
    except _Impossible as why:
        return Skipped(node_id, str(why))
    return offers or Skipped(node_id, "no share of it has a whole CPU and 1 GB of disk")


def _read(node_id: str, row: Mapping[object, object]) -> _Node:
    """Raises `_Impossible`."""
    model = row.get("gpu_model")
    gpu = listed_model(str(model)) if model is not None and not isinstance(model, bool) else None
    if gpu is None:
        raise _Impossible(f"unknown GPU model {model!r}" if model is not None else "gpu_model missing")
    total, free = _whole(row, "gpu_count"), _whole(row, "available_gpu_count")
    price = _real(row, "price_per_gpu_hour")
    if total <= 0 or free <= 0 or price <= 0:
        raise _Impossible("gpu_count, available_gpu_count or price_per_gpu_hour is not positive")
    if total > MOST_GPUS:
        raise _Impossible(f"gpu_count {total} is more than any host has")
    disk = row.get("disk_free_gb")
    if isinstance(disk, bool) or not isinstance(disk, int | float) or not math.isfinite(disk) or disk <= 0:
        raise _Impossible(f"disk_free_gb {disk!r} is not a positive number")
    # Where the least order is not told, only the whole node is a safe one (contract §2.2).
    lowest = max(1, _whole(row, "min_rentable_gpu_count", bools=True) if row.get("min_rentable_gpu_count") else total)
    highest = min(free, total)
    if lowest > highest:
        raise _Impossible(f"at least {lowest} GPUs must be ordered and {highest} are free")
    location = _location(row.get("country_code"), row.get("region"))
    if not location:
        raise _Impossible("no country")
    return _Node(
        id=node_id,
        gpu=gpu,
        gpu_memory_gib=max(0, memory_gib(gpu, _real(row, "gpu_memory_gb"))),
        total=total,
        lowest=lowest,
        highest=highest,
        price_per_gpu_hour_usd=price,
        cpus=_whole(row, "cpu_count"),
        ram=Decimal(str(_real(row, "ram_gb"))),
        free_disk=Decimal(str(disk)),
        location=location,
        tier=Tier.SPOT if row.get("tier") == "spot" else Tier.SECURE,
        download_mbps=_number(row.get("network_download_mbps")),
    )


def _whole(row: Mapping[object, object], name: str, *, bools: bool = False) -> int:
    """Raises `_Impossible`."""
    value = row.get(name)
    if value is None or (isinstance(value, bool) and not bools) or not isinstance(value, str | int | float):
        raise _Impossible(f"{name} missing or no number")
    try:
        return int(value)
    except (ValueError, OverflowError):
        raise _Impossible(f"{name} {value!r} is no whole number") from None


def _real(row: Mapping[object, object], name: str) -> float:
    """Raises `_Impossible`."""
    value = row.get(name)
    if value is None or isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _Impossible(f"{name} missing or no number")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise _Impossible(f"{name} {value!r} is no number") from None
    if not math.isfinite(number):
        raise _Impossible(f"{name} {value!r} is not finite")
    return number


def _location(country: object, region: object) -> str:
    """`us-ca`, `jp-13`; only the country where the region is unknown (contract §5.2)."""
    if not country:
        return ""
    parts = (country, region) if region else (country,)
    return "-".join(str(part).strip().lower() for part in parts).replace(" ", "")


def _slices(node: _Node) -> Iterator[Offer]:
    free = max(node.free_disk - HALF, Decimal(0))
    for count in range(node.lowest, node.highest + 1):
        cpu = _share(node.cpus, count, node.total)
        if int(node.cpus * (count / node.total)) < 1 or int(float(free) * (count / node.total) / 3) < 1:
            continue
        price = round(node.price_per_gpu_hour_usd * count, 5)
        if not math.isfinite(price):
            raise _Impossible("its price is not finite")
        yield Offer(
            node_id=node.id,
            gpu=node.gpu,
            gpu_count=count,
            gpu_memory_gib=node.gpu_memory_gib,
            cpu=cpu,
            memory_gib=usable_memory_gib(node.ram, count, node.total),
            disk_gb=_share(free, count, node.total, thirds=1),
            local_disk_gb=_share(free, count, node.total, thirds=2),
            price_per_hour_usd=Decimal(str(price)),
            price_per_gpu_hour_usd=in_quanta(Decimal(str(node.price_per_gpu_hour_usd))),
            location=node.location,
            tier=node.tier,
            download_mbps=node.download_mbps,
        )


def usable_memory_gib(host_gib: Decimal, count: int, total: int) -> int:
    """`memory.max` that the node sets at least, whole GiB, for `count` of its `total` GPUs (contract §5.1).

    The feed's figure is rounded to the nearest GiB, and the node rounds its 1 % reserve up: the host may have half
    a GiB less than it says, and its reserve may be that of half a GiB more.
    """
    reserve = max(4, math.ceil((host_gib + HALF) / 100))
    return max(1, _share(host_gib - HALF - reserve, count, total))


def _share(value: Decimal | int, count: int, total: int, *, thirds: int = 3) -> int:
    """The whole part of a GPU share of `value`. Binary fractions may come out one lower, in whatever order the
    server multiplies them, so the least of all counts."""
    number, share = float(value), count / total
    exact = math.floor(Decimal(value) * count * thirds / (total * 3))
    return min(
        exact,
        math.floor(number * share * thirds / 3),
        math.floor(number * share / 3 * thirds),
        math.floor(number * share * (thirds / 3)),
        math.floor(number * count * thirds / (total * 3)),
    )


def _number(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    number = Decimal(str(value))
    return number if number.is_finite() else None


# --- what only the catalogue tells ---------------------------------------------------------------------------

TOLD = (
    "available_gpu_count", "effective_download_speed_mbps", "frequent_rent_failures", "gpu_count", "max_cuda_version",
    "nvlink", "pending_price_per_hour", "price_change_effective_date", "price_per_gpu", "reliability_score",
)  # fmt: skip
"""All that is read of a row of the catalogue; the rest of it changes by the minute."""

Catalogue = Mapping[str, Mapping[str, object]]
"""What the catalogue tells, by node id."""


class NodeMemory:
    """What nodes offer. At the next reading nearly all say the same again, and theirs is not worked out anew.

    The feed is up to a minute old, the catalogue is of now: where that is dearer or has fewer GPUs free, it counts. A
    node that it lacks is as the feed says.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, tuple[Offer, ...] | Skipped]] = {}

    def offers_of(self, row: object, catalogue: Catalogue) -> tuple[Offer, ...] | Skipped:
        """One node's offers, as the feed's row and the catalogue have it."""
        node_id = str(row.get("id")) if isinstance(row, Mapping) else ""
        told = catalogue.get(node_id)
        try:
            said = repr((row, told))
        except RecursionError:  # nested too deeply to be compared, in fields that nobody reads
            return _offers_of(row, told)
        if node_id not in self._known or self._known[node_id][0] != said:
            self._known[node_id] = said, _offers_of(row, told)
        return self._known[node_id][1]


def read_catalogue(rows: Iterable[Mapping[str, object]]) -> Catalogue:
    """What is read of the rows, by node id."""
    return {
        node_id: {name: row.get(name) for name in TOLD} for row in rows if isinstance(node_id := row.get("id"), str)
    }


def _offers_of(row: object, told: Mapping[str, object] | None) -> tuple[Offer, ...] | Skipped:
    try:
        offers = expand_node(row)
        if told is None or isinstance(offers, Skipped):
            return offers
        known = [_enriched(offer, told) for offer in offers]
    except (ArithmeticError, ValueError) as why:  # one absurd row must not keep everybody from renting
        node_id = str(row.get("id")) if isinstance(row, Mapping) else "?"
        return Skipped(node_id, f"its figures make no sense: {why}")
    return tuple(offer for offer in known if offer is not None)


def _enriched(offer: Offer, row: Mapping[str, object]) -> Offer | None:
    """None for an offer that is taken meanwhile."""
    free = _number(row.get("available_gpu_count"))
    if free is not None and free < offer.gpu_count:
        return None
    price = _number(row.get("price_per_gpu"))
    if price is not None and price > offer.price_per_gpu_hour_usd:
        offer = replace(
            offer, price_per_gpu_hour_usd=in_quanta(price), price_per_hour_usd=in_quanta(price * offer.gpu_count)
        )
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
    told = row.get("gpu_count")
    total = _number(int(told) if isinstance(told, str) and told.isdecimal() else told)
    if pending is None or total is None or total <= 0:
        return None
    return in_quanta(pending * offer.gpu_count / total)


def _time(value: object) -> datetime | None:
    """A naive timestamp of the server means UTC (contract §0.2)."""
    if not isinstance(value, str):
        return None
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return None
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)
