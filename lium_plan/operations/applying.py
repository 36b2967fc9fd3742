"""Apply and destroy: lock, look, plan, ask, recover, do, save, prove."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Protocol

from lium_plan import __version__
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, Severity, warning, worst
from lium_plan.engine.apply import Applier
from lium_plan.engine.emitter import Emitter
from lium_plan.engine.events import ActionResult, Event, EventType, Proof, ResultKind, RunReport
from lium_plan.engine.market import Desk, Limits
from lium_plan.engine.recover import recover
from lium_plan.engine.run import EngineRun
from lium_plan.interrupts import Interrupt
from lium_plan.kinds.protocol import Driver, Json, Record, Verb
from lium_plan.kinds.registry import kind
from lium_plan.lium.errors import LiumError
from lium_plan.manifest.model import Manifest
from lium_plan.marks import lineage_mark, scope_mark
from lium_plan.operations.connecting import Connection, api_diagnostic, connect, open_drivers
from lium_plan.operations.observing import load_feed
from lium_plan.operations.planning import Planned, load_manifest, look_and_plan, unborn_state
from lium_plan.operations.saved import load_plan, staleness
from lium_plan.operations.states import open_store
from lium_plan.planning.placement import Need
from lium_plan.planning.plan import Plan
from lium_plan.planning.planner import needs_a_human
from lium_plan.planning.rents import placement_of
from lium_plan.requests import ApplyRequest, PlanRequest, Sources
from lium_plan.settings import Settings
from lium_plan.state.journal import JournaledLedger, RunIdentity
from lium_plan.state.local import LocalStore
from lium_plan.state.lock import this_process
from lium_plan.state.model import State


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
) -> RunReport:
    """Carry out a plan made now, or a saved one. Raises `Failure` when nothing was changed and something is wrong."""
    saved = load_plan(apply.plan_file) if apply.plan_file is not None else None
    if saved is not None:
        request = _as_saved(request, saved)
    manifest = None if request.destroying else load_manifest(settings, request.sources)
    store = open_store(settings)
    run_id = uuid.uuid4().hex[:12]
    command = "destroy" if request.destroying else "apply"
    if request.destroying and store.load().state is None:
        return RunReport(run_id, (), Decimal(0), 0)
    owner = this_process(who=_who(), command=f"lium-plan {command}", run=run_id, since=datetime.now(UTC))
    with await store.lock(owner, timeout_s=apply.lock_timeout_s):
        known = store.load().state
        state = known if known is not None else unborn_state(settings, manifest)
        async with connect(settings) as connection:
            session = _Session(settings, request, apply, connection, store, manifest, run_id, on_event, interrupt)
            return await session.run(state, born=known is not None, saved=saved, approve=approve)


def _as_saved(request: PlanRequest, saved: Plan) -> PlanRequest:
    """The request that the saved plan was made with; files and variables given now count before its own."""
    options = saved.options or {}
    given = request.sources
    sources = Sources(
        given.files if given != Sources() and given.files != (".",) else _texts(options.get("files")) or (".",),
        given.variables,
        given.var_files or _texts(options.get("var_files")),
    )
    return replace(
        request,
        sources=sources,
        destroying=saved.destroying,
        targets=_texts(options.get("targets")),
        excludes=_texts(options.get("excludes")),
        replace=_texts(options.get("replace")),
        refresh_only=bool(options.get("refresh_only")),
        fill=bool(options.get("fill")) or request.fill,
    )


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


class _Session:
    """One locked, connected run."""

    def __init__(
        self,
        settings: Settings,
        request: PlanRequest,
        options: ApplyRequest,
        connection: Connection,
        store: LocalStore,
        manifest: Manifest | None,
        run_id: str,
        on_event: Callable[[Event], None],
        interrupt: Interrupt,
    ) -> None:
        self._settings = settings
        self._request = request
        self._options = options
        self._connection = connection
        self._store = store
        self._manifest = manifest
        self._run_id = run_id
        self._interrupt = interrupt
        self._now = connection.client.server_time
        self._emitter = Emitter(on_event, self._now)
        self._results: list[ActionResult] = []
        self._proofs: list[Proof] = []
        self._diagnostics: list[Diagnostic] = []
        self._codes: set[ExitCode] = {ExitCode.OK}

    async def run(self, state: State, *, born: bool, saved: Plan | None, approve: Approval) -> RunReport:
        planned = await self._plan(state, born=born)
        if saved is not None:
            stale = staleness(saved, planned.plan)
            if stale is not None:
                raise Failure(ExitCode.STALE, (stale,))
            # What was reviewed is what runs: its offers and ceilings, with today's refusals.
            refused = planned.plan.refusal
            planned = replace(planned, plan=replace(saved, refusal=refused, diagnostics=planned.plan.diagnostics))
        plan = planned.plan
        self._announce(plan)
        approved = approve(plan)
        if plan.refusal is not None:
            raise Failure(plan.refusal, plan.diagnostics)
        if not approved:
            return self._report(state, ExitCode.ERROR)
        self._diagnostics.extend(plan.diagnostics)
        if needs_a_human(plan):
            self._codes.add(ExitCode.UNKNOWN_OUTCOME)
        if not plan.actions and not plan.open:
            if not plan.complete:
                self._codes.add(ExitCode.PARTIAL)
            return await self._nothing_to_do(state, planned, born=born)
        ledger = self._ledger(state, born=born)
        try:
            ledger.bind(planned.observed.account_id, planned.observed.workspace_id)
            await self._do(ledger, planned)
        finally:
            final = ledger.compact()
        if not plan.complete:
            self._codes.add(ExitCode.PARTIAL)
        return self._report(final)

    # --- planning ------------------------------------------------------------------------------------------------

    async def _plan(self, state: State, *, born: bool) -> Planned:
        return await look_and_plan(self._settings, self._connection, self._manifest, state, self._request, born=born)

    def _announce(self, plan: Plan) -> None:
        self._emitter.emit(EventType.VERSION, details={"version": __version__, "format_version": "1.0"})
        for action in plan.actions:
            self._emitter.emit(
                EventType.PLANNED_CHANGE,
                address=action.address,
                verb=action.verb,
                price_per_hour_usd=action.price_per_hour_usd,
                message=action.reason or None,
            )
        self._emitter.emit(EventType.CHANGE_SUMMARY, details=_summary(plan))

    def _ledger(self, state: State, *, born: bool) -> JournaledLedger:
        command = " ".join(("lium-plan", *_without_values(sys.argv[1:])))
        identity = RunIdentity(self._run_id, f"{_who()}@{socket.gethostname()}", command)
        return JournaledLedger(self._store, state, run=identity, now=self._now, born=born)

    # --- doing ---------------------------------------------------------------------------------------------------

    async def _do(self, ledger: JournaledLedger, planned: Planned) -> None:
        drivers = open_drivers(self._settings, self._connection, ledger.state)
        if ledger.state.open or ledger.state.watched:
            again = await self._recover(ledger, drivers, planned)
            if again is None:
                return
            planned = again
        run = self._engine_run(ledger, drivers, planned)
        await self._carry_out(run, drivers, planned)
        if self._has_new_completions(planned, ledger):
            await self._end_finished_fleets(ledger, drivers)
        if self._request.destroying:
            await self._prove(ledger, drivers)
        if not self._interrupt.first.is_set():
            self._keep_outputs(ledger, run, planned)

    async def _recover(
        self, ledger: JournaledLedger, drivers: Mapping[str, Driver], planned: Planned
    ) -> Planned | None:
        """Settle what earlier runs left open, then plan anew. None when the run must end here."""
        run = self._engine_run(ledger, drivers, planned)
        settling = asyncio.ensure_future(recover(ledger.state.open, drivers, run))
        stopping = asyncio.ensure_future(self._interrupt.first.wait())
        await asyncio.wait((settling, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not settling.done():
            settling.cancel()
            await asyncio.wait((settling,))
        if settling.cancelled():
            self._codes.add(ExitCode.INTERRUPTED)
            return None
        try:
            recovery = settling.result()
        except LiumError as failure:
            self._diagnostics.append(api_diagnostic(failure, "settle what an earlier run left open"))
            self._codes.add(ExitCode.PARTIAL)
            return None
        if recovery.unknown:
            self._diagnostics.extend(recovery.unknown)
            self._codes.add(ExitCode.UNKNOWN_OUTCOME)
        await self._take_late_pods(ledger, drivers)
        again = await self._plan(ledger.state, born=True)
        if again.plan.refusal is not None:
            self._diagnostics.extend(again.plan.diagnostics)
            self._codes.add(again.plan.refusal)
            return None
        beyond = _beyond(planned.plan, again.plan)
        if beyond:
            self._diagnostics.append(beyond)
            self._codes.add(ExitCode.PARTIAL)
            return None
        return again

    async def _take_late_pods(self, ledger: JournaledLedger, drivers: Mapping[str, Driver]) -> None:
        """A pod that appeared under a name whose rent was settled as not done is ours: adopted, or deleted."""
        watched = {item.name: item for item in ledger.state.watched}
        if not watched:
            return
        records = [record for record in ledger.records().values() if record.kind == "pod"]
        state = ledger.state
        survey = await drivers["pod"].survey(
            records, scope_mark=scope_mark(state.project, state.stack), lineage_mark=lineage_mark(state.lineage)
        )
        for found in survey.others:
            item = watched.get(found.name)
            if item is None:
                continue
            taken = ledger.record(item.address) is not None
            facts: dict[str, Json] = {
                "pod_name": found.name,
                "node_id": found.attributes.get("node_id"),
                "price_per_hour_usd": str(found.price_per_hour_usd or 0),
                "rented_at": found.since.isoformat() if found.since is not None else None,
            }
            ledger.put(Record(item.address, found.id, "pending", {}, facts, deposed=taken))
            ledger.unwatch(found.name)

    def _engine_run(self, ledger: JournaledLedger, drivers: Mapping[str, Driver], planned: Planned) -> EngineRun:
        needs, offers = {}, {}
        for action in planned.plan.actions:
            resource = planned.desired.resources.get(action.address) if planned.desired is not None else None
            requirement = kind(resource.kind).requirement(resource.spec) if resource is not None else None
            if resource is None or requirement is None or action.verb not in (Verb.CREATE, Verb.REPLACE):
                continue
            needs[action.address] = Need(action.address, requirement, action.address.name, placement_of(resource))
            if action.offer is not None:
                offers[action.address] = action.offer
        desk = Desk(
            lambda: load_feed(self._connection.client),
            needs=needs,
            planned=offers,
            running={
                record.address: kind(record.kind).price_per_hour_usd(record)
                for record in ledger.records().values()
                if record.kind == "pod" and record.address not in needs
            },
            limits=Limits(planned.plan.cost.ceiling_per_hour_usd, self._options.strict_offers),
        )
        return EngineRun(
            id=self._run_id,
            ledger=ledger,
            market=desk,
            drivers=drivers,
            desired=planned.desired,
            destroying=self._request.destroying,
            wait_timeout_s=self._options.wait_timeout_s,
            emitter=self._emitter,
            now=self._now,
            stop=self._interrupt.first,
            stop_now=self._interrupt.second,
        )

    async def _carry_out(self, run: EngineRun, drivers: Mapping[str, Driver], planned: Planned) -> None:
        applier = Applier(planned.plan, planned.desired, run, drivers, emitter=self._emitter, now=self._now)
        results = await applier.apply(parallelism=self._options.parallelism, stop=self._interrupt.first)
        self._results.extend(results)
        self._proofs.extend(run.proofs)
        ends = {result.kind for result in results}
        if ResultKind.UNKNOWN in ends:
            self._codes.add(ExitCode.UNKNOWN_OUTCOME)
        if ends & {ResultKind.FAILED, ResultKind.SKIPPED}:
            self._codes.add(ExitCode.PARTIAL)
        if self._interrupt.first.is_set():
            self._codes.add(ExitCode.INTERRUPTED)

    # --- afterwards ----------------------------------------------------------------------------------------------

    def _has_new_completions(self, planned: Planned, ledger: JournaledLedger) -> bool:
        ran = {str(action.address) for action in planned.plan.actions if action.address.kind == "task"}
        return bool(ran & set(ledger.state.completions)) and not self._interrupt.first.is_set()

    async def _end_finished_fleets(self, ledger: JournaledLedger, drivers: Mapping[str, Driver]) -> None:
        """`on_completion: destroy-fleet`: the task that just completed takes its fleet with it, in this very run."""
        planned = await self._plan(ledger.state, born=True)
        ending = tuple(action for action in planned.plan.actions if action.verb in (Verb.DESTROY, Verb.FORGET))
        if planned.plan.refusal is not None:
            self._diagnostics.extend(planned.plan.diagnostics)
            self._codes.add(planned.plan.refusal)
            return
        only = replace(planned, plan=replace(planned.plan, actions=ending))
        await self._carry_out(self._engine_run(ledger, drivers, only), drivers, only)

    async def _prove(self, ledger: JournaledLedger, drivers: Mapping[str, Driver]) -> None:
        """The end of a destroy: what the account still lists of ours, by state and by mark."""
        state = ledger.state
        mark = lineage_mark(state.lineage)
        released = {item.id for item in state.released}
        left: dict[str, Proof] = {}
        for name, driver in drivers.items():
            records = [record for record in state.records.values() if record.kind == name]
            try:
                survey = await driver.survey(
                    records, scope_mark=scope_mark(state.project, state.stack), lineage_mark=mark
                )
            except LiumError as failure:
                self._diagnostics.append(api_diagnostic(failure, f"prove that no {name} is left"))
                self._codes.add(ExitCode.UNKNOWN_OUTCOME)
                continue
            for record in records:
                if record.id is not None and self._should_be_gone(record):
                    price = kind(record.kind).price_per_hour_usd(record)
                    left[record.id] = Proof(record.key, record.id, False, price_per_hour_usd=price)
            for found in survey.others:
                if found.lineage_mark == mark and found.id not in released and not self._request.targets:
                    left[found.id] = Proof(found.name, found.id, False, price_per_hour_usd=found.price_per_hour_usd)
        for proof in left.values():
            self._emitter.emit(
                EventType.PROOF,
                details={
                    "address": proof.address,
                    "id": proof.id,
                    "gone": False,
                    "removed_at": None,
                    "total_usd": None,
                },
            )
        self._proofs.extend(left.values())
        if left:
            self._codes.add(ExitCode.PARTIAL)

    def _should_be_gone(self, record: Record) -> bool:
        """With `--target` or `--exclude` only what this run was to delete."""
        if not self._request.targets and not self._request.excludes:
            return True
        return any(result.address == record.address and result.verb is Verb.DESTROY for result in self._results)

    def _keep_outputs(self, ledger: JournaledLedger, run: EngineRun, planned: Planned) -> None:
        values: dict[str, Json] = {}
        if planned.desired is not None and not self._request.destroying:
            for name, text in planned.desired.outputs.items():
                if not text.sensitive:
                    values[name] = text.value(run.lookup)
        ledger.set_outputs(values)
        if values:
            self._emitter.emit(EventType.OUTPUTS, details={"outputs": _outputs(values)})

    async def _nothing_to_do(self, state: State, planned: Planned, *, born: bool) -> RunReport:
        """Outputs may have been rewritten though no resource changed; nothing else is touched."""
        values = {name: value.value for name, value in planned.plan.outputs.items() if not value.sensitive}
        if born and not self._request.destroying and values != dict(state.outputs):
            ledger = self._ledger(state, born=True)
            ledger.set_outputs(values)
            state = ledger.compact()
        if self._request.destroying and born:
            ledger = self._ledger(state, born=True)
            await self._prove(ledger, open_drivers(self._settings, self._connection, state))
        return self._report(state)

    def _report(self, state: State, *codes: ExitCode) -> RunReport:
        pods = [record for record in state.records.values() if record.kind == "pod"]
        running = sum((kind(record.kind).price_per_hour_usd(record) for record in pods), Decimal(0))
        errors = [item for item in self._diagnostics if item.severity is Severity.ERROR]
        code = worst((*self._codes, *codes, *((ExitCode.PARTIAL,) if errors and self._results else ())))
        report = RunReport(
            run=self._run_id,
            results=tuple(self._results),
            running_per_hour_usd=running,
            running_pods=len(pods),
            proofs=tuple(self._proofs),
            diagnostics=tuple(dict.fromkeys(self._diagnostics)),
            exit_code=int(code),
            next_command=self._next_command(code),
            outputs=_outputs(state.outputs) if not self._request.destroying else {},
        )
        self._emitter.emit(
            EventType.CHANGE_SUMMARY,
            details={
                "exit_code": int(code),
                "running_per_hour_usd": float(running),
                "running_pods": len(pods),
                **{end.value: sum(result.kind is end for result in self._results) for end in ResultKind},
            },
        )
        return report

    def _next_command(self, code: ExitCode) -> str | None:
        if code not in (ExitCode.PARTIAL, ExitCode.INTERRUPTED, ExitCode.UNKNOWN_OUTCOME):
            return None
        return "lium-plan destroy" if self._request.destroying else "lium-plan apply"


def _summary(plan: Plan) -> dict[str, Json]:
    counts = plan.summary
    return {
        "create": counts.create,
        "update": counts.update,
        "reboot": counts.reboot,
        "replace": counts.replace,
        "destroy": counts.destroy,
        "run": counts.run,
    }


def _outputs(values: Mapping[str, Json]) -> dict[str, Json]:
    return {name: {"value": value, "sensitive": False, "unknown": value is None} for name, value in values.items()}


def _beyond(confirmed: Plan, fresh: Plan) -> Diagnostic | None:
    """After recovery the plan may have shrunk; what costs or destroys more than was confirmed needs another yes."""
    allowed = {(action.address, action.deposed_id): action.verb for action in confirmed.actions}
    open_addresses = {item.address for item in confirmed.open}
    for action in fresh.actions:
        if action.verb in (Verb.ADOPT, Verb.FORGET, Verb.RUN) or action.address in open_addresses:
            continue
        if allowed.get((action.address, action.deposed_id)) is not action.verb:
            return warning(
                "plan-changed",
                f"after settling what was open, {action.verb} {action.address} would be needed too: not confirmed",
                address=str(action.address),
                hint="run the same command again to see the new plan",
            )
    return None


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _without_values(arguments: list[str]) -> list[str]:
    """The command line for the audit log: variables' values may be secret."""
    hidden = False
    shown = []
    for argument in arguments:
        if hidden or argument.startswith("--var="):
            name = argument.removeprefix("--var=").partition("=")[0]
            shown.append(f"--var={name}=…" if not hidden else f"{name}=…")
            hidden = False
        else:
            hidden = argument == "--var"
            shown.append(argument)
    return shown
