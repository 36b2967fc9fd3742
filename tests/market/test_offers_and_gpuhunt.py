"""Our offers beside those of gpuhunt 0.1.34, and beside the truth of the hosts, on thousands of generated feeds.

gpuhunt is the catalogue that dstack rents Lium nodes by; it was run against the live server. The same rows must give
the same offers, and none of memory, disk or CPU may be more than the pod will really have (contract §5.1).
"""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from bench.venvs import client_bin
from lium_plan.kinds.pod.feed import expand_node
from lium_plan.kinds.pod.gpus import KNOWN, MEMORY_GIB
from lium_plan.kinds.pod.offers import Offer, Skipped
from tests.support.feeds import expand_feed

NOW = datetime(2026, 9, 10, 12, 0, tzinfo=UTC)
FEEDS = 2000
ROWS = 6
Row = dict[str, Any]

# One row a line in, its offers or null (it stumbled) a line out; the rows' own parser, so that a feed costs no request.
BATCH = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from gpuhunt._internal.constraints import KNOWN_NVIDIA_GPUS
from gpuhunt.providers import lium
print(json.dumps([[gpu.name, gpu.memory] for gpu in KNOWN_NVIDIA_GPUS]))
for line in sys.stdin:
    try:
        found = [
            [o.instance_name, o.gpu_count, o.location, o.price, o.cpu]
            + [o.memory, o.gpu_name, o.gpu_memory, o.spot, o.disk_size]
            for o in lium._make_offers(json.loads(line))
        ]
    except Exception:
        found = None
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def gpuhunt() -> str:
    try:
        return str(client_bin("gpuhunt-0.1.34", "gpuhunt==0.1.34") / "python")
    except subprocess.CalledProcessError as problem:
        pytest.skip(f"no index to install gpuhunt from: {problem}")


def test_equal_offers_on_thousands_of_feeds(gpuhunt: str) -> None:
    dice = random.Random("feeds")
    rows = [row(dice) for _ in range(FEEDS * ROWS)]
    asked = "".join(json.dumps(item) + "\n" for item in rows)
    done = subprocess.run([gpuhunt, "-c", BATCH], input=asked, capture_output=True, text=True, check=True, timeout=170)
    first, *answers = (json.loads(line) for line in done.stdout.splitlines())
    known: dict[str, set[int]] = {}
    for name, memory in first:
        known.setdefault(name, set()).add(memory)
    assert known == {name: set(sizes) for name, sizes in MEMORY_GIB.items()}
    stumbled = offered = skipped = lower = 0
    for item, theirs in zip(rows, answers, strict=True):
        ours = expand_node(item)
        if theirs is None or any(not math.isfinite(found[3]) or not math.isfinite(found[5]) for found in theirs):
            stumbled += 1
            assert isinstance(ours, Skipped), item
            assert ours.reason
            continue
        mine = () if isinstance(ours, Skipped) else ours
        skipped += isinstance(ours, Skipped)
        assert [identity(offer) for offer in mine] == [(*found[:4], found[8]) for found in theirs], (item, ours)
        for offer, found in zip(mine, theirs, strict=True):
            offered += 1
            assert (offer.gpu.lower(), offer.gpu_memory_gib) == (found[6].lower(), max(0, found[7])), item
            pairs = ((offer.cpu, found[4], 1), (offer.disk_gb, found[9], 1), (offer.memory_gib, found[5], 2))
            for mine_is, theirs_is, apart in pairs:
                ulps = 1e-12 * theirs_is
                assert -ulps <= theirs_is - mine_is <= apart + ulps, (item, offer, found)
            lower += offer.memory_gib < found[5]
    assert offered > 8_000
    assert skipped > 3_000
    assert lower > 300
    assert stumbled < len(rows) / 50


def identity(offer: Offer) -> tuple[object, ...]:
    return offer.node_id, offer.gpu_count, offer.location, float(offer.price_per_hour_usd), offer.spot


# --- what hosts really give ----------------------------------------------------------------------------------


def test_never_more_than_the_host_gives() -> None:
    dice = random.Random("hosts")
    for _ in range(5_000):
        total = dice.choice((1, 2, 3, 4, 5, 6, 7, 8, 10, 16))
        ram = dice.choice(
            (dice.uniform(5, 600), dice.uniform(390, 410), dice.uniform(600, 4000), dice.randint(6, 2100))
        )
        disk = dice.choice((dice.uniform(5, 9000), dice.randint(5, 9000), dice.randint(5, 900) + 0.5))
        cpus = dice.randint(1, 400)
        listed = {**PLAIN, "gpu_count": total, "available_gpu_count": total, "cpu_count": cpus}
        listed |= {"ram_gb": rounded(ram), "disk_free_gb": rounded(disk)}
        ours = expand_node(listed)
        for offer in () if isinstance(ours, Skipped) else ours:
            real = truth(ram, disk, cpus, offer.gpu_count / total)
            assert offer.memory_gib <= real["memory"], (listed, ram, offer)
            assert offer.disk_gb <= real["disk"], (listed, disk, offer)
            assert offer.local_disk_gb <= real["local"], (listed, disk, offer)
            assert offer.cpu <= real["cpu"] <= offer.cpu + 1
            assert real["memory"] - offer.memory_gib <= 2, (listed, ram, offer)  # a bound that is of use


def truth(ram_gib: float, disk_gb: float, cpus: int, share: float) -> Mapping[str, int]:
    """What the node sets for a pod with this share of it (contract §5.1), from its real figures."""
    reserve = max(4, math.ceil(ram_gib * 0.01))
    asked = (ram_gib - 2) * share
    return {
        "memory": max(1, math.floor(min(asked, (ram_gib - reserve) * share))),
        "disk": int(disk_gb * share / 3),
        "local": int(disk_gb * share * 2 / 3),
        "cpu": int(cpus * share),
    }


def rounded(real: float) -> int:
    """To the nearest, as the feed does; halves either way."""
    return math.floor(real + 0.5)


# --- rows ----------------------------------------------------------------------------------------------------

PLAIN: Row = {
    "id": "ebdfdbe2-875a-4caa-8eea-1ab5c2a763e1",
    "gpu_model": "RTX 5090",
    "gpu_count": 8,
    "available_gpu_count": 8,
    "min_rentable_gpu_count": 1,
    "price_per_gpu_hour": 0.5,
    "gpu_memory_gb": 32,
    "cpu_count": 384,
    "ram_gb": 251,
    "disk_gb": 935,
    "disk_free_gb": 800,
    "tier": "secure",
    "country_code": "JP",
    "region": "13",
}
ODD: tuple[object, ...] = (
    *(None, True, False, 0, 1, -1, -7, 0.4, 2.9, -0.5, 1e-7, 1e9, 1e19, 10**12, 1e300),
    *("", " ", "8", "2.5", "-3", " 4 ", "1_0", "nan", "inf", "x", "８", [], [1], {}, {"a": 1}),
)
NAMES = (
    *(
        "RTX 5090",
        "H100 80GB HBM3",
        "A100-SXM4-80GB",
        "RTX PRO 6000 Blackwell Server Edition",
        "RTX 6000 Ada Generation",
    ),
    *("B300 SXM6 AC", "B300 SXM6 PC", "RTX A6000", "rtx a6000", "H200 NVL", "NVIDIA H200", "GH200", "GH200 480GB"),
    *(
        "Tesla V100 Tensor Core GPU",
        "NVIDIA GeForce RTX 3090",
        "nvidia geforce rtx-4090",
        "h100",
        "H100NVL",
        "H100 PCIe",
    ),
    *(
        "A100 80 GB",
        "L40S",
        "L 40 S",
        "MI300X",
        "H2000",
        "XH200",
        "",
        "  ",
        "RTX A",
        "NVIDIA",
        "RTX4090D",
        "T4\n",
        "Ｈ100",
    ),
    *(5090, 3.5, True, ["H100"], {"a": "H100"}, "Quadro RTX 6000", "RTX PRO 4500 Blackwell", "RTX 4070 Ti SUPER"),
)
PLACES = (None, "US", "us ", "JP", "", " ", 7, 0, True, False, ["US"], "Ru", "G B", "ß", "İ")
REGIONS = (None, "CA", "13", "", " ", 13, 0, "MOW", "N Y", "NY-1", True, ["x"])


def row(dice: random.Random) -> Row:
    """A row of a feed: mostly sound, often with something wrong in it."""
    total = dice.choice((1, 2, 3, 4, 6, 7, 8, 8, 8, 10))
    item: Row = {
        **PLAIN,
        "id": f"node-{dice.randrange(10**9)}",
        "gpu_model": dice.choice((*sorted(KNOWN), *NAMES)),
        "gpu_count": total,
        "available_gpu_count": dice.randint(0, total + 1),
        "min_rentable_gpu_count": dice.choice((1, 1, 2, total, None)),
        "price_per_gpu_hour": dice.choice(
            (round(dice.uniform(0.05, 8), 2), dice.uniform(0.01, 3), dice.random() / 1e4)
        ),
        "gpu_memory_gb": dice.choice(
            (8, 16, 24, 31.5, 32, 40, 48, 79, 80, 94, 96, 140, 141, 180, 275, dice.uniform(1, 300))
        ),
        "cpu_count": dice.choice((dice.randint(1, 400), dice.uniform(1, 64))),
        "ram_gb": dice.choice(
            (dice.randint(1, 2100), dice.randint(395, 405), dice.uniform(1, 4000), 100 * dice.randint(4, 20))
        ),
        "disk_free_gb": dice.choice((dice.randint(1, 9000), dice.randint(1, 60), dice.uniform(1, 3000), 24.5, 12.5)),
        "tier": dice.choice(("secure", "secure", "spot", "SPOT", None, 1)),
        "country_code": dice.choice((*("US",) * 8, *PLACES)),
        "region": dice.choice((*("CA",) * 8, *REGIONS)),
    }
    for _ in range(dice.choice((0, 0, 0, 1, 1, 2, 3))):
        name = dice.choice(tuple(item))
        if dice.random() < 0.2:
            item.pop(name)
        elif name == "gpu_count" and dice.random() < 0.5:
            item[name] = dice.choice((str(total), float(total) + 0.9, total + 1))
        else:
            item[name] = dice.choice(ODD)
    huge = item.get("gpu_count")
    if isinstance(huge, int | float) and huge > 1000:
        item["gpu_count"] = 1000  # more would only make it slow: there would be an offer for each
    return item


def feeds(dice: random.Random) -> Iterator[list[object]]:
    while True:
        yield [dice.choice((row(dice), dice.choice(ODD))) for _ in range(ROWS)]


def test_every_row_gives_offers_or_a_reason() -> None:
    some = feeds(random.Random("reasons"))
    for _ in range(500):
        rows = next(some)
        feed = expand_feed(NOW, rows)
        assert feed.nodes == len(rows)
        reasons = [item.reason for item in feed.skipped]
        assert all(reasons)
        prices = [offer.price_per_hour_usd for offer in feed.offers]
        assert prices == sorted(prices)
        kept = [item for item in rows if not isinstance(expand_node(item), Skipped)]
        assert len(kept) + len(reasons) == len(rows)


def test_a_host_with_millions_of_gpus_is_not_believed() -> None:
    found = expand_node({**PLAIN, "gpu_count": 10**9, "available_gpu_count": 10**9})
    assert isinstance(found, Skipped)
    assert "more than any host has" in found.reason
