"""The market during a run: who gets which offer, and whether the money allows it.

Owns the newest reading of the feed (never older than a minute when a rent relies on it), the claims on it, and the sum
of what the stack may come to cost: what runs at its price, what is being rented, or may have been, at its ceiling.
After a refusal everybody who still waits is placed anew together, so that two never chase one node. Knows what runs
only through the ledger, so that it can't believe otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.diagnostics import error
from lium_plan.kinds.pod.offers import Feed, Offer, Requirement
from lium_plan.kinds.protocol import ActionFailed, Claim
from lium_plan.planning.exclusions import summary
from lium_plan.planning.placement import Need, ceiling_of, place

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


@dataclass(frozen=True, slots=True)
class Holding:
    """Something of the stack that is billed by the hour."""

    address: Address
    price_per_hour_usd: Decimal
    node_id: str | None = None
    deposed: bool = False
    """It runs beside its successor until that is ready."""


@dataclass(frozen=True, slots=True)
class _Claimed:
    claim: Claim
    at: float
    """Of the loop's clock."""
    free_then: int
    """GPUs of its node that were free by the reading it relies on."""
    paid_usd: Decimal | None = None
    """Per hour; None until a listing has shown it."""


class Desk:
    """One run's `kinds.protocol.Market`."""

    def __init__(
        self,
        load_feed: Callable[[], Awaitable[Feed]],
        *,
        needs: Mapping[Address, Need],
        planned: Mapping[Address, Offer],
        ceilings: Mapping[Address, Decimal],
        holdings: Callable[[], Iterable[Holding]],
        open_rents: Callable[[], Mapping[Address, Decimal]],
        limits: Limits,
    ) -> None:
        """`needs` are the rents of this run, `planned` and `ceilings` what the plan says of them.

        `holdings` and `open_rents` tell what the ledger holds now: what is billed, and the ceilings, USD per hour, of
        rents whose outcome nobody knows.
        """
        self._load_feed = load_feed
        self._reading = asyncio.Lock()
        self._feed: Feed | None = None
        self._read_at = float("-inf")
        self._needs = dict(needs)
        self._planned = dict(planned)
        self._ceilings = dict(ceilings)
        self._holdings = holdings
        self._open_rents = open_rents
        self._claims: dict[Address, _Claimed] = {}
        self._limits = limits
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
        now = asyncio.get_running_loop().time()
        self._refused_at.update(dict.fromkeys(refused - self._refused.get(address, frozenset()), now))
        self._refused[address] = refused
        if ceiling_per_hour_usd is not None:
            self._ceilings[address] = ceiling_per_hour_usd
        self._claims.pop(address, None)
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
        ceiling = self._ceilings.get(address)
        return self._reserve(Claim(address, offer, ceiling if ceiling is not None else ceiling_of(requirement, offer)))

    def _standing(self, address: Address, feed: Feed, planned: Offer | None) -> Offer | None:
        """The planned offer as it is now, if it can still be had within its ceiling."""
        if planned is None or planned.node_id in self._refused[address]:
            return None
        now, need, ceiling = _find(feed, planned), self._needs[address], self._ceilings.get(address)
        if now is None or (ceiling is not None and now.price_per_hour_usd > ceiling):
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
            raise ActionFailed(
                error("no-capacity", f"nothing to rent: {self._why_nothing(address)}", address=str(address))
            )
        return offer

    def _place_anew(self, address: Address, feed: Feed) -> Offer | None:
        """Nodes that have just refused somebody come last: the reading can't know it yet."""
        waiting = [self._as_it_is(need) for need in self._needs.values() if need.address not in self._claims]
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
        for holding in self._holdings():
            leaving = holding.deposed or holding.address in self._needs
            if holding.node_id is not None and not leaving:
                nodes.setdefault(holding.address.name, []).append(holding.node_id)
        for address, claimed in self._claims.items():
            if address != but:
                nodes.setdefault(address.name, []).append(claimed.claim.offer.node_id)
        return {fleet: tuple(taken) for fleet, taken in nodes.items()}

    def _why_nothing(self, address: Address) -> str:
        if self._feed is None:
            return "the market could not be read"
        need = self._needs[address]
        requirement = replace(need.requirement, max_price_usd=self._most(address, need.requirement))
        refused = self._refused.get(address, frozenset())
        left = self._left(self._feed)
        others = replace(left, offers=tuple(offer for offer in left.offers if offer.node_id not in refused))
        found = place([replace(need, requirement=requirement)], others)[address]
        if not refused:
            return summary(found.exclusions)
        count = f"{len(refused)} nodes" if len(refused) > 1 else "1 node"
        return f"{count} refused, or came back dearer and was given back; of the others {summary(found.exclusions)}"

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
        free = _free(feed, node_id)
        unseen = [
            item
            for item in self._claims.values()
            if item.claim.offer.node_id == node_id and item.at >= self._read_at - SNAPSHOT_S
        ]
        claimed = sum(item.claim.offer.gpu_count for item in unseen)
        shown = max((item.free_then for item in unseen), default=free) - free
        return free - max(0, claimed - max(0, shown))

    # --- money ---------------------------------------------------------------------------------------------------

    def _reserve(self, claim: Claim) -> Claim:
        limit = self._limits.per_hour_usd
        committed = self._committed(but=claim.address)
        if limit is not None and committed + claim.ceiling_per_hour_usd > limit:
            raise ActionFailed(
                error(
                    "max-hourly-cost",
                    f"this rent may cost up to ${claim.ceiling_per_hour_usd}/h; ${committed}/h of the limit of "
                    f"${limit}/h is taken",
                    address=str(claim.address),
                    hint="raise policy.max_hourly_cost, or lower the fleet's max_price",
                )
            )
        free = 0 if self._feed is None else _free(self._feed, claim.offer.node_id)
        self._claims[claim.address] = _Claimed(claim, asyncio.get_running_loop().time(), free)
        return claim

    def _committed(self, *, but: Address) -> Decimal:
        """USD per hour of what runs, and of the ceilings of what is being rented or may have been.

        `but` itself is left out: what stands there goes before its successor comes, unless it is deposed.
        """
        return sum(self._commitments(but), Decimal(0))

    def _commitments(self, but: Address) -> Iterator[Decimal]:
        for holding in self._holdings():
            if holding.deposed or holding.address not in (but, *self._claims):
                yield holding.price_per_hour_usd
        for address, claimed in self._claims.items():
            if address != but:
                yield claimed.claim.ceiling_per_hour_usd if claimed.paid_usd is None else claimed.paid_usd
        for address, ceiling in self._open_rents().items():
            if address not in (but, *self._claims):
                yield ceiling

    async def still_allowed(self, claim: Claim) -> bool:
        """See `kinds.protocol.Market.still_allowed`."""
        await self._fresh(FRESH_S)
        return self.allows_now(claim)

    def allows_now(self, claim: Claim) -> bool:
        """See `kinds.protocol.Market.allows_now`."""
        if self._feed is None or self._age_s() > FRESH_S:
            return False
        now = _find(self._feed, claim.offer)
        if now is None or now.price_per_hour_usd > claim.ceiling_per_hour_usd:
            return False
        limit = self._limits.per_hour_usd
        return limit is None or self._committed(but=claim.address) + claim.ceiling_per_hour_usd <= limit

    def rented(self, address: Address, price_per_hour_usd: Decimal) -> None:
        claimed = self._claims.get(address)
        if claimed is not None:
            self._claims[address] = replace(claimed, paid_usd=price_per_hour_usd)

    def release(self, address: Address) -> None:
        self._claims.pop(address, None)

    # --- reading -------------------------------------------------------------------------------------------------

    async def _fresh(self, max_age_s: float) -> Feed:
        """A reading at most `max_age_s` old."""
        async with self._reading:
            if self._feed is None or self._age_s() > max_age_s:
                read_at = asyncio.get_running_loop().time()
                self._feed = await self._load_feed()
                self._read_at = read_at
            return self._feed

    def _age_s(self) -> float:
        return asyncio.get_running_loop().time() - self._read_at


def _free(feed: Feed, node_id: str) -> int:
    return max((offer.gpu_count for offer in feed.offers if offer.node_id == node_id), default=0)


def _find(feed: Feed, offer: Offer) -> Offer | None:
    return next(
        (item for item in feed.offers if item.node_id == offer.node_id and item.gpu_count == offer.gpu_count), None
    )
