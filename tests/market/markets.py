"""Random markets and what is asked of them, and the answers by trying everything."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from lium_plan.addresses import Address, parse
from lium_plan.kinds.pod.offers import Feed, Offer, Requirement, Tier, preference
from lium_plan.planning.placement import Need, Placed

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MODELS = ("H100", "A100", "L40", "B200", "RTX4090", "RTX3090", "H200", "A6000")


@dataclass(frozen=True, slots=True)
class Case:
    feed: Feed
    needs: tuple[Need, ...]
    in_use: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, order=True)
class Outcome:
    """Less is better, in this order."""

    standing: int
    packed_nodes: int
    cost_usd: Decimal


def slices(
    node: str, gpu: str, counts: Sequence[int], price_per_gpu: Decimal, *, reliability: int | None = None
) -> Iterator[Offer]:
    for count in counts:
        yield Offer(
            node_id=node,
            gpu=gpu,
            gpu_count=count,
            gpu_memory_gib=80,
            cpu=16 * count,
            memory_gib=100 * count,
            disk_gb=100 * count,
            local_disk_gb=200 * count,
            price_per_hour_usd=price_per_gpu * count,
            price_per_gpu_hour_usd=price_per_gpu,
            location="us-ms",
            tier=Tier.SECURE,
            reliability=None if reliability is None else Decimal(reliability),
        )


def feed_of(offers: Sequence[Offer]) -> Feed:
    return Feed(NOW, tuple(sorted(offers, key=preference)), (), len({offer.node_id for offer in offers}))


def fleet(name: str, size: int, gpus: Sequence[str], count: int, placement: str = "any") -> Iterator[Need]:
    wanted = Requirement(tuple(sorted(gpu.lower() for gpu in gpus)), count)
    for index in range(size):
        yield Need(parse(f"fleet.{name}[{index}]"), wanted, name, placement)


def small(seed: int) -> Case:
    """A few nodes, a few fleets, scarce, with slices of all sizes: everything can be tried."""
    dice = random.Random(seed)
    models = MODELS[: dice.randint(1, 3)]
    offers: list[Offer] = []
    for number in range(dice.randint(2, 5)):
        free = dice.choice((1, 2, 3, 4, 5, 8))
        lowest = dice.choice((1, 1, min(2, free), free))
        price = Decimal(dice.randint(20, 400)) / 100 if dice.random() < 0.7 else Decimal(dice.randint(1, 3))
        offers.extend(slices(f"n{number}", dice.choice(models), range(lowest, free + 1), price))
    needs: list[Need] = []
    in_use: dict[str, tuple[str, ...]] = {}
    left = 6
    for number in range(dice.randint(1, 4)):
        size = min(dice.randint(1, 3), left)
        left -= size
        gpus = dice.sample(models, dice.randint(1, len(models)))
        placement = dice.choice(("any", "any", "spread", "pack"))
        needs.extend(fleet(f"f{number}", size, gpus, dice.choice((1, 1, 2, 3, 4)), placement))
        if dice.random() < 0.3:
            in_use[f"f{number}"] = (f"n{dice.randint(0, 4)}",)
    return Case(feed_of(offers), tuple(needs), in_use)


def large(seed: int, *, fleets: int = 100, nodes: int = 500, members: int = 1000, choices: int = 3) -> Case:
    """Competing fleets with `choices` GPU models each at most, and nodes of all sizes; everybody could be placed."""
    dice = random.Random(seed)
    base = {model: dice.uniform(0.2, 3) for model in MODELS}
    rows: list[tuple[str, str, int, int, Decimal]] = []
    for number in range(nodes):
        model = dice.choice(MODELS)
        free = dice.choice((1, 1, 2, 4, 8, 8))
        price = Decimal(round(base[model] * dice.uniform(0.7, 1.5), 2)).quantize(Decimal("0.01"))
        rows.append((f"n{number:04}", model, dice.choice((1, 1, 1, free)), free, price))
    wanted = [
        (dice.sample(MODELS, dice.randint(1, choices)), dice.choice((1, 1, 1, 1, 2, 2, 4, 8)), dice.choice(PLACEMENTS))
        for _ in range(fleets)
    ]
    sizes = [0] * fleets
    free_now = {row[0]: row[3] for row in rows}
    spread: set[tuple[int, str]] = set()
    placed = 0
    for _ in range(members * 30):
        if placed == members:
            break
        number = dice.randrange(fleets)
        gpus, count, placement = wanted[number]
        fits = [row for row in rows if row[1] in gpus and row[2] <= count <= free_now[row[0]]]
        fits = [row for row in fits if placement != "spread" or (number, row[0]) not in spread]
        if fits:
            node = dice.choice(fits)[0]
            free_now[node] -= count
            spread.add((number, node))
            sizes[number] += 1
            placed += 1
    offers = [
        offer
        for node, model, lowest, free, price in rows
        for offer in slices(node, model, range(lowest, free + 1), price, reliability=dice.randint(50, 100))
    ]
    needs = [need for number, size in enumerate(sizes) for need in fleet(f"f{number}", size, *wanted[number])]
    return Case(feed_of(offers), tuple(needs), {})


PLACEMENTS = ("any", "any", "any", "spread", "spread", "pack")


def outcome_of(case: Case, taken: Mapping[Address, Offer | None]) -> Outcome:
    """How good an answer is, and a check that it is one at all."""
    used: dict[str, int] = {}
    by_fleet: dict[str, list[str]] = {}
    packed: set[tuple[str, str]] = set()
    cost = Decimal(0)
    standing = 0
    for need in case.needs:
        offer = taken[need.address]
        if offer is None:
            standing += 1
            continue
        assert need.requirement.fits(offer)
        used[offer.node_id] = used.get(offer.node_id, 0) + offer.gpu_count
        cost += offer.price_per_hour_usd
        living = case.in_use.get(need.fleet, ())
        if need.placement == "spread":
            assert offer.node_id not in by_fleet.get(need.fleet, ())
            assert offer.node_id not in living
        if need.placement == "pack" and offer.node_id not in living:
            packed.add((need.fleet, offer.node_id))
        by_fleet.setdefault(need.fleet, []).append(offer.node_id)
    for node, count in used.items():
        assert count <= max(offer.gpu_count for offer in case.feed.offers if offer.node_id == node)
    return Outcome(standing, len(packed), cost)


def offers_of(placed: Mapping[Address, Placed]) -> dict[Address, Offer | None]:
    return {address: found.offer for address, found in placed.items()}


def first_come(case: Case) -> dict[Address, Offer | None]:
    """What others do: each member takes the cheapest that is left, in the order of the manifest."""
    free: dict[str, int] = {}
    for offer in case.feed.offers:
        free[offer.node_id] = max(free.get(offer.node_id, 0), offer.gpu_count)
    on: dict[str, set[str]] = {name: set(nodes) for name, nodes in case.in_use.items()}
    fitting: dict[Requirement, list[Offer]] = {}
    taken: dict[Address, Offer | None] = {}
    for need in case.needs:
        wanted = need.requirement
        if wanted not in fitting:
            fitting[wanted] = [offer for offer in sorted(case.feed.offers, key=preference) if wanted.fits(offer)]
        there = on.setdefault(need.fleet, set())
        open_to_it = [
            offer
            for offer in fitting[wanted]
            if free[offer.node_id] >= offer.gpu_count and (need.placement != "spread" or offer.node_id not in there)
        ]
        if need.placement == "pack":
            open_to_it.sort(key=lambda offer: offer.node_id not in there)
        found = open_to_it[0] if open_to_it else None
        taken[need.address] = found
        if found is not None:
            free[found.node_id] -= found.gpu_count
            there.add(found.node_id)
    return taken


def best_by_trying(case: Case) -> Outcome:
    """The best outcome there is: every way to seat the members, one fleet member after another."""
    free: dict[str, int] = {}
    for offer in case.feed.offers:
        free[offer.node_id] = max(free.get(offer.node_id, 0), offer.gpu_count)
    fitting = [[offer for offer in case.feed.offers if need.requirement.fits(offer)] for need in case.needs]
    best = [Outcome(len(case.needs) + 1, 0, Decimal(0))]
    on: dict[str, list[str]] = {}

    def go(index: int, so_far: Outcome, lowest: int) -> None:
        if so_far >= best[0]:
            return
        if index == len(case.needs):
            best[0] = so_far
            return
        need = case.needs[index]
        there = on.setdefault(need.fleet, [])
        living = case.in_use.get(need.fleet, ())
        alike = index + 1 < len(case.needs) and case.needs[index + 1].fleet == need.fleet
        for place, offer in enumerate(fitting[index]):
            node = offer.node_id
            # Members of a fleet are alike, so only orders in which they take the offers in turn are tried.
            if place < lowest or free[node] < offer.gpu_count:
                continue
            if need.placement == "spread" and (node in there or node in living):
                continue
            new = need.placement == "pack" and node not in there and node not in living
            free[node] -= offer.gpu_count
            there.append(node)
            better = Outcome(so_far.standing, so_far.packed_nodes + new, so_far.cost_usd + offer.price_per_hour_usd)
            go(index + 1, better, place if alike else 0)
            there.pop()
            free[node] += offer.gpu_count
        standing = Outcome(so_far.standing + 1, so_far.packed_nodes, so_far.cost_usd)
        go(index + 1, standing, len(fitting[index]) if alike else 0)

    go(0, Outcome(0, 0, Decimal(0)), 0)
    return best[0]
