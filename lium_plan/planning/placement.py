"""Placement: which offer each member gets, decided for all members together.

Owns the assignment (`place`) and the account of why a member got none (`Exclusion`). A node's slices share its free
GPUs, so two members never get the same ones. Members that ask for the same thing are one group; the group with the
fewest places to spare chooses first, each takes the cheapest that is left, and when one finds nothing, others are
moved aside for it as long as that helps. That finds a full assignment whenever all orders are of one size on each
node; with mixed sizes it may miss one that exists, and an exact solver belongs behind `place`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.kinds.pod.offers import PRICE_QUANTUM, Feed, Offer, Requirement, preference
from lium_plan.planning.exclusions import Exclusion, explain

CEILING_FACTOR = Decimal("1.10")
ALTERNATIVES = 5
"""So many next choices are kept for each member: enough for a refusal or two, and a plan stays readable."""


LONGEST_CHAIN = 50
"""So many fleets are moved aside for one at most; keeps the search within the interpreter's stack."""


@dataclass(frozen=True, slots=True)
class Need:
    """One member that wants an offer."""

    address: Address
    requirement: Requirement
    fleet: str = ""
    placement: str = "any"
    """any | spread (never two of a fleet on a node) | pack (as few nodes as the prices of one order allow)."""
    until: datetime | None = None
    """When its time to live would end; None: never."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What a member got. `offer` None: nothing, and `exclusions` says why."""

    offer: Offer | None
    alternatives: tuple[Offer, ...] = ()
    """Next choices at or under the ceiling that nobody else of this plan takes, best first, on other nodes."""
    ceiling_per_hour_usd: Decimal | None = None
    exclusions: tuple[Exclusion, ...] = ()


def ceiling_of(requirement: Requirement, offer: Offer) -> Decimal:
    """The price above which a pod is not wanted: `max_price`, or the chosen price and a tenth."""
    if requirement.max_price_usd is not None:
        return requirement.max_price_usd
    return (offer.price_per_hour_usd * CEILING_FACTOR).quantize(PRICE_QUANTUM)


def rises_too_far(requirement: Requirement, offer: Offer, until: datetime | None) -> bool:
    """Whether an announced price goes beyond the ceiling while the pod would still live (contract §2.4.5)."""
    pending, at = offer.pending_price_per_hour_usd, offer.pending_price_at
    if pending is None or (at is not None and until is not None and at >= until):
        return False
    return pending > ceiling_of(requirement, offer)


def place(
    needs: Sequence[Need], feed: Feed, *, in_use: Mapping[str, tuple[str, ...]] | None = None
) -> Mapping[Address, Placed]:
    """An offer for each need, where there is one. `in_use`: the nodes that each fleet's living pods are on."""
    board = _Board(feed, in_use or {})
    groups = _groups(needs, board)
    for group in sorted(groups, key=lambda group: group.scarcity):
        for need in group.needs:
            if not board.take_best(group, need) and not board.make_room(group, need):
                break  # whoever asks for the same finds no more
    return {need.address: _outcome(board, group, need, feed) for group in groups for need in group.needs}


@dataclass(slots=True)
class _Group:
    """Needs that ask for the same thing, and what could serve them, best first."""

    number: int
    fleet: str
    requirement: Requirement
    placement: str
    needs: list[Need]
    candidates: tuple[Offer, ...]
    scarcity: tuple[Decimal, int, str] = (Decimal(0), 0, "")
    by_node: dict[str, Offer] = field(default_factory=dict)
    seated: int = 0
    next: int = 0
    """Candidates before this one have no room left, so that a whole fleet is placed in one pass."""
    alternatives: tuple[Offer, ...] | None = None
    exclusions: tuple[Exclusion, ...] | None = None


def _groups(needs: Sequence[Need], board: _Board) -> list[_Group]:
    found: dict[tuple[str, Requirement, str, datetime | None], list[Need]] = {}
    for need in needs:
        found.setdefault((need.fleet, need.requirement, need.placement, need.until), []).append(need)
    groups: list[_Group] = []
    fitting: dict[tuple[Requirement, datetime | None], tuple[Offer, ...]] = {}
    for (fleet, requirement, placement, until), members in found.items():
        if (requirement, until) not in fitting:
            fitting[requirement, until] = tuple(
                offer
                for offer in board.offers
                if requirement.fits(offer) and not rises_too_far(requirement, offer, until)
            )
        group = _Group(len(groups), fleet, requirement, placement, members, fitting[requirement, until])
        group.by_node = {offer.node_id: offer for offer in group.candidates}
        per_node = (
            1 if placement == "spread" else board.free[node] // offer.gpu_count for node, offer in group.by_node.items()
        )
        places = sum(per_node)
        group.scarcity = (Decimal(places) / len(members), -requirement.gpu_count, str(members[0].address))
        groups.append(group)
    return groups


@dataclass(frozen=True, slots=True)
class _Chain:
    """Who is being moved aside for whom. Members of a group are alike, so no chain needs a group twice."""

    groups: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()
    """Being cleared: nobody else may sit down there meanwhile."""
    hopeless: set[int] = field(default_factory=set)
    """Groups found to have no place to move to; shared by the whole search, which keeps it short."""

    def through(self, group: _Group, offer: Offer) -> _Chain:
        return _Chain(self.groups | {group.number}, self.nodes | {offer.node_id}, self.hopeless)


class _Board:
    """Who sits where. Mutable while placing, and never seen outside."""

    def __init__(self, feed: Feed, in_use: Mapping[str, tuple[str, ...]]) -> None:
        self.offers = tuple(sorted(feed.offers, key=preference))
        self.free: dict[str, int] = {}
        for offer in self.offers:
            self.free[offer.node_id] = max(self.free.get(offer.node_id, 0), offer.gpu_count)
        self.fleet_on: dict[tuple[str, str], int] = {}
        for fleet, nodes in in_use.items():
            for node in nodes:
                self.fleet_on[fleet, node] = self.fleet_on.get((fleet, node), 0) + 1
        self.taken: dict[Address, Offer] = {}
        self.sitting: dict[str, dict[Address, _Group]] = {}

    def has_room(self, group: _Group, offer: Offer) -> bool:
        if group.placement == "spread" and self.fleet_on.get((group.fleet, offer.node_id)):
            return False
        return self.free[offer.node_id] >= offer.gpu_count

    def take_best(self, group: _Group, need: Need) -> bool:
        offer = self._packed(group) if group.placement == "pack" else self._cheapest(group)
        if offer is not None:
            self._seat(group, need.address, offer)
        return offer is not None

    def _cheapest(self, group: _Group) -> Offer | None:
        while group.next < len(group.candidates):
            offer = group.candidates[group.next]
            if self.has_room(group, offer):
                return offer
            group.next += 1
        return None

    def _packed(self, group: _Group) -> Offer | None:
        """A node that the fleet is on already, else the one that holds most of those still standing."""
        standing = len(group.needs) - group.seated
        roomy = [offer for offer in group.candidates if self.has_room(group, offer)]
        return min(
            roomy,
            key=lambda offer: (
                not self.fleet_on.get((group.fleet, offer.node_id)),
                -min(standing, self.free[offer.node_id] // offer.gpu_count),
            ),
            default=None,
        )

    def make_room(self, group: _Group, need: Need) -> bool:
        """Move others aside until `need` has an offer; False when that is impossible."""
        return self._settle(group, need.address, _Chain())

    def _settle(self, group: _Group, address: Address, chain: _Chain) -> bool:
        """Seat `address`: on a free place if there is one, else on one that others can leave."""
        if group.number in chain.groups or group.number in chain.hopeless or len(chain.groups) >= LONGEST_CHAIN:
            return False
        open_to_it = [offer for offer in group.candidates if offer.node_id not in chain.nodes]
        for offer in open_to_it:
            if self.has_room(group, offer):
                self._seat(group, address, offer)
                return True
        for offer in open_to_it:
            if self._clear(group, offer, chain.through(group, offer)):
                self._seat(group, address, offer)
                return True
        chain.hopeless.add(group.number)
        return False

    def _clear(self, group: _Group, offer: Offer, chain: _Chain) -> bool:
        """Move as many off the offer's node as it takes; put them back when that doesn't suffice."""
        moved: list[tuple[_Group, Address, Offer]] = []
        for address, owner in tuple(self.sitting.get(offer.node_id, {}).items()):
            if self.has_room(group, offer):
                break
            if owner is group:
                continue
            seat = self._unseat(owner, address)
            if self._settle(owner, address, chain):
                moved.append((owner, address, seat))
            else:
                self._seat(owner, address, seat)
        if self.has_room(group, offer):
            return True
        for owner, address, seat in reversed(moved):
            self._unseat(owner, address)
            self._seat(owner, address, seat)
        return False

    def _seat(self, group: _Group, address: Address, offer: Offer) -> None:
        self.taken[address] = offer
        group.seated += 1
        self.free[offer.node_id] -= offer.gpu_count
        self.sitting.setdefault(offer.node_id, {})[address] = group
        key = (group.fleet, offer.node_id)
        self.fleet_on[key] = self.fleet_on.get(key, 0) + 1

    def _unseat(self, group: _Group, address: Address) -> Offer:
        offer = self.taken.pop(address)
        group.seated -= 1
        self.free[offer.node_id] += offer.gpu_count
        del self.sitting[offer.node_id][address]
        self.fleet_on[group.fleet, offer.node_id] -= 1
        return offer


def _outcome(board: _Board, group: _Group, need: Need, feed: Feed) -> Placed:
    offer = board.taken.get(need.address)
    if offer is None:
        if group.exclusions is None:
            group.exclusions = explain(group.requirement, feed.offers, fitting=group.candidates)
        return Placed(None, exclusions=group.exclusions)
    ceiling = ceiling_of(group.requirement, offer)
    if group.alternatives is None:
        group.alternatives = _first(
            (candidate for candidate in group.candidates if board.has_room(group, candidate)), ALTERNATIVES + 1
        )
    others = (
        other for other in group.alternatives if other.node_id != offer.node_id and other.price_per_hour_usd <= ceiling
    )
    return Placed(offer, _first(others, ALTERNATIVES), ceiling)


def _first(offers: Iterable[Offer], count: int) -> tuple[Offer, ...]:
    found: list[Offer] = []
    for offer in offers:
        if len(found) == count:
            break
        found.append(offer)
    return tuple(found)
