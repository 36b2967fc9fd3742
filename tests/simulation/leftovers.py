"""What killed runs leave behind, and what others do on the account meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from tests.simulation.manifests import HEAD
from tests.simulation.telling import RENT
from tests.support.world import ACCOUNT, Ran, World

SENT = ("POST /executors/*/rent", "on its way", 1)
WITH_LOGIN = HEAD + (
    "templates:\n  t:\n    image: limsim/torch:2.4\n"
    "    registry_auth: {username: '${{ env.REG_USER }}', password: '${{ env.REG_PASS }}'}\n"
)


def keys(world: World) -> list[tuple[str | None, str]]:
    """(idempotency key, body) of every rent of ours, in order."""
    rows = (row for row in world.lium.world.requests if row.method == "POST" and row.path.endswith("/rent"))
    return [(row.idempotency_key, row.body) for row in rows if row.body and '"lp-' in row.body]


async def killed_with_a_rent_on_its_way(world: World, *, served: bool) -> None:
    """`served`: the server made the pod. Otherwise nothing of it arrived."""
    if not served:
        world.fault({"do": "lose_reply", "where": "before"}, **RENT)
    killed = await world.apply(crash_on=SENT)
    assert killed.code is None
    await world.pass_time(1)
    assert len(world.open_charges("pod")) == served


def phases(ran: Ran) -> list[str]:
    return [event.phase for event in ran.events if event.phase]


def without(world: World, *sources: str) -> None:
    """What could tell of a pod's end says nothing."""
    if "events" in sources:
        world.configure(events_forbidden=True)
    if "statement" in sources:
        world.fault({"do": "answer", "status": 404}, method="GET", path="pods/*/statement", times=None)


async def missing(world: World, after_s: float) -> Ran:
    """The pod's row goes at once, with no removal before it, and the next apply looks."""
    assert (await world.apply()).code == 0
    await world.pass_time(after_s)
    world.fault({"do": "vanish", "pod": "*-a-0"})
    await world.pass_time(5)
    return await world.apply()


async def somebody_makes(world: World, path: str, body: Mapping[str, object]) -> str:
    """Another user of the account makes something, by hand."""
    headers = {"X-API-KEY": f"sk_sim_{ACCOUNT}"}
    async with httpx.AsyncClient(
        transport=world.lium.transport, base_url=world.lium.base_url, headers=headers
    ) as client:
        made = (await client.post(path, json=body)).raise_for_status().json()
        return str(made.get("pod_id") or made["id"])


async def somebody_deletes(world: World, path: str) -> None:
    headers = {"X-API-KEY": f"sk_sim_{ACCOUNT}"}
    async with httpx.AsyncClient(
        transport=world.lium.transport, base_url=world.lium.base_url, headers=headers
    ) as client:
        (await client.delete(path)).raise_for_status()
