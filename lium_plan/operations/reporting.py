"""How a run ended, as a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from lium_plan.diagnostics import ExitCode, Severity, worst
from lium_plan.engine.events import ActionResult, EventType, Proof, ResultKind, RunReport
from lium_plan.kinds.protocol import Json
from lium_plan.kinds.registry import kind
from lium_plan.operations.session import Outcome, Session
from lium_plan.planning.rents import CLOSED
from lium_plan.settings import Settings
from lium_plan.state.local import stacks_in
from lium_plan.state.model import State

NEEDS_ANOTHER = (ExitCode.PARTIAL, ExitCode.INTERRUPTED, ExitCode.UNKNOWN_OUTCOME)
BY_HAND = frozenset(("volume-exists",))
"""Failures that the same command would only meet again: their hints say what helps."""


def report(session: Session, state: State, *codes: ExitCode) -> RunReport:
    """The closing table's content; also emits the last `change_summary`, with the exit code."""
    outcome = session.outcome
    pods = [record for record in state.records.values() if record.kind == "pod" and record.id not in outcome.lost]
    running = sum((kind(record.kind).price_per_hour_usd(record) for record in pods), Decimal(0))
    reserved = (effect.data.get("ceiling_per_hour_usd") for effect in state.open.values())
    possible = sum((Decimal(str(ceiling)) for ceiling in reserved if ceiling is not None), Decimal(0))
    known = {record.id for record in state.records.values()}
    strays = [proof for proof in outcome.proofs if not proof.gone and proof.id not in known]
    released, seen = _released(session, state)
    errors = any(item.severity is Severity.ERROR for item in outcome.diagnostics)
    implied = (ExitCode.PARTIAL,) if errors and outcome.results else ()
    code = worst((*outcome.codes, *codes, *implied))
    destroying = session.request.destroying
    again = following(session.settings, outcome, state, strays, destroying=destroying)
    session.emitter.emit(
        EventType.CHANGE_SUMMARY,
        details={
            "exit_code": int(code),
            "running_per_hour_usd": float(running),
            "running_pods": len(pods),
            "open_effects": len(state.open),
            "open_per_hour_usd": float(possible),
            "strays": len(strays),
            **{end.value: sum(result.kind is end for result in outcome.results) for end in ResultKind},
        },
    )
    return RunReport(
        run=session.run_id,
        results=tuple(outcome.results),
        running_per_hour_usd=running,
        running_pods=len(pods),
        open_effects=len(state.open),
        open_per_hour_usd=possible,
        strays=len(strays),
        strays_per_hour_usd=sum((proof.price_per_hour_usd or Decimal(0) for proof in strays), Decimal(0)),
        elsewhere=len(outcome.others),
        elsewhere_per_hour_usd=sum((pod.price_per_hour_usd or Decimal(0) for pod in outcome.others), Decimal(0)),
        released=len(released),
        released_per_hour_usd=sum(released.values(), Decimal(0)),
        released_seen=seen,
        stack=session.settings.stack,
        proofs=tuple(outcome.proofs),
        diagnostics=tuple(dict.fromkeys(outcome.diagnostics)),
        exit_code=int(code),
        next_command=f"lium-plan {again}" if code in NEEDS_ANOTHER and not _all_by_hand(outcome.results) else None,
        shown_variables=_shown_variables(session),
        outputs={} if destroying else output_rows(state.outputs),
    )


def following(settings: Settings, outcome: Outcome, state: State, strays: Sequence[Proof], *, destroying: bool) -> str:
    """The command that goes on with what a run left, without `lium-plan`."""
    if settings.stack not in stacks_in(settings.state_dir):
        return "state recover"  # the directory went away under the run
    if not state.records and strays:
        return f"orphans --delete {' '.join(f'--id {proof.id}' for proof in strays)}"
    if not state.records and not state.open and outcome.others:
        return "orphans"
    return "destroy" if destroying else "apply"


def _all_by_hand(results: Iterable[ActionResult]) -> bool:
    """Whether all that kept a run from its end needs somebody's hand first."""
    causes = [result.cause for result in results if result.kind not in (ResultKind.DONE, ResultKind.SKIPPED)]
    return bool(causes) and all(cause is not None and cause.code in BY_HAND for cause in causes)


def _released(session: Session, state: State) -> tuple[Mapping[str, Decimal], bool]:
    """USD per hour of each pod that was given up and runs on, by id; whether that was seen, or is as recorded."""
    recorded = {item.id: Decimal(item.price_per_hour_usd or 0) for item in state.released if item.kind == "pod"}
    listing = session.connection.poller.latest
    if session.outcome.released is not None:
        return {found.id: found.price_per_hour_usd or Decimal(0) for found in session.outcome.released}, True
    if listing is None:
        return recorded, False
    rows = (listing.pods[id] for id in recorded if id in listing.pods)
    return {row.id: row.price_per_hour_usd or recorded[row.id] for row in rows if row.status not in CLOSED}, True


def _shown_variables(session: Session) -> dict[str, str]:
    declared = session.manifest.inputs.variables if session.manifest is not None else {}
    given = session.request.sources.variables
    known = {name: declared.get(name) for name in given}
    return {name: given[name] for name, variable in known.items() if variable is not None and not variable.sensitive}


def output_rows(values: Mapping[str, Json]) -> dict[str, Json]:
    """`{NAME: {value, sensitive, unknown}}`, as in every document; what is sensitive is never among them."""
    return {name: {"value": value, "sensitive": False, "unknown": value is None} for name, value in values.items()}
