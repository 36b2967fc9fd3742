"""The market for people and for machines: a table, groups, a document, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum

from lium_plan.answers import OffersAnswer
from lium_plan.kinds.pod.offers import Offer
from lium_plan.views.columns import columns
from lium_plan.views.diagnostics_json import document
from lium_plan.views.documents import Document, OfferRow
from lium_plan.views.money import rate
from lium_plan.views.offer_rows import offer_json
from lium_plan.views.paint import PLAIN, Paint, printable
from lium_plan.views.times import clock, stamp


class Grouping(StrEnum):
    GPU = "gpu"
    REGION = "region"


def offers_text(answer: OffersAnswer, paint: Paint = PLAIN, *, limit: int | None = None, skipped: bool = False) -> str:
    """A line an offer, cheapest first; then which constraint left out how many."""
    shown = answer.offers[:limit]
    parts = []
    if shown:
        headers = ("GPU", "$/H", "$/GPU/H", "CPU", "MEMORY", "DISK", "LOCAL", "WHERE", "TIER", "DOWN", "NODE")
        rows = [_row(offer) for offer in shown]
        parts.append(columns(headers, rows, right=(1, 2, 3, 4, 5, 6, 9), paint=paint))
    more = len(answer.offers) - len(shown)
    summary = f"{len(answer.offers)} offers on {answer.nodes} nodes, prices of {clock(answer.generated_at)}"
    parts.append(f"{summary}{f'; {more} more not shown' if more else ''}.\n")
    if answer.exclusions:
        words = ", ".join(f"{printable(name)} {count}" for name, count in answer.exclusions)
        parts.append(f"Left out by: {words}.\n")
    if skipped and answer.skipped:
        lines = [(printable(item.node_id), printable(item.reason)) for item in answer.skipped]
        parts.append(columns(("SKIPPED NODE", "WHY"), lines, paint=paint))
    return "\n".join(parts)


def _row(offer: Offer) -> tuple[str, ...]:
    down = f"{offer.download_mbps:.0f}M" if offer.download_mbps is not None else ""
    return (
        f"{offer.gpu_count}×{offer.gpu} {offer.gpu_memory_gib}GB",
        rate(offer.price_per_hour_usd).removesuffix("/h"),
        rate(offer.price_per_gpu_hour_usd).removesuffix("/h"),
        str(offer.cpu),
        f"{offer.memory_gib}GB",
        f"{offer.disk_gb}GB",
        f"{offer.local_disk_gb}GB",
        offer.location,
        offer.tier.value,
        down,
        offer.node_id,
    )


def groups_text(answer: OffersAnswer, grouping: Grouping, paint: Paint = PLAIN) -> str:
    """A line a GPU model or a region: how many nodes, the cheapest GPU-hour, the largest slice."""
    groups: dict[str, list[Offer]] = {}
    for offer in answer.offers:
        groups.setdefault(offer.gpu if grouping is Grouping.GPU else offer.location, []).append(offer)
    rows = []
    for name, offers in sorted(groups.items(), key=lambda item: _cheapest(item[1])):
        low, high = _cheapest(offers), max(offer.price_per_gpu_hour_usd for offer in offers)
        rows.append(
            (
                name,
                str(len({offer.node_id for offer in offers})),
                rate(low).removesuffix("/h"),
                rate(high).removesuffix("/h"),
                str(max(offer.gpu_count for offer in offers)),
                ", ".join(sorted({_other(offer, grouping) for offer in offers})),
            )
        )
    last = "REGIONS" if grouping is Grouping.GPU else "GPUS"
    headers = (grouping.value.upper(), "NODES", "FROM $/GPU/H", "TO", "MOST GPUS", last)
    return columns(headers, rows, right=(1, 2, 3, 4), paint=paint)


def _cheapest(offers: Sequence[Offer]) -> Decimal:
    return min(offer.price_per_gpu_hour_usd for offer in offers)


def _other(offer: Offer, grouping: Grouping) -> str:
    return offer.location if grouping is Grouping.GPU else offer.gpu


def offers_json(answer: OffersAnswer, *, limit: int | None = None) -> Document:
    return document(
        {
            "generated_at": stamp(answer.generated_at),
            "offers": [offer_json(offer) for offer in answer.offers[:limit]],
            "skipped": [{"node_id": item.node_id, "reason": item.reason} for item in answer.skipped],
        },
        answer.diagnostics,
    )


def offers_csv(answer: OffersAnswer, *, limit: int | None = None) -> str:
    """The columns of the document's offers, empty for null."""
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(OfferRow.__annotations__), lineterminator="\n")
    writer.writeheader()
    for offer in answer.offers[:limit]:
        row = offer_json(offer)
        writer.writerow({key: str(value).lower() if isinstance(value, bool) else value for key, value in row.items()})
    return file.getvalue()
