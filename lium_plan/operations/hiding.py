"""Secrets in what pods wrote. A pod keeps it as the program wrote it; what to hide is known from the manifest alone,
and whether that still has all of it from the keyed hashes in the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lium_plan.kinds.digests import written_inputs
from lium_plan.kinds.masking import Mask
from lium_plan.kinds.protocol import Json, Record, Resource
from lium_plan.manifest.expand import expand
from lium_plan.operations.validating import load_manifest
from lium_plan.planning.members import sort_members
from lium_plan.requests import Sources
from lium_plan.settings import Settings
from lium_plan.state.model import State


@dataclass(frozen=True, slots=True)
class Hiding:
    """For one task."""

    mask: Mask
    complete: bool
    """False where it was started with a secret that the manifest does not have (any more): that may show."""


def hiding(settings: Settings, state: State) -> Callable[[Record], Hiding]:
    """How to hide what a task's output must not show. Raises `Failure` when the manifest can't be read."""
    resources = expand(load_manifest(settings, Sources()), stack=settings.stack, members=_members(state)).resources

    def hide(task: Record) -> Hiding:
        resource = resources.get(task.address)
        started_with = (task, *_templates(state, task))
        complete = all(_knows(resources.get(record.address), record, state.salt) for record in started_with)
        return Hiding(Mask(()) if resource is None else _mask(resource), complete)

    return hide


def _mask(task: Resource) -> Mask:
    spec = task.spec
    contents = (file.content for file in spec.files if file.content is not None)
    texts = (*spec.env.values(), *spec.also_secret, *contents)
    whole = (text.reveal() for text in (*spec.env.values(), *spec.also_secret) if text.sensitive and text.known)
    return Mask((*whole, *(secret for text in texts for secret in text.secrets())))


def _members(state: State) -> Mapping[str, tuple[str, ...]]:
    """Those of each fleet that there are: they need not have the numbers of a fresh one."""
    found: dict[str, set[str]] = {}
    for record in state.records.values():
        if record.kind == "pod" and record.address.member is not None:
            found.setdefault(record.address.name, set()).add(record.address.member)
    return {fleet: sort_members(members) for fleet, members in found.items()}


def _templates(state: State, task: Record) -> Iterator[Record]:
    """What gave the task's pod its environment."""
    pods = (state.record(address) for address in task.depends_on)
    addresses = {address: None for pod in pods if pod is not None for address in pod.depends_on}
    records = map(state.record, addresses)
    yield from (record for record in records if record is not None and record.kind == "template")


def _knows(resource: Resource | None, record: Record, salt: bytes) -> bool:
    """Whether each secret that a record was made with is one of the manifest's."""
    return _has_all(record.inputs, None if resource is None else written_inputs(resource, salt))


def _has_all(recorded: Json, written: Json) -> bool:
    if isinstance(recorded, Mapping):
        there = written if isinstance(written, Mapping) else {}
        if "$sensitive" in recorded:
            return recorded == there or "$unknown" in there  # what refers to another resource hashes differently
        return all(_has_all(value, there.get(name)) for name, value in recorded.items())
    if isinstance(recorded, list | tuple):
        rest = written if isinstance(written, list | tuple) else ()
        return all(_has_all(value, rest[at] if at < len(rest) else None) for at, value in enumerate(recorded))
    return True
