"""Recovery: every begin without an end is settled before anything new is done. Runs in apply and destroy, after yes.

What each effect's outcome can be told by is its kind's knowledge. What can't be settled stays open, and is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from lium_plan.diagnostics import Diagnostic, error
from lium_plan.engine.run import EngineRun
from lium_plan.kinds.protocol import ActionFailed, Cancelled, Driver, OpenEffect, Outcome, Settlement


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of the open effects."""

    settled: int
    unknown: tuple[Diagnostic, ...]
    """One for each that stays open."""


async def recover(
    opened: Mapping[int, OpenEffect], drivers: Mapping[str, Driver], run: EngineRun, *, unanswered: type[Exception]
) -> Recovery:
    """Settle them all, side by side. `unanswered`: what a driver raises when the API can't be asked; then it is unknown
    what became of that effect, and of no other. Raises `CancelledError`, and what else a driver raises."""
    effects = [opened[number] for number in sorted(opened)]
    # All of them, whatever becomes of one: nothing of a run may go on when it has ended.
    settled = await asyncio.gather(
        *(_settle(effect, drivers, run, unanswered) for effect in effects), return_exceptions=True
    )
    answers = [_answer(item) for item in settled]
    unknown = tuple(
        error(
            "unknown-outcome",
            f"{effect.op} of {effect.at:%Y-%m-%d %H:%M}Z: {answer.message}",
            address=str(effect.address),
            hint="it stays open in the journal and is looked at again by the next apply",
        )
        for effect, answer in zip(effects, answers, strict=True)
        if answer.outcome is Outcome.UNKNOWN
    )
    return Recovery(len(effects) - len(unknown), unknown)


def _answer(settled: Settlement | BaseException) -> Settlement:
    if isinstance(settled, BaseException):
        raise settled
    return settled


async def _settle(
    effect: OpenEffect, drivers: Mapping[str, Driver], run: EngineRun, unanswered: type[Exception]
) -> Settlement:
    run.phase(effect.address, f"settling an open {effect.op}")
    try:
        settlement = await drivers[effect.address.kind].settle(effect, run)
    except ActionFailed as failure:
        return Settlement(Outcome.UNKNOWN, failure.diagnostic.message)
    except unanswered as failure:
        return Settlement(Outcome.UNKNOWN, f"{_what(effect)} can't be looked for: {failure}")
    except Cancelled:
        raise asyncio.CancelledError from None
    run.phase(effect.address, f"settled: {settlement.message}")
    return settlement


def _what(effect: OpenEffect) -> str:
    """The remote name or id to look for by hand."""
    told = (effect.data.get(key) for key in ("pod_name", "name", "id"))
    return next((str(item) for item in told if item), f"what it did to {effect.address}")
