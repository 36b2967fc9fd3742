"""Seating: parties of members that ask for the same thing, what could serve them, and quick ways to seat them.

A node's slices share its free GPUs, so what matters of an offer is its node, its price and how many GPUs it takes. Each
quick way is a guess that may miss a seating which exists; only `everybody_first` knows when it can't be beaten. The
guesses are where `planning.solver` starts from. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from lium_plan.kinds.pod.offers import Offer
from lium_plan.kinds.values import Placement

Seating = Mapping[int, Mapping[str, int]]
"""Party number -> node -> how many of its members sit there."""


@dataclass(frozen=True, slots=True)
class Party:
    """Members that are alike: whatever one of them can have, each of them can."""

    number: int
    fleets: tuple[str, ...]
    """One, unless it makes no difference to the seating whose members they are."""
    placement: Placement
    size: int
    gpu_count: int
    candidates: Mapping[str, Offer]
    """The offer on each node that fits, best first."""
    lone_packs: bool = False
    """Fleets of one that pack: each is on a node of its own count, wherever it sits."""

    @property
    def fleet(self) -> str:
        return self.fleets[0]


@dataclass(frozen=True, slots=True)
class Room:
    """What is to be shared out."""

    free: Mapping[str, int]
    """GPUs of each node that nobody has."""
    living: frozenset[tuple[str, str]] = frozenset()
    """(fleet, node) where a pod of the fleet runs already, and stays."""

    def most(self, party: Party, node: str) -> int:
        """How many of the party the node could hold if nobody else wanted it."""
        if party.placement is Placement.SPREAD:
            return 0 if (party.fleet, node) in self.living else min(1, self.free[node] // party.gpu_count)
        return min(party.size, self.free[node] // party.gpu_count)


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """How good a seating is; less is better, and what comes first counts first."""

    standing: int
    """Members without a seat."""
    packed_nodes: int
    """Nodes that fleets with `placement: pack` are newly on."""
    cost_usd: Decimal


def score(parties: Sequence[Party], room: Room, seating: Seating) -> Score:
    cost = Decimal(0)
    standing = 0
    packed: set[tuple[str, str]] = set()
    lone = 0
    for party in parties:
        seats = seating.get(party.number, {})
        seated = sum(seats.values())
        standing += party.size - seated
        lone += seated if party.lone_packs else 0
        for node, count in seats.items():
            cost += party.candidates[node].price_per_hour_usd * count
            if party.placement is Placement.PACK and count and (party.fleet, node) not in room.living:
                packed.add((party.fleet, node))
    return Score(standing, len(packed) + lone, cost)


def everybody_first(parties: Sequence[Party], room: Room) -> Seating | None:
    """Each party seated as if it were alone, when they don't get into each other's way: no seating is better.

    None when two want the same GPUs, or when a party's own best is not a matter of taking the first that is free.
    """
    packing = [party.fleet for party in parties if party.placement is Placement.PACK]
    if len(packing) > len(set(packing)) or any(_is_a_puzzle(party, room) for party in parties):
        return None
    seating = {party.number: Table([party], room).seat_all([party])[party.number] for party in parties}
    used: Counter[str] = Counter()
    shared: Counter[tuple[str, str]] = Counter()
    for party in parties:
        for node, count in seating[party.number].items():
            used[node] += count * party.gpu_count
            if party.placement is not Placement.ANY:
                shared[party.fleet, node] += 1
    apart = all(count <= room.free[node] for node, count in used.items())
    return seating if apart and all(count == 1 for count in shared.values()) else None


def _is_a_puzzle(party: Party, room: Room) -> bool:
    """To use few nodes is one when neither the fleet's own nodes nor a single other one hold them all."""
    if party.placement is not Placement.PACK:
        return False
    own = sum(room.most(party, node) for node in party.candidates if (party.fleet, node) in room.living)
    if own >= party.size:
        return False
    return own > 0 or all(room.most(party, node) < party.size for node in party.candidates)


def guesses(parties: Sequence[Party], room: Room) -> Iterable[Seating]:
    """Seatings that are quick to make: first come, cheapest first; and those with the fewest places to spare first."""
    yield Table(parties, room).seat_all(parties)
    places = {party.number: sum(room.most(party, node) for node in party.candidates) for party in parties}
    scarce = sorted(
        parties, key=lambda party: (Decimal(places[party.number]) / party.size, -party.gpu_count, party.number)
    )
    yield Table(parties, room).seat_all(scarce)
    yield Table(parties, room).seat_all(sorted(parties, key=lambda party: (-party.gpu_count, places[party.number])))


class Table:
    """Who sits where while a guess is made."""

    def __init__(self, parties: Iterable[Party], room: Room) -> None:
        self._room = room
        self._free = dict(room.free)
        self._seats: dict[int, Counter[str]] = {party.number: Counter() for party in parties}
        self._fleet_on: set[tuple[str, str]] = set(room.living)

    def seat_all(self, order: Iterable[Party]) -> Seating:
        for party in order:
            if party.placement is Placement.PACK:
                self._packed(party)
            else:
                self._cheapest(party)
        return self._seats

    def _cheapest(self, party: Party) -> None:
        standing = party.size
        for node in party.candidates:
            if not standing:
                return
            standing -= self._seat(party, node, standing)

    def _packed(self, party: Party) -> None:
        """Nodes that the fleet is on already, then always the one that holds the most of those still standing."""
        standing = party.size
        own = [node for node in party.candidates if (party.fleet, node) in self._fleet_on]
        for node in own:
            standing -= self._seat(party, node, standing)
        places = {node: index for index, node in enumerate(party.candidates)}
        while standing:
            best = min(places, key=lambda node: (-min(standing, self._holds(party, node)), places[node]), default=None)
            seated = self._seat(party, best, standing) if best is not None else 0
            if best is None or not seated:
                return
            del places[best]
            standing -= seated

    def _holds(self, party: Party, node: str) -> int:
        if party.placement is Placement.SPREAD:
            return 0 if (party.fleet, node) in self._fleet_on else min(1, self._free[node] // party.gpu_count)
        return self._free[node] // party.gpu_count

    def _seat(self, party: Party, node: str, standing: int) -> int:
        count = min(standing, self._holds(party, node))
        if count:
            self._free[node] -= count * party.gpu_count
            self._seats[party.number][node] += count
            self._fleet_on.add((party.fleet, node))
        return count
