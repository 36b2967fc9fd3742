"""Small random markets, and the best answers by trying everything."""

from __future__ import annotations

import random
from decimal import Decimal

from bench.placement import MODELS, Case, Outcome, feed_of, fleet, slices
from lium_plan.kinds.pod.offers import Offer
from lium_plan.planning.placement import Need


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
