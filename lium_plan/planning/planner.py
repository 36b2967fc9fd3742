"""The planner: from what is wanted, what is owned and what was seen to an ordered plan.

Reads as the story of a plan: decide for each address, put in order, select, place what has to be rented, count the
cost, ask the guards. Each chapter is a module beside this one. Pure: no I/O, no clock, the same answer to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, Diagnostics, ExitCode, counted, warning
from lium_plan.kinds.desired import Desired
from lium_plan.kinds.pod.offers import Feed
from lium_plan.kinds.protocol import Json, Verb
from lium_plan.kinds.registry import kind
from lium_plan.money import amount
from lium_plan.planning.bookkeeping import begin
from lium_plan.planning.costs import Bill, bill, funds
from lium_plan.planning.decisions import Decision, Decisions, decide
from lium_plan.planning.exclusions import summary as why_excluded
from lium_plan.planning.guards import GUARDS, Guarded, check_identity, hourly_limit, listed, refusals
from lium_plan.planning.late import late_rows
from lium_plan.planning.observed import Observed, wait_s
from lium_plan.planning.order import Graph
from lium_plan.planning.placement import Need, Placed, place
from lium_plan.planning.plan import UNREACHABLE, Action, Cost, Market, Open, OutputValue, Plan, Summary
from lium_plan.planning.renames import guard_renames
from lium_plan.planning.rents import describe, expired_since, node_of, placement_of, ttl_s
from lium_plan.planning.selection import select
from lium_plan.planning.sequence import drop_what_is_still_used, sequence
from lium_plan.planning.situation import Situation, situation
from lium_plan.planning.volumes import guard_volume_twins, unknown_volumes, volumes_in_other_hands
from lium_plan.requests import PlanRequest
from lium_plan.state.model import State

NOTHING_PLACED = Placed(None)


def make_plan(
    desired: Desired | None,
    state: State | None,
    observed: Observed,
    request: PlanRequest,
    *,
    salt: bytes,
    project: str,
    stack: str,
    now: datetime,
) -> Plan:
    """The actions that lead from `state` to `desired`, as far as the market and the guards allow.

    `desired` is None when only the state matters (a destroy without a manifest). `salt` keys the hashes of secrets:
    the state's, or the one that a new state is going to have. Raises `Failure`: 64 for an option that makes no
    sense, 1 for a pattern that matches nothing, a circle of dependencies, an import of what is not there, or another
    account's key.
    """
    check_identity(state, observed.account_id, observed.workspace_id)
    start = begin(desired, state, observed, request, salt=salt, project=project, stack=stack)
    given = situation(desired, start.state, start.observed, request, salt=salt, now=now)
    decisions = decide(given)
    diagnostics = Diagnostics(desired.diagnostics if desired is not None else ())
    diagnostics.extend(start.diagnostics)
    diagnostics.extend(decisions.diagnostics)
    diagnostics.extend(drop_what_is_still_used(given, decisions))
    graph = sequence(given, decisions)
    selection = select(given, decisions.made, graph)
    diagnostics.extend(selection.diagnostics)
    placed = _place(given, selection.kept)
    diagnostics.extend(_without_offer(placed))
    costs = bill(given, selection.kept, placed)
    diagnostics.extend(_without_ttl(given, costs))
    diagnostics.extend(_past_their_ends(given))
    diagnostics.extend(_between_bounds(given))
    diagnostics.extend(_spent_unknown(given, costs))
    guarded = Guarded(given, selection.kept, costs, project, stack)
    unsafe = (*start.refusals, *refusals(guarded, (*GUARDS, guard_renames, guard_volume_twins)))
    diagnostics.extend(unsafe)
    diagnostics.extend(volumes_in_other_hands(guarded))
    diagnostics.extend(unknown_volumes(guarded))
    kept = {decision.id: decision for decision in selection.kept}
    return Plan(
        project=project,
        stack=stack,
        lineage=state.lineage if state is not None else None,
        serial=state.serial if state is not None else 0,
        created_at=now,
        destroying=request.destroying,
        actions=(*start.actions, *(_action(given, decision, placed, graph, kept) for decision in selection.kept)),
        drift=tuple(sorted(decisions.drift, key=lambda drift: drift.address)),
        open=(*_open(given), *(() if request.refresh_only else late_rows(observed, decisions.made, kept))),
        summary=summarise(selection.kept),
        cost=_cost(given, costs),
        rate_limit_wait_s=_wait_s(observed, selection.kept),
        market=Market(observed.feed.nodes, observed.feed.generated_at) if observed.feed is not None else None,
        outputs=_outputs(given, decisions),
        diagnostics=tuple(diagnostics),
        refusal=ExitCode.UNSAFE if unsafe else None,
        complete=_enough_offers(given, placed) and not selection.left_out and not _is_unsure(decisions),
        desired_digest=desired.digest if desired is not None else "",
        account_id=observed.account_id,
        server=observed.server,
        options=_options(request),
    )


def _is_unsure(decisions: Decisions) -> bool:
    return any(drift.status == UNREACHABLE for drift in decisions.drift)


# --- what is rented ------------------------------------------------------------------------------------------


def _place(given: Situation, kept: Sequence[Decision]) -> Mapping[Address, Placed]:
    needs = tuple(_needs(given, kept))
    if not needs:
        return {}
    leaving = {decision.address for decision in kept if decision.verb in (Verb.DESTROY, Verb.REPLACE, Verb.CREATE)}
    in_use: dict[str, list[str]] = {}
    for record in given.records.values():
        node = node_of(record)
        if node is not None and record.address not in leaving:
            in_use.setdefault(record.address.name, []).append(node)
    feed = given.observed.feed or Feed(given.now, (), (), 0)
    return place(needs, feed, in_use={fleet: tuple(nodes) for fleet, nodes in in_use.items()})


def _needs(given: Situation, kept: Iterable[Decision]) -> Iterator[Need]:
    for decision in kept:
        resource = decision.resource
        if resource is None or decision.verb not in (Verb.CREATE, Verb.REPLACE):
            continue
        requirement = kind(resource.kind).requirement(resource.spec)
        if requirement is not None:
            ttl = ttl_s(resource)
            until = given.now + timedelta(seconds=ttl) if ttl is not None else None
            yield Need(resource.address, requirement, resource.address.name, placement_of(resource), until)


def _without_offer(placed: Mapping[Address, Placed]) -> Iterator[Diagnostic]:
    """One warning a fleet: its members lack an offer for the same reasons."""
    lacking: dict[str, list[Address]] = {}
    wanted: dict[str, int] = {}
    for address, found in placed.items():
        wanted[address.name] = wanted.get(address.name, 0) + 1
        if found.offer is None:
            lacking.setdefault(address.name, []).append(address)
    for name, addresses in lacking.items():
        why = why_excluded(placed[addresses[0]].exclusions)
        yield warning(
            "no-offer",
            f"no offer for {len(addresses)} of {counted(wanted[name], 'new member')}: {why}",
            address=str(addresses[0]),
            hint="loosen what excludes the most; `lium-plan offers` shows the market",
        )


def _enough_offers(given: Situation, placed: Mapping[Address, Placed]) -> bool:
    """Whether every fleet gets what it must have: all of its members, or MIN of MIN..MAX."""
    lacking: dict[str, int] = {}
    for address, found in placed.items():
        if found.offer is None:
            lacking[address.name] = lacking.get(address.name, 0) + 1
    fleets = given.desired.fleets if given.desired is not None else {}
    return all(
        name in fleets
        and fleets[name].names is None
        and len(given.members.get(name, ())) - count >= fleets[name].minimum
        for name, count in lacking.items()
    )


# --- from decisions to actions -------------------------------------------------------------------------------


def _action(
    given: Situation,
    decision: Decision,
    placed: Mapping[Address, Placed],
    graph: Graph[str],
    kept: Mapping[str, Decision],
) -> Action:
    """`depends_on`: an address means the action on what stands there; for a destroy, also those on what is deposed
    there. The end of a replaced resource names its own address: its successor comes first."""
    before = (kept[identity].address for identity in graph.before(decision.id) if identity in kept)
    found = placed.get(decision.address, NOTHING_PLACED) if decision.deposed_id is None else NOTHING_PLACED
    return Action(
        address=decision.address,
        verb=decision.verb,
        title=_title(decision, found),
        reason=decision.reason,
        changes=decision.changes,
        offer=found.offer,
        alternatives=found.alternatives,
        ceiling_per_hour_usd=found.ceiling_per_hour_usd,
        price_per_hour_usd=_price(given, decision, found),
        depends_on=tuple(dict.fromkeys(before)),
        deposed_id=decision.deposed_id,
        counted=decision.counted,
        source=decision.source,
        releases=decision.releases,
        lacks_offer=found is not NOTHING_PLACED and found.offer is None,
    )


def _title(decision: Decision, found: Placed) -> str:
    if found.offer is not None:
        return describe(found.offer)
    # What has no offer is told by what is wanted, not by what stands there and stays for want of it.
    record = decision.record if found is NOTHING_PLACED else None
    return kind(decision.address.kind).title(decision.resource, record)


def _price(given: Situation, decision: Decision, found: Placed) -> Decimal | None:
    """What it costs now; for what does not exist yet, what it will cost."""
    if decision.record is not None and decision.verb is not Verb.CREATE:
        return kind(decision.record.kind).price_per_hour_usd(given.refreshed(decision.record)) or None
    return found.offer.price_per_hour_usd if found.offer is not None else None


def summarise(kept: Iterable[Decision]) -> Summary:
    """What people count: a replacement once, and nothing that happens every time."""
    counts: dict[str, int] = {}
    for decision in kept:
        if decision.counted and not decision.second_half:
            counts[decision.verb.value] = counts.get(decision.verb.value, 0) + 1
    verbs = (Verb.CREATE, Verb.UPDATE, Verb.REBOOT, Verb.REPLACE, Verb.DESTROY, Verb.RUN)
    return Summary(*(counts.get(verb.value, 0) for verb in verbs))


# --- what else a plan says -----------------------------------------------------------------------------------


def _open(given: Situation) -> Iterator[Open]:
    for effect in sorted(given.open, key=lambda effect: effect.number):
        if given.request.refresh_only:
            yield Open(effect.address, effect.at, "leave it open: --refresh-only settles nothing")
            continue
        unwanted = given.request.destroying or effect.address not in given.resources
        yield Open(effect.address, effect.at, kind(effect.address.kind).will(effect, destroying=unwanted))


def _cost(given: Situation, costs: Bill) -> Cost:
    held = funds(given, costs)
    runway_h = held.runway_h if held is not None else None
    return Cost(
        before_per_hour_usd=costs.before_per_hour_usd,
        after_per_hour_usd=costs.after_per_hour_usd,
        ceiling_per_hour_usd=hourly_limit(given),
        until_ttl_usd=costs.until_ttl_usd,
        balance_usd=held.balance_usd if held is not None else None,
        balance_floor_usd=held.floor_usd if held is not None else None,
        runway_s=None if runway_h is None else round(float(runway_h) * 3600),
    )


def _without_ttl(given: Situation, costs: Bill) -> Iterator[Diagnostic]:
    """One warning a fleet. Those that declare none were warned of when the manifest was read."""
    fleets: dict[str, Address] = {}
    for address in costs.endless:
        if address not in given.resources:
            fleets.setdefault(address.name, address)
    for address in fleets.values():
        yield warning(
            "no-ttl",
            "it has no time to live: it costs money until somebody destroys it",
            address=str(address),
            hint="write `ttl: 6h` into its fleet, and the server ends it even if this machine can't",
        )


def _past_their_ends(given: Situation) -> Iterator[Diagnostic]:
    """With `--no-refresh`: what the state takes for running, and the server has probably taken away."""
    if given.observed.refreshed or given.request.destroying:
        return
    pods = (record for record in given.records.values() if record.kind == "pod" and not record.deposed)
    over = sorted(record.address for record in pods if expired_since(record, given.now) is not None)
    if over:
        yield warning(
            "past-ttl",
            f"by the state the time to live of {counted(len(over), 'pod')} has ended, and nobody looked whether "
            f"they are gone: {listed([str(address) for address in over])}",
            address=str(over[0]),
            hint="the same without --no-refresh",
        )


def _spent_unknown(given: Situation, costs: Bill) -> Iterator[Diagnostic]:
    if given.policy.max_total_cost_usd is not None and given.observed.spent_usd is None and costs.rents:
        yield warning(
            "spent-unknown",
            f"the server gives no statement of the account, so {amount(costs.spent_usd)} of the pods that run now are "
            "all that counts as spent against `max_total_cost`",
        )


def _between_bounds(given: Situation) -> Iterator[Diagnostic]:
    for name, fleet in given.desired.fleets.items() if given.desired is not None else ():
        count = len(given.members.get(name, ()))
        if fleet.names is None and fleet.minimum <= count < fleet.maximum and count:
            yield warning(
                "fewer-members",
                f"{count} of at most {fleet.maximum} members; that is enough, so no more are rented by themselves",
                address=f"fleet.{name}",
                position=fleet.position,
                hint="--fill tries for the rest",
            )


def _wait_s(observed: Observed, kept: Iterable[Decision]) -> float:
    counts: dict[str, int] = {}
    for decision in kept:
        if decision.verb in (Verb.CREATE, Verb.REPLACE):
            counts[decision.address.kind] = counts.get(decision.address.kind, 0) + 1
    paces, created_s = observed.paces, observed.created_s
    return sum(wait_s(count, paces.get(name, ()), created_s.get(name, ())) for name, count in counts.items())


def _outputs(given: Situation, decisions: Decisions) -> Mapping[str, OutputValue]:
    if given.desired is None or given.request.destroying:
        return {}
    outputs: dict[str, OutputValue] = {}
    for name, text in given.desired.outputs.items():
        value = text.value(lambda reference: given.value(reference, decisions.verbs))
        outputs[name] = OutputValue(value, text.sensitive, unknown=value is None)
    return outputs


def _options(request: PlanRequest) -> Mapping[str, Json]:
    """What `apply PLANFILE` needs to read the manifest again; of variables only the names, for values may be secret."""
    return {
        "files": list(request.sources.files),
        "var_files": list(request.sources.var_files),
        "variables": sorted(request.sources.variables),
        "targets": list(request.targets),
        "excludes": list(request.excludes),
        "replace": list(request.replace),
        "refresh": request.refresh,
        "refresh_only": request.refresh_only,
        "fill": request.fill,
        "max_hourly_cost_usd": None if request.max_hourly_cost_usd is None else str(request.max_hourly_cost_usd),
    }
