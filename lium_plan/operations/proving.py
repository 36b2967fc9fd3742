"""The end of a destroy: what the account still lists of ours, by state and by mark; without a state, by mark alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error, warning
from lium_plan.engine.events import EventType, Proof
from lium_plan.kinds.protocol import Driver, Json, Marked, Record, Verb
from lium_plan.kinds.registry import kind
from lium_plan.lium.errors import LiumError
from lium_plan.marks import lineage_mark, scope_mark
from lium_plan.money import rate
from lium_plan.operations.connecting import api_diagnostic, api_failures, connect, open_drivers
from lium_plan.operations.outside import Outside
from lium_plan.operations.session import Session
from lium_plan.operations.states import other_stacks
from lium_plan.operations.validating import load_manifest
from lium_plan.planning.guards import bill_of, of_other_states, run_elsewhere, runs
from lium_plan.requests import PlanRequest
from lium_plan.settings import Settings
from lium_plan.state.model import State, new_state


async def prove(session: Session, before: State, state: State, drivers: Mapping[str, Driver]) -> None:
    """Look at everything once more; what is left is named with what it costs, and the exit code says so.

    `before`: the state that the run began with. Its pods that had ended by themselves are told with what they cost.
    """
    await _ended_by_themselves(session, before, state)
    left: dict[str, Proof] = {}
    for name, driver in drivers.items():
        records = [record for record in state.records.values() if record.kind == name]
        try:
            others = await _look(session, state, driver, records, left)
            if name == "pod":
                given_up = {item.id for item in state.released}
                session.outcome.released = tuple(found for found in others if found.id in given_up and runs(found))
        except LiumError as failure:
            session.outcome.diagnostics.append(api_diagnostic(failure, f"prove that no {name} is left"))
            session.outcome.codes.add(ExitCode.UNKNOWN_OUTCOME)
    for proof in left.values():
        session.emitter.emit(EventType.PROOF, details=_told(proof))
    session.outcome.proofs.extend(left.values())
    if left:
        session.outcome.codes.add(ExitCode.PARTIAL)


async def _ended_by_themselves(session: Session, before: State, state: State) -> None:
    """Nothing was left to delete of them (a time to live ended, a provider took them): the statement tells the rest."""
    told = {proof.id for proof in session.outcome.proofs} | {item.id for item in state.released}
    told |= {record.id for record in state.records.values() if record.id is not None}
    for record in before.records.values():
        if record.kind != "pod" or record.id is None or record.id in told:
            continue
        try:
            bill = await session.connection.client.statement(record.id)
        except LiumError:
            continue  # it is gone all the same; the server does not say what it has cost
        if not bill.removed:
            continue  # the id was another pod's, which runs on
        proof = Proof(record.key, record.id, True, bill.removed_at, bill.total_usd)
        session.outcome.proofs.append(proof)
        session.emitter.emit(EventType.PROOF, details=_told(proof))


def _told(proof: Proof) -> Mapping[str, Json]:
    return {
        "address": proof.address,
        "id": proof.id,
        "gone": proof.gone,
        "removed_at": None if proof.removed_at is None else proof.removed_at.isoformat().replace("+00:00", "Z"),
        "total_usd": None if proof.total_usd is None else float(proof.total_usd),
    }


async def _look(
    session: Session, state: State, driver: Driver, records: list[Record], left: dict[str, Proof]
) -> tuple[Marked, ...]:
    """What is there that no record of the state is."""
    mark = lineage_mark(state.lineage)
    survey = await driver.survey(records, scope_mark=scope_mark(state.project, state.stack), lineage_mark=mark)
    for record in records:
        if record.id is not None and _should_be_gone(session, record):
            price = kind(record.kind).price_per_hour_usd(record)
            left[record.id] = Proof(record.key, record.id, False, price_per_hour_usd=price)
    if session.request.targets or session.request.excludes:
        return survey.others
    _tell_of_other_states(session, state, survey.others)
    released = {item.id for item in state.released}
    for found in survey.others:
        if found.id in released:
            session.outcome.diagnostics.append(_released(found))
        elif found.lineage_mark == mark:
            left[found.id] = Proof(found.name, found.id, False, price_per_hour_usd=found.price_per_hour_usd)
    return survey.others


def _tell_of_other_states(session: Session, state: State, others: Iterable[Marked]) -> None:
    """What a second checkout of the same stack has rented is not ours to end, but whoever destroys must know of it."""
    theirs = of_other_states(others, state.project, state.stack, lineage_mark(state.lineage))
    if not theirs:
        return
    told = f"{run_elsewhere(theirs, state.project, state.stack)}, for {bill_of(theirs)}"
    if session.request.allow_foreign_lineage:
        session.outcome.diagnostics.append(warning("foreign-lineage", told))
        return
    hint = (
        "that state ends them, or, if it is lost: lium-plan orphans; --allow-foreign-lineage if they are meant to stay"
    )
    session.outcome.diagnostics.append(error("foreign-lineage", told, hint=hint))
    session.outcome.others = tuple(theirs)
    session.outcome.codes.add(ExitCode.PARTIAL)


def _released(found: Marked) -> Diagnostic:
    """Given up on purpose, so it is no part of the proof; what it costs is said all the same."""
    cost = "" if found.price_per_hour_usd is None else f", for {rate(found.price_per_hour_usd)}"
    message = f"{found.kind} {found.name} ({found.id}) was released and is still there{cost}"
    return warning("released", message, hint=f"take it back with `lium-plan import ADDRESS {found.id}`")


def _should_be_gone(session: Session, record: Record) -> bool:
    """With `--target` or `--exclude` only what this run was to delete."""
    if not session.request.targets and not session.request.excludes:
        return True
    return any(result.address == record.address and result.verb is Verb.DESTROY for result in session.outcome.results)


async def look_without_state(settings: Settings, request: PlanRequest, outside: Outside) -> tuple[Diagnostic, ...]:
    """A destroy without a state destroys nothing. Raises `Failure` (6) when pods of this project run all the same."""
    try:
        project = load_manifest(settings, request.sources).project
    except Failure as failure:
        why = f"the account was not looked at, for no manifest names the project: {failure.diagnostics[0].message}"
        return (warning("no-project", why, hint="what the account has: lium-plan orphans"),)
    scope = scope_mark(project, settings.stack)
    nothing = new_state(project, settings.stack, lineage=outside.new_uuid(), salt=outside.random_bytes(32))
    async with connect(settings, outside=outside) as connection:
        pods = open_drivers(settings, connection, nothing)["pod"]
        with api_failures("look at the account"):
            seen = await pods.survey((), scope_mark=scope, lineage_mark=None)
    found = [other for other in seen.others if other.scope_mark == scope and runs(other)]
    if found:
        run = "pod runs" if len(found) == 1 else "pods run"
        message = f"there is no state here, and {len(found)} {run} for project {project}, stack {settings.stack}, at"
        hint = "take them over, and destroy then: lium-plan state recover; or look: lium-plan orphans"
        raise Failure(ExitCode.UNSAFE, (error("foreign-lineage", f"{message} {bill_of(found)}", hint=hint),))
    others = other_stacks(settings)
    return () if others is None else (warning("other-stacks", f"stack {settings.stack} has no state", hint=others),)
