"""Plan: nothing here sends anything but GETs, writes state or takes a lock."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from lium_plan.diagnostics import Diagnostic, Failure, Severity, error
from lium_plan.garbage import collection_paused
from lium_plan.kinds.credential.spec import CredentialSpec
from lium_plan.kinds.desired import Desired
from lium_plan.kinds.pod.offers import Feed
from lium_plan.kinds.pod.spec import PodSpec
from lium_plan.kinds.protocol import Json, Verb
from lium_plan.kinds.template.spec import TemplateSpec
from lium_plan.kinds.values import OnCompletion
from lium_plan.manifest.expand import expand, outline
from lium_plan.manifest.model import Manifest
from lium_plan.marks import lineage_mark
from lium_plan.operations.adopting import with_found
from lium_plan.operations.connecting import Connection, api_failures, connect, open_drivers
from lium_plan.operations.known import other_states
from lium_plan.operations.observing import load_feed, observe, without_known
from lium_plan.operations.outside import REAL, Outside
from lium_plan.operations.validating import load_manifest, refuse_state_in_files
from lium_plan.operations.visiting import observations, visit
from lium_plan.planning.late import at_their_places, with_late
from lium_plan.planning.members import completed_fleets, completions_by_records, members_now
from lium_plan.planning.moving import relocate
from lium_plan.planning.observed import Observed
from lium_plan.planning.plan import Plan
from lium_plan.planning.planner import make_plan as plan_changes
from lium_plan.planning.situation import check_allowances
from lium_plan.requests import PlanRequest
from lium_plan.settings import Settings
from lium_plan.ssh.errors import KeyUnusable
from lium_plan.ssh.keys import require_usable
from lium_plan.state.entries import Completion
from lium_plan.state.model import State, new_state


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with what it was made from, so that it can be carried out."""

    plan: Plan
    desired: Desired | None
    observed: Observed
    completions: Mapping[str, Completion] = field(default_factory=dict)
    """Of tasks that take their fleet with them by this plan, for the state to remember, by address."""
    unusable_keys: tuple[Diagnostic, ...] = ()
    """Errors for an apply; the plan itself holds them as warnings."""


def without_keys(planned: Planned) -> Plan:
    """The plan as an apply sees it: errored where a pod is to be rented that nobody could log in to."""
    plan, errors = planned.plan, planned.unusable_keys
    if not errors:
        return plan
    others = (item for item in plan.diagnostics if replace(item, severity=Severity.ERROR) not in errors)
    return replace(plan, errored=True, diagnostics=(*others, *errors))


async def make_plan(settings: Settings, request: PlanRequest, *, outside: Outside = REAL) -> Plan:
    """What `apply` would do now. Raises `Failure` when that can't be known."""
    with collection_paused():
        manifest = None if request.destroying else load_manifest(settings, request.sources)
        store = outside.open_store(settings)
        state = store.load().state
        async with connect(settings, outside=outside) as connection:
            known = state if state is not None else unborn_state(settings, manifest, outside)
            planned = await look_and_plan(
                settings,
                connection,
                manifest,
                known,
                request,
                born=state is not None,
                reread=lambda: store.load().state,
            )
            check_allowances(planned.desired, state, request)
            planned = _with_variables(planned, manifest, request)
        gc.freeze()  # all of it stays to the end of the command: nothing is to be found among it
    return planned.plan


@dataclass(frozen=True, slots=True)
class Beforehand:
    """What is known of a plan that could not be made, from the state and the manifest."""

    project: str = ""
    lineage: str | None = None
    serial: int = 0


def known_beforehand(settings: Settings, request: PlanRequest, *, outside: Outside = REAL) -> Beforehand:
    """As far as they can be read: whatever is wrong with them was told already."""
    known = Beforehand()
    with suppress(Failure):
        state = outside.open_store(settings).load().state
        if state is not None:
            known = Beforehand(state.project, state.lineage, state.serial)
    with suppress(Failure):
        if not request.destroying:
            known = replace(known, project=load_manifest(settings, request.sources).project)
    return known


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
    market: Callable[[], Awaitable[Feed]] | None = None,
    reread: Callable[[], State | None] | None = None,
) -> Planned:
    """Observe, expand and plan. Raises `Failure`.

    `born` False: the state exists only here so far. `market` stands in for a reading of its own. `reread` loads the
    state once more, for whoever holds no lock: another process may have rented since.
    """
    with collection_paused():
        return await _look_and_plan(settings, connection, manifest, state, request, born, market, reread)


async def _look_and_plan(
    settings: Settings,
    connection: Connection,
    manifest: Manifest | None,
    state: State,
    request: PlanRequest,
    born: bool,
    market: Callable[[], Awaitable[Feed]] | None,
    reread: Callable[[], State | None] | None,
) -> Planned:
    drivers = open_drivers(settings, connection, state)
    with api_failures("look at the account"):
        observed = await observe(
            connection.client,
            drivers,
            state,
            server=settings.base_url,
            refresh=request.refresh,
            market=None
            if manifest is None or request.refresh_only
            else market or (lambda: load_feed(connection.client)),
            spending=manifest is not None and manifest.policy.max_total_cost is not None,
            # A volume that this state has made and no longer knows must not get an empty twin.
            also=("volume",) if born and manifest is not None and manifest.sections.get("volumes") else (),
        )
    if reread is not None and any(other.lineage_mark == lineage_mark(state.lineage) for other in observed.others):
        observed = without_known(observed, reread() or state)
    if manifest is not None and request.refresh:
        observed = await _with_tasks(settings, connection, state, observed)
    if manifest is not None and observed.late:
        late = at_their_places(observed.late, state, outline(manifest).moved)
        observed = replace(observed, late=late)
    known = state if born else None
    completions: Mapping[str, Completion] = {}
    desired = None
    if manifest is not None:
        seen = with_late(known, observed)[0]
        completions = _completions(manifest, settings.stack, seen, observed, request)
        if seen is not None and completions:
            seen = replace(seen, completions={**seen.completions, **completions})
        desired = desired_now(manifest, settings.stack, seen, observed, request, salt=state.salt)
        wanted = {str(address) for address in desired.resources}
        completions = {address: item for address, item in completions.items() if address not in wanted}
    if desired is not None:
        refuse_state_in_files(settings, desired)
        connection.client.hide(_told_to_server(desired))
        with api_failures("look for what is to be taken in"):
            observed = await with_found(
                connection.client, desired, state, observed, lambda: other_states(settings, connection.outside)
            )
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
    unusable = [] if desired is None else await _unusable_keys(settings, plan, desired)
    # Whoever only plans may do so where the keys are not; an apply must not begin without them.
    told = tuple(replace(item, severity=Severity.WARNING) for item in unusable)
    plan = replace(plan, diagnostics=(*plan.diagnostics, *told))
    return Planned(plan, desired, observed, completions, tuple(unusable))


async def _unusable_keys(settings: Settings, plan: Plan, desired: Desired) -> list[Diagnostic]:
    """Each SSH key once that a pod is to be rented with and nobody could log in with: before anything is made."""
    seen: set[str | None] = set()
    found: list[Diagnostic] = []
    for action in plan.actions:
        resource = desired.resources.get(action.address)
        if resource is None or action.verb not in (Verb.CREATE, Verb.REPLACE) or not isinstance(resource.spec, PodSpec):
            continue
        written = resource.spec.ssh_key
        if written in seen:
            continue
        seen.add(written)
        try:
            await require_usable(Path(written) if written is not None else settings.require_ssh_key())
        except Failure as failure:
            found += (replace(item, address=str(action.address)) for item in failure.diagnostics)
        except KeyUnusable as failure:
            message = f"the SSH key {failure.path} can't be used: {failure.reason}"
            found.append(error("ssh-key", message, address=str(action.address), hint=failure.hint))
    return found


def _told_to_server(desired: Desired) -> Iterator[str]:
    """Secrets that the server is given to keep: passwords of logins, and what is sensitive in templates."""
    for resource in desired.resources.values():
        if isinstance(resource.spec, CredentialSpec) and resource.spec.password.known:
            yield resource.spec.password.reveal()
        elif isinstance(resource.spec, TemplateSpec):
            for text in resource.spec.env.values():
                yield from text.secrets()


async def _with_tasks(settings: Settings, connection: Connection, state: State, observed: Observed) -> Observed:
    """And with how the tasks are that ran when they were last seen: their pods alone know."""
    connector = connection.outside.open_connector()
    visits = await visit(settings, connector, state, observed.observations, gpu=False, tails=False)
    return replace(observed, observations={**observed.observations, **observations(visits)})


def _completions(
    manifest: Manifest, stack: str, state: State | None, observed: Observed, request: PlanRequest
) -> Mapping[str, Completion]:
    """See `planning.members.completions_by_records`; a manifest without such tasks costs nothing."""
    tasks = manifest.sections.get("tasks", {}).values()
    if state is None or not any(str(task.on_completion) == OnCompletion.DESTROY_FLEET for task in tasks):
        return {}
    declared = outline(manifest)
    moved = relocate(declared.moved, state, observed)
    if moved.state is None:
        return {}
    members = members_now(declared, state, observed, request)
    desired = expand(manifest, stack=stack, members=members, declared=declared)
    found = completions_by_records(desired, moved.state, moved.observed, salt=state.salt, now=observed.at)
    known = moved.state.completions
    return {address: Completion(content, 0, at) for address, (content, at) in found.items() if address not in known}


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
        living = members_now(declared, state, observed, request)

        def expanded(members: Mapping[str, tuple[str, ...]]) -> Desired:
            return expand(manifest, stack=stack, members=members, declared=declared)

        ended = completed_fleets(expanded, declared.fleets, moved, living, salt=salt, replacing=request.replace)
    members = members_now(declared, state, observed, request, completed=ended)
    return expand(manifest, stack=stack, members=members, declared=declared)
