"""Placement: which offer each member gets, decided for all members together.

Owns the answer (`place`): everybody has an offer whenever that is possible at all; among those seatings fleets with
`placement: pack` are on as few nodes as can be; among those the cost is the least; and on a tie the nodes that
`preference` puts first are taken. A node's slices share its free GPUs, so two members never get the same ones, and pods
that run already stay where they are. Members that don't get into each other's way are seated at once; for those that
compete the solver is loaded. Where not everybody can be placed, as many are as possible. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.kinds.pod.offers import Feed, Offer, Requirement, in_quanta, preference
from lium_plan.kinds.values import Placement
from lium_plan.planning.exclusions import Exclusion, explain
from lium_plan.planning.seating import Party, Room, Seating, everybody_first, guesses, score

CEILING_FACTOR = Decimal("1.10")
EXACT_SEATS = 1500
"""Up to so many places that contested parties could take, the optimum is searched for to the end."""
ALTERNATIVES = 5
"""So many next choices are kept for each member: enough for a refusal or two, and a plan stays readable."""


@dataclass(frozen=True, slots=True)
class Need:
    """One member that wants an offer."""

    address: Address
    requirement: Requirement
    fleet: str = ""
    placement: str = "any"
    """any | spread (never two of a fleet on a node) | pack (a fleet on as few nodes as possible)."""
    until: datetime | None = None
    """When its time to live would end; None: never."""

    @property
    def keeps_apart(self) -> bool:
        return self.placement == Placement.SPREAD


@dataclass(frozen=True, slots=True)
class Placed:
    """What a member got. `offer` None: nothing, and `exclusions` says why."""

    offer: Offer | None
    alternatives: tuple[Offer, ...] = ()
    """Next choices at or under the ceiling that nobody else of this plan takes, best first, on other nodes."""
    ceiling_per_hour_usd: Decimal | None = None
    exclusions: tuple[Exclusion, ...] = ()


@dataclass(frozen=True, slots=True)
class Crowd:
    """Everybody who wants an offer, as parties, and what there is for them."""

    parties: tuple[Party, ...]
    needs: tuple[tuple[Need, ...], ...]
    """The members of each party, in the order in which they were given."""
    room: Room
    ranks: Mapping[str, int]
    """Nodes in the order in which they are preferred at equal cost."""


def ceiling_of(requirement: Requirement, offer: Offer) -> Decimal:
    """The price above which a pod is not wanted: `max_price`, or the chosen price and a tenth."""
    if requirement.max_price_usd is not None:
        return requirement.max_price_usd
    return in_quanta(offer.price_per_hour_usd * CEILING_FACTOR)


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
    crowd = gather(needs, feed, in_use or {})
    return dict(_outcomes(crowd, seat(crowd), feed))


def seat(crowd: Crowd) -> Seating:
    """The best seating there is."""
    seating: dict[int, Mapping[str, int]] = {}
    contested: list[tuple[Party, ...]] = []
    for parties in rivals(crowd.parties):
        settled = everybody_first(parties, crowd.room)
        if settled is None:
            contested.append(parties)
        else:
            seating.update(settled)
    if contested:
        from lium_plan.planning.solver import solve

        exact = sum(len(party.candidates) for parties in contested for party in parties) <= EXACT_SEATS
        for parties in contested:
            guess = best_guess(parties, crowd.room)
            seating.update(solve(parties, crowd.room, guess, ranks=crowd.ranks, exact=exact).seating)
    return seating


def best_guess(parties: Sequence[Party], room: Room) -> Seating:
    return min(guesses(parties, room), key=lambda seating: score(parties, room, seating))


def rivals(parties: Iterable[Party]) -> tuple[tuple[Party, ...], ...]:
    """The parties in sets that share no node and no fleet, so that each set is a market of its own."""
    leader: dict[str, str] = {}

    def top(item: str) -> str:
        leader.setdefault(item, item)
        while leader[item] != item:
            leader[item] = item = leader[leader[item]]
        return item

    listed = tuple(parties)
    for party in listed:
        shared = (*(f"node {node}" for node in party.candidates), *(f"fleet {fleet}" for fleet in party.fleets))
        for item in shared:
            leader[top(item)] = top(f"party {party.number}")
    sets: dict[str, list[Party]] = {}
    for party in listed:
        sets.setdefault(top(f"party {party.number}"), []).append(party)
    return tuple(tuple(together) for together in sets.values())


def gather(needs: Sequence[Need], feed: Feed, in_use: Mapping[str, tuple[str, ...]]) -> Crowd:
    """The needs as parties. Where it makes no difference whose they are, members of several fleets are one party."""
    offers = tuple(sorted(feed.offers, key=preference))
    free: dict[str, int] = {}
    for offer in offers:
        free[offer.node_id] = max(free.get(offer.node_id, 0), offer.gpu_count)
    fitting = _Fitting(offers)
    together: dict[tuple[str, Placement, bool, int], list[Need]] = {}
    alone = _alone(needs, in_use)
    for need in needs:
        written = Placement(need.placement)
        placement = Placement.ANY if need.fleet in alone else written
        fleet = "" if placement is Placement.ANY else need.fleet
        lone_packs = placement is not written and written is Placement.PACK
        together.setdefault((fleet, placement, lone_packs, fitting.number(need)), []).append(need)
    parties = [
        Party(
            number=number,
            fleets=tuple(dict.fromkeys(need.fleet for need in members)),
            placement=placement,
            size=len(members),
            gpu_count=members[0].requirement.gpu_count,
            candidates=fitting.candidates(candidates),
            lone_packs=lone_packs,
        )
        for number, ((_, placement, lone_packs, candidates), members) in enumerate(together.items())
    ]
    living = frozenset((fleet, node) for fleet, nodes in in_use.items() for node in nodes)
    by_rank = sorted({offer.node_id: offer for offer in offers}.values(), key=lambda offer: preference(offer)[1:])
    ranks = {offer.node_id: rank for rank, offer in enumerate(by_rank)}
    return Crowd(tuple(parties), tuple(map(tuple, together.values())), Room(free, living), ranks)


def _alone(needs: Iterable[Need], in_use: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """The fleets with one member and no other pod: there is nobody to keep it apart from, or near to."""
    sizes = Counter(need.fleet for need in needs)
    return frozenset(fleet for fleet, size in sizes.items() if size == 1 and not in_use.get(fleet))


class _Fitting:
    """Which offers fit whom. Needs to which the same ones are open have one number, whatever they are written as."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = offers
        self._shelves: dict[Requirement, _Shelf] = {}
        self._numbers: dict[tuple[_Shelf, int, tuple[int, ...]], int] = {}
        self._found: list[Mapping[str, Offer]] = []

    def number(self, need: Need) -> int:
        shelf = self._shelf(need.requirement)
        end = shelf.end(need.requirement.max_price_usd)
        rising = tuple(
            place
            for place in shelf.announced
            if place < end and rises_too_far(need.requirement, shelf.offers[place], need.until)
        )
        number = self._numbers.setdefault((shelf, end, rising), len(self._found))
        if number == len(self._found):
            self._found.append(shelf.candidates(end, rising))
        return number

    def candidates(self, number: int) -> Mapping[str, Offer]:
        """The best offer of each node, best first."""
        return self._found[number]

    def _shelf(self, requirement: Requirement) -> _Shelf:
        unlimited = replace(requirement, max_price_usd=None)
        if unlimited not in self._shelves:
            self._shelves[unlimited] = _Shelf(tuple(offer for offer in self._offers if unlimited.fits(offer)))
        return self._shelves[unlimited]


class _Shelf:
    """The offers that fit at any price, cheapest first."""

    def __init__(self, offers: tuple[Offer, ...]) -> None:
        self.offers = offers
        self.announced = [place for place, offer in enumerate(offers) if offer.pending_price_per_hour_usd is not None]
        """Where those stand whose price is going to rise."""
        self._prices = [offer.price_per_hour_usd for offer in offers]

    def end(self, limit: Decimal | None) -> int:
        """How many of them cost no more."""
        return len(self.offers) if limit is None else bisect_right(self._prices, limit)

    def candidates(self, end: int, without: Collection[int]) -> Mapping[str, Offer]:
        found: dict[str, Offer] = {}
        for place in range(end):
            if place not in without:
                found.setdefault(self.offers[place].node_id, self.offers[place])
        return found


# --- from seats to members -----------------------------------------------------------------------------------


def _outcomes(crowd: Crowd, seating: Seating, feed: Feed) -> Iterator[tuple[Address, Placed]]:
    left = dict(crowd.room.free)
    fleet_on = set(crowd.room.living)
    seated = _seated(crowd, seating)
    for party in crowd.parties:
        for node, count in seating.get(party.number, {}).items():
            left[node] -= count * party.gpu_count
            if party.placement is Placement.SPREAD:
                fleet_on.add((party.fleet, node))
    for party, needs in zip(crowd.parties, crowd.needs, strict=True):
        seats = seating.get(party.number, {})
        taken = [offer for node, offer in party.candidates.items() for _ in range(seats.get(node, 0))]
        spare = _first(_spare(party, left, fleet_on), ALTERNATIVES + 1)
        why: tuple[Exclusion, ...] = ()
        if len(taken) < len(needs):
            takers = [address for node in party.candidates for address in seated.get(node, ())]
            fitting = tuple(party.candidates.values())
            why = explain(needs[0].requirement, feed.offers, fitting=fitting, takers=sorted(set(takers)))
        for index, need in enumerate(needs):
            yield (
                need.address,
                _placed(need, taken[index], spare) if index < len(taken) else Placed(None, exclusions=why),
            )


def _seated(crowd: Crowd, seating: Seating) -> Mapping[str, Sequence[Address]]:
    """Who is on each node."""
    found: dict[str, list[Address]] = {}
    for party, needs in zip(crowd.parties, crowd.needs, strict=True):
        seats = seating.get(party.number, {})
        taken = [node for node in party.candidates for _ in range(seats.get(node, 0))]
        for node, need in zip(taken, needs, strict=False):
            found.setdefault(node, []).append(need.address)
    return found


def _placed(need: Need, offer: Offer, spare: Iterable[Offer]) -> Placed:
    ceiling = ceiling_of(need.requirement, offer)
    others = (other for other in spare if other.node_id != offer.node_id and other.price_per_hour_usd <= ceiling)
    return Placed(offer, _first(others, ALTERNATIVES), ceiling)


def _spare(party: Party, left: Mapping[str, int], fleet_on: set[tuple[str, str]]) -> Iterator[Offer]:
    for node, offer in party.candidates.items():
        crowded = party.placement is Placement.SPREAD and (party.fleet, node) in fleet_on
        if left[node] >= party.gpu_count and not crowded:
            yield offer


def _first(offers: Iterable[Offer], count: int) -> tuple[Offer, ...]:
    found: list[Offer] = []
    for offer in offers:
        if len(found) == count:
            break
        found.append(offer)
    return tuple(found)
