"""gpuhunt 0.1.34 reads our feed, and finds the offers that our own expansion finds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from tests.contract.conftest import GPUHUNT, Server, client
from tests.support.feeds import expand_feed

SAVED = Path(__file__).parent.parent / "data" / "nodes-2026-09-10.json"

ASK = """
import json, sys
from gpuhunt.providers import lium
lium.NODES_URL = sys.argv[1]
print(json.dumps([
    [o.instance_name, o.gpu_count, o.location, o.price, o.cpu, o.memory, o.gpu_name, o.gpu_memory, o.spot, o.disk_size]
    for o in lium.LiumProvider().get()
]))
"""


def theirs(url: str) -> list[list[object]]:
    python = client(*GPUHUNT) / "python"
    done = subprocess.run([str(python), "-c", ASK, url], capture_output=True, text=True, check=True, timeout=120)
    found: list[list[object]] = json.loads(done.stdout)
    return found


def ours(url: str) -> list[list[object]]:
    nodes = httpx.get(url).json()["nodes"]
    return [
        [
            offer.node_id,
            offer.gpu_count,
            offer.location,
            float(offer.price_per_hour_usd),
            offer.cpu,
            offer.memory_gib,
            offer.gpu,
            float(offer.gpu_memory_gib),
            offer.tier.value == "spot",
            float(offer.disk_gb),
        ]
        for offer in expand_feed(datetime.now(UTC), nodes).offers
    ]


@pytest.mark.parametrize("options", [(), ("--seed", "5", "--nodes", "300"), ("--feed", str(SAVED))])
def test_it_finds_the_same_offers(start: Callable[..., Server], options: tuple[str, ...]) -> None:
    if "--feed" in options and not SAVED.exists():
        pytest.skip(f"no saved feed at {SAVED}")
    url = f"{start('--no-machines', *options).base_url}/public/v1/nodes"
    by_id = {(row[0], row[1]): row for row in ours(url)}
    found = theirs(url)
    assert {(row[0], row[1]) for row in found} == set(by_id)
    assert len(found) >= 8
    memory = 5
    for row in found:
        mine = by_id[row[0], row[1]]
        assert mine[:memory] + mine[memory + 1 :] == row[:memory] + row[memory + 1 :]
        # It takes 1 % of the host's memory as reserve where the node rounds that up (contract §5.1): ours is lower.
        assert 0 <= float(str(row[memory])) - float(str(mine[memory])) <= 1
