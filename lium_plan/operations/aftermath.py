"""After the walk: what a plan's end makes necessary in the same run, within what was confirmed.

Pods that were rented after all; fleets of MIN..MAX that found room for some only; tasks that take their fleet with
them; and, where it is asked for, giving back what a failed run made.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from lium_plan.addresses import Address, parse
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error, warning
from lium_plan.engine.apply import action_id
from lium_plan.engine.events import ActionResult, ResultKind
from lium_plan.engine.run import price_of
from lium_plan.kinds.desired import Fleet
from lium_plan.kinds.protocol import Driver, Record, Verb
from lium_plan.kinds.registry import kind
from lium_plan.lium.errors import LiumError, ServerError, TransportError
from lium_plan.money import rate
from lium_plan.operations.planning import Planned
from lium_plan.operations.session import Session, only, until_interrupted
from lium_plan.operations.settling import take_in
from lium_plan.planning.observed import Observed
from lium_plan.planning.order import Graph
from lium_plan.planning.plan import Plan
from lium_plan.planning.rents import fleet_it_ends, health
from lium_plan.requests import PlanRequest
from lium_plan.state.journal import JournaledLedger

SHORT = "no-capacity"
BAD = (ResultKind.FAILED, ResultKind.SKIPPED)
LOOK_EVERY_S = 10.0
"""While the server is away."""


async def finish(
    session: Session,
    ledger: JournaledLedger,
    drivers: Mapping[str, Driver],
    planned: Planned,
    results: tuple[ActionResult, ...],
    before: Collection[str],
) -> None:
    """Everything that belongs to the end of a walk that was not interrupted. `before`: the ids of what there was."""
    await _rented_after_all(session, ledger, drivers)
    forgiven = await _ranged_fleets(session, ledger, drivers, planned, results, before)
    bad = [result for result in results if result.kind in BAD and result.address not in forgiven]
    destroy_new = session.options.destroy_new_on_failure and not session.request.destroying
    if bad:
        session.outcome.codes.add(ExitCode.PARTIAL)
        if destroy_new:
            _say_protected(session, _new(results, ledger, before))
            await _destroy(session, ledger, drivers, _made(results, ledger, before))
    elif destroy_new and any(result.kind is ResultKind.UNKNOWN for result in results):
        why = "nothing has failed for all that is known, so what this run made stays"
        session.outcome.diagnostics.append(warning("kept", why, hint="apply again: it settles what is unknown"))
    ended = _ended_fleets(planned, ledger)
    if ended and not session.interrupted:
        # What else went wrong must neither keep such a fleet nor be tried again on this occasion.
        await _end_fleets(session, ledger, drivers, only_of=ended if bad else ())


async def _look_again(session: Session, ledger: JournaledLedger, request: PlanRequest | None = None) -> Planned:
    """A plan made now. A server that is away is waited for up to `wait_timeout_s`. Raises `Failure`."""
    loop = asyncio.get_running_loop()
    until = loop.time() + session.options.wait_timeout_s
    while True:
        try:
            return await session.plan_again(ledger.state, request=request)
        except Failure as failure:
            if not isinstance(failure.__cause__, ServerError | TransportError) or loop.time() >= until:
                raise
        await until_interrupted(asyncio.ensure_future(asyncio.sleep(LOOK_EVERY_S)), session.interrupt)


# --- pods whose rents were refused ---------------------------------------------------------------------------


async def _rented_after_all(session: Session, ledger: JournaledLedger, drivers: Mapping[str, Driver]) -> None:
    """A refusal is believed, and checked: what a list shows under the name is taken in, or given back."""
    names = {watched.name for watched in ledger.state.watched}
    if not names:
        return
    try:
        listing = await session.connection.poller.list_now()
    except LiumError:
        return  # the names stay watched: the next run looks
    if names.isdisjoint(pod.name for pod in listing.pods.values()):
        return
    try:
        again = await _look_again(session, ledger)
    except Failure as failure:  # so do they then, and what comes after this is done all the same
        session.outcome.diagnostics.extend(failure.diagnostics)
        session.outcome.codes.add(_ending(failure))
        return
    for late in again.observed.late:
        session.outcome.diagnostics.append(
            warning("rented-after-all", f"pod {late.name} runs, {late.why}", address=str(late.record.address))
        )
    take_in(ledger, again.observed.late)
    keys = {late.record.key for late in again.observed.late}
    ends = [action for action in again.plan.actions if action.verb is Verb.DESTROY and action_id(action) in keys]
    results = await session.carry_out(ledger, drivers, only(again, tuple(ends)))
    if any(result.kind in BAD for result in results):
        session.outcome.codes.add(ExitCode.PARTIAL)


# --- fleets of MIN..MAX --------------------------------------------------------------------------------------


async def _ranged_fleets(
    session: Session,
    ledger: JournaledLedger,
    drivers: Mapping[str, Driver],
    planned: Planned,
    results: tuple[ActionResult, ...],
    before: Collection[str],
) -> frozenset[Address]:
    """The addresses whose failure is none, because their fleet has at least MIN members."""
    fleets: Mapping[str, Fleet] = planned.desired.fleets if planned.desired is not None else {}
    forgiven: set[Address] = set()
    enough = False
    for name, missing in _short_members(fleets, results, ledger).items():
        fleet = fleets[name]
        living = sum(_is_member(record, name, planned.observed, before) for record in ledger.records().values())
        if living < fleet.minimum:
            made = [address for address in _made(results, ledger, before) if _is_of(address, name)]
            _say_protected(session, (item for item in _new(results, ledger, before) if _is_of(item.address, name)))
            await _destroy(session, ledger, drivers, made)
            continue
        enough = True
        forgiven |= _with_dependents(planned.plan, missing)
        session.outcome.diagnostics.append(
            warning(
                "fewer-members",
                f"{living} of {fleet.maximum} members; at least {fleet.minimum} are needed",
                address=f"fleet.{name}",
                hint="`lium-plan apply --fill` tries for the rest",
            )
        )
    if enough:
        # What waited for members that never came is planned anew for those that did.
        again = await _look_again(session, ledger)
        todo = tuple(action for action in again.plan.actions if action.verb in (Verb.RUN, Verb.ADOPT))
        rest = await session.carry_out(ledger, drivers, only(again, todo))
        if any(result.kind in BAD for result in rest):
            session.outcome.codes.add(ExitCode.PARTIAL)
    return frozenset(forgiven)


def _is_member(record: Record, fleet: str, observed: Observed, before: Collection[str]) -> bool:
    """Whether it is a living pod of the fleet; what a successor was wanted for is none any more."""
    if record.kind != "pod" or record.address.name != fleet or record.deposed:
        return False
    seen = observed.of(record) if record.id in before else None
    return health(record, seen, observed.at).living


def _short_members(
    fleets: Mapping[str, Fleet], results: Iterable[ActionResult], ledger: JournaledLedger
) -> dict[str, list[Address]]:
    """Members of ranged fleets that failed for want of capacity, by fleet; not those that were only to be replaced."""
    short: dict[str, list[Address]] = {}
    for result in results:
        fleet = fleets.get(result.address.name) if result.address.kind == "pod" else None
        if fleet is None or fleet.minimum == fleet.maximum or result.cause is None:
            continue
        lacking = result.kind is ResultKind.FAILED and result.cause.code == SHORT
        if lacking and ledger.record(result.address) is None:
            short.setdefault(fleet.name, []).append(result.address)
    return short


def _with_dependents(plan: Plan, addresses: Iterable[Address]) -> set[Address]:
    # The end of what is deposed waits for the successor at its own address, and nothing waits for it.
    making = [action for action in plan.actions if action.deposed_id is None]
    graph = Graph(
        [str(action.address) for action in making],
        {str(action.address): [str(before) for before in action.depends_on] for action in making},
    )
    roots = [str(address) for address in addresses]
    after = {*roots, *graph.all_after(roots)}
    return {action.address for action in plan.actions if str(action.address) in after}


# --- giving back ---------------------------------------------------------------------------------------------


def _new(results: Iterable[ActionResult], ledger: JournaledLedger, before: Collection[str]) -> list[Record]:
    """What this run created and still has."""
    verbs = (Verb.CREATE, Verb.REPLACE)
    records = (ledger.record(result.address) for result in results if result.verb in verbs)
    return [record for record in records if record is not None and record.id not in before]


def _made(results: Iterable[ActionResult], ledger: JournaledLedger, before: Collection[str]) -> list[Address]:
    """What this run created and may give back, replacements too. `before`: the ids of what there was.

    Without what is protected, and what that or something older has come to use: it would have to go with it.
    """
    made = {record.address: record for record in _new(results, ledger, before) if not record.protected}
    while in_use := {
        address
        for record in ledger.records().values()
        if not kind(record.kind).hosted and not record.deposed and record.address not in made
        for address in record.depends_on
        if address in made
    }:
        made = {address: record for address, record in made.items() if address not in in_use}
    return list(made)


def _is_of(address: Address, fleet: str) -> bool:
    return address.head == "fleet" and address.name == fleet


def _say_protected(session: Session, new: Iterable[Record]) -> None:
    for record in new:
        if record.protected:
            why = "it is new and stays all the same: prevent_destroy protects it"
            session.outcome.diagnostics.append(warning("protected", why, address=record.key))


async def _destroy(
    session: Session, ledger: JournaledLedger, drivers: Mapping[str, Driver], addresses: Iterable[Address]
) -> None:
    """The run has failed already when it comes to this. What was replaced and is still there stays."""
    given_back = tuple(addresses)
    targets = tuple(map(str, given_back))
    if not targets:
        return
    try:
        planned = await _look_again(session, ledger, PlanRequest(destroying=True, targets=targets))
    except Failure as failure:
        session.outcome.diagnostics.extend((*failure.diagnostics, _not_given_back(ledger, targets)))
        session.outcome.codes.add(_ending(failure))
        return
    mine = frozenset(given_back)
    new = tuple(
        action
        for action in planned.plan.actions
        if action.deposed_id is None and (action.address in mine or action.address.host in mine)
    )
    await session.carry_out(ledger, drivers, only(planned, new))


def _not_given_back(ledger: JournaledLedger, addresses: Iterable[str]) -> Diagnostic:
    records = [record for record in map(ledger.record_by_key, addresses) if record is not None]
    prices = {record.key: price_of(record) for record in records if not kind(record.kind).hosted}
    named = ", ".join(f"{key} ({rate(price)})" if price else key for key, price in prices.items())
    hint = f"lium-plan destroy {' '.join(f'--target {shlex.quote(key)}' for key in prices)}"
    return error("not-given-back", f"it was to be given back, and is still there: {named}", hint=hint)


def _ending(failure: Failure) -> ExitCode:
    return ExitCode.INTERRUPTED if failure.exit_code is ExitCode.INTERRUPTED else ExitCode.PARTIAL


def remember(ledger: JournaledLedger, planned: Planned) -> None:
    """Tasks that take their fleets with them leave a trace: otherwise the next plan would rent and run it all again."""
    for address, completion in planned.completions.items():
        ledger.complete(parse(address), completion)


def _ended_fleets(planned: Planned, ledger: JournaledLedger) -> tuple[str, ...]:
    """The fleets of tasks of this run that have completed and were to take them with them."""
    resources = planned.desired.resources if planned.desired is not None else {}
    ran = {action.address for action in planned.plan.actions if action.address.kind == "task"}
    done = (resources[address] for address in ran if address in resources and str(address) in ledger.state.completions)
    return tuple(sorted({fleet for fleet in map(fleet_it_ends, done) if fleet is not None}))


async def _end_fleets(
    session: Session, ledger: JournaledLedger, drivers: Mapping[str, Driver], *, only_of: Iterable[str]
) -> None:
    """`on_completion: destroy-fleet`: the task that just completed takes its fleet with it.

    `only_of`: fleets to look at alone; none: at everything that was asked for.
    """
    targets = tuple(f"fleet.{name}" for name in only_of)
    planned = await _look_again(
        session, ledger, replace(session.request, targets=targets) if targets else session.request
    )
    if planned.plan.refusal is not None:
        # Its errors end a run that did something with 3; the plan's own code would say that nothing was changed.
        session.outcome.diagnostics.extend(planned.plan.diagnostics)
        return
    ending = tuple(action for action in planned.plan.actions if action.verb in (Verb.DESTROY, Verb.FORGET))
    remember(ledger, planned)
    results = await session.carry_out(ledger, drivers, only(planned, ending))
    if any(result.kind in BAD for result in results):
        session.outcome.codes.add(ExitCode.PARTIAL)
