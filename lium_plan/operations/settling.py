"""Before anything new is done: what earlier runs left open is settled, and then planned anew."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error, warning
from lium_plan.engine.recover import recover
from lium_plan.kinds.pod.rent import WATCH_FOR
from lium_plan.kinds.pod.rows import MISNAMED
from lium_plan.kinds.protocol import Driver, Verb
from lium_plan.kinds.registry import kind
from lium_plan.lium.errors import LiumError
from lium_plan.money import rate
from lium_plan.operations.planning import Planned
from lium_plan.operations.session import Session, only, until_interrupted
from lium_plan.planning.moving import targets
from lium_plan.planning.observed import Late, Observed
from lium_plan.planning.plan import Action, Plan
from lium_plan.state.journal import JournaledLedger


async def settle(
    session: Session, ledger: JournaledLedger, drivers: Mapping[str, Driver], planned: Planned
) -> Planned | None:
    """The plan to go on with. None when the run must end here; the outcome says why."""
    outcome = session.outcome
    opened = tuple(ledger.state.open.values())
    run = session.open_run(ledger, drivers, _renting(planned))
    settling = asyncio.ensure_future(recover(ledger.state.open, drivers, run, unanswered=LiumError))
    if not await until_interrupted(settling, session.interrupt):
        outcome.codes.add(ExitCode.INTERRUPTED)
        return None
    recovery = settling.result()
    outcome.proofs.extend(run.proofs)
    if recovery.unknown:
        outcome.diagnostics.extend(recovery.unknown)
        outcome.codes.add(ExitCode.UNKNOWN_OUTCOME)
    try:
        again = await session.plan_again(ledger.state)
    except Failure as failure:
        if not recovery.unknown:
            raise
        outcome.diagnostics.extend(failure.diagnostics)
        return None
    take_in(ledger, again.observed.late)  # the plan counts on them already
    if again.plan.refusal is not None:
        outcome.diagnostics.extend(again.plan.diagnostics)
        outcome.codes.add(ExitCode.PARTIAL if session.has_sent_changes else again.plan.refusal)
        return None
    beyond = _beyond(planned, again.plan)
    if beyond is not None:
        outcome.diagnostics.append(beyond)
        outcome.codes.add(ExitCode.PARTIAL)
        return None
    kept = _as_confirmed(planned.plan, again)
    now_at = targets(again.desired.moved if again.desired is not None else ())
    outcome.diagnostics.extend(_left_behind({now_at(effect.address) for effect in opened}, ledger, again))
    return _without_unknown(kept, {now_at(effect.address) for effect in ledger.state.open.values()})


def _left_behind(settled: Collection[Address], ledger: JournaledLedger, again: Planned) -> Iterator[Diagnostic]:
    """Pods that settling found, and that the rest of this run leaves as they are."""
    done = {action.address for action in again.plan.actions}
    for address in settled:
        record = ledger.record(address)
        if record is not None and record.kind == "pod" and record.status == "pending" and address not in done:
            price = rate(kind(record.kind).price_per_hour_usd(record))
            message = f"an earlier run rented it, it costs {price}, and all that is done is to know it: it is left out"
            yield warning("left-out", message, address=record.key, hint="apply without leaving it out")


def _renting(planned: Planned) -> Planned:
    """Without pods that this plan would not rent: what a selection leaves out, what is imported or turned up late. An
    open rent of one is looked for, and not sent again."""
    if planned.desired is None:
        return planned
    rented = {action.address for action in planned.plan.actions if action.verb is Verb.CREATE}
    resources = {
        address: resource
        for address, resource in planned.desired.resources.items()
        if address.kind != "pod" or address in rented
    }
    return replace(planned, desired=replace(planned.desired, resources=resources))


def watch_misnamed(ledger: JournaledLedger, observed: Observed) -> None:
    """A record whose id is another pod's goes with this plan; the pod that its rent may have made is still awaited."""
    for record in tuple(ledger.records().values()):
        seen = observed.of(record)
        name = record.attributes.get("pod_name")
        if name and seen is not None and seen.status == MISNAMED:
            ledger.watch(str(name), record.address, observed.at + WATCH_FOR)


def take_in(ledger: JournaledLedger, late: Iterable[Late]) -> None:
    """Pods that are ours by their names get their records."""
    for pod in late:
        ledger.put(pod.record)
        ledger.tell(pod.record.key, "adopt", "done: it turned up late")
        ledger.unwatch(pod.name)


def _as_confirmed(confirmed: Plan, fresh: Planned) -> Planned:
    """Settling takes minutes, and the market moves: offers and ceilings are those that were confirmed."""
    rents = {action.address: action for action in confirmed.actions if action.ceiling_per_hour_usd is not None}
    actions = tuple(
        replace(
            action, offer=rent.offer, alternatives=rent.alternatives, ceiling_per_hour_usd=rent.ceiling_per_hour_usd
        )
        if action.verb in (Verb.CREATE, Verb.REPLACE) and (rent := rents.get(action.address)) is not None
        else action
        for action in fresh.plan.actions
    )
    limit = replace(fresh.plan.cost, ceiling_per_hour_usd=confirmed.cost.ceiling_per_hour_usd)
    return replace(fresh, plan=replace(fresh.plan, actions=actions, cost=limit))


def _without_unknown(planned: Planned, unknown: Collection[Address]) -> Planned:
    """Nothing is made where nobody can say whether it was made already, nor is anything done that waits for it."""
    kept: list[Action] = []
    left_out: set[Address] = set()
    for action in planned.plan.actions:
        unsure = action.address in unknown and action.verb not in (Verb.DESTROY, Verb.FORGET, Verb.MOVE)
        if unsure or not left_out.isdisjoint(action.depends_on):
            left_out.add(action.address)
        else:
            kept.append(action)
    return only(planned, tuple(kept))


_FREE = frozenset({Verb.ADOPT, Verb.FORGET, Verb.MOVE, Verb.RUN})
_COVERED = {
    Verb.CREATE: frozenset({Verb.UPDATE, Verb.REBOOT, Verb.REPLACE}),
    Verb.REPLACE: frozenset({Verb.CREATE, Verb.UPDATE, Verb.REBOOT}),
    Verb.REBOOT: frozenset({Verb.UPDATE}),
    Verb.RUN: frozenset({Verb.REPLACE}),
}
"""What else a yes to one of these allows where an effect was open. What is found instead of being made is made into
what is asked for: nobody has used it yet, and the plan has said so (`Kind.will`)."""


def _beyond(confirmed: Planned, fresh: Plan) -> Diagnostic | None:
    """After settling, the plan may have shrunk; what costs or destroys more than was confirmed needs another yes."""
    allowed = {action.address: action.verb for action in confirmed.plan.actions if action.deposed_id is None}
    open_addresses = {item.address for item in confirmed.plan.open}
    wanted = confirmed.desired.resources if confirmed.desired is not None else {}
    for action in fresh.actions:
        if action.verb in _FREE or action.deposed_id is not None:
            continue
        verb = allowed.get(action.address)
        is_alike = verb is not Verb.RUN or kind(action.address.kind).hosted
        covered = verb is not None and is_alike and action.verb in _COVERED.get(verb, ())
        announced = action.verb is Verb.DESTROY and action.address not in wanted  # found, and wanted by nobody
        if verb is not action.verb and not (action.address in open_addresses and (covered or announced)):
            return error(
                "plan-changed",
                f"after settling what was open, {action.verb} {action.address} is needed too, and was not confirmed",
                address=str(action.address),
                hint="run the same command again to see the new plan",
            )
    return None
