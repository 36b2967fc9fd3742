"""A local Lium in virtual time, and the few requests that most tests begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from lium_plan.sim.inprocess import HOST, InProcess, open_in_process
from lium_plan.sim.settings import Settings
from lium_plan.sim.simulator import Beginning
from lium_plan.sim.world import World
from tests.support.virtual import run_virtual

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMo0m3Qk2PYRYPmVYt0z9y3nJ3n0X4mXwJ7nQw0mYw1u test"


class Lab:
    """`call` and its short forms talk to the API as the account `local`; `control` to `/_sim`."""

    def __init__(self, lium: InProcess) -> None:
        self.lium = lium
        self.client = httpx.AsyncClient(transport=lium.transport, base_url=lium.base_url, timeout=30)

    @property
    def world(self) -> World:
        return self.lium.world

    async def call(
        self, method: str, path: str, body: object = None, *, key: str | None = "sk_sim_local", **headers: str
    ) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            sent["X-API-KEY"] = key
        return await self.client.request(method, path, json=body, headers=sent)

    async def get(self, path: str, **options: Any) -> Any:
        return good(await self.call("GET", path, **options))

    async def post(self, path: str, body: object, **options: Any) -> Any:
        return good(await self.call("POST", path, body, **options))

    async def control(self, method: str, path: str, body: object = None) -> Any:
        return good(await self.client.request(method, f"{HOST}/_sim{path}", json=body))

    async def fault(self, effect: dict[str, object], **rest: object) -> None:
        await self.control("POST", "/faults", {"effect": effect, **rest})

    async def template(self, **fields: object) -> str:
        """Made behind the limiter's back, so that tests needn't wait."""
        body = {"name": "t", "docker_image": "limsim/plain", **fields}
        made = await self.control("POST", "/objects", {"kind": "template", "body": body})
        return str(made["id"])

    def node(self, *, split: bool = True, spare: int = 2) -> str:
        """A node of the feed with at least `spare` free GPUs."""
        for node in self.world.nodes:
            splits = node.min_rentable == 1 and node.gpu_count > 1
            if splits is split and node.gpu_count - node.others >= spare and node.gpu_count > 1:
                return node.id
        raise AssertionError("no such node in this world")

    async def rent_body(self, **fields: object) -> dict[str, object]:
        body: dict[str, object] = {"pod_name": "p", "gpu_count": 1, "user_public_key": [KEY]}
        if "template_id" not in fields and "dockerfile_content" not in fields:
            body["template_id"] = await self.template()
        return {**body, **fields}

    async def rent(self, node: str | None = None, *, key: str = "sk_sim_local", **fields: object) -> str:
        body = await self.rent_body(**fields)
        answer = await self.post(f"/executors/{node or self.node()}/rent", body, key=key)
        return str(answer["pod_id"])

    async def running(self, node: str | None = None, **fields: object) -> str:
        """A pod that is RUNNING."""
        pod_id = await self.rent(node, **fields)
        await self.control("POST", "/advance", {"seconds": 60})
        assert (await self.get(f"/pods/{pod_id}"))["status"] == "RUNNING"
        return pod_id

    async def ledger(self, kind: str = "pod") -> list[dict[str, Any]]:
        return [row for row in await self.control("GET", "/ledger") if row["kind"] == kind]


def good(response: httpx.Response) -> Any:
    assert response.status_code < 300, (response.request.url, response.status_code, response.text)
    return response.json() if response.content else None


def refusal(response: httpx.Response) -> tuple[int, str | None]:
    """Status and code of an answer in the error envelope; the envelope itself is checked on the way."""
    body = response.json()
    assert body["success"] is False
    assert body["status_code"] == response.status_code
    assert set(body["error"]) == {"code", "message", "hint", "request_id"}
    assert body["error"]["request_id"] == response.headers["X-Request-Id"]
    return response.status_code, body["error"]["code"]


@asynccontextmanager
async def open_lab(*, seed: int = 1, nodes: int = 84, **settings: object) -> AsyncIterator[Lab]:
    beginning = Beginning(seed=seed, nodes=nodes, settings=Settings.model_validate(settings))
    async with open_in_process(beginning) as lium:
        lab = Lab(lium)
        async with lab.client:
            yield lab


def in_lab(test: Callable[[Lab], Awaitable[None]], **options: Any) -> None:
    """Run `test` in virtual time against a fresh world."""

    async def main() -> None:
        async with open_lab(**options) as lab:
            await test(lab)

    run_virtual(main(), limit_s=None)
