"""One look at the account and at the market, with a constant number of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from lium_plan.kinds.pod.feed import NodeMemory, gathered, read_catalogue
from lium_plan.kinds.pod.offers import Feed
from lium_plan.kinds.pod.spec import DEAD_STATUSES
from lium_plan.kinds.protocol import Driver, Json, Marked, Observation, Presence, Record, Survey
from lium_plan.kinds.registry import KINDS
from lium_plan.lium.client import LiumClient
from lium_plan.lium.errors import LiumError, NotFoundError, PermissionError_
from lium_plan.lium.windows import KNOWN_WINDOWS, Family
from lium_plan.marks import lineage_mark, parse_pod_name, scope_mark
from lium_plan.planning.observed import Late, Observed, Pace
from lium_plan.state.model import State
from lium_plan.together import together

STATEMENT_REACHES_BACK = timedelta(days=730)
"""What a stack has spent before that is not counted against `max_total_cost`."""
NODES_AT_ONCE = 50
"""Rows of the market that are read in one go: a thousand would stop everything else for a fifth of a second."""
NOT_BILLED = ("DELETING", *DEAD_STATUSES)


async def observe(
    client: LiumClient,
    drivers: Mapping[str, Driver],
    state: State,
    *,
    server: str,
    refresh: bool,
    market: Callable[[], Awaitable[Feed]] | None,
    spending: bool = False,
    also: Collection[str] = (),
) -> Observed:
    """`market` reads it, where it is needed; `spending`: also what the stack has cost so far; `also`: kinds to look at
    though the state holds none of them.

    Raises `LiumError` when any list fails: what was not seen is never read as absent.
    """
    me, surveys, feed, spent = await together(
        client.me(),
        _surveys(drivers, state, refresh=refresh, also=also),
        _market(market),
        _spent(client, state, wanted=spending),
    )
    observations = {key: seen for survey in surveys.values() for key, seen in survey.observations.items()}
    found = tuple(other for survey in surveys.values() for other in survey.others)
    late = tuple(_late(state, observations, found))
    names = {pod.name for pod in late}
    return Observed(
        at=client.server_time(),
        server=server,
        account_id=me.id,
        workspace_id=me.workspace_id,
        balance_usd=me.balance_usd,
        observations=observations if refresh else {},
        others=tuple(other for other in _others(state, found) if other.name not in names),
        released=_released(state, found),
        late=late,
        feed=feed,
        open_pods_price_usd=_open_price(observations, found),
        spent_usd=spent,
        paces={"template": _paces(Family.TEMPLATE_CREATE)},
        created_s={"template": client.limits.ages_s(Family.TEMPLATE_CREATE)},
        refreshed=refresh,
    )


async def _surveys(
    drivers: Mapping[str, Driver], state: State, *, refresh: bool, also: Collection[str]
) -> Mapping[str, Survey]:
    """Pods are always looked at: somebody else's pods of this stack must stop a rent, `--no-refresh` or not."""
    by_kind: dict[str, list[Record]] = {name: [] for name in KINDS}
    for record in state.records.values():
        by_kind[record.kind].append(record)
    asked = [name for name in KINDS if name == "pod" or (refresh and (by_kind[name] or name in also))]
    scope, lineage = scope_mark(state.project, state.stack), lineage_mark(state.lineage)
    surveys = await together(
        *(drivers[name].survey(by_kind[name], scope_mark=scope, lineage_mark=lineage) for name in asked)
    )
    return dict(zip(asked, surveys, strict=True))


def _late(state: State, observations: Mapping[str, Observation], found: Iterable[Marked]) -> Iterator[Late]:
    """Pods under names whose rents were settled as not done, or whose answers named other ids."""
    watched = {item.name: item.address for item in state.watched}
    misnamed = dict(_misnamed(state, observations))
    # Where a rent is open, its pod comes first: the late one is given back.
    taken = {*state.records, *(str(effect.address) for effect in state.open.values() if effect.op == "rent")}
    for other in found:
        if other.kind != "pod" or other.since is None:
            continue
        if other.name in misnamed:
            record, why = replace(misnamed[other.name], id=other.id), "whose rent was answered with another id"
        elif other.name in watched:
            address = watched[other.name]
            facts: dict[str, Json] = {
                "pod_name": other.name,
                "node_id": other.attributes.get("node_id"),
                "price_per_hour_usd": str(other.price_per_hour_usd or 0),
                "rented_at": other.since.isoformat(),
            }
            record = Record(address, other.id, "pending", {}, facts, deposed=str(address) in taken)
            why = "which appeared after its rent had been settled as not done"
        else:
            continue
        taken.add(record.key)
        status = other.attributes.get("status")
        seen = Observation(Presence.PRESENT, status if isinstance(status, str) else None)
        yield Late(other.name, record, seen, other.since, why)


def _misnamed(state: State, observations: Mapping[str, Observation]) -> Iterator[tuple[str, Record]]:
    """Records whose ids no list shows, by the names of their pods."""
    for record in state.records.values():
        seen = observations.get(record.key)
        if record.kind == "pod" and not record.deposed and seen is not None and seen.presence is not Presence.PRESENT:
            yield str(record.attributes.get("pod_name")), record


def _others(state: State, found: Iterable[Marked]) -> tuple[Marked, ...]:
    """Without what is ours though no record holds it yet: open rents, names being watched, released things."""
    known = {str(effect.data.get("pod_name")) for effect in state.open.values()}
    known |= {watched.name for watched in state.watched}
    ids = {item.id for item in state.released} | {record.id for record in state.records.values()}
    return tuple(other for other in found if other.name not in known and other.id not in ids)


def _released(state: State, found: Iterable[Marked]) -> tuple[Marked, ...]:
    ids = {item.id for item in state.released} - {record.id for record in state.records.values()}
    return tuple(other for other in found if other.id in ids)


def without_known(observed: Observed, state: State) -> Observed:
    """The same look, for a state that was read after it: what another process has rented meanwhile is no stranger."""
    found = (*observed.others, *observed.released)
    return replace(observed, others=_others(state, found), released=_released(state, found))


def _open_price(observations: Mapping[str, Observation], others: tuple[Marked, ...]) -> Decimal:
    """USD per hour of every open pod of the account: what the balance floor counts (contract §2.4.3)."""
    ours = (
        Decimal(str(seen.attributes.get("price_per_hour_usd") or 0))
        for seen in observations.values()
        if seen.presence is Presence.PRESENT and seen.status not in NOT_BILLED
    )
    theirs = (
        other.price_per_hour_usd or Decimal(0)
        for other in others
        if other.kind == "pod" and other.attributes.get("status") not in NOT_BILLED
    )
    return sum(ours, Decimal(0)) + sum(theirs, Decimal(0))


def _paces(family: Family) -> tuple[Pace, ...]:
    return tuple(Pace(window.count, window.period_s) for window in KNOWN_WINDOWS.get(family, ()))


async def _market(read: Callable[[], Awaitable[Feed]] | None) -> Feed | None:
    return None if read is None else await read()


async def _spent(client: LiumClient, state: State, *, wanted: bool) -> Decimal | None:
    """What all pods that this state ever had have cost, by one statement: their names carry its mark.

    None: nobody wants to know, or the server does not tell.
    """
    if not wanted:
        return None
    own = lineage_mark(state.lineage)
    held = {record.id for record in state.records.values()}
    try:
        bills = await client.statements((client.server_time() - STATEMENT_REACHES_BACK).date())
    except (NotFoundError, PermissionError_):
        return None
    ours = (bill for bill in bills if bill.pod_id in held or _lineage_of(bill.pod_name) == own)
    return sum((bill.total_usd or Decimal(0) for bill in ours), Decimal(0))


def _lineage_of(pod_name: str) -> str | None:
    marks = parse_pod_name(pod_name)
    return marks.lineage if marks is not None else None


async def load_feed(client: LiumClient, nodes: NodeMemory | None = None) -> Feed:
    """The market now: the public feed, with what only the catalogue tells (links, reliability, announced prices).

    `nodes` is what readings have in common: whoever reads again passes the same one.
    """
    nodes = NodeMemory() if nodes is None else nodes
    feed, catalogue = await together(client.public_nodes(), _catalogue(client))
    told = read_catalogue(catalogue)
    found = []
    for first in range(0, len(feed.nodes), NODES_AT_ONCE):
        found += [nodes.offers_of(row, told) for row in feed.nodes[first : first + NODES_AT_ONCE]]
        await asyncio.sleep(0)  # during an apply, others wait for their turn
    return gathered(feed.generated_at or datetime.now(UTC), found)


async def _catalogue(client: LiumClient) -> tuple[Mapping[str, object], ...]:
    """The catalogue adds detail; without it the feed alone still says what can be rented and for how much."""
    try:
        return await client.executors()
    except LiumError:
        return ()
