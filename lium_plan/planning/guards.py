"""Guards: what makes a plan unsafe. Each looks at one danger and says what it found and how to go on. Pure.

A plan that a guard refuses is still a plan: it is printed, with exit code 6, and can't be applied. Dangers that make
the plan itself meaningless (another account's key) raise instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from lium_plan.addresses import AddressError, Pattern, matches_any, parse_pattern
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, counted, error
from lium_plan.kinds.pod.spec import DEAD_STATUSES
from lium_plan.kinds.protocol import Marked, Record, Verb
from lium_plan.kinds.registry import kind
from lium_plan.marks import lineage_mark, scope_mark
from lium_plan.money import amount, balance_and_minimum, rate
from lium_plan.planning.costs import Bill, funds
from lium_plan.planning.decisions import Decision
from lium_plan.planning.rents import due_at, health, precedence, ttl_s
from lium_plan.planning.situation import Situation
from lium_plan.requests import PlanRequest
from lium_plan.state.model import State

TAKING = frozenset({Verb.DESTROY, Verb.REPLACE, Verb.REBOOT})
"""What loses the content of a container."""
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Guarded:
    """What the guards look at."""

    situation: Situation
    kept: Sequence[Decision]
    bill: Bill
    project: str
    stack: str

    @property
    def renting(self) -> bool:
        return bool(self.bill.rents)


Guard = Callable[[Guarded], Iterator[Diagnostic]]


def check_identity(state: State | None, account_id: str | None, workspace_id: str | None) -> None:
    """Raises `Failure` (1) when the key is another account's or workspace's: its empty lists would mean nothing."""
    if state is None:
        return
    for what, recorded, shown in (
        ("account", state.account_id, account_id),
        ("workspace", state.workspace_id, workspace_id),
    ):
        if recorded is not None and shown is not None and recorded != shown:
            raise Failure(
                ExitCode.ERROR,
                [
                    error(
                        f"other-{what}",
                        f"the state belongs to {what} {recorded}, and the key to {what} {shown}; nothing was changed",
                        hint="use that account's key, or another --stack; `lium-plan doctor` says where a key is from",
                    )
                ],
            )


def refusals(guarded: Guarded, guards: Sequence[Guard] | None = None) -> tuple[Diagnostic, ...]:
    """Why the plan is unsafe; empty: it is not."""
    return tuple(found for guard in guards or GUARDS for found in guard(guarded))


# --- money ---------------------------------------------------------------------------------------------------


def hourly_limit(situation: Situation) -> Decimal | None:
    """The lower of the policy's limit and the flag's."""
    limits = (situation.policy.max_hourly_cost_usd, situation.request.max_hourly_cost_usd)
    return min((limit for limit in limits if limit is not None), default=None)


def hourly_limit_name(limit: Decimal | None, request: PlanRequest) -> str:
    """What has to be raised for that limit to be higher."""
    by_flag = limit is not None and limit == request.max_hourly_cost_usd
    return "--max-hourly-cost" if by_flag else "policy.max_hourly_cost"


def guard_hourly_cost(guarded: Guarded) -> Iterator[Diagnostic]:
    limit, worst = hourly_limit(guarded.situation), guarded.bill.worst_per_hour_usd
    if limit is None or not guarded.renting or worst <= limit:
        return
    yield error(
        "hourly-cost",
        f"this could cost {rate(worst, limit)}, over the limit of {rate(limit, worst)}: {_what_runs(guarded.bill)}",
        hint="lower `nodes`, set a `max_price` below what the limit allows, or raise "
        f"`{hourly_limit_name(limit, guarded.situation.request)}`",
    )


def _what_runs(bill: Bill) -> str:
    """`2 new pods at their ceilings, 1 that runs already, and 2 old ones until their successors are ready`."""
    new, old = len(bill.rents), len(bill.overlapping)
    kept = len(bill.lines) - new
    parts = (
        f"{counted(new, 'new pod')} at {'its ceiling' if new == 1 else 'their ceilings'}",
        f"{kept} that {'runs' if kept == 1 else 'run'} already" if kept else "",
        f"{counted(old, 'old one')} until {'its successor is' if old == 1 else 'their successors are'} ready"
        if old
        else "",
    )
    *first, last = (part for part in parts if part)
    return f"{', '.join(first)}, and {last}" if first else last


def guard_total_cost(guarded: Guarded) -> Iterator[Diagnostic]:
    limit = guarded.situation.policy.max_total_cost_usd
    if limit is None or not guarded.renting:
        return
    spent = guarded.bill.spent_usd
    coming = guarded.bill.until_ttl_usd
    if coming is None:
        names = ", ".join(str(address) for address in guarded.bill.endless[:SHOWN])
        yield error(
            "total-cost",
            f"`max_total_cost` can't be kept: {names} would run without a time to live",
            hint="give every fleet a `ttl`",
        )
    elif spent + coming > limit:
        yield error(
            "total-cost",
            f"{amount(spent)} spent and up to {amount(coming)} until the last TTL are more than `max_total_cost`, "
            f"{amount(limit)}",
            hint="shorten `ttl`, lower `nodes`, or raise `max_total_cost`",
        )


def guard_ttl(guarded: Guarded) -> Iterator[Diagnostic]:
    if not guarded.situation.policy.require_ttl:
        return
    new = {line.address for line in guarded.bill.rents}
    for address, resource in guarded.situation.resources.items():
        if address in new and ttl_s(resource) is None:
            yield error(
                "ttl-required",
                "policy.require_ttl is set, and this would be rented without a time to live",
                address=str(address),
                position=resource.position,
                hint="write `ttl: 6h` into its fleet",
            )


def guard_past_ttl(guarded: Guarded) -> Iterator[Diagnostic]:
    """A time to live that has ended already would take the pod at once: that is not what changing it means."""
    for decision in guarded.kept:
        changed = any(change.path == "ttl" for change in decision.changes)
        if not changed or decision.record is None or decision.resource is None:
            continue
        due = due_at(decision.record, decision.resource, guarded.situation.now)
        if due is not None and due <= guarded.situation.now:
            yield error(
                "ttl-past",
                f"its new ttl has ended already, at {due:%Y-%m-%d %H:%M}Z: it counts from the pod's creation",
                address=str(decision.address),
                position=decision.resource.position,
                hint=f"a longer `ttl`; to end it now: lium-plan destroy --target '{decision.address}'",
            )


def guard_balance(guarded: Guarded) -> Iterator[Diagnostic]:
    held = funds(guarded.situation, guarded.bill)
    if held is None or not guarded.renting or held.balance_usd > held.floor_usd:
        return
    new = sum((line.price_per_hour_usd for line in guarded.bill.rents), Decimal(0))
    balance, least = balance_and_minimum(held.balance_usd, held.floor_usd)
    yield error(
        "balance-too-low",
        f"the balance of {balance} is not more than 15 minutes of all open pods with the new ones "
        f"({rate(held.per_hour_usd)}, of which {rate(new)} are new), so the server would refuse to rent; it "
        f"would last {held.runway_h or Decimal(0):.2f} h",
        hint=f"top up to more than {least}, or rent less",
    )


# --- what would be lost --------------------------------------------------------------------------------------


def guard_protected(guarded: Guarded) -> Iterator[Diagnostic]:
    for decision in guarded.kept:
        if decision.verb not in TAKING or decision.hosted or decision.second_half or not _protected(decision):
            continue
        yield error(
            "protected",
            f"it is protected by prevent_destroy, and this plan would {decision.verb.value} it"
            + (f" ({decision.reason})" if decision.reason else ""),
            address=str(decision.address),
            position=decision.resource.position if decision.resource is not None else None,
            hint=f"{_way_out(guarded.situation, decision)}; to do all else without it: --exclude '{decision.address}'",
        )


def _way_out(situation: Situation, decision: Decision) -> str:
    """How what is protected may go."""
    if decision.resource is not None:
        return "to lift the protection, set `prevent_destroy: false` in its lifecycle and apply that first"
    fleets = situation.desired.fleets if situation.desired is not None else {}
    if decision.address.kind == "pod" and decision.address.name in fleets:
        return (
            "to lift the protection, set `prevent_destroy: false` in its fleet's lifecycle and apply that with as many "
            "`nodes` as there are, then lower them"
        )
    return (
        "declare it again with `prevent_destroy: false` and apply that first, or release it with "
        "`removed: [{from: …, destroy: false}]`"
    )


def _protected(decision: Decision) -> bool:
    """The manifest's word counts where there is one; what is no longer declared keeps the state's."""
    if decision.resource is not None:
        return decision.resource.lifecycle.prevent_destroy
    return decision.record is not None and decision.record.protected


def guard_max_destroy(guarded: Guarded) -> Iterator[Diagnostic]:
    situation = guarded.situation
    written = situation.policy.max_destroy
    if written is None or situation.request.destroying:
        return
    pods = [record for record in situation.records.values() if _is_pod(record) and not record.deposed]
    limit = _count_of(written, len(pods))
    allowed = allowance(situation)
    if allowed.everything:
        return
    limit = max(limit, allowed.count)
    lost = [
        decision
        for decision in guarded.kept
        if decision.verb in TAKING
        and (decision.deposed_id is None or _goes_back(situation, decision))
        and decision.record is not None
        and _is_pod(decision.record)
        and health(decision.record, situation.observation(decision.record), situation.now).living
        and not matches_any(allowed.patterns, decision.address)
    ]
    if len(lost) > limit:
        named = listed([str(decision.address) for decision in lost])
        yield error(
            "max-destroy",
            f"{counted(len(lost), 'running pod')} would be deleted, replaced or rebooted, and "
            f"`max_destroy: {written}` allows {limit} of {len(pods)}: {named}",
            hint=f"--allow-destroy {len(lost)}, or --allow-destroy ADDRESS for each that may go",
        )


def _goes_back(situation: Situation, decision: Decision) -> bool:
    """Whether it had taken the place of what stands there again."""
    standing, record = situation.records.get(str(decision.address)), decision.record
    if standing is None or record is None or decision.second_half:
        return False
    return precedence(record) > precedence(standing)


def _is_pod(record: Record) -> bool:
    return record.address.head == "fleet" and not kind(record.kind).hosted


def _count_of(written: str, pods: int) -> int:
    if written.endswith("%"):
        return math.ceil(Decimal(written[:-1].strip()) * pods / 100)
    return int(written)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What `--allow-destroy` grants."""

    everything: bool
    count: int
    patterns: tuple[Pattern, ...]


def allowance(situation: Situation) -> Allowance:
    """Raises `Failure` (64) for what is neither `all`, nor a number, nor an address."""
    count, patterns = 0, []
    for text in situation.request.allow_destroy:
        if text.isdigit():
            count = max(count, int(text))
        elif text != "all":
            try:
                patterns.append(parse_pattern(text))
            except AddressError as wrong:
                raise Failure(ExitCode.USAGE, [error("bad-address", f"--allow-destroy {text}: {wrong}")]) from wrong
    return Allowance("all" in situation.request.allow_destroy, count, tuple(patterns))


# --- whose it is ---------------------------------------------------------------------------------------------


def guard_foreign_lineage(guarded: Guarded) -> Iterator[Diagnostic]:
    """A lost state, or a second checkout, must not become a double fleet."""
    situation = guarded.situation
    if situation.request.allow_foreign_lineage or situation.request.destroying:
        return
    own = lineage_mark(situation.state.lineage) if situation.state is not None else None
    theirs = of_other_states(situation.observed.others, guarded.project, guarded.stack, own)
    if theirs:
        lineages = sorted({other.lineage_mark for other in theirs if other.lineage_mark is not None})
        yield error(
            "foreign-lineage",
            f"{run_elsewhere(theirs, guarded.project, guarded.stack)}, for {bill_of(theirs)}",
            hint="if that state is lost, take them over: lium-plan state recover"
            + (f" --lineage {lineages[0]}" if len(lineages) > 1 else "")
            + "; if they are somebody else's, go on beside them: --allow-foreign-lineage",
        )


def of_other_states(found: Iterable[Marked], project: str, stack: str, own: str | None) -> list[Marked]:
    """Pods of the same project and stack that a state with another lineage than `own` has rented, and that run."""
    mine = scope_mark(project, stack)
    return [other for other in found if other.scope_mark == mine and other.lineage_mark != own and runs(other)]


def run_elsewhere(theirs: Sequence[Marked], project: str, stack: str) -> str:
    """`2 pods of project p, stack s run under another state (1a2b3c)`."""
    lineages = sorted({other.lineage_mark for other in theirs if other.lineage_mark is not None})
    pods, run = counted(len(theirs), "pod"), "runs" if len(theirs) == 1 else "run"
    return f"{pods} of project {project}, stack {stack} {run} under another state ({', '.join(lineages)})"


def guard_lost(guarded: Guarded) -> Iterator[Diagnostic]:
    """A state that was put back to an earlier day must not rent again what it has forgotten."""
    situation = guarded.situation
    if situation.state is None or situation.request.destroying:
        return
    own = lineage_mark(situation.state.lineage)
    lost = [other for other in situation.observed.others if other.lineage_mark == own and runs(other)]
    if lost:
        yield error(
            "lost-pods",
            f"the state does not know {len(lost)} of the pods that it has rented and that run, for {bill_of(lost)}",
            hint="the state is older than they are; take them in again: lium-plan import ADDRESS ID; "
            "or look at them, and delete them: lium-plan orphans [--delete]",
        )


def runs(other: Marked) -> bool:
    """Whether it is a living pod that some state of ours has rented."""
    alive = other.price_per_hour_usd is not None and other.attributes.get("status") not in DEAD_STATUSES
    return alive and other.lineage_mark is not None


def bill_of(pods: Sequence[Marked]) -> str:
    """What they cost together, and each: `$0.32/h: lp-… ($0.16/h), …`."""
    total = sum((pod.price_per_hour_usd or Decimal(0) for pod in pods), Decimal(0))
    names = listed([f"{pod.name} ({rate(pod.price_per_hour_usd or Decimal(0))})" for pod in pods])
    return f"{rate(total)}: {names}"


def guard_project(guarded: Guarded) -> Iterator[Diagnostic]:
    state = guarded.situation.state
    if state is None or state.project == guarded.project or guarded.situation.request.rename_project:
        return
    yield error(
        "other-project",
        f"the state of stack {guarded.stack} belongs to project {state.project}, and the manifest says "
        f"{guarded.project}",
        hint="--rename-project if it is the same project under a new name; another --stack or --state otherwise",
    )


def listed(names: Sequence[str]) -> str:
    """The first of them, and how many more."""
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


GUARDS: tuple[Guard, ...] = (
    guard_project,
    guard_foreign_lineage,
    guard_lost,
    guard_protected,
    guard_max_destroy,
    guard_hourly_cost,
    guard_total_cost,
    guard_ttl,
    guard_past_ttl,
    guard_balance,
)
