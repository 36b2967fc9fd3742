"""Whether money kept to its ceilings, judged by the wire and by the server's ledger alone.

A `Watch` stands between the simulated client and the local Lium. It reads the answers that the client reads, and looks
at each rent at the moment at which it leaves:

- **M1** the price read last (public feed and catalogue), times the GPUs ordered, is at or under the rent's ceiling, and
  was asked for at most 60 s ago;
- **M2** with what is known to run at its last price, what no listing has shown yet and what is on its way at their
  ceilings, the rent keeps to the stack's limit;
- **M3** a pod whose first listing shows it dearer than its ceiling is deleted at once, is never set up, and what it
  cost is told as the ledger has it;
- **M4** another node than the planned one is said, and with `--strict-offers` not taken;
- **M5** the time to live is in the rent.

What a rent's ceiling is follows from what was written and confirmed: `max_price`, else a tenth above the confirmed
plan's offer, else a tenth above the first offer. A pod's successor within a run inherits it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import httpx

from lium_plan.engine.events import EventType
from lium_plan.kinds.protocol import Verb
from lium_plan.marks import parse_pod_name
from lium_plan.planning.plan import Plan
from lium_plan.sim import money
from lium_plan.views.events_text import report_text
from tests.support.world import Broken, Ran, World
from tests.support.world_process import CURRENT
from tests.support.world_wire import ProcessTransport, site_of

QUANTUM = Decimal("0.00001")
READ_WITHIN_S = 60.0
GIVEN_BACK_WITHIN_S = 2.5
"""A listing that somebody else asked for may show a pod first; the poller's own comes within a second and its answer."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the manifest says of one fleet."""

    max_price_usd: Decimal | None
    ttl_hours: int


@dataclass(frozen=True, slots=True)
class _Reading:
    asked_at: float
    nodes: Mapping[str, tuple[Decimal, int]]
    """Price of a GPU and GPUs free, by node."""


@dataclass(slots=True)
class _Order:
    name: str
    tail: str
    ceiling_usd: Decimal
    answered_at: float | None = None
    shown: bool = False
    """A listing that was read after the answer has shown it."""
    pod_id: str | None = None


@dataclass(slots=True)
class _Run:
    """What one process has read and sent."""

    limit_usd: Decimal | None
    strict: bool
    confirmed: Plan | None = None
    feed: _Reading | None = None
    catalogue: _Reading | None = None
    orders: list[_Order] = field(default_factory=list)
    prices: dict[str, Decimal] = field(default_factory=dict)
    """By pod id, as the newest listing shows them."""
    known: set[str] = field(default_factory=set)
    dear: dict[str, float] = field(default_factory=dict)
    """Pods rented by this run, and when a listing first showed them to be dearer than allowed."""
    deleted: dict[str, float] = field(default_factory=dict)
    taken: list[tuple[str, str]] = field(default_factory=list)
    """Tail and node of each rent, but for the rents that follow the loss of a pod."""


class Watch:
    """Of one world. `terms` are the fleets' by name; what is broken goes to `world.broken`."""

    def __init__(self, world: World, terms: Mapping[str, Terms]) -> None:
        self.world = world
        self.terms = dict(terms)
        self.rents = 0
        self.substitutions = 0
        self.given_back = 0
        self._run = _Run(None, False)
        self._ceilings: dict[str, Decimal] = {}
        """By tail, what holds for its next rent."""
        self._by_key: dict[str, Decimal] = {}
        self._replayed: set[str] = set()
        self._by_name: dict[str, Decimal] = {}
        self._seen: dict[str, list[Decimal]] = {}
        """Every price that any run has read of a pod."""
        world.transport = _Tap(world.transport, self)  # type: ignore[assignment]

    # --- runs ------------------------------------------------------------------------------------------------------

    def begins(self, *, limit_usd: Decimal | None, strict: bool = False) -> None:
        self._run = _Run(limit_usd, strict)

    def confirmed(self, plan: Plan) -> bool:
        """An `approve` that says yes."""
        self._run.confirmed = plan
        for action in plan.actions:
            if action.address.kind != "pod" or action.verb not in (Verb.CREATE, Verb.REPLACE):
                continue
            tail = f"{action.address.name}-{action.address.member}"
            self._ceilings.pop(tail, None)
            limit = self.terms[action.address.name].max_price_usd
            if limit is None and action.offer is not None:
                limit = (action.offer.price_per_hour_usd * Decimal("1.10")).quantize(QUANTUM)
            if limit is not None:
                self._ceilings[tail] = limit
        return True

    def ended(self, ran: Ran, *, disturbed: bool) -> None:
        """Judge a run that is over. `disturbed`: it was killed or interrupted, so it could not finish what it began."""
        run = self._run
        for order in run.orders:
            if order.pod_id in run.dear and not disturbed:
                self._judge_given_back(ran, order.pod_id, run.dear[order.pod_id])
        self._never_set_up()
        self._substitutions_said(ran)

    # --- the wire --------------------------------------------------------------------------------------------------

    def read_market(self, kind: str, asked_at: float, body: Any) -> None:
        if kind == "feed":
            rows = body.get("nodes") if isinstance(body, dict) else None
            names = ("price_per_gpu_hour", "available_gpu_count")
        else:
            rows, names = body, ("price_per_gpu", "available_gpu_count")
        if not isinstance(rows, list):
            return
        nodes = {row["id"]: (Decimal(str(row[names[0]])), int(row[names[1]])) for row in rows}
        setattr(self._run, kind, _Reading(asked_at, nodes))

    def read_pods(self, asked_at: float, rows: Any) -> None:
        if not isinstance(rows, list):
            return
        run = self._run
        for row in rows:
            price = Decimal(str(row["price"])).quantize(QUANTUM)
            run.prices[row["id"]] = price
            if row["pod_name"] not in self._by_name:
                continue
            self._seen.setdefault(row["id"], []).append(price)
            if run.confirmed is None:
                run.known.add(row["id"])
            order = next((order for order in reversed(run.orders) if order.name == row["pod_name"]), None)
            if order is None:
                continue
            order.pod_id = row["id"]
            # Before its answer is there, or lost, nobody looks for it.
            if order.answered_at is not None and asked_at >= order.answered_at and not order.shown:
                order.shown = True
                if price > order.ceiling_usd:
                    run.dear[row["id"]] = self.world.clock
                    self.given_back += 1

    def rent_leaves(self, node_id: str, key: str, body: Mapping[str, Any]) -> _Order:
        run, count, name = self._run, int(body["gpu_count"]), str(body["pod_name"])
        marks = parse_pod_name(name)
        assert marks is not None
        tail, where = marks.tail, f"{self.world.clock:.2f} s: the rent of {marks.tail} on {node_id[:8]}"
        terms = self.terms[tail.rpartition("-")[0]]
        price = self._price_read(node_id, count, where)
        if tail not in self._ceilings:
            first = (price * Decimal("1.10")).quantize(QUANTUM)
            self._ceilings[tail] = terms.max_price_usd if terms.max_price_usd is not None else first
        if key in self._by_key and not any(order.name == name for order in run.orders):
            self._replayed.add(key)  # of an earlier run: that run's plan counts
        ceiling = self._by_key.setdefault(key, self._ceilings[tail])
        if terms.max_price_usd is not None:
            ceiling = min(ceiling, terms.max_price_usd)
        self._by_name.setdefault(name, ceiling)
        if price > ceiling:
            self._break("M1", f"{where} was sent at ${price}/h read last, its ceiling is ${ceiling}/h")
        if body.get("termination_hours") != terms.ttl_hours:
            self._break("M5", f"{where} says {body.get('termination_hours')} h to live, not {terms.ttl_hours} h")
        self._judge_limit(ceiling, where)
        self.rents += 1
        if key not in self._replayed and not any(
            order.tail == tail and order.pod_id is not None for order in run.orders
        ):
            run.taken.append((tail, node_id))
        order = _Order(name, tail, ceiling)
        run.orders.append(order)
        return order

    def deletion_leaves(self, pod_id: str) -> None:
        self._run.deleted.setdefault(pod_id, self.world.clock)

    # --- judging ---------------------------------------------------------------------------------------------------

    def _price_read(self, node_id: str, count: int, where: str) -> Decimal:
        feed, catalogue = self._run.feed, self._run.catalogue
        if feed is None or node_id not in feed.nodes:
            self._break("M1", f"{where} was sent, and the feed that was read last has no such node")
            return Decimal(0)
        age = self.world.clock - feed.asked_at
        if age > READ_WITHIN_S + 0.001:
            self._break("M1", f"{where} was sent on a reading that is {age:.1f} s old")
        price, free = feed.nodes[node_id]
        # A catalogue that was asked for before this feed belongs to an earlier reading.
        if catalogue is not None and catalogue.asked_at >= feed.asked_at and node_id in catalogue.nodes:
            dearer, fewer = catalogue.nodes[node_id]
            price, free = max(price, dearer), min(free, fewer)
        if count > free:
            self._break("M1", f"{where} asks for {count} GPUs, and {free} are free by what was read last")
        return (price * count).quantize(QUANTUM)

    def _judge_limit(self, ceiling: Decimal, where: str) -> None:
        run = self._run
        if run.limit_usd is None:
            return
        parts = [ceiling]
        for charge in self.world.outside.copy().run(self.world.open_charges, "pod"):
            if charge.object_id in run.known and charge.name in self._by_name:
                shown = run.prices.get(charge.object_id)
                before = min(self._seen.get(charge.object_id, ()), default=self._by_name[charge.name])
                parts.append(shown if shown is not None else min(before, self._by_name[charge.name]))
        parts += [order.ceiling_usd for order in run.orders if order.answered_at is None]
        if sum(parts) > run.limit_usd:
            words = " + ".join(f"${part}" for part in parts)
            self._break("M2", f"{where} was sent although {words} is more than ${run.limit_usd}/h")

    def _judge_given_back(self, ran: Ran, pod_id: str, shown_at: float) -> None:
        deleted_at = self._run.deleted.get(pod_id)
        if deleted_at is None or deleted_at - shown_at > GIVEN_BACK_WITHIN_S:
            after = "never" if deleted_at is None else f"{deleted_at - shown_at:.2f} s later"
            self._break("M3", f"pod {pod_id[:8]} was seen to be dearer than its ceiling, and deleted {after}")
            return
        charges = self.world.lium.world.charges.where("object", pod_id)
        row = self.world.lium.world.pods[pod_id]
        if row.deleted_at is None or ran.report is None:
            return  # it does not go: that is told otherwise
        cost = round(sum((money.amount(self.world.lium.world, charge) for charge in charges), Decimal(0)), 6)
        told = [proof.total_usd for proof in ran.report.proofs if proof.id == pod_id]
        said = any(event.type is EventType.PROOF and event.details.get("id") == pod_id for event in ran.events)
        if told != [cost] or not said or pod_id not in report_text(ran.report):
            self._break("M3", f"pod {pod_id[:8]} was given back for ${cost}, and told were {told}")

    def _never_set_up(self) -> None:
        world = self.world.lium.world
        touched = {effect.pod_id for effect in self.world.machines.effects}
        for pod_id in sorted(touched):
            pod = world.pods[pod_id]
            ceiling = self._by_name.get(pod.name)
            first = world.charges.where("object", pod_id)[0].price_per_hour
            if ceiling is not None and first > ceiling:
                self._break("M3", f"pod {pod_id[:8]} at ${first}/h was set up, its ceiling is ${ceiling}/h")

    def _substitutions_said(self, ran: Ran) -> None:
        run = self._run
        if run.confirmed is None:
            return
        said = {
            (f"{event.address.name}-{event.address.member}", str(event.details.get("to_node_id")))
            for event in ran.events
            if event.type is EventType.SUBSTITUTION and event.address is not None
        }
        planned = {
            f"{action.address.name}-{action.address.member}": action.offer.node_id
            for action in run.confirmed.actions
            if action.address.kind == "pod" and action.offer is not None
        }
        for tail, node in run.taken:
            if tail not in planned or node == planned[tail]:
                continue
            self.substitutions += 1
            if run.strict:
                self._break("M4", f"{tail} was rented on {node[:8]} with --strict-offers")
            elif (tail, node) not in said:
                self._break("M4", f"{tail} took node {node[:8]} instead of {planned[tail][:8]}, and nothing said so")

    def _break(self, number: str, words: str) -> None:
        problem = Broken(f"{number}: {words}")
        if str(problem) not in self.world.broken:
            self.world.broken.append(str(problem))


class _Tap(httpx.AsyncBaseTransport):
    """What passes between a process and the server, in the order in which the process sends and reads it."""

    def __init__(self, inner: ProcessTransport, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    @property
    def sent(self) -> int:
        return self._inner.sent

    @property
    def answered(self) -> int:
        return self._inner.answered

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if CURRENT.get() is None:
            return await self._inner.handle_async_request(request)
        site, asked_at, watch = site_of(request), self._watch.world.clock, self._watch
        order: _Order | None = None
        parts = request.url.path.split("/")
        if site == "POST /executors/*/rent":
            order = watch.rent_leaves(parts[-2], request.headers["Idempotency-Key"], json.loads(request.content))
        elif site == "DELETE /pods/*":
            watch.deletion_leaves(parts[-1])
        try:
            response = await self._inner.handle_async_request(request)
        finally:
            if order is not None:
                order.answered_at = watch.world.clock
        if order is not None:
            self._rented(order, response)
        elif response.status_code == 200 and site in ("GET /public/v1/nodes", "GET /executors", "GET /pods"):
            self._read(site, asked_at, response)
        return response

    def _rented(self, order: _Order, response: httpx.Response) -> None:
        body = _json(response)
        if response.status_code == 200 and isinstance(body, dict) and body.get("pod_id"):
            order.pod_id = str(body["pod_id"])
            self._watch._run.known.add(order.pod_id)

    def _read(self, site: str, asked_at: float, response: httpx.Response) -> None:
        body = _json(response)
        if site == "GET /pods":
            self._watch.read_pods(asked_at, body)
        else:
            self._watch.read_market("feed" if site.startswith("GET /public") else "catalogue", asked_at, body)


def _json(response: httpx.Response) -> Any:
    try:
        return json.loads(response.content)
    except ValueError:
        return None
