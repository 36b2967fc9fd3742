"""Why nothing, or nothing cheaper, fits: the counts add up, and what is advised really helps, in any market."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from decimal import Decimal

import pytest

from bench.placement import feed_of
from lium_plan.addresses import parse
from lium_plan.kinds.pod.block import FleetBlock
from lium_plan.kinds.pod.offers import Bounds, Offer, Requirement, Tier
from lium_plan.kinds.pod.spec import requirement_of
from lium_plan.planning.exclusions import RISING, TAKEN, Exclusion, cure, explain
from lium_plan.planning.placement import Need, place

MARKETS = 1500
FIELDS = {
    "gpu": "gpus",
    "gpu memory": "gpu_memory",
    "gpu count": "gpu_count",
    "max_price": "max_price_usd",
    "spot_policy": "tiers",
    "min_download": "min_download_mbps",
}


def offers(dice: random.Random) -> list[Offer]:
    found = []
    for number in range(dice.randint(0, 14)):
        price = Decimal(dice.randint(20, 300)) / 100
        told = dice.random() < 0.7
        found.append(
            Offer(
                node_id=f"n{number % 12}",
                gpu=dice.choice(("H100", "A100", "L4")),
                gpu_count=dice.choice((1, 1, 2, 8)),
                gpu_memory_gib=dice.choice((24, 80)),
                cpu=dice.choice((4, 8, 16, 32)),
                memory_gib=dice.choice((16, 64, 249)),
                disk_gb=dice.choice((20, 30, 61, 400)),
                local_disk_gb=100,
                price_per_hour_usd=price,
                price_per_gpu_hour_usd=price,
                location=dice.choice(("us", "us-ca", "de", "jp-13")),
                tier=dice.choice((Tier.SECURE, Tier.SPOT)),
                download_mbps=Decimal(dice.randint(1, 900)) if told else None,
                cuda=Decimal(dice.choice(("12.1", "12.8"))) if told else None,
                nvlink=dice.random() < 0.5 if told else None,
                reliable=dice.random() < 0.8 if told else None,
                pending_price_per_hour_usd=price * 3 if dice.random() < 0.1 else None,
            )
        )
    return found


def some_offer() -> Offer:
    return next(offer for seed in range(99) for offer in offers(random.Random(seed)) if offer.cuda is not None)


def bounds(dice: random.Random, *values: int) -> Bounds:
    low, high = sorted(dice.sample(values, 2))
    either = ((None, None), (None, None), (low, None), (None, high), (low, high))
    return Bounds(*(None if value is None else Decimal(value) for value in dice.choice(either)))


def requirement(dice: random.Random) -> Requirement:
    rare = dice.random
    return Requirement(
        gpus=dice.choice(((), ("h100",), ("h100",), ("a100", "h100"))),
        gpu_count=dice.choice((1, 1, 2, 8)),
        gpu_memory=bounds(dice, 16, 40, 80),
        cpu=bounds(dice, 2, 6, 12, 24),
        memory=bounds(dice, 8, 32, 100, 300),
        disk=bounds(dice, 10, 25, 100, 500),
        regions=dice.choice(((), (), ("us",), ("us-ca", "de"))),
        tiers=dice.choice(((Tier.SECURE,), (Tier.SPOT,), (Tier.SECURE, Tier.SPOT))),
        max_price_usd=Decimal(dice.randint(30, 250)) / 100 if rare() < 0.4 else None,
        node_ids=("n1", "n2", "n3") if rare() < 0.1 else (),
        exclude_nodes=("n4", "n5") if rare() < 0.2 else (),
        min_download_mbps=Decimal(300) if rare() < 0.2 else None,
        nvlink=rare() < 0.1,
        reliable=rare() < 0.1,
        min_cuda=Decimal("12.4") if rare() < 0.1 else None,
    )


def loosened(wanted: Requirement, name: str, offer: Offer) -> Requirement:
    """With what the cure says written into the manifest, by the manifest's own reading where it has one."""
    text = cure(wanted, name, offer)
    if name == "node_ids":
        return replace(wanted, node_ids=(*wanted.node_ids, text))
    if name == "exclude_nodes":
        kept = tuple(node for node in wanted.exclude_nodes if node != text.removeprefix("not excluding "))
        return replace(wanted, exclude_nodes=kept)
    if text == "leaving it out":
        without = Requirement((), 0)
        field = FIELDS.get(name, name)
        return replace(wanted, **{field: getattr(without, field)})
    if name == "regions":
        return replace(wanted, regions=(*wanted.regions, text))
    gpu = {"gpu": {"name": text, "count": 1}, "gpu count": {"count": int(text) if text.isdigit() else 1}}
    written: dict[str, object] = {"gpu": gpu.get(name, {"count": 1})}
    outer: dict[str, object] = {}
    if name == "gpu memory":
        written["gpu"] = {"memory": text, "count": 1}
    elif name in ("cpu", "memory", "disk"):
        written[name] = text
    elif name not in gpu:
        outer[name] = Decimal(text.removeprefix("$")) if name in ("max_price", "min_cuda") else text
    if name in ("max_price", "min_cuda"):
        return replace(wanted, **{FIELDS.get(name, name): Decimal(text.removeprefix("$"))})
    read = requirement_of(FleetBlock.model_validate({"image": "any", "resources": written, **outer}))
    field = FIELDS.get(name, name)
    return replace(wanted, **{field: getattr(read, field)})


def check(wanted: Requirement, offered: list[Offer], found: Exclusion) -> None:
    assert 0 < found.excluded <= found.considered <= len(offered), found
    if found.constraint in (TAKEN, RISING):
        return
    truly = [offer for offer in offered if found.constraint in wanted.violations(offer)]
    assert found.excluded <= len(truly)
    assert found.nearest in truly
    assert re.search(rf"excludes {found.excluded} of {found.considered}\b", str(found))
    looser = wanted
    for name in (found.constraint, *found.others):
        looser = loosened(looser, name, found.nearest)
    assert looser.fits(found.nearest), (found, wanted)
    if not found.others:
        new = [offer for offer in offered if looser.fits(offer) and not wanted.fits(offer)]
        assert found.nearest.price_per_hour_usd == min(offer.price_per_hour_usd for offer in new), (found, wanted)
        assert "would give the cheapest at" in str(found)


def test_counts_never_exceed_what_they_are_counted_of_and_every_cure_cures() -> None:
    seen: dict[str, int] = {}
    for seed in range(MARKETS):
        dice = random.Random(f"exclusions/{seed}")
        offered, wanted = offers(dice), requirement(dice)
        for found in explain(wanted, offered):
            check(wanted, offered, found)
            seen[found.constraint] = seen.get(found.constraint, 0) + 1
    assert {"gpu", "gpu count", "cpu", "memory", "disk", "regions", "spot_policy", "max_price"} <= set(seen)
    assert min(seen.values()) > 10, seen


def test_so_do_those_of_members_for_whom_nothing_is_left() -> None:
    taken = rising = 0
    for seed in range(MARKETS):
        dice = random.Random(f"placed/{seed}")
        offered, wanted = offers(dice), replace(requirement(dice), gpus=(), nvlink=False)
        needs = [Need(parse(f"fleet.a[{index}]"), wanted, "a") for index in range(dice.randint(1, 6))]
        for placed in place(needs, feed_of(offered)).values():
            assert (placed.offer is None) == bool(placed.exclusions) or not offered
            for found in placed.exclusions:
                check(wanted, offered, found)
                taken += found.constraint == TAKEN
                rising += found.constraint == RISING
                if found.constraint == RISING:
                    told = [o for o in offered if wanted.fits(o) and o.pending_price_per_hour_usd is not None]
                    assert found.excluded <= len(told), (found, offered)
    assert taken > 100
    assert rising > 10


def test_what_a_person_reads() -> None:
    """16 offers of one GPU; a disk of 30 GB leaves out 6 of them, the cheapest among them."""
    base = replace(some_offer(), gpu="H100", gpu_count=1, tier=Tier.SECURE)
    offered = [
        replace(
            base,
            node_id=f"m{index}",
            disk_gb=20 if index < 6 else 61,
            price_per_hour_usd=Decimal("0.24") + Decimal(index) / 100,
        )
        for index in range(16)
    ]
    wanted = Requirement(("h100",), 1, disk=Bounds(Decimal(30)))
    (found,) = explain(wanted, offered, fitting=())[:1]
    assert str(found) == "disk 30GB.. excludes 6 of 16; 20GB.. would give the cheapest at $0.24/h"


@pytest.mark.parametrize(
    ("written", "has", "advice"),
    [
        ("32GB..64GB", 16, "16GB..64GB"),
        ("32GB..64GB", 249, "32GB..249GB"),
        ("32GB..", 16, "16GB.."),
        ("..8GB", 16, "..16GB"),
        ("64GB", 128, "64GB.."),
        ("64GB", 32, "32GB.."),
    ],
)
def test_a_range_is_opened_on_one_side_only(written: str, has: int, advice: str) -> None:
    wanted = requirement_of(FleetBlock.model_validate({"image": "any", "resources": {"gpu": "1", "memory": written}}))
    offer = replace(some_offer(), memory_gib=has)
    assert cure(wanted, "memory", offer) == advice
