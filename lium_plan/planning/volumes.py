"""Volumes that the account has and the state does not: made by it and forgotten or released, or held by others' pods.

Owns what a plan says of them before anything is sent. A second, empty volume beside the one with the data is a danger,
so that plan is refused; a volume in another pod's hands is waited for, so that is a warning. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from lium_plan.diagnostics import Diagnostic, error, warning
from lium_plan.kinds.pod.spec import PodSpec
from lium_plan.kinds.protocol import Marked, Resource, Verb
from lium_plan.kinds.volume.spec import VolumeSpec
from lium_plan.marks import Marks, lineage_mark, scope_mark, volume_name
from lium_plan.planning.decisions import Decision
from lium_plan.planning.guards import Guarded
from lium_plan.planning.rents import LEAVING
from lium_plan.planning.situation import Situation


def guard_volume_twins(guarded: Guarded) -> Iterator[Diagnostic]:
    """A state that has forgotten or released a volume must not make an empty one of the same name."""
    situation = guarded.situation
    if situation.state is None or situation.request.destroying:
        return
    there = {other.name: other for other in _known_to_none(situation) if other.kind == "volume"}
    unsettled = {effect.data.get("name") for effect in situation.open if effect.op == "create"}
    given_up = {other.id for other in situation.observed.released}
    for decision, spec in _created(guarded):
        twin = there.get(volume_name(spec.name, _marks(guarded)))
        if twin is None or twin.name in unsettled:  # what has no outcome yet is looked for, and adopted
            continue
        released = twin.id in given_up
        why = "which has released it" if released else "which does not know it"
        ways = [f"take it in: lium-plan import {decision.address} {twin.id}"]
        ways += [] if released else [f"delete it: lium-plan orphans --id {twin.id} --delete"]
        ways += ["give the new one another `name`", f"or do all else without it: --exclude {decision.address}"]
        yield error(
            "volume-exists",
            f"volume {twin.name} ({twin.id}) is there already, made by this state, {why}: it would get an empty twin",
            address=str(decision.address),
            position=decision.resource.position if decision.resource is not None else None,
            hint="; ".join(ways),
        )


def unknown_volumes(guarded: Guarded) -> Iterator[Diagnostic]:
    """Made by this state, which has no record of them: a lost creation that was done after all, long after."""
    situation = guarded.situation
    if situation.state is None:
        return
    own = lineage_mark(situation.state.lineage)
    told = {effect.data.get("name") for effect in situation.open}
    told |= {volume_name(spec.name, _marks(guarded)) for _, spec in _created(guarded)}  # `guard_volume_twins` does
    for other in situation.observed.others:
        if other.kind == "volume" and other.lineage_mark == own and other.name not in told:
            yield warning(
                "unknown-volume",
                f"volume {other.name} ({other.id}) was made by this state, which does not know it",
                hint=f"delete it: lium-plan orphans --id {other.id} --delete; or take it in with `lium-plan import`",
            )


def volumes_in_other_hands(guarded: Guarded) -> Iterator[Diagnostic]:
    """Of pods that are to be rented with a volume which a pod has that this state does not hold."""
    situation = guarded.situation
    holders = {
        str(other.attributes["volume_id"]): other
        for other in _known_to_none(situation)
        if other.kind == "pod" and other.attributes.get("volume_id") and other.attributes.get("status") != LEAVING
    }
    for decision in guarded.kept:
        if not holders or decision.verb not in (Verb.CREATE, Verb.REPLACE) or decision.resource is None:
            continue
        holder = holders.get(_volume_id(situation, decision.resource) or "")
        if holder is not None:
            yield warning(
                "volume-busy",
                f"its volume is in use by pod {holder.name} ({holder.id}), which this state does not hold: the rent "
                "waits until that is gone",
                address=str(decision.address),
                hint=f"end that pod, or take it in: lium-plan import '{decision.address}' {holder.id}",
            )


def _created(guarded: Guarded) -> Iterator[tuple[Decision, VolumeSpec]]:
    for decision in guarded.kept:
        spec = decision.resource.spec if decision.resource is not None else None
        if decision.verb is Verb.CREATE and isinstance(spec, VolumeSpec):
            yield decision, spec


def _marks(guarded: Guarded) -> Marks:
    state = guarded.situation.state
    assert state is not None
    return Marks(scope_mark(guarded.project, guarded.stack), lineage_mark(state.lineage))


def _known_to_none(situation: Situation) -> tuple[Marked, ...]:
    return (*situation.observed.others, *situation.observed.released)


def _volume_id(situation: Situation, resource: Resource) -> str | None:
    spec = resource.spec
    if not isinstance(spec, PodSpec):
        return None
    record = situation.records.get(str(spec.volume)) if spec.volume is not None else None
    return record.id if record is not None else spec.volume_id
