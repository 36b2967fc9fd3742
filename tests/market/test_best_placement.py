"""Placement beside the truth: everything tried on small markets, the solver's own bound on large ones."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from markets import best_by_trying, small

from bench.placement import (
    Case,
    bound_usd,
    feed_of,
    first_come,
    fleet,
    large,
    offers_of,
    outcome_of,
    slices,
)
from lium_plan.planning.placement import gather, place, rivals
from lium_plan.planning.seating import everybody_first, score
from lium_plan.planning.solver import solve

SMALL_MARKETS = 500


def test_as_good_as_trying_everything() -> None:
    scarce = contested = 0
    for seed in range(SMALL_MARKETS):
        case = small(seed)
        found = outcome_of(case, offers_of(place(case.needs, case.feed, in_use=case.in_use)))
        best = best_by_trying(case)
        assert found == best, (seed, found, best)
        scarce += best.standing > 0
        contested += outcome_of(case, first_come(case)) > best
    assert scarce > 50
    assert contested > 50


def test_the_quick_way_is_taken_only_where_it_can_not_be_beaten() -> None:
    quick = 0
    for seed in range(SMALL_MARKETS, 2 * SMALL_MARKETS):
        case = small(seed)
        crowd = gather(case.needs, case.feed, case.in_use)
        for parties in rivals(crowd.parties):
            seating = everybody_first(parties, crowd.room)
            if seating is None:
                continue
            quick += 1
            exact = solve(parties, crowd.room, {}, ranks=crowd.ranks).seating
            assert score(parties, crowd.room, seating) == score(parties, crowd.room, exact)
    assert quick > 100


@pytest.mark.parametrize(("seed", "choices"), [(0, 1), (1, 3), (2, 8)])
def test_large_markets_end_near_the_bound(seed: int, choices: int) -> None:
    mixed = ("any", "any", "spread", "pack")
    case = large(seed, fleets=40, nodes=200, members=330, choices=choices, placements=mixed)
    found = outcome_of(case, offers_of(place(case.needs, case.feed)))
    naive = outcome_of(case, first_come(case))
    assert found.standing == 0  # the market was made so that everybody can be placed
    assert found <= naive
    assert naive.standing > 0
    assert float(found.cost_usd) <= bound_usd(gather(case.needs, case.feed, {})) * 1.01


def test_never_dearer_than_first_come_where_that_places_everybody() -> None:
    compared = 0
    for seed in range(30):
        case = large(seed, fleets=12, nodes=60, members=40, choices=2)
        naive = outcome_of(case, first_come(case))
        found = outcome_of(case, offers_of(place(case.needs, case.feed)))
        assert found <= naive
        compared += naive.standing == 0
    assert compared > 5


PRINT_ONE = """
import sys
sys.path.insert(0, sys.argv[1])
from bench.placement import large
from lium_plan.planning.placement import place
case = large(3, fleets=30, nodes=90, members=150, choices=3)
for address, found in place(case.needs, case.feed).items():
    print(address, found)
"""


def test_the_same_to_the_byte() -> None:
    here = str(Path(__file__).parents[2])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PRINT_ONE, here],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    (text,) = outputs
    assert len(text.splitlines()) == len(large(3, fleets=30, nodes=90, members=150, choices=3).needs)


def test_nothing_is_printed_by_the_solver(capfd: pytest.CaptureFixture[str]) -> None:
    case = small(next(seed for seed in range(SMALL_MARKETS) if is_contested(small(seed))))
    place(case.needs, case.feed, in_use=case.in_use)
    assert capfd.readouterr() == ("", "")


def is_contested(case: Case) -> bool:
    crowd = gather(case.needs, case.feed, case.in_use)
    return any(everybody_first(parties, crowd.room) is None for parties in rivals(crowd.parties))


def test_the_solver_is_loaded_only_where_parties_compete() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from bench.placement import feed_of, fleet, slices\n"
        "from decimal import Decimal\n"
        "from lium_plan.planning.placement import place\n"
        "feed = feed_of([*slices('a', 'H100', (1, 2), Decimal(1)), *slices('b', 'A100', (1,), Decimal(1))])\n"
        "place([*fleet('x', 2, ['H100'], 1), *fleet('y', 2, ['A100'], 1)], feed)\n"
        "print('highspy' in sys.modules, 'numpy' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parents[2])], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_ties_go_to_the_preferred_nodes_when_parties_compete() -> None:
    """One node is contested; the rest costs the same, and the more reliable ones are taken."""
    price = Decimal(1)
    offers = [
        *slices("n1", "H100", (1,), price, reliability=50),
        *slices("n2", "H100", (1,), price, reliability=99),
        *slices("n3", "H100", (1,), price, reliability=90),
        *slices("n4", "A100", (1,), price, reliability=10),
        *slices("n5", "A100", (1,), price, reliability=20),
        *slices("n6", "H100", (1,), price, reliability=90),
    ]
    needs = [*fleet("x", 2, ["H100", "A100"], 1), *fleet("y", 2, ["H100"], 1), *fleet("z", 1, ["A100"], 1)]
    taken = offers_of(place(needs, feed_of(offers)))
    assert {offer.node_id for offer in taken.values() if offer} == {"n2", "n3", "n6", "n1", "n5"}


def test_a_split_node_goes_to_whom_nothing_else_would_serve() -> None:
    """Cheapest first would put two singles on the big node, and leave the order for all of it nowhere."""
    offers = [
        *slices("big", "H100", range(1, 9), Decimal("1.00")),
        *slices("s1", "H100", (1,), Decimal("3.00")),
        *slices("s2", "H100", (1,), Decimal("3.00")),
        *slices("pair", "H100", (2,), Decimal("0.50")),
    ]
    needs = [*fleet("small", 2, ["H100"], 1), *fleet("eight", 1, ["H100"], 8)]
    case = Case(feed_of(offers), tuple(needs), {})
    assert outcome_of(case, first_come(case)).standing == 1
    found = outcome_of(case, offers_of(place(case.needs, case.feed)))
    assert (found.standing, found.cost_usd) == (0, Decimal("14.00"))


def test_pack_uses_few_nodes_before_it_minds_the_price() -> None:
    offers = [
        *slices("a", "H100", range(1, 3), Decimal("1.00")),
        *slices("b", "H100", range(1, 3), Decimal("1.00")),
        *slices("c", "H100", range(1, 4), Decimal("1.50")),
        *slices("d", "H100", range(1, 2), Decimal("0.10")),
    ]
    packed = place(list(fleet("p", 5, ["H100"], 1, "pack")), feed_of(offers))
    taken = [offer.node_id for offer in offers_of(packed).values() if offer]
    assert sorted(taken) == ["a", "a", "c", "c", "c"]
    spread = place(list(fleet("p", 4, ["H100"], 1, "spread")), feed_of(offers))
    assert sorted(offer.node_id for offer in offers_of(spread).values() if offer) == ["a", "b", "c", "d"]


def test_absurd_prices_are_the_last_choice_and_no_crash() -> None:
    offers = [
        *slices("dear", "H100", (1, 2), Decimal("1e60")),
        *slices("fine", "H100", (1,), Decimal("2.00")),
    ]
    taken = place(
        [*fleet("a", 1, ["H100"], 1), *fleet("b", 1, ["H100"], 2), *fleet("c", 1, ["H100"], 1)], feed_of(offers)
    )
    assert sum(found.offer is not None for found in taken.values()) == 2
    assert any(found.offer and found.offer.node_id == "fine" for found in taken.values())


def test_members_of_one_fleet_with_different_needs_spread_as_one() -> None:
    """While a run goes on, nodes that refused one member bind that member alone."""
    offers = [*slices("n1", "H100", range(1, 5), Decimal(1)), *slices("n2", "H100", range(1, 5), Decimal(2))]
    first, second = fleet("a", 2, ["H100"], 1, "spread")
    second = replace(second, requirement=replace(second.requirement, exclude_nodes=("n9",)))
    taken = offers_of(place([first, second], feed_of(offers)))
    assert sorted(offer.node_id for offer in taken.values() if offer) == ["n1", "n2"]
