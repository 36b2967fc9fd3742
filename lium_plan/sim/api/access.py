"""What routes ask of a request: the simulator, the world, who calls and with which scope."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from lium_plan.sim.accounts import Caller
from lium_plan.sim.exchange import Exchange, exchange_of
from lium_plan.sim.refusal import Refusal, not_found
from lium_plan.sim.rows import Pod, Scope
from lium_plan.sim.simulator import Simulator
from lium_plan.sim.world import World

# Each asks the request alone: FastAPI pays for every step between dependencies.


async def _simulator(request: Request) -> Simulator:
    simulator = request.scope["state"]["simulator"]
    assert isinstance(simulator, Simulator)
    return simulator


async def _world(request: Request) -> World:
    return (await _simulator(request)).world


async def _exchange(request: Request) -> Exchange:
    return exchange_of(request)


async def _anyone(request: Request) -> Caller | None:
    """Public routes: no key is fine, a wrong one is not (contract §15.7)."""
    caller: Caller | None = request.scope["state"]["caller"]
    if caller is None and (request.headers.get("x-api-key") or request.headers.get("authorization")):
        raise unauthorized()
    return caller


async def _caller(request: Request) -> Caller:
    caller: Caller | None = request.scope["state"]["caller"]
    if caller is None:
        raise unauthorized()
    return caller


def unauthorized() -> Refusal:
    return Refusal(401, "unauthorized", "Invalid or missing API key", hint="Send a valid key in X-API-KEY.")


Calling = Annotated[Caller, Depends(_caller)]
"""Somebody with a valid key or session, whatever its scopes."""


async def _reader(request: Request) -> Caller:
    caller = await _caller(request)
    caller.need(Scope.READ)
    return caller


async def _renter(request: Request) -> Caller:
    caller = await _caller(request)
    caller.need(Scope.RENT)
    return caller


async def _manager(request: Request) -> Caller:
    caller = await _caller(request)
    caller.need(Scope.MANAGE)
    return caller


async def _pod_changer(request: Request) -> Caller:
    caller = await _caller(request)
    caller.need(Scope.MANAGE, Scope.RENT)
    return caller


async def _session(request: Request) -> Caller:
    caller = await _caller(request)
    if not caller.session:
        raise Refusal(403, "session_required", "This needs a session, not an API key")
    return caller


Anyone = Annotated[Caller | None, Depends(_anyone)]
Reader = Annotated[Caller, Depends(_reader)]
Renter = Annotated[Caller, Depends(_renter)]
Manager = Annotated[Caller, Depends(_manager)]
PodChanger = Annotated[Caller, Depends(_pod_changer)]
SessionOnly = Annotated[Caller, Depends(_session)]
TheWorld = Annotated[World, Depends(_world)]
TheSimulator = Annotated[Simulator, Depends(_simulator)]
TheExchange = Annotated[Exchange, Depends(_exchange)]


def living_pod(world: World, caller: Caller, pod_id: object) -> Pod:
    """A pod whose row is there and that the key sees. Raises Refusal 404."""
    pod = world.pods.get(str(pod_id))
    if pod is None or pod.deleted_at is not None or not caller.sees(pod):
        raise not_found("Pod")
    return pod


def past_pod(world: World, caller: Caller, pod_id: object) -> Pod:
    """Also one that is gone: its statement, record and events stay."""
    pod = world.pods.get(str(pod_id))
    if pod is None or not caller.sees(pod):
        raise not_found("Pod")
    return pod
