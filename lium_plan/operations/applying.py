"""Apply and destroy: lock, look, plan, ask, settle, do, save, prove."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from lium_plan.addresses import Address
from lium_plan.diagnostics import NOTHING_CHANGED, ExitCode, Failure
from lium_plan.engine.emitter import Emitter
from lium_plan.engine.events import Event, EventType, RunReport
from lium_plan.engine.run import price_of
from lium_plan.garbage import collected_seldom
from lium_plan.interrupts import Interrupt
from lium_plan.kinds.protocol import Driver, Json
from lium_plan.operations.aftermath import finish, remember
from lium_plan.operations.connecting import connect, open_drivers
from lium_plan.operations.outside import REAL, Outside
from lium_plan.operations.planning import Planned, unborn_state, without_keys
from lium_plan.operations.proving import look_without_state, prove
from lium_plan.operations.reporting import output_rows, report
from lium_plan.operations.saved import load_plan, not_on_offer, staleness, without_state
from lium_plan.operations.session import Session, only, until_interrupted
from lium_plan.operations.settling import settle, watch_misnamed
from lium_plan.operations.validating import load_manifest
from lium_plan.planning.order import Graph
from lium_plan.planning.plan import Plan, needs_a_human
from lium_plan.planning.situation import check_allowances
from lium_plan.requests import ApplyRequest, PlanRequest, Sources
from lium_plan.settings import Settings
from lium_plan.state.journal import JournaledLedger, RunIdentity
from lium_plan.state.lock import this_process
from lium_plan.state.model import State
from lium_plan.state.store import Store


class Approval(Protocol):
    def __call__(self, plan: Plan) -> bool:
        """Show the plan and ask; False: nothing may be changed."""
        ...


async def apply(
    settings: Settings,
    request: PlanRequest,
    apply: ApplyRequest,
    *,
    approve: Approval,
    on_event: Callable[[Event], None],
    interrupt: Interrupt,
    outside: Outside = REAL,
) -> RunReport:
    """Carry out a plan made now, or a saved one. Raises `Failure` when nothing was changed and something is wrong."""
    saved = load_plan(apply.plan_file) if apply.plan_file is not None else None
    if saved is not None:
        request = _as_saved(request, saved)
    manifest = None if request.destroying else load_manifest(settings, request.sources)
    store = outside.open_store(settings)
    run_id = outside.random_bytes(6).hex()
    command = "destroy" if request.destroying else "apply"
    if request.destroying and store.load().state is None:
        stale = None if saved is None else without_state(saved, settings)
        if stale is not None:
            raise Failure(ExitCode.STALE, (stale,))
        found = await look_without_state(settings, request, outside)
        return RunReport(run_id, (), Decimal(0), 0, stack=settings.stack, diagnostics=found)
    owner = this_process(who=_who(), command=f"lium-plan {command}", run=run_id, since=outside.now())
    with await store.lock(owner, timeout_s=apply.lock_timeout_s), collected_seldom():
        known = store.load().state
        state = known if known is not None else unborn_state(settings, manifest, outside)
        async with connect(settings, outside=outside) as connection:
            emitter = Emitter(on_event, connection.client.server_time)
            session = Session(settings, request, apply, connection, manifest, run_id, emitter, interrupt)
            return await _run(
                session, store, state, born=known is not None, saved=saved, approve=approve, wall=outside.now
            )


def _as_saved(request: PlanRequest, saved: Plan) -> PlanRequest:
    """The request that the saved plan was made with; files and variables given now count before its own."""
    options = saved.options or {}
    given = request.sources
    sources = Sources(
        given.files if given != Sources() and given.files != (".",) else _texts(options.get("files")) or (".",),
        {**_pairs(options.get("variables")), **given.variables},
        given.var_files or _texts(options.get("var_files")),
    )
    return replace(
        request,
        sources=sources,
        destroying=saved.destroying,
        targets=_texts(options.get("targets")),
        excludes=_texts(options.get("excludes")),
        replace=_texts(options.get("replace")),
        refresh=bool(options.get("refresh", True)),
        refresh_only=bool(options.get("refresh_only")),
        fill=bool(options.get("fill")) or request.fill,
    )


def _pairs(value: Json) -> dict[str, str]:
    return {str(name): str(item) for name, item in value.items()} if isinstance(value, Mapping) else {}


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


async def _run(
    session: Session,
    store: Store,
    state: State,
    *,
    born: bool,
    saved: Plan | None,
    approve: Approval,
    wall: Callable[[], datetime],
) -> RunReport:
    planned = await _reviewed(await session.plan(state, born=born), saved, strict=session.options.strict_offers)
    check_allowances(planned.desired, state, session.request)
    plan = without_keys(planned)
    _announce(session.emitter, plan, state)
    approved = approve(plan)
    if plan.refusal is not None or plan.errored:
        raise Failure(plan.refusal or ExitCode.ERROR, plan.diagnostics)
    if not approved:
        return report(session, state, ExitCode.ERROR)
    ledger = _open_ledger(session, store, state, born=born, wall=wall)
    drivers = open_drivers(session.settings, session.connection, state)
    try:
        if session.request.rename_project and session.manifest is not None:
            ledger.rename(session.manifest.project)
        if plan.actions or plan.open or planned.observed.late:
            ledger.bind(planned.observed.account_id, planned.observed.workspace_id)
            await _do(session, ledger, drivers, planned)
        else:
            _judge(session, plan)
            if born:
                _keep_outputs(session, ledger, {name: value.value for name, value in plan.outputs.items()})
        if session.request.destroying and not session.interrupted:
            proving = asyncio.ensure_future(prove(session, state, ledger.state, drivers))
            if await until_interrupted(proving, session.interrupt):
                proving.result()
            else:
                session.outcome.codes.add(ExitCode.INTERRUPTED)
    except Failure as failure:
        _end_with(session, failure, changed=_has_changed(session, ledger, state))
    finally:
        final = _saved(session, ledger, state)
    return report(session, final)


def _saved(session: Session, ledger: JournaledLedger, before: State) -> State:
    """What there is now, in a snapshot; the journal holds it all when none can be written."""
    if not ledger.born:
        return before
    try:
        return ledger.compact()
    except Failure as failure:
        _end_with(session, failure, changed=_has_changed(session, ledger, before))
        return ledger.state


def _has_changed(session: Session, ledger: JournaledLedger, before: State) -> bool:
    """What is settled is asked for again without a new line in the journal."""
    return ledger.state.sequence > before.sequence or session.has_sent_changes


def _end_with(session: Session, failure: Failure, *, changed: bool) -> None:
    """What went wrong is how the run ends, with a code that doesn't say that nothing was changed."""
    if not changed:
        raise failure
    session.outcome.diagnostics.extend(failure.diagnostics)
    session.outcome.codes.add(ExitCode.PARTIAL if failure.exit_code in NOTHING_CHANGED else failure.exit_code)


async def _reviewed(planned: Planned, saved: Plan | None, *, strict: bool) -> Planned:
    """What was reviewed is what runs: the saved plan's offers and ceilings, with the refusals of now.

    `strict`: and no other offers. Then nothing is sent at all unless all of them can still be had.
    """
    if saved is None:
        return planned
    stale = staleness(saved, planned.plan)
    if stale is None and strict:
        stale = not_on_offer(saved, planned.observed.feed)
    if stale is not None:
        raise Failure(ExitCode.STALE, (stale,))
    now = planned.plan
    limits = (saved.cost.ceiling_per_hour_usd, now.cost.ceiling_per_hour_usd)
    limit = min((limit for limit in limits if limit is not None), default=None)
    cost = replace(saved.cost, ceiling_per_hour_usd=limit)
    plan = replace(saved, cost=cost, refusal=now.refusal, errored=now.errored, diagnostics=now.diagnostics)
    return replace(planned, plan=plan)


async def _do(session: Session, ledger: JournaledLedger, drivers: Mapping[str, Driver], planned: Planned) -> None:
    current: Planned | None = planned
    looking_only = session.request.refresh_only  # what is open stays so: to settle it may send something
    watch_misnamed(ledger, planned.observed)
    if session.request.destroying and ledger.state.open:
        await session.carry_out(ledger, drivers, _known_machines(planned, ledger.state))
        if session.interrupted:
            return
    if (ledger.state.open or planned.observed.late) and not looking_only:
        current = await settle(session, ledger, drivers, planned)
    # What was found open may be what the reviewed plan had no offer for: the plan that is carried out counts.
    _judge(session, (current or planned).plan)
    if current is None:
        return
    if not looking_only:
        remember(ledger, current)
    before = {record.id for record in ledger.records().values() if record.id is not None}
    run = session.open_run(ledger, drivers, current)
    results = await session.carry_out(ledger, drivers, current, run=run)
    if session.interrupted:
        return
    if not looking_only:
        await finish(session, ledger, drivers, current, results, before)
    if current.desired is not None and not session.request.destroying:
        values = {name: text.value(run.lookup) for name, text in current.desired.outputs.items() if not text.sensitive}
        _keep_outputs(session, ledger, values)
    elif not session.request.targets:
        _keep_outputs(session, ledger, {})


def _known_machines(planned: Planned, state: State) -> Planned:
    """What bills by the second and is nobody's question goes first: settling the rest may take minutes."""
    machines = [action for action in planned.plan.actions if action.address.head in ("fleet", "task")]
    edges: dict[Address, tuple[Address, ...]] = {}
    for action in machines:
        edges[action.address] = (*edges.get(action.address, ()), *action.depends_on)
    unsure = {effect.address for effect in state.open.values()} & set(edges)
    unsure |= set(Graph(edges, edges).all_after(unsure))
    return only(planned, tuple(action for action in machines if action.address not in unsure))


def _judge(session: Session, plan: Plan) -> None:
    """What a plan says about itself goes into how the run ends."""
    session.outcome.diagnostics.extend(plan.diagnostics)
    if needs_a_human(plan):
        session.outcome.codes.add(ExitCode.UNKNOWN_OUTCOME)
    # What nothing was on offer for may still be had: whether it was, its own result tells.
    tried = any(action.lacks_offer for action in plan.actions)
    if not plan.complete and not tried and not session.request.targets and not session.request.excludes:
        session.outcome.codes.add(ExitCode.PARTIAL)


def _keep_outputs(session: Session, ledger: JournaledLedger, values: dict[str, Json]) -> None:
    ledger.set_outputs(values)
    if values:
        session.emitter.emit(EventType.OUTPUTS, details={"outputs": output_rows(values)})


def _announce(emitter: Emitter, plan: Plan, state: State) -> None:
    emitter.emit(EventType.VERSION, details={"format_version": "1.0"})
    for action in plan.actions:
        emitter.emit(
            EventType.PLANNED_CHANGE,
            address=action.address,
            verb=action.verb,
            price_per_hour_usd=action.price_per_hour_usd,
            message=action.reason or None,
        )
    counts = plan.summary
    touched = {action.address for action in plan.actions}
    untouched = (record for record in state.records.values() if record.address not in touched)
    emitter.emit(
        EventType.CHANGE_SUMMARY,
        details={
            "create": counts.create,
            "update": counts.update,
            "reboot": counts.reboot,
            "replace": counts.replace,
            "destroy": counts.destroy,
            "run": counts.run,
            "untouched_per_hour_usd": float(sum((price_of(record) or Decimal(0) for record in untouched), Decimal(0))),
        },
    )


def _open_ledger(
    session: Session, store: Store, state: State, *, born: bool, wall: Callable[[], datetime]
) -> JournaledLedger:
    command = " ".join(("lium-plan", *without_values(sys.argv[1:])))
    identity = RunIdentity(session.run_id, f"{_who()}@{socket.gethostname()}", command)
    server_time = session.connection.client.server_time
    return JournaledLedger(store, state, run=identity, now=server_time, wall=wall, born=born)


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def without_values(arguments: list[str]) -> list[str]:
    """A command line for the audit log: variables' values may be secret."""
    shown = []
    hide_next = False
    for argument in arguments:
        flag, equals, rest = argument.partition("=")
        if hide_next:
            shown.append(f"{flag}=…")
        elif flag == "--var" and equals:
            shown.append(f"--var={rest.partition('=')[0]}=…")
        else:
            shown.append(argument)
        hide_next = argument == "--var"
    return shown
