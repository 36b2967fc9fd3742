"""Placement beside first-come-cheapest-first: who is left without a machine, who pays too much, how near the bound.

Markets are random: GPU models with prices around their own, hosts of 1 to 8 GPUs of which most can be split, fleets
that take one to three models in orders of 1 to 4 GPUs. Each is made so that everybody can be placed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from bench.measure import table
from lium_plan.addresses import Address, parse
from lium_plan.kinds.pod.offers import Feed, Offer, Requirement, Tier, preference
from lium_plan.planning.placement import Crowd, Need, Placed, best_guess, gather, place, rivals
from lium_plan.planning.seating import everybody_first, score

MARKETS = 100
LARGE = 5
SEARCHED = 500
ORDERS = (1, 1, 1, 1, 1, 1, 2, 2, 4)
PLACEMENTS = ("any", "any", "any", "any", "spread")
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


def large(
    seed: int,
    *,
    fleets: int = 100,
    nodes: int = 500,
    members: int = 1000,
    choices: int = 3,
    placements: Sequence[str] = PLACEMENTS,
) -> Case:
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
        (dice.sample(MODELS, dice.randint(1, choices)), dice.choice(ORDERS), dice.choice(placements))
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


def bound_usd(crowd: Crowd, *, exact: bool = False) -> float:
    """What no placement of everybody costs less than, by the solver; `exact`: after a search, else by relaxation."""
    from lium_plan.planning.solver import solve

    total = 0.0
    for parties in rivals(crowd.parties):
        settled = everybody_first(parties, crowd.room)
        if settled is not None:
            total += float(score(parties, crowd.room, settled).cost_usd)
        else:
            guess = best_guess(parties, crowd.room)
            total += solve(parties, crowd.room, guess, ranks=crowd.ranks, exact=exact).bound_usd
    return total


@dataclass(frozen=True, slots=True)
class Result:
    naive: Outcome
    found: Outcome
    bound_usd: float
    took_s: float

    @property
    def gap(self) -> float:
        return float(self.found.cost_usd) / self.bound_usd - 1 if self.bound_usd else 0.0


def compare(case: Case) -> Result:
    started = time.perf_counter()
    found = outcome_of(case, offers_of(place(case.needs, case.feed)))
    took_s = time.perf_counter() - started
    bound = bound_usd(gather(case.needs, case.feed, {}), exact=len(case.needs) < SEARCHED)
    return Result(outcome_of(case, first_come(case)), found, bound, took_s)


def main() -> None:
    compare(large(0, fleets=3, nodes=10, members=5))  # the solver is loaded
    sizes = ((10, 84, 60, MARKETS), (20, 84, 130, MARKETS), (100, 500, 1000, LARGE))
    rows = []
    for fleets, nodes, members, count in sizes:
        results = [compare(large(seed, fleets=fleets, nodes=nodes, members=members)) for seed in range(count)]
        failed = [result for result in results if result.naive.standing > result.found.standing]
        dearer = [
            float(result.naive.cost_usd / result.found.cost_usd) - 1
            for result in results
            if result.naive.standing == result.found.standing and result.naive.cost_usd > result.found.cost_usd
        ]
        rows.append(
            (
                f"{fleets} fleets, {nodes} nodes, {members} members",
                f"{len(failed)}/{count}",
                f"{len(dearer)}/{count}",
                f"{max(dearer, default=0.0):.1%}",
                str(sum(result.found.standing for result in results)),
                f"{max(result.gap for result in results):.3%}",
                f"{sorted(result.took_s for result in results)[count // 2]:.2f}",
                f"{max(result.took_s for result in results):.2f}",
            )
        )
        worse = [result for result in results if result.naive < result.found]
        assert not worse, worse
    headers = (
        *("market", "first-come fails", "overpays", "by up to", "ours unplaced", "ours over the bound"),
        *("median s", "most s"),
    )
    print(table(headers, rows), end="")


if __name__ == "__main__":
    main()
