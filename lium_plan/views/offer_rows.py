"""An offer as a row of a document, and back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from lium_plan.kinds.pod.offers import Offer, Tier
from lium_plan.views.documents import OfferRow
from lium_plan.views.money import number, optional_number


def offer_json(offer: Offer) -> OfferRow:
    return {
        "node_id": offer.node_id,
        "gpu": offer.gpu,
        "gpu_count": offer.gpu_count,
        "gpu_memory_gib": offer.gpu_memory_gib,
        "cpu": offer.cpu,
        "memory_gib": offer.memory_gib,
        "disk_gb": offer.disk_gb,
        "local_disk_gb": offer.local_disk_gb,
        "price_per_hour_usd": number(offer.price_per_hour_usd),
        "price_per_gpu_hour_usd": number(offer.price_per_gpu_hour_usd),
        "location": offer.location,
        "spot": offer.spot,
        "tier": offer.tier.value,
        "download_mbps": optional_number(offer.download_mbps),
        "reliability": optional_number(offer.reliability),
        "cuda": optional_number(offer.cuda),
    }


def offer_from_json(
    row: OfferRow,
    *,
    nvlink: bool | None = None,
    reliable: bool | None = None,
    pending_price_per_hour_usd: Decimal | None = None,
    pending_price_at: datetime | None = None,
) -> Offer:
    """The offer that `offer_json` wrote; what a row doesn't show is given beside it."""
    return Offer(
        node_id=row["node_id"],
        gpu=row["gpu"],
        gpu_count=row["gpu_count"],
        gpu_memory_gib=row["gpu_memory_gib"],
        cpu=row["cpu"],
        memory_gib=row["memory_gib"],
        disk_gb=row["disk_gb"],
        local_disk_gb=row["local_disk_gb"],
        price_per_hour_usd=decimal(row, "price_per_hour_usd"),
        price_per_gpu_hour_usd=decimal(row, "price_per_gpu_hour_usd"),
        location=row["location"],
        tier=Tier(row["tier"]),
        download_mbps=optional_decimal(row, "download_mbps"),
        reliability=optional_decimal(row, "reliability"),
        cuda=optional_decimal(row, "cuda"),
        nvlink=nvlink,
        reliable=reliable,
        pending_price_per_hour_usd=pending_price_per_hour_usd,
        pending_price_at=pending_price_at,
    )


class NotANumber(ValueError):
    """Says which field, and what stands there."""


def decimal(row: Mapping[str, Any], name: str) -> Decimal:
    """The decimal that was written: a float's shortest form is that of the decimal it came from.

    Raises `NotANumber` with the field's name for what is no finite number from 0 on.
    """
    value = _decimal(row, name)
    if value < 0:
        raise NotANumber(f"`{name}` is {value}, below 0")
    return value


def optional_decimal(row: Mapping[str, Any], name: str, *, signed: bool = False) -> Decimal | None:
    """The same where null is allowed; `signed`: and what is below 0."""
    if row[name] is None:
        return None
    return _decimal(row, name) if signed else decimal(row, name)


def _decimal(row: Mapping[str, Any], name: str) -> Decimal:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise NotANumber(f"`{name}` is no number")
    try:
        result = Decimal(str(value))
    except ArithmeticError:
        raise NotANumber(f"`{name}` is no number") from None
    if not result.is_finite():
        raise NotANumber(f"`{name}` is {result}, which is no number")
    return result


def offer_words(offer: Offer) -> str:
    """`1×H100 80GB · 24 cpu · 249 GB · us-ms · secure`."""
    return (
        f"{offer.gpu_count}×{offer.gpu} {offer.gpu_memory_gib}GB · {offer.cpu} cpu · {offer.memory_gib} GB"
        f" · {offer.location} · {offer.tier}"
    )
