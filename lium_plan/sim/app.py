"""The ASGI app of a local Lium: the API under `/api`, control under `/_sim`."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lium_plan.sim.api import account, backups, catalogue, envelope, objects, pods, rent, workspaces
from lium_plan.sim.control import routes as control
from lium_plan.sim.simulator import Simulator
from lium_plan.sim.wire import DROP, Wire

BASE = "/api"
CONTROL = "/_sim"


class LocalLium:
    """Dispatches by prefix. `simulator` must be open (`async with`) while requests come in."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.wire = Wire(_api(), simulator, base=BASE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("the local Lium speaks HTTP only")
        try:
            await self._dispatch(scope, receive, send)
        except asyncio.CancelledError:  # the server ends: its connections with it
            if DROP not in scope.get("extensions", {}):
                raise
            scope["extensions"][DROP]()

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == BASE or path.startswith(f"{BASE}/"):
            await self.wire(self._under(BASE, _as_json(scope, always=False)), receive, send)
        elif path == CONTROL or path.startswith(f"{CONTROL}/"):
            await self._serve_control(self._under(CONTROL, _as_json(scope, always=True)), receive, send)
        else:
            await _plain(send, 404, {"detail": "Not Found"})

    def _under(self, prefix: str, scope: Scope) -> Scope:
        """The scope as the app mounted at `prefix` sees it; routes find the simulator in its state."""
        return {**scope, "root_path": prefix, "state": {"simulator": self.simulator}}

    async def _serve_control(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _from_here(scope):
            await _plain(send, 403, {"detail": "Control routes answer to loopback addresses only"})
            return
        self.simulator.advance()
        messages: list[Message] = []
        try:
            await _control()(scope, receive, _collecting(messages))
        except Exception as problem:
            if DROP not in scope.get("extensions", {}):
                raise
            self.simulator.say(f"{scope['method']} {scope['path']} failed: {problem!r}")
        kept = self.simulator.commit()
        self.simulator.machines.kick()
        if not kept:
            await _plain(send, 500, {"detail": "The world's file can't be written"})
            return
        for message in messages:
            await send(message)


def _collecting(messages: list[Message]) -> Send:
    async def send(message: Message) -> None:
        messages.append(message)

    return send


def _as_json(scope: Scope, *, always: bool) -> Scope:
    """A body without a type is JSON, as FastAPI had it for most of its life; releases differ in what they do now.
    Control routes take JSON under any type, so that `curl -d '{…}'` will do."""
    headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-type"]
    if not always and len(headers) != len(scope["headers"]):
        return scope
    return {**scope, "headers": [*headers, (b"content-type", b"application/json")]}


def _from_here(scope: Scope) -> bool:
    client = scope.get("client")
    if client is None:
        return True
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


async def _plain(send: Send, status: int, body: dict[str, str]) -> None:
    raw = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})


_PUBLIC = frozenset(
    {
        "/version",
        "/public/v1/nodes",
        "/executors/count",
        "/executors/total-count",
        "/machines",
        "/machines/capacity",
        "/keys/scopes",
        "/users/login",
    }
)
"""Routes that look at no key; those in `_OPTIONAL` answer without one and refuse a wrong one (contract §2, §15.7)."""
_OPTIONAL = frozenset({("get", "/executors"), ("get", "/executors/{executor_id}/quote"), ("get", "/templates")})


class _Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """FastAPI's document, with what a key is and where it is asked for, the bodies of rents, and the firewall's
        answer to deletions."""
        if self.openapi_schema is None:
            document = super().openapi()
            document["components"]["securitySchemes"] = {
                "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-KEY"},
                "Session": {"type": "http", "scheme": "bearer"},
            }
            for body in rent.BODIES:
                document["components"]["schemas"][body.__name__] = body.model_json_schema()
            keys: list[dict[str, list[str]]] = [{"ApiKey": []}, {"Session": []}]
            for path, methods in document["paths"].items():
                for method, route in methods.items():
                    if "requestBody" in route:
                        _without_null(route["requestBody"])
                    if method == "delete":
                        route["responses"]["4XX"]["content"]["text/plain"] = {"schema": {"type": "string"}}
                    if path not in _PUBLIC:
                        route["security"] = [*keys, {}] if (method, path) in _OPTIONAL else keys
        assert self.openapi_schema is not None
        return self.openapi_schema


def _without_null(body: dict[str, Any]) -> None:
    """A body that may be left out is taken as null too; a generated client should leave it out."""
    for content in body["content"].values():
        kinds = [kind for kind in content["schema"].get("anyOf", ()) if kind != {"type": "null"}]
        if len(kinds) == 1:
            content["schema"] = kinds[0]


@cache
def _api() -> _Api:
    app = _Api(
        title="Lium (local)",
        version="1",
        description="A local stand-in for the Lium API.",
        docs_url=None,
        redoc_url=None,
    )
    envelope.install(app)
    # Asked for most often first; routes of included routers would be looked through twice.
    for module in (pods, rent, catalogue, objects, account, backups, workspaces):
        app.router.routes.extend(module.router.routes)
    return app


@cache
def _control() -> ASGIApp:
    app = FastAPI(
        title="Control of the local Lium",
        version="1",
        description="Look into the simulated world, make things go wrong, move its time. Loopback only.",
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(control.router)
    return app
