"""The market during a run: who gets which offer, and whether the money allows it.

Owns the newest reading of the feed (never older than a minute when a rent relies on it), the offers kept for members
that have not rented yet, and what is committed: prices of running pods and ceilings of rents in flight. After a refusal
everybody who still waits is placed anew together, so that two never chase one node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
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


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings of the whole stack, USD per hour; None: none."""

    per_hour_usd: Decimal | None = None
    strict_offers: bool = False
    """Refuse rather than take another offer than the planned one."""


class Desk:
    """One run's `kinds.protocol.Market`."""

    def __init__(
        self,
        load_feed: Callable[[], Awaitable[Feed]],
        *,
        needs: Mapping[Address, Need],
        planned: Mapping[Address, Offer],
        running: Mapping[Address, Decimal],
        beside_usd: Decimal,
        limits: Limits,
    ) -> None:
        """`needs` are the rents of this run, `planned` their offers, `running` what the stack's pods cost now.

        `beside_usd`: what deposed pods still cost per hour.
        """
        self._load_feed = load_feed
        self._reading = asyncio.Lock()
        self._feed: Feed | None = None
        self._read_at = float("-inf")
        self._needs = dict(needs)
        self._kept = dict(planned)
        self._claims: dict[Address, tuple[Claim, float]] = {}
        self._running = dict(running)
        self._beside_usd = beside_usd
        self._limits = limits
        self._refused: dict[Address, frozenset[str]] = {}

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
        self._refused[address] = refused
        feed = await self._fresh(FRESH_S)
        offer = self._standing(feed, planned, ceiling_per_hour_usd, refused)
        if offer is None and self._limits.strict_offers and planned is not None:
            raise ActionFailed(
                error(
                    "strict-offers",
                    f"the offer on node {planned.node_id} is gone or dearer, and --strict-offers refuses another",
                    address=str(address),
                )
            )
        if offer is None:
            offer = await self._another(address, feed, ceiling_per_hour_usd)
        ceiling = ceiling_per_hour_usd if ceiling_per_hour_usd is not None else ceiling_of(requirement, offer)
        return self._reserve(Claim(address, offer, ceiling))

    def _standing(
        self, feed: Feed, planned: Offer | None, ceiling: Decimal | None, refused: frozenset[str]
    ) -> Offer | None:
        """The planned offer as it is now, if it can still be had within its ceiling."""
        if planned is None or planned.node_id in refused:
            return None
        now = _find(feed, planned)
        if now is None or (ceiling is not None and now.price_per_hour_usd > ceiling):
            return None
        return now if self._room(feed, now.node_id) >= now.gpu_count else None

    async def _another(self, address: Address, feed: Feed, ceiling: Decimal | None) -> Offer:
        """The best that is left, with all who wait placed anew; read again once before giving up."""
        for reading in (feed, None):
            current = reading if reading is not None else await self._fresh(LOOK_AGAIN_S)
            offer = self._place_anew(current).get(address)
            if offer is not None and (ceiling is None or offer.price_per_hour_usd <= ceiling):
                return offer
        raise ActionFailed(
            error("no-capacity", f"nothing to rent: {self._why_nothing(address, ceiling)}", address=str(address))
        )

    def _place_anew(self, feed: Feed) -> dict[Address, Offer]:
        waiting = [
            replace(need, requirement=self._without_refused(need))
            for address, need in self._needs.items()
            if address not in self._claims and address not in self._running
        ]
        placed = place(waiting, self._left(feed))
        self._kept = {address: found.offer for address, found in placed.items() if found.offer is not None}
        return self._kept

    def _without_refused(self, need: Need) -> Requirement:
        refused = self._refused.get(need.address, frozenset())
        excluded = tuple(dict.fromkeys((*need.requirement.exclude_nodes, *sorted(refused))))
        return replace(need.requirement, exclude_nodes=excluded)

    def _why_nothing(self, address: Address, ceiling: Decimal | None) -> str:
        if self._feed is None:
            return "the market could not be read"
        need = self._needs[address]
        requirement = need.requirement
        if ceiling is not None and (requirement.max_price_usd is None or ceiling < requirement.max_price_usd):
            requirement = replace(requirement, max_price_usd=ceiling)
        refused = self._refused.get(address, frozenset())
        left = self._left(self._feed)
        others = replace(left, offers=tuple(offer for offer in left.offers if offer.node_id not in refused))
        found = place([replace(need, requirement=requirement)], others)[address]
        if not refused:
            return summary(found.exclusions)
        count = f"{len(refused)} nodes" if len(refused) > 1 else "1 node"
        return f"{count} refused, or came back dearer and was given back; of the others {summary(found.exclusions)}"

    def _left(self, feed: Feed) -> Feed:
        """The feed less what this run has claimed since it was read."""
        return replace(
            feed, offers=tuple(offer for offer in feed.offers if offer.gpu_count <= self._room(feed, offer.node_id))
        )

    def _room(self, feed: Feed, node_id: str) -> int:
        free = max((offer.gpu_count for offer in feed.offers if offer.node_id == node_id), default=0)
        taken = sum(
            claim.offer.gpu_count
            for claim, at in self._claims.values()
            if claim.offer.node_id == node_id and at >= self._read_at
        )
        return free - taken

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
        self._kept.pop(claim.address, None)
        self._claims[claim.address] = (claim, asyncio.get_running_loop().time())
        return claim

    def _committed(self, *, but: Address) -> Decimal:
        """USD per hour of what runs, and of the ceilings of what is being rented."""
        running = sum((price for address, price in self._running.items() if address != but), self._beside_usd)
        reserved = (
            claim.ceiling_per_hour_usd
            for address, (claim, _) in self._claims.items()
            if address != but and address not in self._running
        )
        return running + sum(reserved, Decimal(0))

    async def still_allowed(self, claim: Claim) -> bool:
        """See `kinds.protocol.Market.still_allowed`."""
        feed = await self._fresh(FRESH_S)
        now = _find(feed, claim.offer)
        if now is None or now.price_per_hour_usd > claim.ceiling_per_hour_usd:
            return False
        limit = self._limits.per_hour_usd
        return limit is None or self._committed(but=claim.address) + claim.ceiling_per_hour_usd <= limit

    def rented(self, address: Address, price_per_hour_usd: Decimal) -> None:
        self._running[address] = price_per_hour_usd

    def release(self, address: Address) -> None:
        self._claims.pop(address, None)
        self._running.pop(address, None)

    # --- reading -------------------------------------------------------------------------------------------------

    async def _fresh(self, max_age_s: float) -> Feed:
        """A reading at most `max_age_s` old."""
        async with self._reading:
            loop = asyncio.get_running_loop()
            if self._feed is None or loop.time() - self._read_at > max_age_s:
                read_at = loop.time()
                self._feed = await self._load_feed()
                self._read_at = read_at
            return self._feed


def _find(feed: Feed, offer: Offer) -> Offer | None:
    return next(
        (item for item in feed.offers if item.node_id == offer.node_id and item.gpu_count == offer.gpu_count), None
    )
