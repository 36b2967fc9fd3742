"""Plan: nothing here sends anything but GETs, writes state or takes a lock."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace

from lium_plan.kinds.desired import Desired
from lium_plan.kinds.protocol import Json
from lium_plan.manifest.expand import expand, outline
from lium_plan.manifest.model import Manifest
from lium_plan.manifest.source import collection_paused
from lium_plan.operations.adopting import with_found
from lium_plan.operations.connecting import Connection, api_failures, connect, open_drivers
from lium_plan.operations.observing import observe
from lium_plan.operations.outside import REAL, Outside
from lium_plan.operations.validating import load_manifest
from lium_plan.planning.members import completed_fleets, members_now
from lium_plan.planning.moving import relocate
from lium_plan.planning.observed import Observed
from lium_plan.planning.plan import Plan
from lium_plan.planning.planner import make_plan as plan_changes
from lium_plan.requests import PlanRequest
from lium_plan.settings import Settings
from lium_plan.state.model import State, new_state


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with what it was made from, so that it can be carried out."""

    plan: Plan
    desired: Desired | None
    observed: Observed


async def make_plan(settings: Settings, request: PlanRequest, *, outside: Outside = REAL) -> Plan:
    """What `apply` would do now. Raises `Failure` when that can't be known."""
    with collection_paused():
        manifest = None if request.destroying else load_manifest(settings, request.sources)
        state = outside.open_store(settings).load().state
        async with connect(settings, outside=outside) as connection:
            known = state if state is not None else unborn_state(settings, manifest, outside)
            planned = await look_and_plan(settings, connection, manifest, known, request, born=state is not None)
            planned = _with_variables(planned, manifest, request)
        gc.freeze()  # all of it stays to the end of the command: nothing is to be found among it
    return planned.plan


def _with_variables(planned: Planned, manifest: Manifest | None, request: PlanRequest) -> Planned:
    """A saved plan keeps what `--var` gave, but for what is secret: the manifest is read with it again."""
    known = manifest.inputs.variables if manifest is not None else {}
    kept: dict[str, Json] = {}
    for name, value in request.sources.variables.items():
        variable = known.get(name)
        if variable is not None and not variable.sensitive:
            kept[name] = value
    return replace(planned, plan=replace(planned.plan, options={**(planned.plan.options or {}), "variables": kept}))


def unborn_state(settings: Settings, manifest: Manifest | None, outside: Outside) -> State:
    """The state that a first apply would begin with."""
    project = manifest.project if manifest is not None else ""
    return new_state(project, settings.stack, lineage=outside.new_uuid(), salt=outside.random_bytes(32))


async def look_and_plan(
    settings: Settings,
    connection: Connection,
    manifest: Manifest | None,
    state: State,
    request: PlanRequest,
    *,
    born: bool,
) -> Planned:
    """Observe, expand and plan. `born` False: the state exists only here so far. Raises `Failure`."""
    with collection_paused():
        return await _look_and_plan(settings, connection, manifest, state, request, born=born)


async def _look_and_plan(
    settings: Settings,
    connection: Connection,
    manifest: Manifest | None,
    state: State,
    request: PlanRequest,
    *,
    born: bool,
) -> Planned:
    drivers = open_drivers(settings, connection, state)
    with api_failures("look at the account"):
        observed = await observe(
            connection.client,
            drivers,
            state,
            server=settings.base_url,
            refresh=request.refresh,
            market=manifest is not None and not request.refresh_only,
            spending=manifest is not None and manifest.policy.max_total_cost is not None,
        )
    known = state if born else None
    desired = (
        None if manifest is None else desired_now(manifest, settings.stack, known, observed, request, salt=state.salt)
    )
    if desired is not None:
        with api_failures("look for what is to be imported"):
            observed = await with_found(connection.client, desired, state, observed)
    plan = plan_changes(
        desired,
        known,
        observed,
        request,
        salt=state.salt,
        project=manifest.project if manifest is not None else state.project,
        stack=settings.stack,
        now=observed.at,
    )
    return Planned(plan, desired, observed)


def desired_now(
    manifest: Manifest,
    stack: str,
    state: State | None,
    observed: Observed,
    request: PlanRequest,
    *,
    salt: bytes,
) -> Desired:
    """What the manifest means, given which members live and which tasks have ended their fleets."""
    declared = outline(manifest)
    ended: frozenset[str] = frozenset()
    if state is not None and state.completions:
        moved = relocate(declared.moved, state, observed).state
        ended = completed_fleets(expand(manifest, stack=stack), moved, salt=salt, replacing=request.replace)
    members = members_now(declared, state, observed, request, completed=ended)
    return expand(manifest, stack=stack, members=members)
