"""An offer as the journal and the state keep it: the pod is compared by it for as long as it lives. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from lium_plan.kinds.pod.offers import Offer, Tier
from lium_plan.kinds.protocol import Json


def offer_facts(offer: Offer) -> dict[str, Json]:
    """What is kept; what the node does not tell is left out."""
    told: dict[str, Json] = {
        "download_mbps": None if offer.download_mbps is None else str(offer.download_mbps),
        "cuda": None if offer.cuda is None else str(offer.cuda),
        "nvlink": offer.nvlink,
        "reliable": offer.reliable,
    }
    return {
        "node_id": offer.node_id,
        "gpu": offer.gpu,
        "gpu_count": offer.gpu_count,
        "gpu_memory_gib": offer.gpu_memory_gib,
        "cpu": offer.cpu,
        "memory_gib": offer.memory_gib,
        "disk_gb": offer.disk_gb,
        "local_disk_gb": offer.local_disk_gb,
        "price_per_hour_usd": str(offer.price_per_hour_usd),
        "location": offer.location,
        "tier": str(offer.tier),
        **{name: value for name, value in told.items() if value is not None},
    }


def offer_of(facts: Json) -> Offer | None:
    """The offer that these facts were kept of; None when they are not all there (an imported pod has none)."""
    if not isinstance(facts, Mapping):
        return None
    try:
        count, price = int(str(facts["gpu_count"])), Decimal(str(facts["price_per_hour_usd"]))
        return Offer(
            node_id=str(facts["node_id"]),
            gpu=str(facts["gpu"]),
            gpu_count=count,
            gpu_memory_gib=int(str(facts["gpu_memory_gib"])),
            cpu=int(str(facts["cpu"])),
            memory_gib=int(str(facts["memory_gib"])),
            disk_gb=int(str(facts["disk_gb"])),
            local_disk_gb=int(str(facts.get("local_disk_gb") or 0)),
            price_per_hour_usd=price,
            price_per_gpu_hour_usd=price / count,
            location=str(facts["location"]),
            tier=Tier(str(facts["tier"])),
            download_mbps=_decimal(facts.get("download_mbps")),
            cuda=_decimal(facts.get("cuda")),
            nvlink=_boolean(facts.get("nvlink")),
            reliable=_boolean(facts.get("reliable")),
        )
    except (KeyError, ValueError):
        return None


def _decimal(value: Json) -> Decimal | None:
    try:
        return None if value is None else Decimal(str(value))
    except ArithmeticError:
        return None


def _boolean(value: Json) -> bool | None:
    return value if isinstance(value, bool) else None
