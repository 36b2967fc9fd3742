"""Small markets and records for tests, written as short rows."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from lium_plan.kinds.pod.offers import Feed, Offer, Requirement, Tier, preference

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def offer(text: str) -> Offer:
    """`n1 2xH100 3.98 [key=value …]`: a slice of a node, its GPUs and its price per hour."""
    node, gpus, price, *rest = text.split()
    count, name = gpus.split("x", 1)
    extra = dict(item.split("=", 1) for item in rest)
    return Offer(
        node_id=node,
        gpu=name,
        gpu_count=int(count),
        gpu_memory_gib=int(extra.get("gmem", "80")),
        cpu=int(extra.get("cpu", "16")) * int(count),
        memory_gib=int(extra.get("mem", "100")) * int(count),
        disk_gb=int(extra.get("disk", "100")) * int(count),
        local_disk_gb=200 * int(count),
        price_per_hour_usd=Decimal(price),
        price_per_gpu_hour_usd=Decimal(price) / int(count),
        location=extra.get("at", "us-ms"),
        tier=Tier(extra.get("tier", "secure")),
        reliability=Decimal(extra["rel"]) if "rel" in extra else None,
        download_mbps=Decimal(extra["down"]) if "down" in extra else None,
        pending_price_per_hour_usd=Decimal(extra["pending"]) if "pending" in extra else None,
        pending_price_at=datetime.fromisoformat(extra["from"]) if "from" in extra else None,
    )


def feed(*rows: str, at: datetime = NOW) -> Feed:
    """Offers by `offer`; `n1 1-4xH100 2.00` gives one for each count, at that price for one GPU."""
    offers: list[Offer] = []
    for row in rows:
        node, gpus, price, *rest = row.split()
        counts, name = gpus.split("x", 1)
        low, _, high = counts.partition("-")
        for count in range(int(low), int(high or low) + 1):
            total = Decimal(price) * (count if high else 1)
            offers.append(offer(" ".join((node, f"{count}x{name}", str(total), *rest))))
    return Feed(at, tuple(sorted(offers, key=preference)), (), len(rows))


def requirement(gpus: str = "1xH100", **constraints: object) -> Requirement:
    count, names = gpus.split("x", 1)
    wanted = tuple(name.lower() for name in names.split(",")) if names else ()
    return Requirement(gpus=wanted, gpu_count=int(count), **constraints)  # type: ignore[arg-type]
