"""The market for people and for machines: a table, groups, a document, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from lium_plan.answers import OffersAnswer
from lium_plan.diagnostics import counted
from lium_plan.kinds.pod.offers import Offer
from lium_plan.money import rate
from lium_plan.views.columns import columns
from lium_plan.views.diagnostics_json import document
from lium_plan.views.documents import Document, OfferRow
from lium_plan.views.money import number
from lium_plan.views.offer_rows import offer_json, offer_words
from lium_plan.views.paint import PLAIN, Paint, printable
from lium_plan.views.times import clock, stamp


class Grouping(StrEnum):
    GPU = "gpu"
    REGION = "region"


def offers_text(answer: OffersAnswer, paint: Paint = PLAIN, *, limit: int | None = None, skipped: bool = False) -> str:
    """A line an offer, cheapest first; then what a fleet would get, and which constraint left out how many."""
    shown = answer.offers[:limit]
    parts = []
    if shown:
        headers = ("GPU", "$/H", "$/GPU/H", "CPU", "MEMORY", "DISK", "LOCAL", "WHERE", "TIER", "DOWN", "NODE")
        rows = [_row(offer) for offer in shown]
        parts.append(columns(headers, rows, right=(1, 2, 3, 4, 5, 6, 9), paint=paint, least=(6, 2, 9, 5, 3, 8)))
    more = len(answer.offers) - len(shown)
    count = counted(len(answer.offers), "offer")
    summary = f"{count} on {counted(answer.nodes, 'node')}, prices of {clock(answer.generated_at)}"
    parts.append(f"{summary}{f'; {more} more not shown' if more else ''}.\n")
    if answer.members:
        parts.append(_members_text(answer, paint))
    if answer.left_out:
        lines = "".join(f"  {printable(item.sentence)}\n" for item in answer.left_out)
        parts.append(f"What each constraint costs:\n{lines}")
    elif answer.exclusions:
        words = ", ".join(f"{printable(name)} {count}" for name, count in answer.exclusions)
        parts.append(f"Left out by: {words}.\n")
    if skipped and answer.skipped:
        lines_ = [(printable(item.node_id), printable(item.reason)) for item in answer.skipped]
        parts.append(columns(("SKIPPED NODE", "WHY"), lines_, paint=paint))
    elif skipped:
        parts.append("No node was skipped.\n")
    return "\n".join(parts)


def _members_text(answer: OffersAnswer, paint: Paint) -> str:
    rows = [
        (
            address,
            offer_words(offer) if offer is not None else "nothing",
            rate(offer.price_per_hour_usd) if offer is not None else "",
            offer.node_id if offer is not None else "",
        )
        for address, offer in answer.members
    ]
    total = sum((offer.price_per_hour_usd for _, offer in answer.members if offer is not None), Decimal(0))
    table = columns(("MEMBER", "WOULD GET", "$/H", "NODE"), rows, right=(2,), paint=paint)
    return f"{table}Together {rate(total)}.\n"


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


def groups_text(answer: OffersAnswer, grouping: Grouping, paint: Paint = PLAIN, *, limit: int | None = None) -> str:
    """A line a GPU model or a region: how many nodes, the cheapest GPU-hour, the largest slice."""
    rows = [
        (
            group.name,
            str(group.nodes),
            rate(group.from_usd).removesuffix("/h"),
            rate(group.to_usd).removesuffix("/h"),
            str(group.most_gpus),
            ", ".join(group.others),
        )
        for group in _groups(answer, grouping)[:limit]
    ]
    last = "REGIONS" if grouping is Grouping.GPU else "GPUS"
    headers = (grouping.value.upper(), "NODES", "FROM $/GPU/H", "TO", "MOST GPUS", last)
    return columns(headers, rows, right=(1, 2, 3, 4), paint=paint)


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    nodes: int
    from_usd: Decimal
    """Per GPU and hour, as `to_usd`."""
    to_usd: Decimal
    most_gpus: int
    others: tuple[str, ...]
    """Regions of a GPU, GPUs of a region."""


def _groups(answer: OffersAnswer, grouping: Grouping) -> tuple[_Group, ...]:
    """Cheapest first."""
    found: dict[str, list[Offer]] = {}
    for offer in answer.offers:
        found.setdefault(offer.gpu if grouping is Grouping.GPU else offer.location, []).append(offer)
    return tuple(
        _Group(
            name,
            len({offer.node_id for offer in offers}),
            _cheapest(offers),
            max(offer.price_per_gpu_hour_usd for offer in offers),
            max(offer.gpu_count for offer in offers),
            tuple(sorted({_other(offer, grouping) for offer in offers})),
        )
        for name, offers in sorted(found.items(), key=lambda item: (_cheapest(item[1]), item[0]))
    )


def _cheapest(offers: Sequence[Offer]) -> Decimal:
    return min(offer.price_per_gpu_hour_usd for offer in offers)


def _other(offer: Offer, grouping: Grouping) -> str:
    return offer.location if grouping is Grouping.GPU else offer.gpu


def offers_json(answer: OffersAnswer, *, limit: int | None = None, grouping: Grouping | None = None) -> Document:
    """`exclusions`, `members` and `groups` are there only when there is something to say."""
    body: dict[str, object] = {
        "generated_at": stamp(answer.generated_at),
        "offers": [offer_json(offer) for offer in answer.offers[:limit]],
        "skipped": [{"node_id": item.node_id, "reason": item.reason} for item in answer.skipped],
    }
    if answer.left_out:
        body["exclusions"] = [
            {
                "constraint": item.constraint,
                "wanted": item.wanted,
                "excluded": item.excluded,
                "considered": item.considered,
                "nearest": offer_json(item.nearest) if item.nearest is not None else None,
                "cure": item.cure or None,
            }
            for item in answer.left_out
        ]
    if answer.members:
        body["members"] = [
            {"address": address, "offer": offer_json(offer) if offer is not None else None}
            for address, offer in answer.members
        ]
    if grouping is not None:
        body["groups"] = [
            {
                grouping.value: group.name,
                "nodes": group.nodes,
                "from_per_gpu_hour_usd": number(group.from_usd),
                "to_per_gpu_hour_usd": number(group.to_usd),
                "most_gpus": group.most_gpus,
                "regions" if grouping is Grouping.GPU else "gpus": list(group.others),
            }
            for group in _groups(answer, grouping)[:limit]
        ]
    return document(body, answer.diagnostics)


def offers_csv(answer: OffersAnswer, *, limit: int | None = None) -> str:
    """The columns of the document's offers, empty for null."""
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(OfferRow.__annotations__), lineterminator="\n")
    writer.writeheader()
    for offer in answer.offers[:limit]:
        row = offer_json(offer)
        writer.writerow({key: str(value).lower() if isinstance(value, bool) else value for key, value in row.items()})
    return file.getvalue()
