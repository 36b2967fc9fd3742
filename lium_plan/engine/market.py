"""The market during a run: who gets which offer, and whether the money allows it.

Owns the newest reading of the feed (never older than a minute when a rent relies on it), the claims on it, and the sum
of what the stack may come to cost: what runs at its price, what is being rented, or may have been, at its ceiling.
After a refusal everybody who still waits is placed anew together, so that two never chase one node. Knows what runs
only through the ledger, so that it can't believe otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, error
from lium_plan.engine.commitments import Commitments
from lium_plan.engine.room import Room
from lium_plan.kinds.pod.offers import Feed, Offer, Requirement
from lium_plan.kinds.protocol import ActionFailed, Claim
from lium_plan.money import most, rate
from lium_plan.planning.exclusions import TAKEN, Exclusion, summary
from lium_plan.planning.placement import Need, ceiling_of, place, rises_too_far

FRESH_S = 60.0
"""A price older than this lets nothing be rented."""
LOOK_AGAIN_S = 5.0
"""A reading younger than this is not read again when it has nothing to offer."""
SNAPSHOT_S = 60.0
"""The server makes its feed once a minute (contract §2.2), so a reading may be blind to rents as old as that."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings of the whole stack, USD per hour; None: none."""

    per_hour_usd: Decimal | None = None
    strict_offers: bool = False
    """Refuse rather than take another offer than the planned one."""
    set_by: str = "policy.max_hourly_cost"
    """What the limit per hour is written as."""


@dataclass(frozen=True, slots=True)
class _Claimed:
    claim: Claim
    at: float
    """Of the loop's clock."""
    free_then: int
    """GPUs of its node that were free by the reading it relies on."""


class _Index:
    """One reading by what is asked of it for each of thousands of rents."""

    def __init__(self, feed: Feed | None) -> None:
        self.feed = feed
        self.free: dict[str, int] = {}
        """GPUs of each node that can be had."""
        self._offers: dict[tuple[str, int], Offer] = {}
        for offer in feed.offers if feed is not None else ():
            self.free[offer.node_id] = max(self.free.get(offer.node_id, 0), offer.gpu_count)
            self._offers.setdefault((offer.node_id, offer.gpu_count), offer)

    def find(self, offer: Offer) -> Offer | None:
        """The same node and count as this reading has it."""
        return self._offers.get((offer.node_id, offer.gpu_count))


def _by_its_ceiling(item: Exclusion, requirement: Requirement) -> Exclusion:
    """A limit that nobody wrote, but that was confirmed with the plan, under a name of its own."""
    if item.constraint != "max_price" or requirement.max_price_usd is None:
        return item
    return replace(
        item, constraint="its ceiling", wanted=most(requirement.max_price_usd), cure=f"max_price {item.cure}"
    )


class Desk:
    """One run's `kinds.protocol.Market`."""

    def __init__(
        self,
        load_feed: Callable[[], Awaitable[Feed]],
        *,
        needs: Mapping[Address, Need],
        renting: Collection[Address],
        planned: Mapping[Address, Offer],
        ceilings: Mapping[Address, Decimal],
        commitments: Commitments,
        limits: Limits,
        room: Room | None = None,
    ) -> None:
        """`load_feed` raises `ActionFailed` when the market can't be read.

        `needs` are those of every member there is, `renting` the members that this run sets out to rent for.

        `planned` and `ceilings` are what the plan says of those. `room`: what they may wait for under the limit.
        """
        self._load_feed = load_feed
        self._reading = asyncio.Lock()
        self._feed: Feed | None = None
        self._read_at = float("-inf")
        self._needs = dict(needs)
        self._waiting = set(renting)
        """Who wants an offer, or has one: a member that is lost on the way joins them."""
        self._planned = dict(planned)
        self._ceilings = dict(ceilings)
        self._commitments = commitments
        self._claims: dict[Address, _Claimed] = {}
        self._on_node: dict[str, set[Address]] = {}
        """Whose claims are on each node."""
        self._indexed = _Index(None)
        self._limits = limits
        self._room_to_come = room or Room()
        self._refused: dict[Address, frozenset[str]] = {}
        self._refused_at: dict[str, float] = {}
        """When a node last said no to anybody, on the loop's clock."""

    async def claim(
        self,
        address: Address,
        requirement: Requirement,
        *,
        planned: Offer | None,
        ceiling_per_hour_usd: Decimal | None,
        refused: frozenset[str],
    ) -> Claim:
        """See `kinds.protocol.Market.claim`."""
        need = self._needs.get(address, Need(address, requirement, address.name))
        self._needs[address] = replace(need, requirement=requirement)
        self._waiting.add(address)
        now = asyncio.get_running_loop().time()
        self._refused_at.update(dict.fromkeys(refused - self._refused.get(address, frozenset()), now))
        self._refused[address] = refused
        if ceiling_per_hour_usd is not None:
            self._ceilings[address] = ceiling_per_hour_usd
        self.release(address)
        while True:
            claim = await self._choose(address, requirement, planned)
            if self._has_room(claim):
                return self._reserve(claim)
            # The market may be another one by the time there is room.
            if not await self._room_to_come.wait(address, partial(self._has_room, claim), self._limits.set_by):
                raise ActionFailed(self._no_room(claim))

    async def _choose(self, address: Address, requirement: Requirement, planned: Offer | None) -> Claim:
        """The offer to take now, and the ceiling of its rent. Raises `ActionFailed` when there is none."""
        if self._limits.strict_offers:
            planned = planned or self._planned.get(address)
        feed = await self._fresh(FRESH_S)
        offer = self._standing(address, feed, planned)
        if offer is None and self._limits.strict_offers and planned is not None:
            raise ActionFailed(
                error(
                    "strict-offers",
                    f"node {planned.node_id} is gone, refused or dearer, and --strict-offers takes no other offer",
                    address=str(address),
                )
            )
        if offer is None:
            offer = await self._another(address, feed)
        # What no plan named a ceiling for has the first offer's: it must not climb from one refusal to the next.
        ceiling = self._ceilings.setdefault(address, ceiling_of(requirement, offer))
        if requirement.max_price_usd is not None:
            ceiling = min(ceiling, requirement.max_price_usd)
        return Claim(address, offer, ceiling)

    def _standing(self, address: Address, feed: Feed, planned: Offer | None) -> Offer | None:
        """The planned offer as it is now, if it can still be had within its ceiling."""
        if planned is None or planned.node_id in self._refused[address]:
            return None
        now, need, ceiling = self._index(feed).find(planned), self._needs[address], self._ceilings.get(address)
        if now is None or (ceiling is not None and not self._keeps_to(ceiling, address, now)):
            return None
        if need.keeps_apart and now.node_id in self._in_use(address).get(need.fleet, ()):
            return None
        return now if self._room(feed, now.node_id) >= now.gpu_count else None

    async def _another(self, address: Address, feed: Feed) -> Offer:
        """The best that is left, with all who wait placed anew; read again once before giving up."""
        offer = self._place_anew(address, feed)
        if offer is None:
            offer = self._place_anew(address, await self._fresh(LOOK_AGAIN_S))
        if offer is None:
            raise ActionFailed(error("no-capacity", self._why_nothing(address), address=str(address)))
        return offer

    def _place_anew(self, address: Address, feed: Feed) -> Offer | None:
        """Nodes that have just refused somebody come last: the reading can't know it yet."""
        waiting = [
            self._as_it_is(need)
            for need in self._needs.values()
            if need.address in self._waiting and need.address not in self._claims
        ]
        left, in_use = self._left(feed), self._in_use(address)
        refusing = {node for node, at in self._refused_at.items() if at >= self._read_at - SNAPSHOT_S}
        willing = replace(left, offers=tuple(offer for offer in left.offers if offer.node_id not in refusing))
        offer = place(waiting, willing, in_use=in_use)[address].offer
        return offer if offer is not None or not refusing else place(waiting, left, in_use=in_use)[address].offer

    def _as_it_is(self, need: Need) -> Need:
        """With what binds this need by now: nodes that refused it, and the ceiling of the plan."""
        refused = self._refused.get(need.address, frozenset())
        excluded = tuple(dict.fromkeys((*need.requirement.exclude_nodes, *sorted(refused))))
        requirement = replace(
            need.requirement, exclude_nodes=excluded, max_price_usd=self._most(need.address, need.requirement)
        )
        return replace(need, requirement=requirement)

    def _most(self, address: Address, requirement: Requirement) -> Decimal | None:
        bounds = (self._ceilings.get(address), requirement.max_price_usd)
        return min((bound for bound in bounds if bound is not None), default=None)

    def _in_use(self, but: Address) -> Mapping[str, tuple[str, ...]]:
        """The nodes that each fleet is on, for placements that mind; without what is about to leave."""
        nodes: dict[str, list[str]] = {}
        for holding in self._commitments.held():
            leaving = holding.deposed or holding.address in self._waiting
            if holding.node_id is not None and not leaving:
                nodes.setdefault(holding.address.name, []).append(holding.node_id)
        for address, claimed in self._claims.items():
            if address != but:
                nodes.setdefault(address.name, []).append(claimed.claim.offer.node_id)
        return {fleet: tuple(taken) for fleet, taken in nodes.items()}

    def _why_nothing(self, address: Address) -> str:
        if self._feed is None:
            return "nothing to rent: the market could not be read"
        need = self._needs[address]
        requirement = replace(need.requirement, max_price_usd=self._most(address, need.requirement))
        refused = self._refused.get(address, frozenset())
        left = self._left(self._feed)
        others = replace(left, offers=tuple(offer for offer in left.offers if offer.node_id not in refused))
        found = place([replace(need, requirement=requirement)], others)[address]
        why = (*self._held_by_others(address, requirement), *found.exclusions)
        if need.requirement.max_price_usd is None:
            why = tuple(_by_its_ceiling(item, requirement) for item in why)
        if not why and refused:
            return "no other node is on offer"
        return f"nothing {'else ' if refused else ''}to rent: {summary(why)}"

    def _held_by_others(self, address: Address, requirement: Requirement) -> tuple[Exclusion, ...]:
        """What would have fitted, and what other members have claimed in this run."""
        refused = self._refused.get(address, frozenset())
        holders = {
            other: claimed.claim.offer
            for other, claimed in sorted(self._claims.items())
            if claimed.claim.offer.node_id not in refused and requirement.fits(claimed.claim.offer)
        }
        nodes = {offer.node_id for offer in holders.values()}
        return (Exclusion(TAKEN, "", len(nodes), len(nodes), takers=tuple(holders)),) if nodes else ()

    def _left(self, feed: Feed) -> Feed:
        """The feed less what this run has claimed and the reading may not show."""
        rooms = {node: self._room(feed, node) for node in {item.claim.offer.node_id for item in self._claims.values()}}
        return replace(
            feed,
            offers=tuple(
                offer for offer in feed.offers if offer.gpu_count <= rooms.get(offer.node_id, offer.gpu_count)
            ),
        )

    def _room(self, feed: Feed, node_id: str) -> int:
        """GPUs of a node that nobody has; a reading may be blind to what was claimed in the minute before it."""
        free = self._index(feed).free.get(node_id, 0)
        here = (self._claims[address] for address in self._on_node.get(node_id, ()))
        unseen = [item for item in here if item.at >= self._read_at - SNAPSHOT_S]
        claimed = sum(item.claim.offer.gpu_count for item in unseen)
        shown = max((item.free_then for item in unseen), default=free) - free
        return free - max(0, claimed - max(0, shown))

    # --- money ---------------------------------------------------------------------------------------------------

    def _has_room(self, claim: Claim) -> bool:
        limit = self._limits.per_hour_usd
        return limit is None or self._commitments.total(but=claim.address) + claim.ceiling_per_hour_usd <= limit

    def _no_room(self, claim: Claim) -> Diagnostic:
        limit = self._limits.per_hour_usd or Decimal(0)
        committed = self._commitments.total(but=claim.address)
        return error(
            "max-hourly-cost",
            f"this rent may cost up to {rate(claim.ceiling_per_hour_usd)}; {rate(committed)} of the limit of "
            f"{rate(limit)} is taken",
            address=str(claim.address),
            hint=f"raise {self._limits.set_by}, or lower the fleet's max_price",
        )

    def _reserve(self, claim: Claim) -> Claim:
        free = 0 if self._feed is None else self._index(self._feed).free.get(claim.offer.node_id, 0)
        self._claims[claim.address] = _Claimed(claim, asyncio.get_running_loop().time(), free)
        self._on_node.setdefault(claim.offer.node_id, set()).add(claim.address)
        self._commitments.reserve(claim.address, claim.ceiling_per_hour_usd)
        return claim

    async def still_allowed(self, claim: Claim) -> bool:
        """See `kinds.protocol.Market.still_allowed`."""
        try:
            await self._fresh(FRESH_S)
        except ActionFailed:
            return False
        return self.allows_now(claim)

    def allows_now(self, claim: Claim) -> bool:
        """See `kinds.protocol.Market.allows_now`."""
        if self._feed is None or self._age_s() > FRESH_S or self._reading.locked():
            return False  # too old, or about to be overtaken: the price that was read last is the one that counts
        now = self._index(self._feed).find(claim.offer)
        if now is None or not self._keeps_to(claim.ceiling_per_hour_usd, claim.address, now):
            return False
        return self._has_room(claim)

    def _keeps_to(self, ceiling: Decimal, address: Address, offer: Offer) -> bool:
        """Whether an offer costs no more than that now, and is not announced to before the time to live ends."""
        need = self._needs.get(address)
        if need is None:
            return offer.price_per_hour_usd <= ceiling
        bound = replace(need.requirement, max_price_usd=ceiling)
        return offer.price_per_hour_usd <= ceiling and not rises_too_far(bound, offer, need.until)

    def rented(self, address: Address, price_per_hour_usd: Decimal) -> None:
        if address in self._claims:
            self._commitments.reserve(address, price_per_hour_usd)
            self._room_to_come.changed()

    def release(self, address: Address) -> None:
        claimed = self._claims.pop(address, None)
        if claimed is not None:
            self._on_node[claimed.claim.offer.node_id].discard(address)
            self._commitments.release(address)
            self._room_to_come.changed()

    # --- reading -------------------------------------------------------------------------------------------------

    async def reading(self) -> Feed:
        """See `kinds.protocol.Market.reading`."""
        return await self._fresh(FRESH_S)

    async def _fresh(self, max_age_s: float) -> Feed:
        """A reading at most `max_age_s` old."""
        async with self._reading:
            if self._feed is None or self._age_s() > max_age_s:
                read_at = asyncio.get_running_loop().time()
                self._feed = await self._load_feed()
                self._read_at = read_at
            return self._feed

    def _index(self, feed: Feed) -> _Index:
        if self._indexed.feed is not feed:
            self._indexed = _Index(feed)
        return self._indexed

    def _age_s(self) -> float:
        return asyncio.get_running_loop().time() - self._read_at
