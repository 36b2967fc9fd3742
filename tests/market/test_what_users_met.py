"""What the first users of Lium's feed met: each is an offer hidden, or one that was not what it seemed."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import pytest

from lium_plan.addresses import parse
from lium_plan.kinds.pod.block import FleetBlock
from lium_plan.kinds.pod.feed import expand_node
from lium_plan.kinds.pod.offers import Feed, Offer, Skipped
from lium_plan.kinds.pod.spec import requirement_of
from lium_plan.planning.placement import Need, place
from tests.market.test_offers_and_gpuhunt import NOW, PLAIN, Row
from tests.support.feeds import expand_feed


def offers(**row: object) -> tuple[Offer, ...]:
    found = expand_node({**PLAIN, **row})
    assert not isinstance(found, Skipped), found.reason
    return found


def fleet(**resources: object) -> Need:
    block = FleetBlock.model_validate({"image": "any", "resources": resources})
    return Need(parse("fleet.a[0]"), requirement_of(block), "a")


def taken(feed: Feed, need: Need) -> Offer | None:
    return place([need], feed)[need.address].offer


def market(*rows: Mapping[str, object]) -> Feed:
    return expand_feed(NOW, [{**PLAIN, "id": f"n{index}", **row} for index, row in enumerate(rows)])


def test_no_hidden_minimum_of_disk_keeps_the_cheapest_away() -> None:
    """16 nodes of one GPU; 100 GB of container disk would leave out 6 of them, the cheapest among them."""
    single: Row = {"gpu_model": "RTX 3090", "gpu_count": 8, "available_gpu_count": 1, "gpu_memory_gb": 24}
    rows = [{**single, "price_per_gpu_hour": 0.24 + index / 100, "disk_free_gb": 740} for index in range(6)]
    rows += [{**single, "price_per_gpu_hour": 0.34 + index / 100, "disk_free_gb": 4000} for index in range(10)]
    feed = market(*rows)
    assert len(feed.offers) == 16
    cheapest = taken(feed, fleet(gpu="RTX3090:1"))
    assert cheapest is not None
    assert (cheapest.node_id, cheapest.disk_gb) == ("n0", 30)
    narrowed = taken(feed, fleet(gpu="RTX3090:1", disk="100GB.."))
    assert narrowed is not None
    assert narrowed.node_id == "n6"


@pytest.mark.parametrize(("asked", "fits"), [("249GB..", True), ("249.1GiB..", False), ("249.35GB..", False)])
def test_a_fraction_of_a_gib_is_not_there(asked: str, fits: bool) -> None:
    """A 2015 GiB host gives an eighth 249 GiB, measured; the 249.35 that the share works out to is no limit's value."""
    feed = market({"gpu_model": "H200", "gpu_memory_gb": 140, "ram_gb": 2015, "available_gpu_count": 1})
    found = taken(feed, fleet(gpu="H200:1", memory=asked))
    assert (found is not None) is fits
    assert feed.offers[0].memory_gib == 249


@pytest.mark.parametrize(("asked", "fits"), [("61GB..", True), ("62GB..", False), ("183GB..", False)])
def test_the_two_disk_quotas_are_never_added(asked: str, fits: bool) -> None:
    feed = market({"disk_free_gb": 1467, "available_gpu_count": 1})
    (offer,) = feed.offers
    assert (offer.disk_gb, offer.local_disk_gb) == (61, 122)
    assert (taken(feed, fleet(gpu="RTX5090:1", disk=asked)) is not None) is fits


def test_a_part_of_what_is_free_can_be_rented() -> None:
    found = offers(gpu_count=8, available_gpu_count=5, min_rentable_gpu_count=1)
    assert [offer.gpu_count for offer in found] == [1, 2, 3, 4, 5]
    assert [offer.price_per_hour_usd for offer in found] == [Decimal(count) / 2 for count in range(1, 6)]
    assert [offer.cpu for offer in found] == [48 * count for count in range(1, 6)]
    assert not isinstance(expand_node({**PLAIN, "available_gpu_count": 5, "min_rentable_gpu_count": 5}), Skipped)
    feed = market({"available_gpu_count": 5})
    assert taken(feed, fleet(gpu="RTX5090:5")) is not None
    assert taken(feed, fleet(gpu="RTX5090:6")) is None


def test_a_node_that_does_not_tell_its_least_order_is_rented_whole() -> None:
    assert [offer.gpu_count for offer in offers(min_rentable_gpu_count=None)] == [8]
    assert isinstance(expand_node({**PLAIN, "min_rentable_gpu_count": None, "available_gpu_count": 7}), Skipped)


def test_names_match_whole() -> None:
    feed = market({"gpu_model": "GH200 480GB", "gpu_memory_gb": 96, "min_rentable_gpu_count": 8})
    assert feed.offers[0].gpu == "GH200"
    assert taken(feed, fleet(gpu="H200:8")) is None
    assert taken(feed, fleet(gpu="GH200:8")) is not None


def test_the_same_gpu_by_any_of_its_names() -> None:
    feed = market({"gpu_model": "RTX 4090", "gpu_memory_gb": 24})
    for name in ("rtx4090", "RTX 4090", "NVIDIA GeForce RTX 4090", "RTX-4090"):
        assert taken(feed, fleet(gpu={"name": name, "count": 1})) is not None
