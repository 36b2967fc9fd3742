"""What a plan costs: per hour before and after, at worst, and until the last time to live ends. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.kinds.protocol import Record, Resource, Verb
from lium_plan.kinds.registry import kind
from lium_plan.planning.decisions import Decision
from lium_plan.planning.placement import Placed
from lium_plan.planning.rents import bills, created_at, due_at, most_per_hour_usd, ordered, removal_at, ttl_s
from lium_plan.planning.situation import Situation

SETTING_TTL = frozenset({Verb.UPDATE, Verb.REBOOT, Verb.ADOPT, Verb.RUN})
"""After one of these a pod lives as long as the manifest says; a reboot is followed by a wait that sets it."""
ZERO = Decimal(0)
CENT = Decimal("0.01")
HOUR_S = 3600
FLOOR_HOURS = Decimal("0.25")
"""The server wants more than 15 minutes of every open pod on the account (contract §2.4.3)."""


@dataclass(frozen=True, slots=True)
class Line:
    """One pod that runs once the plan is carried out."""

    address: Address
    price_per_hour_usd: Decimal
    ceiling_per_hour_usd: Decimal
    """What it may come to cost; the price itself for a pod that a listing has shown."""
    ends: datetime | None
    """When its time to live is over; None: it has none."""
    new: bool


@dataclass(frozen=True, slots=True)
class Bill:
    before_per_hour_usd: Decimal
    lines: tuple[Line, ...]
    overlapping: tuple[Decimal, ...]
    """USD per hour of each pod that runs beside its successor for a while: the old halves of create-first replacements,
    also of earlier runs."""
    at: datetime
    spent_usd: Decimal = ZERO
    """What the stack has cost so far: by the server's statements, else what its living pods have cost by their age."""

    @property
    def after_per_hour_usd(self) -> Decimal:
        return sum((line.price_per_hour_usd for line in self.lines), ZERO)

    @property
    def worst_per_hour_usd(self) -> Decimal:
        """With every new pod at its ceiling, and the old ones beside those that come first."""
        return sum((line.ceiling_per_hour_usd for line in self.lines), sum(self.overlapping, ZERO))

    @property
    def rents(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.new)

    @property
    def endless(self) -> tuple[Address, ...]:
        """Pods without a time to live."""
        return tuple(line.address for line in self.lines if line.ends is None)

    @property
    def until_ttl_usd(self) -> Decimal | None:
        """The most that the pods cost until their last time to live ends; None when one has none."""
        total = ZERO
        for line in self.lines:
            if line.ends is None:
                return None
            seconds = max((line.ends - self.at).total_seconds(), 0)
            total += line.ceiling_per_hour_usd * Decimal(str(seconds)) / HOUR_S
        return total.quantize(CENT)


@dataclass(frozen=True, slots=True)
class Funds:
    """What pays for it: the account's balance, beside all that is open there once the plan is carried out."""

    balance_usd: Decimal
    per_hour_usd: Decimal

    @property
    def floor_usd(self) -> Decimal:
        """Nothing is rented unless the balance is more than that."""
        return self.per_hour_usd * FLOOR_HOURS

    @property
    def runway_h(self) -> Decimal | None:
        """How long the balance lasts; None: nothing is used up."""
        return max(self.balance_usd, ZERO) / self.per_hour_usd if self.per_hour_usd else None


def funds(situation: Situation, costs: Bill) -> Funds | None:
    """None: the balance is not known, or the account is exempt."""
    balance = situation.observed.balance_usd
    if balance is None:
        return None
    account = situation.observed.open_pods_price_usd or ZERO
    others = max(account - costs.before_per_hour_usd, ZERO)
    return Funds(balance, costs.after_per_hour_usd + others)


def bill(situation: Situation, kept: Sequence[Decision], placed: Mapping[Address, Placed]) -> Bill:
    """What runs before and after `kept`; a create without an offer costs nothing, for nothing is rented."""
    fates = {decision.id: decision for decision in kept}
    running = [(record, price) for record in situation.records.values() if (price := _running_price(situation, record))]
    before = sum((price for _, price in running), ZERO)
    lines = [
        _staying_line(situation, record, price, fates.get(record.key))
        for record, price in running
        if _stays(record, fates, placed)
    ]
    lines.extend(_new_lines(situation, kept, placed))
    lines.extend(_found_lines(situation, {line.address for line in lines if line.new}))
    halves = (decision.record for decision in kept if decision.second_half or decision.awaits_successor)
    prices = (_price(situation, record) for record in halves if record is not None)
    overlapping = tuple(price for price in prices if price)
    return Bill(before, tuple(lines), overlapping, situation.now, _spent(situation, running))


def _spent(situation: Situation, running: Sequence[tuple[Record, Decimal]]) -> Decimal:
    if situation.observed.spent_usd is not None:
        return situation.observed.spent_usd
    if situation.policy.max_total_cost_usd is None:
        return ZERO  # nobody asks
    total = ZERO
    for record, price in running:
        since = created_at(record)
        if since is not None:
            total += price * Decimal(str(max((situation.now - since).total_seconds(), 0))) / HOUR_S
    return total.quantize(CENT)


def _running_price(situation: Situation, record: Record) -> Decimal:
    """Zero for what is free, or no longer there."""
    if kind(record.kind).hosted or not bills(record, situation.observation(record), situation.now):
        return ZERO
    return _price(situation, record)


def _price(situation: Situation, record: Record) -> Decimal:
    return kind(record.kind).price_per_hour_usd(situation.refreshed(record))


def _stays(record: Record, fates: Mapping[str, Decision], placed: Mapping[Address, Placed]) -> bool:
    fate = fates.get(record.key)
    if fate is not None and fate.releases:
        return True  # the bill goes on
    if fate is None or fate.verb not in (Verb.DESTROY, Verb.FORGET, Verb.REPLACE, Verb.CREATE):
        return True
    if fate.verb is not Verb.REPLACE:
        return False
    # Nothing is given up for a successor that can't be had, nor when the second half is left out.
    successor = placed.get(record.address)
    lacking = successor is not None and successor.offer is None
    return lacking or (fate.creates_first and f"{record.address}#{record.id}" not in fates)


def _staying_line(situation: Situation, record: Record, price: Decimal, fate: Decision | None) -> Line:
    ends = removal_at(record, situation.observation(record))
    resource = situation.resources.get(record.address)
    if resource is not None and (ends is None or (fate is not None and fate.verb in SETTING_TTL)):
        due = due_at(record, resource, situation.now)
        ends = due if due is not None or ttl_s(resource) is None else ends
    most = max(price, most_per_hour_usd(record, situation.observation(record)))
    return Line(record.address, price, most, ends, new=False)


def _found_lines(situation: Situation, rented: Collection[Address]) -> Iterator[Line]:
    """Pods that settling may find and adopt, where this plan rents none: nothing is on offer, or it is left out."""
    for effect in situation.open:
        resource, prices = situation.resources.get(effect.address), ordered(effect)
        if prices is None or resource is None or situation.request.refresh_only:
            continue
        if effect.address in rented or str(effect.address) in situation.records:
            continue
        price, ceiling = prices
        yield Line(effect.address, price, max(price, ceiling), _ends(situation, resource), new=True)


def _ends(situation: Situation, resource: Resource) -> datetime | None:
    """When the time to live of one that is rented now is over."""
    ttl = ttl_s(resource)
    return situation.now + timedelta(seconds=ttl) if ttl is not None else None


def _new_lines(situation: Situation, kept: Iterable[Decision], placed: Mapping[Address, Placed]) -> Iterator[Line]:
    for decision in kept:
        found = placed.get(decision.address)
        if decision.deposed_id is not None or found is None or found.offer is None or decision.resource is None:
            continue
        price = found.offer.price_per_hour_usd
        most = max(price, found.ceiling_per_hour_usd or price)
        yield Line(decision.address, price, most, _ends(situation, decision.resource), new=True)
