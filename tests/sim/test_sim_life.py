"""Random requests against a lively market, with faults: what must hold whatever happens."""

from __future__ import annotations

import asyncio
import random
from decimal import Decimal

import httpx
import pytest

from lium_plan.sim import lifecycle, market, money
from lium_plan.sim.bare import BareRuntime
from lium_plan.sim.rows import ContainerState, PodStatus
from tests.sim.lab import Lab, in_lab

EFFECTS: tuple[dict[str, object], ...] = (
    {"do": "lose_reply", "where": "after"},
    {"do": "lose_reply", "where": "before"},
    {"do": "lose_reply", "where": "inside"},
    {"do": "delay", "seconds": 45},
    {"do": "answer", "status": 500, "where": "after"},
    {"do": "twist", "twist": {"fails": "boom"}},
    {"do": "twist", "twist": {"gpu_count": 1, "price_factor": 3}},
    {"do": "break", "pod": "p*"},
    {"do": "reclaim", "pod": "p1*"},
    {"do": "vanish", "pod": "p2*"},
    {"do": "take_node"},
    {"do": "price", "node": "*", "factor": 1.1, "announced_seconds": 100},
)


def check(lab: Lab) -> None:
    world = lab.world
    for pod in world.pods:
        open_charges = [charge for charge in world.charges.where("object", pod.id) if charge.until is None]
        billed = lifecycle.is_in_use(pod)
        assert len(open_charges) == int(billed), (pod.status, open_charges)
        if open_charges:
            assert open_charges[0].price_per_hour == pod.price_per_hour
        if pod.deleted_at is None and pod.status in (PodStatus.BROKEN, PodStatus.DELETING):
            assert pod.container is ContainerState.NONE
    for node in world.nodes:
        assert 0 <= market.available(world, node) <= node.gpu_count
        assert 0 <= node.others <= node.gpu_count
    for account in world.accounts:
        spent = sum((money.amount(world, charge) for charge in world.charges.where("account", account.id)), Decimal(0))
        assert abs(money.balance(world, account.id) + spent - 5000) < Decimal("0.000001")


async def step(lab: Lab, throw: random.Random, template: str) -> None:
    pods = [pod.id for pod in lab.world.pods.where("alive", True)]
    nodes = [node for node in lab.world.nodes if market.is_listed(lab.world, node)]
    roll = throw.random()
    try:
        if roll < 0.3 and nodes:
            node = throw.choice(nodes)
            body = {
                "pod_name": f"p{throw.randrange(10)}",
                "template_id": template,
                "gpu_count": throw.randint(1, node.gpu_count),
                "user_public_key": "k",
                "termination_hours": throw.choice((0, 1, 2)),
            }
            path = f"/executors/{node.id}/rent"
            await lab.call("POST", path, body, Idempotency_Key=f"k{throw.randrange(6)}")
        elif roll < 0.5 and pods:
            await lab.call("DELETE", f"/pods/{throw.choice(pods)}")
        elif roll < 0.6 and pods:
            await lab.call("POST", f"/pods/{throw.choice(pods)}/reboot", {})
        elif roll < 0.7:
            await lab.fault(throw.choice(EFFECTS), match={"path": throw.choice(("/executors/**", "/pods/*"))})
        elif roll < 0.8:
            await lab.call("GET", "/pods")
        else:
            await asyncio.sleep(throw.choice((0.5, 10, 60, 600)))
    except httpx.TransportError:
        pass  # a lost or late reply, as ordered


@pytest.mark.parametrize("seed", range(6))
def test_money_machines_and_nodes_stay_consistent(seed: int) -> None:
    async def body(lab: Lab) -> None:
        throw = random.Random(seed)
        template = await lab.template()
        for _ in range(150):
            await step(lab, throw, template)
            check(lab)
        await lab.control("DELETE", "/faults")
        await asyncio.sleep(60)  # requests that were made late are served
        for pod in lab.world.pods.where("alive", True):
            await lab.call("DELETE", f"/pods/{pod.id}")
        await asyncio.sleep(300)
        check(lab)
        assert await lab.get("/pods") == []
        assert [row for row in await lab.ledger() if row["to"] is None] == []
        runtime = lab.lium.simulator.runtime
        assert isinstance(runtime, BareRuntime)
        assert runtime.running == {}

    in_lab(body, seed=seed, market="lively", balance_usd=5000, pods_limit_per_minute=0)
