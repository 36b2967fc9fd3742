"""A day in the life of a fleet of fifty pods, against a local Lium in process and in virtual time.

A small keeper asks once a minute what there is and makes up for what is missing, over an account that loses replies,
is refused, waits for limits and has pods reclaimed, broken and stuck. One seed is one history.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

import httpx

from bench.measure import table
from lium_plan.sim.app import BASE
from lium_plan.sim.inprocess import HOST, InProcess, open_in_process
from lium_plan.sim.settings import Market, Settings
from lium_plan.sim.simulator import Beginning
from tests.support.virtual import run_virtual

FLEET = 50
ROUND_S = 60.0
_PATIENCE = 5
"""So many refusals end a round."""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMo0m3Qk2PYRYPmVYt0z9y3nJ3n0X4mXwJ7nQw0mYw1u day"
FAULTS: tuple[dict[str, Any], ...] = (
    {"effect": {"do": "lose_reply", "where": "after"}, "match": {"path": "/executors/*/rent", "after": 3}},
    {"effect": {"do": "lose_reply", "where": "before"}, "match": {"path": "/executors/*/rent", "after": 20}},
    {"effect": {"do": "answer", "status": 500, "where": "after"}, "match": {"path": "/executors/*/rent", "after": 30}},
    {"effect": {"do": "answer", "status": 429}, "match": {"method": "GET", "path": "/pods", "after": 40, "times": 5}},
    {"effect": {"do": "answer", "status": 502, "text": "<html>"}, "match": {"path": "/pods", "after": 90, "times": 3}},
    {"effect": {"do": "delay", "seconds": 40}, "match": {"path": "/pods", "after": 200, "times": 2}},
    {"effect": {"do": "twist", "twist": {"stuck_delete": True}}, "match": {"path": "/executors/*/rent", "after": 60}},
    {"effect": {"do": "twist", "twist": {"fails": "no room"}}, "match": {"path": "/executors/*/rent", "times": 4}},
    {"effect": {"do": "break", "pod": "day-1*"}, "at": 4 * 3600},
    {"effect": {"do": "reclaim", "pod": "day-2*", "notice_seconds": 120}, "at": 9 * 3600},
    {"effect": {"do": "price", "node": "*", "factor": 1.3, "announced_seconds": 600}, "at": 12 * 3600},
    {"effect": {"do": "balance", "usd": 0}, "at": 15 * 3600},
    {"effect": {"do": "balance", "usd": 5000}, "at": 15.5 * 3600},
)


@dataclass(frozen=True, slots=True)
class Day:
    digest: str
    """SHA-256 of every answer's bytes in turn, the ledger at the end among them."""
    requests: int
    statuses: Counter[str]
    wall_s: float
    cpu_s: float


_DEAD = ("BROKEN", "CREATION_FAILED", "REBOOT_FAILED")


_STATUS = re.compile(rb'"status":"([A-Z_]+)"')
"""Looking for it is much cheaper than reading fifty rows."""


@cache
def _url(path: str) -> httpx.URL:
    return httpx.URL(f"{HOST}{path}" if path.startswith("/_sim") else f"{HOST}{BASE}{path}")


@dataclass(slots=True)
class _Keeper:
    lium: InProcess
    history: hashlib._Hash = field(default_factory=hashlib.sha256)
    statuses: Counter[str] = field(default_factory=Counter)
    names: count[int] = field(default_factory=lambda: count(1))

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """The answer's JSON, or None when there is none to be had."""
        raw = await self.fetch(method, path, body, **headers)
        return json.loads(raw) if raw else None

    async def fetch(self, method: str, path: str, body: object = None, **headers: str) -> bytes:
        sent = {"X-API-KEY": "sk_sim_local", **{name.replace("_", "-"): value for name, value in headers.items()}}
        content = None if body is None else json.dumps(body).encode()
        request = httpx.Request(method, _url(path), headers=sent, content=content, extensions={"timeout": {"read": 30}})
        try:
            response = await self.lium.transport.handle_async_request(request)
        except httpx.TransportError as problem:
            self._note("lost", str(problem).encode())
            return b""
        raw = await response.aread()
        self._note(str(response.status_code), raw)
        return raw if response.status_code < 300 else b""

    def _note(self, status: str, answer: bytes) -> None:
        self.statuses[status] += 1
        self.history.update(f"\n{status} {len(answer)} ".encode())
        self.history.update(answer)

    async def keep(self, seconds: float) -> None:
        await self.ask("POST", "/_sim/faults", list(FAULTS))
        template = await self.ask("POST", "/templates", {"name": "day", "docker_image": "limsim/day"})
        for _ in range(int(seconds / ROUND_S)):
            await self.make_up(template["id"])
            await asyncio.sleep(ROUND_S)
        await self.ask("GET", "/users/me/events?limit=1000")
        await self.ask("GET", "/_sim/ledger")

    async def make_up(self, template_id: str) -> None:
        answer = await self.fetch("GET", "/pods")
        if not answer:
            return
        statuses = Counter(_STATUS.findall(answer))
        if any(statuses[status.encode()] for status in _DEAD):
            for pod in json.loads(answer):
                if pod["status"] in _DEAD:
                    await self.ask("DELETE", f"/pods/{pod['id']}")
        living = statuses[b"RUNNING"] + statuses[b"PENDING"]
        if living >= FLEET:
            return
        refused = 0
        feed = await self.ask("GET", "/public/v1/nodes")
        for row in sorted(feed["nodes"], key=lambda row: (row.get("price_per_gpu_hour") or 99.0, row["id"])):
            if living >= FLEET or refused == _PATIENCE:
                return
            if row.get("min_rentable_gpu_count") != 1:
                continue
            number = next(self.names)
            body = {
                "pod_name": f"day-{number}",
                "template_id": template_id,
                "gpu_count": 1,
                "user_public_key": [KEY],
                "termination_hours": 5 + number % 7,
            }
            answer = await self.ask("POST", f"/executors/{row['id']}/rent", body, Idempotency_Key=f"day-{number}")
            living += answer is not None
            refused += answer is None


def a_day(seed: int = 7, *, hours: float = 24) -> Day:
    """Live through one day, or so many hours of it. Raises the virtual loop's `Deadlock` when nothing could go on."""

    async def main() -> _Keeper:
        settings = Settings(market=Market.LIVELY, balance_usd=5000)
        async with open_in_process(Beginning(seed=seed, settings=settings)) as lium:
            keeper = _Keeper(lium)
            await keeper.keep(hours * 3600)
            return keeper

    wall, cpu = time.perf_counter(), time.process_time()
    keeper = run_virtual(main(), limit_s=None)
    return Day(
        keeper.history.hexdigest(),
        keeper.statuses.total(),
        keeper.statuses,
        time.perf_counter() - wall,
        time.process_time() - cpu,
    )


def main() -> int:
    """1 when the two days differ."""
    print(f"a simulated day of a fleet of {FLEET} pods with faults, in virtual time, twice")
    days = [a_day(), a_day()]
    rows = [
        (str(number), f"{day.wall_s:.2f}", f"{day.cpu_s:.2f}", str(day.requests), day.digest[:16])
        for number, day in enumerate(days, 1)
    ]
    print(table(("run", "wall s", "cpu s", "requests", "digest"), rows), end="")
    same = days[0].digest == days[1].digest
    print(f"identical bytes: {'yes' if same else 'NO'}; limit: 5 s")
    return 0 if same else 1
