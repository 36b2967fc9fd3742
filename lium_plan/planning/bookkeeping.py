"""Bookkeeping: what a plan changes in the state alone, before everything else: late pods, pods whose successors were
never made, moves, and imports.

Owns the actions of the last two, and the state as all other decisions see it, with all done. None of it costs anything
or waits for anything, so `--target` and `--exclude` leave it as it is. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, error
from lium_plan.kinds.desired import Desired
from lium_plan.kinds.protocol import FieldChange, Verb
from lium_plan.kinds.registry import kind
from lium_plan.planning.importing import idle_imports, imported, not_ours, taken_from_others, with_imports
from lium_plan.planning.late import with_late
from lium_plan.planning.moving import Moved, Relocated, relocate
from lium_plan.planning.observed import Found, Observed
from lium_plan.planning.plan import Action
from lium_plan.planning.reinstating import reinstated
from lium_plan.planning.situation import listing_key
from lium_plan.requests import PlanRequest
from lium_plan.state.model import State, new_state


@dataclass(frozen=True, slots=True)
class Start:
    """Where a plan begins."""

    state: State | None
    observed: Observed
    actions: tuple[Action, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    refusals: tuple[Diagnostic, ...] = ()


def begin(
    desired: Desired | None,
    state: State | None,
    observed: Observed,
    request: PlanRequest,
    *,
    salt: bytes,
    project: str,
    stack: str,
) -> Start:
    """A destruction, and a plan that only looks, take things where they are. Raises `Failure` (1) for a bad import."""
    if not request.refresh_only:
        state, observed = with_late(state, observed)
    if desired is None or request.destroying or request.refresh_only:
        return Start(state, observed)
    moved = relocate(desired.moved, state, observed, wanted=desired.resources)
    state, observed, back = reinstated(moved.state, moved.observed, desired.resources)
    if not (desired.moved or desired.imports):
        return Start(state, observed, back)
    found = imported(desired, state, observed)
    allow_foreign = request.allow_foreign_lineage
    # Nothing that was made yet carries the mark of a state that is not born.
    known = state if state is not None else new_state(project, stack, lineage="", salt=salt)
    after, seen = with_imports(known, observed, found)
    return Start(
        after if found else state,
        seen,
        (*back, *_moves(moved), *(_adoption(desired, address, item) for address, item in found.items())),
        (*(taken_from_others(found) if allow_foreign else ()), *idle_imports(desired, state)),
        (
            *(_conflict(move) for move in moved.conflicts),
            *not_ours(desired.imports, found, allow_foreign=allow_foreign),
        ),
    )


def _moves(moved: Relocated) -> Iterator[Action]:
    records = moved.state.records if moved.state is not None else {}
    for move in sorted(moved.moves, key=lambda move: listing_key(move.target)):
        record = records.get(str(move.target))
        yield Action(
            address=move.target,
            verb=Verb.MOVE,
            title=kind(move.target.kind).title(None, record),
            reason=f"was {move.source}",
            changes=(FieldChange("address", str(move.source), str(move.target)),),
            price_per_hour_usd=(kind(record.kind).price_per_hour_usd(record) or None) if record is not None else None,
            source=str(move.source),
        )


def _adoption(desired: Desired, address: Address, found: Found) -> Action:
    record = found.record
    assert record is not None  # `imported` lets nothing else through
    return Action(
        address=address,
        verb=Verb.ADOPT,
        title=kind(address.kind).title(desired.resources[address], record),
        reason=f"imports {record.id}",
        price_per_hour_usd=kind(address.kind).price_per_hour_usd(record) or None,
        source=record.id,
    )


def _conflict(move: Moved) -> Diagnostic:
    return error(
        "move-conflict",
        f"{move.source} can't become {move.target}: the state has something there already",
        address=str(move.source),
        hint=f"take the entry out of `moved`, or make room first: lium-plan state mv '{move.target}' ADDRESS",
    )
