"""The proof that a destroy ends with: each thing, its removal and its final cost from the server's own statement."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from lium_plan.engine.events import Proof
from lium_plan.money import rate, summed
from lium_plan.views.columns import columns
from lium_plan.views.paint import PLAIN, Paint
from lium_plan.views.times import stamp


def proof_text(proofs: Sequence[Proof], paint: Paint = PLAIN) -> str:
    """What remains comes first. The sum counts only what the server stated."""
    ordered = sorted(proofs, key=lambda proof: proof.gone)
    stated, total = summed([proof.total_usd for proof in ordered if proof.total_usd is not None])
    left_to_show = iter(stated)
    rows = [_row(proof, "" if proof.total_usd is None else next(left_to_show)) for proof in ordered]
    table = columns(("PROOF", "WHAT", "ID", "REMOVED", "TOTAL"), rows, right=(4,), paint=paint)
    gone = sum(1 for proof in proofs if proof.gone)
    words = f"{gone} of {len(proofs)} gone"
    if stated:
        words += f", {total} in all by the server's statements"
    left = [proof.price_per_hour_usd for proof in proofs if not proof.gone and proof.price_per_hour_usd is not None]
    if gone < len(proofs):
        words += f"; {paint('bold red', f'{len(proofs) - gone} left')}"
        words += f", costing {rate(sum(left, Decimal(0)))}" if left else ""
    return f"{table}{words}.\n"


def _row(proof: Proof, total: str) -> tuple[str, str, str, str, str]:
    removed = stamp(proof.removed_at.replace(microsecond=0)) if proof.removed_at is not None else ""
    if not proof.gone and proof.price_per_hour_usd is not None:
        removed = f"still {rate(proof.price_per_hour_usd)}"
    return ("gone" if proof.gone else "LEFT", proof.address, proof.id, removed, total)
