"""The end of a destroy: what the account still lists of ours, by state and by mark."""

from __future__ import annotations

from collections.abc import Mapping

from lium_plan.diagnostics import Diagnostic, ExitCode, warning
from lium_plan.engine.events import EventType, Proof
from lium_plan.kinds.protocol import Driver, Marked, Record, Verb
from lium_plan.kinds.registry import kind
from lium_plan.lium.errors import LiumError
from lium_plan.marks import lineage_mark, scope_mark
from lium_plan.operations.connecting import api_diagnostic
from lium_plan.operations.session import Session
from lium_plan.state.model import State


async def prove(session: Session, state: State, drivers: Mapping[str, Driver]) -> None:
    """Look at everything once more; what is left is named with what it costs, and the exit code says so."""
    left: dict[str, Proof] = {}
    for name, driver in drivers.items():
        records = [record for record in state.records.values() if record.kind == name]
        try:
            await _look(session, state, driver, records, left)
        except LiumError as failure:
            session.outcome.diagnostics.append(api_diagnostic(failure, f"prove that no {name} is left"))
            session.outcome.codes.add(ExitCode.UNKNOWN_OUTCOME)
    for proof in left.values():
        session.emitter.emit(
            EventType.PROOF,
            details={"address": proof.address, "id": proof.id, "gone": False, "removed_at": None, "total_usd": None},
        )
    session.outcome.proofs.extend(left.values())
    if left:
        session.outcome.codes.add(ExitCode.PARTIAL)


async def _look(session: Session, state: State, driver: Driver, records: list[Record], left: dict[str, Proof]) -> None:
    mark = lineage_mark(state.lineage)
    survey = await driver.survey(records, scope_mark=scope_mark(state.project, state.stack), lineage_mark=mark)
    for record in records:
        if record.id is not None and _should_be_gone(session, record):
            price = kind(record.kind).price_per_hour_usd(record)
            left[record.id] = Proof(record.key, record.id, False, price_per_hour_usd=price)
    if session.request.targets or session.request.excludes:
        return
    released = {item.id for item in state.released}
    for found in survey.others:
        if found.id in released:
            session.outcome.diagnostics.append(_released(found))
        elif found.lineage_mark == mark:
            left[found.id] = Proof(found.name, found.id, False, price_per_hour_usd=found.price_per_hour_usd)


def _released(found: Marked) -> Diagnostic:
    """Given up on purpose, so it is no part of the proof; what it costs is said all the same."""
    cost = "" if found.price_per_hour_usd is None else f", for ${found.price_per_hour_usd}/h"
    message = f"{found.kind} {found.name} ({found.id}) was released and is still there{cost}"
    return warning("released", message, hint=f"take it back with `lium-plan import ADDRESS {found.id}`")


def _should_be_gone(session: Session, record: Record) -> bool:
    """With `--target` or `--exclude` only what this run was to delete."""
    if not session.request.targets and not session.request.excludes:
        return True
    return any(result.address == record.address and result.verb is Verb.DESTROY for result in session.outcome.results)
