"""Which timer does what."""

from __future__ import annotations

from collections.abc import Mapping

from lium_plan.sim import backups, exhaustion, faults, lifecycle, livelihood, misfortune
from lium_plan.sim.records import TimerKind
from lium_plan.sim.world import Handler

HANDLERS: Mapping[TimerKind, Handler] = {
    TimerKind.POD_READY: lifecycle.on_ready,
    TimerKind.POD_FAILS: lifecycle.on_fails,
    TimerKind.POD_GONE: lifecycle.on_gone,
    TimerKind.POD_FAILED_FORGOTTEN: lifecycle.on_failed_forgotten,
    TimerKind.POD_REMOVAL: lifecycle.on_removal,
    TimerKind.POD_RECLAIMED: misfortune.on_reclaimed,
    TimerKind.JUPYTER_DONE: lifecycle.on_jupyter_done,
    TimerKind.PRICE_CHANGE: livelihood.on_price_change,
    TimerKind.MARKET: livelihood.on_market,
    TimerKind.BACKUP_DONE: backups.on_done,
    TimerKind.SCENARIO: faults.on_scenario,
    TimerKind.MONEY_ENDS: exhaustion.on_money_ends,
}
