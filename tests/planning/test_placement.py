"""Placement: cheapest first, nobody on the same GPUs, everybody placed where that is possible, reasons where not."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st
from planning_markets import NOW, feed, requirement

from lium_plan.addresses import Address, parse
from lium_plan.kinds.pod.offers import Bounds, Feed, Tier
from lium_plan.planning.exclusions import summary
from lium_plan.planning.placement import Need, Placed, place


def needs(fleet: str, count: int, gpus: str = "1xH100", **more: object) -> list[Need]:
    until = more.pop("until", None)
    placement = more.pop("placement", "any")
    wanted = requirement(gpus, **more)
    return [
        Need(parse(f"fleet.{fleet}[{index}]"), wanted, fleet, placement, until)  # type: ignore[arg-type]
        for index in range(count)
    ]


def nodes(found: Mapping[Address, Placed]) -> dict[str, str | None]:
    return {str(address): placed.offer.node_id if placed.offer else None for address, placed in found.items()}


def check_capacity(found: Mapping[Address, Placed], market: Feed) -> None:
    used: dict[str, int] = {}
    for placed in found.values():
        if placed.offer is not None:
            used[placed.offer.node_id] = used.get(placed.offer.node_id, 0) + placed.offer.gpu_count
    for node, count in used.items():
        assert count <= max(offer.gpu_count for offer in market.offers if offer.node_id == node)


def test_cheapest_first_and_one_node_is_not_sold_twice() -> None:
    found = place(needs("a", 3), feed("n1 1xH100 2.00", "n2 1xH100 1.50", "n3 1xH100 1.80"))
    assert nodes(found) == {"fleet.a[0]": "n2", "fleet.a[1]": "n3", "fleet.a[2]": "n1"}


def test_slices_of_one_node_share_its_gpus() -> None:
    market = feed("n1 1-4xH100 1.00", "n2 1xH100 9.00")
    assert list(nodes(place(needs("a", 5), market)).values()) == ["n1"] * 4 + ["n2"]
    assert list(nodes(place(needs("a", 3, "2xH100"), market)).values()) == ["n1", "n1", None]


def test_ties_go_to_reliability_then_speed_then_id() -> None:
    market = feed("n1 1xH100 2", "n2 1xH100 2 down=900", "n3 1xH100 2 rel=0.9", "n0 1xH100 2")
    assert list(nodes(place(needs("a", 4), market)).values()) == ["n3", "n2", "n0", "n1"]


def test_the_scarce_one_chooses_first() -> None:
    market = feed("n1 1xH100 1.00", "n2 1xA100 2.00")
    found = place([*needs("any", 1, "1xH100,A100"), *needs("picky", 1, "1xH100")], market)
    assert nodes(found) == {"fleet.any[0]": "n2", "fleet.picky[0]": "n1"}


def test_large_orders_are_not_starved_by_small_ones() -> None:
    market = feed("big 1-8xH100 1.00", "s1 1xH100 3.00", "s2 1xH100 3.00")
    found = place([*needs("small", 2), *needs("large", 1, "8xH100")], market)
    assert nodes(found) == {"fleet.small[0]": "s1", "fleet.small[1]": "s2", "fleet.large[0]": "big"}


def test_others_are_moved_aside_over_several_steps() -> None:
    # Each of three fleets has one choice more than the last; greedily the first two would take what the third needs.
    market = feed("n1 1xH100 1", "n2 1xA100 2", "n3 1xL40 3")
    found = place(
        [
            *needs("a", 1, "1xH100,A100,L40"),
            *needs("b", 1, "1xH100,A100"),
            *needs("c", 1, "1xH100"),
        ],
        market,
    )
    assert nodes(found) == {"fleet.a[0]": "n3", "fleet.b[0]": "n2", "fleet.c[0]": "n1"}


def test_the_first_come_moves_to_its_second_choice() -> None:
    market = feed("n1 1xA100 1", "n2 1xL40 2", "n3 1xH100 3")
    found = place([*needs("a", 1, "1xA100,L40"), *needs("b", 1, "1xA100,H100"), *needs("c", 1, "1xA100,H100")], market)
    assert nodes(found) == {"fleet.a[0]": "n2", "fleet.b[0]": "n1", "fleet.c[0]": "n3"}


def test_who_is_moved_aside_may_move_others_aside() -> None:
    market = feed("n1 1xA100 1", "n2 1xL40 2", "n3 1xH100 3", "n4 1xB200 4")
    fleets = {"a": "1xA100,L40", "b": "1xL40,B200", "c": "1xA100,H100", "d": "1xA100,H100"}
    found = place([need for name, gpus in fleets.items() for need in needs(name, 1, gpus)], market)
    assert nodes(found) == {"fleet.a[0]": "n2", "fleet.b[0]": "n4", "fleet.c[0]": "n1", "fleet.d[0]": "n3"}


def test_nobody_is_moved_when_that_would_not_help() -> None:
    market = feed("n1 1xA100 1", "n2 1xL40 2")
    fleets = {"a": "1xA100,L40", "b": "1xA100,L40", "c": "1xA100,L40"}
    found = place([need for name, gpus in fleets.items() for need in needs(name, 1, gpus)], market)
    assert nodes(found) == {"fleet.a[0]": "n1", "fleet.b[0]": "n2", "fleet.c[0]": None}


def test_several_are_moved_off_a_node_for_one_large_order() -> None:
    market = feed("big 1-2xA100 1.00", "far 2xA100 2.00 at=de", "s1 1xL40 3.00", "s2 1xL40 3.00", "s3 1xL40 3.00")
    wanted = [
        *needs("german", 1, "2xA100", regions=("de",)),
        *needs("large", 1, "2xA100"),
        *needs("small", 3, "1xA100,L40"),
    ]
    # Two places, so the large one asks after the small ones, of which there are five for three.
    found = nodes(place(wanted, market))
    assert found["fleet.german[0]"] == "far"
    assert found["fleet.large[0]"] == "big"
    assert sorted(str(found[f"fleet.small[{index}]"]) for index in range(3)) == ["s1", "s2", "s3"]


def test_spread_takes_one_node_each_and_minds_the_living() -> None:
    market = feed("n1 1-4xH100 1.00", "n2 1-4xH100 2.00", "n3 1-4xH100 3.00")
    found = place(needs("a", 3, placement="spread"), market, in_use={"a": ("n1",)})
    assert list(nodes(found).values()) == ["n2", "n3", None]


def test_pack_prefers_nodes_that_hold_many() -> None:
    market = feed("n1 1xH100 1.00", "n2 1-3xH100 2.00", "n3 1-2xH100 1.50")
    assert list(nodes(place(needs("a", 3, placement="pack"), market)).values()) == ["n2", "n2", "n2"]
    assert nodes(place(needs("a", 1, placement="pack"), market, in_use={"a": ("n3",)})) == {"fleet.a[0]": "n3"}


def test_ceiling_and_alternatives_within_it() -> None:
    market = feed("n1 1xH100 2.00", "n2 1xH100 2.10", "n3 1xH100 2.20", "n4 1xH100 2.21")
    placed = place(needs("a", 1), market)[parse("fleet.a[0]")]
    assert placed.ceiling_per_hour_usd == Decimal("2.20")
    assert [offer.node_id for offer in placed.alternatives] == ["n2", "n3"]
    capped = place(needs("a", 1, max_price_usd=Decimal("2.50")), market)[parse("fleet.a[0]")]
    assert capped.ceiling_per_hour_usd == Decimal("2.50")
    assert [offer.node_id for offer in capped.alternatives] == ["n2", "n3", "n4"]


def test_alternatives_are_nobodys() -> None:
    market = feed("n1 1xH100 2.00", "n2 1xH100 2.00", "n3 1xH100 2.00")
    found = place(needs("a", 2), market)
    assert [[offer.node_id for offer in placed.alternatives] for placed in found.values()] == [["n3"], ["n3"]]


def test_an_announced_rise_beyond_the_ceiling_is_left_out_while_it_matters() -> None:
    soon = (NOW + timedelta(hours=2)).isoformat()
    market = feed(f"n1 1xH100 2.00 pending=3.00 from={soon}", "n2 1xH100 2.50")
    assert nodes(place(needs("a", 1), market)) == {"fleet.a[0]": "n2"}
    assert nodes(place(needs("a", 1, until=NOW + timedelta(hours=1)), market)) == {"fleet.a[0]": "n1"}
    assert nodes(place(needs("a", 1, max_price_usd=Decimal(3)), market)) == {"fleet.a[0]": "n1"}
    alone = place(needs("a", 1), feed(f"n1 1xH100 2.00 pending=3.00 from={soon}"))[parse("fleet.a[0]")]
    assert [item.constraint for item in alone.exclusions] == ["announced price"]


def test_exclusions_name_the_constraint_and_what_would_help() -> None:
    market = feed(
        "n1 1xH100 0.24 disk=20", "n2 1xH100 0.30 disk=25", "n3 1xH100 0.20 disk=10 at=de", "n4 1xA100 0.10 disk=90"
    )
    placed = place(needs("a", 1, disk=Bounds(Decimal(30)), regions=("us",)), market)[parse("fleet.a[0]")]
    assert placed.offer is None
    text = summary(placed.exclusions)
    assert "disk 30GB.. excludes 3 of 3; 20GB.. would give the cheapest at $0.24/h" in text
    assert "regions us excludes 1 of 3" in text
    assert "A100" not in text  # another model is no cure as long as there is one
    assert "A100 would give the cheapest at $0.10/h" in str(placed.exclusions[-1])


def test_exclusions_when_the_gpu_is_nowhere() -> None:
    placed = place(needs("a", 1, "1xB200"), feed("n1 1xH100 2.00", "n2 8xB200 30"))[parse("fleet.a[0]")]
    assert {item.constraint for item in placed.exclusions} == {"gpu", "gpu count"}
    assert place(needs("a", 1), feed())[parse("fleet.a[0]")].exclusions == ()
    assert summary(()) == "nothing is on offer at all"


def test_another_model_is_no_cure_when_members_have_what_fits() -> None:
    found = place(needs("a", 3, "1xB200"), feed("n1 1xB200 9", "n2 1xB200 9", "n3 1xRTX3090 0.15"))
    text = summary(found[parse("fleet.a[2]")].exclusions)
    assert text == "only 2 such nodes are on the market, and fleet.a[0], fleet.a[1] have them"
    lone = place(needs("a", 2, "1xB200"), feed("n1 1xB200 9", "n3 1xRTX3090 0.15"))[parse("fleet.a[1]")]
    assert summary(lone.exclusions) == "only 1 such node is on the market, and fleet.a[0] has it"
    nowhere = place(needs("a", 1, "1xB200", max_price_usd=Decimal(1)), feed("n3 1xA100 2", "n4 1xRTX3090 0.15"))
    said = summary(nowhere[parse("fleet.a[0]")].exclusions)
    assert said.startswith("gpu B200 excludes 2 of 2; RTX3090 would give the cheapest at $0.15/h"), said


def test_exclusions_when_others_take_all_that_fits() -> None:
    found = place(needs("a", 8), feed(*(f"n{index} 1xH100 2.00" for index in range(5)), "s 1xH100 1 tier=spot"))
    assert [placed.offer is not None for placed in found.values()] == [True] * 5 + [False] * 3
    text = summary(found[parse("fleet.a[7]")].exclusions)
    assert text.startswith(
        "only 5 such nodes are on the market, and fleet.a[0], fleet.a[1], fleet.a[2], fleet.a[3] and 1"
    )
    assert "spot_policy on-demand excludes 1 of 6; auto would give the cheapest at $1.00/h" in text


def test_figures_above_a_range_are_cured_from_above() -> None:
    placed = place(needs("a", 1, cpu=Bounds(None, Decimal(8))), feed("n1 1xH100 1"))[parse("fleet.a[0]")]
    assert "..16 would give" in summary(placed.exclusions)


def test_spot_only() -> None:
    market = feed("n1 1xH100 1.00", "n2 1xH100 2.00 tier=spot")
    assert nodes(place(needs("a", 1, tiers=(Tier.SPOT,)), market)) == {"fleet.a[0]": "n2"}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_full_assignment_is_found_whenever_one_exists(data: st.DataObject) -> None:
    gpu_names = ("H100", "A100", "L40", "B200")
    rows = data.draw(st.lists(st.tuples(st.sampled_from(gpu_names), st.integers(1, 9)), max_size=6))
    market = feed(*(f"n{index} 1x{gpu} {price}" for index, (gpu, price) in enumerate(rows)))
    choices = st.sets(st.sampled_from(gpu_names), min_size=1, max_size=2).map(
        lambda names: "1x" + ",".join(sorted(names))
    )
    fleets = data.draw(st.lists(choices, min_size=1, max_size=5))
    wanted = [need for index, gpus in enumerate(fleets) for need in needs(f"f{index}", 1, gpus)]
    found = place(wanted, market)
    check_capacity(found, market)
    assert all(
        placed.offer is None or need.requirement.fits(placed.offer)
        for need, placed in zip(wanted, (found[need.address] for need in wanted), strict=True)
    )
    possible = any(
        all(need.requirement.fits(offer) for need, offer in zip(wanted, chosen, strict=True))
        for chosen in permutations(market.offers, len(wanted))
    )
    assert possible == all(placed.offer is not None for placed in found.values())


@settings(deadline=None)
@given(st.data())
def test_mixed_sizes_never_oversell_and_are_deterministic(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 5)), min_size=1, max_size=6))
    market = feed(*(f"n{index} 1-{size}xH100 {price}" for index, (size, price) in enumerate(rows)))
    fleets = data.draw(
        st.lists(
            st.tuples(st.integers(1, 4), st.integers(1, 8), st.sampled_from(("any", "spread", "pack"))),
            min_size=1,
            max_size=4,
        )
    )
    wanted = [
        need
        for index, (count, size, placement) in enumerate(fleets)
        for need in needs(f"f{index}", count, f"{size}xH100", placement=placement)
    ]
    found = place(wanted, market)
    check_capacity(found, market)
    assert found == place(wanted, market)
    for index, (_, _, placement) in enumerate(fleets):
        own = [
            placed.offer.node_id for address, placed in found.items() if address.name == f"f{index}" and placed.offer
        ]
        assert placement != "spread" or len(own) == len(set(own))


def test_a_contested_market_of_hundreds_stays_quick_and_off_the_stack() -> None:
    market = feed(*(f"n{index:05} 1x{'H100' if index % 2 else 'A100'} 1.00" for index in range(600)))
    wanted = [
        need for index in range(60) for need in needs(f"f{index}", 12, ("1xH100,A100", "1xH100", "1xA100")[index % 3])
    ]
    found = place(wanted, market)
    assert sum(placed.offer is not None for placed in found.values()) == 600
