"""What `offers` answers: filters as a fleet writes them, what each constraint costs, what a fleet would get."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from lium_plan.addresses import parse
from lium_plan.answers import OffersAnswer, OffersQuery
from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.kinds.pod.feed import NodeMemory, gathered, read_catalogue
from lium_plan.kinds.pod.offers import Feed, Skipped
from lium_plan.operations.market import answer, asked_for
from lium_plan.planning.placement import Need
from lium_plan.views.offers_view import Grouping, offers_json, offers_text
from tests.market.test_offers_and_gpuhunt import NOW, PLAIN, Row
from tests.support.feeds import expand_feed


def row(node: str, **fields: object) -> Row:
    return {**PLAIN, "id": node, "gpu_count": 1, "available_gpu_count": 1, "disk_free_gb": 400, **fields}


H100: Row = {"gpu_model": "H100 80GB HBM3", "gpu_memory_gb": 80, "cpu_count": 24, "ram_gb": 252}


def market() -> Feed:
    return expand_feed(
        NOW,
        [
            row("cheap", **H100, price_per_gpu_hour=1.70, disk_free_gb=61, country_code="US", region="MS"),
            row("mid", **H100, price_per_gpu_hour=1.90, country_code="US", region="CA", network_download_mbps=400),
            row("spot", **H100, price_per_gpu_hour=1.20, tier="spot", country_code="DE", region=None),
            row("dear", **H100, price_per_gpu_hour=2.50, country_code="US", region="CA"),
            row("other", price_per_gpu_hour=0.50),
            row("eight", **H100, gpu_count=8, available_gpu_count=8, min_rentable_gpu_count=8)
            | {"price_per_gpu_hour": 1.0},
            row("broken", **H100) | {"gpu_count": None},
        ],
        [
            {"id": "mid", "nvlink": True, "max_cuda_version": 12.4, "frequent_rent_failures": False},
            {"id": "dear", "nvlink": False, "max_cuda_version": 12.8, "frequent_rent_failures": True},
        ],
    )


def ask(**filters: object) -> OffersAnswer:
    return answer(market(), asked_for(OffersQuery(**filters)))  # type: ignore[arg-type]


def ids(found: OffersAnswer) -> list[str]:
    return [offer.node_id for offer in found.offers]


@pytest.mark.parametrize(
    ("filters", "nodes"),
    [
        ({}, ["other", "spot", "cheap", "mid", "dear", "eight"]),
        ({"gpu": "H100:1"}, ["spot", "cheap", "mid", "dear"]),
        ({"gpu": "H100"}, ["spot", "cheap", "mid", "dear"]),
        ({"gpu": "H100:8"}, ["eight"]),
        ({"gpu": "H100:40GB..:1"}, ["spot", "cheap", "mid", "dear"]),
        ({"gpu": "RTX5090,H100:1", "max_price_usd": Decimal("1.20")}, ["other", "spot"]),
        ({"cpu": "25.."}, ["other"]),
        ({"memory": "..100GB"}, []),
        ({"gpu": "H100:1", "disk": "30GB.."}, ["spot", "mid", "dear"]),
        ({"regions": ("US",)}, ["cheap", "mid", "dear"]),
        ({"regions": ("us-ca", "de")}, ["spot", "mid", "dear"]),
        ({"spot_policy": "spot"}, ["spot"]),
        ({"spot_policy": "on-demand", "gpu": "H100:1"}, ["cheap", "mid", "dear"]),
        ({"min_download": "300Mbps"}, ["mid"]),
        ({"nvlink": True}, ["mid"]),
        ({"reliable": True, "regions": ("us-ca",)}, ["mid"]),
        ({"min_cuda": Decimal("12.5")}, ["dear"]),
    ],
)
def test_every_filter(filters: dict[str, object], nodes: list[str]) -> None:
    assert ids(ask(**filters)) == nodes


def test_a_filter_that_makes_no_sense_is_usage() -> None:
    with pytest.raises(Failure) as failure:
        ask(gpu="H100:1", memory="lots")
    assert failure.value.exit_code is ExitCode.USAGE


def test_what_a_constraint_costs_while_something_fits() -> None:
    found = ask(gpu="H100:1", disk="30GB..", regions=("us",), spot_policy="on-demand")
    assert ids(found) == ["mid", "dear"]
    sentences = [item.sentence for item in found.left_out]
    assert "disk 30GB.. excludes 1 of 4; 20GB.. would give the cheapest at $1.70/h" in sentences
    # The spot offer is elsewhere too, so no single constraint keeps it away; and other GPUs were not asked for.
    assert "regions us excludes 1 of 4" in sentences
    assert not any(sentence.startswith("gpu") for sentence in sentences)
    text = offers_text(found)
    assert "2 offers on 7 nodes" in text
    assert "  disk 30GB.. excludes 1 of 4; 20GB.. would" in text


def test_when_nothing_fits_each_constraint_has_its_nearest() -> None:
    found = ask(gpu="H100:1", disk="500GB..", memory="600GB..", regions=("us",))
    assert not found.offers
    by_name = {item.constraint: item for item in found.left_out}
    assert by_name["disk"].nearest is not None
    assert by_name["disk"].nearest.node_id == "cheap"
    assert by_name["disk"].sentence == (
        "disk 500GB.. excludes 4 of 4; 20GB.. with memory 247GB.. would give one at $1.70/h"
    )
    assert by_name["regions"].sentence.startswith("regions us excludes 1 of 4; de with ")
    (said,) = found.diagnostics
    assert said.code == "no-offer"
    assert said.message == "nothing on offer fits", "what excludes what is told once, beside it"
    assert offers_text(found).count("disk 500GB.. excludes 4 of 4") == 1


def needs(count: int, **filters: object) -> list[Need]:
    wanted = asked_for(OffersQuery(**filters))  # type: ignore[arg-type]
    return [Need(parse(f"fleet.a[{index}]"), wanted, "a") for index in range(count)]


def test_what_a_fleet_would_get() -> None:
    filters: dict[str, object] = {"gpu": "H100:1", "spot_policy": "on-demand"}
    found = answer(market(), asked_for(OffersQuery(**filters)), needs=needs(4, **filters))  # type: ignore[arg-type]
    assert [(name, offer.node_id if offer else None) for name, offer in found.members] == [
        ("fleet.a[0]", "cheap"),
        ("fleet.a[1]", "mid"),
        ("fleet.a[2]", "dear"),
        ("fleet.a[3]", None),
    ]
    text = offers_text(found)
    assert "Together $6.10/h." in text
    assert "fleet.a[3]  nothing" in text
    (said,) = found.diagnostics
    assert (said.code, said.address) == ("no-offer", "fleet.a")
    assert said.message.startswith(
        "nothing for 1 of 4 members: only 3 such nodes are on the market, and fleet.a[0], fleet.a[1], fleet.a[2] have "
        "them; spot_policy on-demand excludes 1 of 4; auto would give"
    )
    document = json.loads(json.dumps(offers_json(found)))
    assert document["members"][0]["offer"]["node_id"] == "cheap"
    assert document["members"][3] == {"address": "fleet.a[3]", "offer": None}
    assert {item["constraint"] for item in document["exclusions"]} == {"spot_policy"}


def test_groups_for_machines() -> None:
    document = json.loads(json.dumps(offers_json(ask(), grouping=Grouping.REGION)))
    assert document["groups"][0] == {
        "region": "jp-13",
        "nodes": 2,
        "from_per_gpu_hour_usd": 0.5,
        "to_per_gpu_hour_usd": 1.0,
        "most_gpus": 8,
        "gpus": ["H100", "RTX5090"],
    }
    assert len(document["offers"]) == 6


@pytest.mark.parametrize(
    ("query", "flag"),
    [({"gpu": "H10O!"}, "--gpu: "), ({"memory": "lots"}, "--memory: "), ({"min_download": "fast"}, "--min-download: ")],
)
def test_a_bad_filter_is_told_by_the_option_that_gave_it(query: dict[str, str], flag: str) -> None:
    with pytest.raises(Failure) as caught:
        asked_for(OffersQuery(**query))  # type: ignore[arg-type]
    assert [item.message.startswith(flag) for item in caught.value.diagnostics] == [True], caught.value.diagnostics


def test_skipped_nodes_and_why() -> None:
    assert "broken        gpu_count missing or no number" in offers_text(ask(), skipped=True)
    sound = expand_feed(NOW, [row("fine")])
    assert "No node was skipped." in offers_text(answer(sound, asked_for(OffersQuery())), skipped=True)


def test_the_catalogue_is_newer_than_the_feed() -> None:
    """The feed is made once a minute: a price that rose since, and GPUs that were taken, show in the catalogue first."""
    node = row("n1", gpu_count=8, available_gpu_count=4, price_per_gpu_hour=1.0)
    feed = expand_feed(NOW, [node], [{"id": "n1", "price_per_gpu": 1.2, "available_gpu_count": 2}])
    assert [(offer.gpu_count, offer.price_per_hour_usd) for offer in feed.offers] == [
        (1, Decimal("1.2")),
        (2, Decimal("2.4")),
    ]
    cheaper = expand_feed(NOW, [node], [{"id": "n1", "price_per_gpu": 0.8, "available_gpu_count": None}])
    assert [offer.price_per_hour_usd for offer in cheaper.offers] == [Decimal(count) for count in range(1, 5)]


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ({"price_per_gpu_hour": 2.0}, {}),
        ({"available_gpu_count": 0}, {}),
        ({"tier": "spot"}, {}),
        ({}, {"price_per_gpu": 3.0}),
        ({}, {"available_gpu_count": 0}),
        ({}, {"nvlink": True, "reliability_score": 0.5, "max_cuda_version": 12.4, "frequent_rent_failures": True}),
        ({}, {"effective_download_speed_mbps": 7}),
        (
            {},
            {"gpu_count": 1, "pending_price_per_hour": 3.0} | {"price_change_effective_date": "2026-09-11T00:00:00"},
        ),
        ({}, None),
    ],
)
def test_what_is_remembered_of_a_node_is_what_it_says_now(then: Row, told: Row | None) -> None:
    before, now = row("n1", price_per_gpu_hour=1.0), row("n1", **{"price_per_gpu_hour": 1.0, **then})
    catalogue = [] if told is None else [{"id": "n1", **told}]
    nodes = NodeMemory()
    dearer = read_catalogue([{"id": "n1", "price_per_gpu": 1.5}])
    assert gathered(NOW, [nodes.offers_of(before, dearer)]).offers[0].price_per_hour_usd == Decimal("1.5")
    for _ in range(2):
        read = gathered(NOW, [nodes.offers_of(now, read_catalogue(catalogue))])
        assert read == expand_feed(NOW, [now], catalogue)


def test_a_node_that_says_the_same_again_is_not_worked_out_again() -> None:
    """Its uptime, and what else of it nobody asks for, may have changed."""
    nodes = NodeMemory()
    first, second = (read_catalogue([{"id": "n1", "nvlink": True, "uptime_in_minutes": at}]) for at in (7, 8))
    assert nodes.offers_of(row("n1"), first) is nodes.offers_of(row("n1"), second)


@pytest.mark.parametrize(
    ("absurd", "told"),
    [
        ({"cpu_count": 1e308}, {}),
        ({"cpu_count": -(10**400)}, {}),
        ({"ram_gb": 1e308}, {}),
        ({"disk_free_gb": 1e308}, {}),
        ({}, {"gpu_count": "9" * 5000, "pending_price_per_hour": 1.0}),
    ],
)
def test_one_absurd_row_keeps_nobody_from_the_others(absurd: Row, told: Row) -> None:
    feed = expand_feed(NOW, [row("n1", **absurd), row("n2")], [{"id": "n1", **told}])
    assert [offer.node_id for offer in feed.offers] == ["n2"]
    assert [skipped.node_id for skipped in feed.skipped] == ["n1"]


def test_what_is_nested_too_deeply_to_be_compared_is_read_all_the_same() -> None:
    deep: object = None
    for _ in range(100_000):
        deep = [deep]
    nodes = NodeMemory()
    for price in (1.0, 2.0):
        offers = nodes.offers_of(row("n1", price_per_gpu_hour=price, note=deep), {})
        assert not isinstance(offers, Skipped)
        assert offers[0].price_per_hour_usd == Decimal(str(price))
