"""What the account bills that no state knows, for people and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from lium_plan.answers import Deleted, Orphan, Orphans
from lium_plan.money import amount, rate
from lium_plan.views.columns import columns
from lium_plan.views.diagnostics_json import document
from lium_plan.views.documents import Document
from lium_plan.views.money import optional_number
from lium_plan.views.paint import PLAIN, Paint, one_line
from lium_plan.views.times import optional_stamp, stamp

_WORDS = {
    "lost": "Lost: of a state that lies here, and in none of them",
    "other_lineage": "Other lineage: made by lium-plan, with a state that does not lie here",
    "foreign": "Foreign: not made by lium-plan; never deleted",
}


def orphans_text(found: Orphans, paint: Paint = PLAIN) -> str:
    """The three lists with what each costs, then what was deleted."""
    parts = []
    for name, items in _lists(found):
        if items:
            total = sum((item.price_per_hour_usd or Decimal(0) for item in items), Decimal(0))
            head = paint("bold red" if name == "lost" else "bold", _WORDS[name])
            table = columns(("KIND", "ID", "NAME", "PROJECT", "STACK", "$/H", "SINCE"), _rows(items), right=(5,))
            parts.append(f"{head} ({rate(total)}).\n{table}")
    if found.deleted:
        parts.append("".join(_deleted_text(item, paint) for item in found.deleted))
    return "\n".join(parts) or "Nothing is billed that no state knows.\n"


def cures_text(found: Orphans) -> str:
    """What can be done about the lost, a line each."""
    cures = ["Take one back: lium-plan import ADDRESS ID"]
    if len(found.spared) < len(found.lost):
        what = "all but what holds data" if found.spared else "them"
        cures.append(f"Delete {what}: lium-plan orphans --delete")
    if found.spared:
        cures.append(f"Delete what holds data, which goes by its id alone: {delete_spared(found)}")
    return "\n".join(cures) + "\n"


def delete_spared(found: Orphans) -> str:
    """The command that deletes what a plain `--delete` spares."""
    return f"lium-plan orphans --delete {' '.join(f'--id {item.id}' for item in found.spared)}"


def _lists(found: Orphans) -> tuple[tuple[str, tuple[Orphan, ...]], ...]:
    return (("lost", found.lost), ("other_lineage", found.other_lineage), ("foreign", found.foreign))


def _rows(items: Sequence[Orphan]) -> list[tuple[str, ...]]:
    return [
        (
            item.kind,
            item.id,
            one_line(item.name, 63),
            item.project or "",
            item.stack or "",
            rate(item.price_per_hour_usd).removesuffix("/h") if item.price_per_hour_usd is not None else "",
            stamp(item.since.replace(microsecond=0)) if item.since is not None else "",
        )
        for item in items
    ]


def _deleted_text(item: Deleted, paint: Paint) -> str:
    what = f"{item.orphan.kind} {one_line(item.orphan.name, 63)} ({item.orphan.id})"
    if not item.gone:
        return f"{paint('bold red', 'LEFT')}  {what}\n"
    cost = f", {amount(item.total_usd)} in all" if item.total_usd is not None else ""
    return f"gone  {what}{cost}\n"


def orphans_json(found: Orphans) -> Document:
    body: Document = {name: [_row(item) for item in items] for name, items in _lists(found)}
    body["deleted"] = [
        {
            **_row(item.orphan),
            "gone": item.gone,
            "removed_at": optional_stamp(item.removed_at),
            "total_usd": optional_number(item.total_usd),
        }
        for item in found.deleted
    ]
    return document(body, found.diagnostics)


def no_orphans_json() -> Document:
    """The body when nothing could be found out."""
    return {"lost": [], "other_lineage": [], "foreign": [], "deleted": []}


def _row(item: Orphan) -> Document:
    return {
        "kind": item.kind,
        "id": item.id,
        "name": item.name,
        "project": item.project,
        "stack": item.stack,
        "price_per_hour_usd": optional_number(item.price_per_hour_usd),
        "since": optional_stamp(item.since),
    }
