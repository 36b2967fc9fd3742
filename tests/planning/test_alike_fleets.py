"""Fleets that are alike are placed together, and no worse for it: beside everything tried, and by how much is solved."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from bench.placement import NOW, Case, feed_of, fleet, offers_of, outcome_of, slices
from lium_plan.kinds.pod.offers import Offer
from lium_plan.planning.placement import Need, gather, place
from tests.market.markets import best_by_trying

MARKETS = 400


def many_alike(seed: int) -> Case:
    """Up to six fleets, most of one member, of few sorts, some with a limit on the price; prices that will rise."""
    dice = random.Random(seed)
    offers: list[Offer] = []
    for number in range(dice.randint(2, 4)):
        free = dice.choice((1, 2, 3))
        price = Decimal(dice.choice((100, 100, 150, 200))) / 100
        rise = price * 100 if dice.random() < 0.2 else None
        row = slices(f"n{number}", dice.choice(("H100", "A100")), range(1, free + 1), price)
        offers.extend(
            replace(offer, pending_price_per_hour_usd=rise and rise * offer.gpu_count, pending_price_at=NOW)
            for offer in row
        )
    sorts = [
        (
            dice.choice((["H100"], ["A100"], ["A100", "H100"])),
            dice.choice((1, 1, 2)),
            dice.choice(("any", "spread", "pack", "pack")),
        )
        for _ in range(2)
    ]
    needs: list[Need] = []
    in_use: dict[str, tuple[str, ...]] = {}
    for number in range(dice.randint(2, 6)):
        limit = dice.choice((None, None, Decimal("1.20"), Decimal("2.50")))
        size = 1 if dice.random() < 0.8 or len(needs) > 4 else 2
        needs.extend(
            replace(need, requirement=replace(need.requirement, max_price_usd=limit), until=NOW + timedelta(hours=1))
            for need in fleet(f"f{number}", size, *dice.choice(sorts))
        )
        if dice.random() < 0.15:
            in_use[f"f{number}"] = (f"n{dice.randint(0, 3)}",)
    return Case(feed_of(offers), tuple(needs), in_use)


def without_rising(case: Case) -> Case:
    """Trying everything knows nothing of announced prices. These are too high for everybody."""
    return replace(case, feed=feed_of([offer for offer in case.feed.offers if not offer.pending_price_per_hour_usd]))


def test_as_good_as_trying_everything() -> None:
    scarce = lone = 0
    for seed in range(MARKETS):
        case = many_alike(seed)
        found = outcome_of(case, offers_of(place(case.needs, case.feed, in_use=case.in_use)))
        best = best_by_trying(without_rising(case))
        assert found == best, (seed, found, best)
        scarce += best.standing > 0
        parties = gather(case.needs, case.feed, case.in_use).parties
        lone += best.standing > 0 and any(party.lone_packs for party in parties)
    assert scarce > MARKETS / 10
    assert lone > MARKETS / 20


@pytest.mark.parametrize("placement", ["any", "spread", "pack"])
def test_ten_thousand_fleets_of_one_are_one_question(placement: str) -> None:
    """Also with limits of their own, as long as the same offers are open to them."""
    feed = feed_of([offer for node in range(20) for offer in slices(f"n{node:02}", "H100", (1, 2), Decimal(2))])
    needs = [
        replace(need, requirement=replace(need.requirement, max_price_usd=Decimal(5) + Decimal(number) / 100))
        for number in range(10_000)
        for need in fleet(f"f{number}", 1, ["H100"], 1, placement)
    ]
    crowd = gather(needs, feed, {})
    assert len(crowd.parties) == 1
    assert sum(len(party.candidates) for party in crowd.parties) == 20
    beside = gather(needs, feed, {"f7": ("n03",)})
    assert len(beside.parties) == (1 if placement == "any" else 2)
    placed = place(needs, feed)
    assert [need.address for need in needs if placed[need.address].offer is not None] == [
        need.address for need in needs[:40]
    ]
    assert placed[needs[3].address].ceiling_per_hour_usd == Decimal("5.03")
