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


async def recover(opened: Mapping[int, OpenEffect], drivers: Mapping[str, Driver], run: EngineRun) -> Recovery:
    """Settle them all, side by side. Raises what the client raises when the API can't be asked, and `Cancelled`."""
    effects = [opened[number] for number in sorted(opened)]
    # All of them, whatever becomes of one: nothing of a run may go on when it has ended.
    settled = await asyncio.gather(*(_settle(effect, drivers, run) for effect in effects), return_exceptions=True)
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


async def _settle(effect: OpenEffect, drivers: Mapping[str, Driver], run: EngineRun) -> Settlement:
    run.phase(effect.address, f"settling an open {effect.op}")
    try:
        settlement = await drivers[effect.address.kind].settle(effect, run)
    except ActionFailed as failure:
        return Settlement(Outcome.UNKNOWN, failure.diagnostic.message)
    except Cancelled:
        raise asyncio.CancelledError from None
    run.phase(effect.address, f"settled: {settlement.message}")
    return settlement
