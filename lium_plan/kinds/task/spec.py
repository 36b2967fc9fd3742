"""Tasks: commands that run on a fleet's pods, detached from us. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from lium_plan.addresses import Address
from lium_plan.diagnostics import warning
from lium_plan.expressions import Text
from lium_plan.kinds.bootstrap.spec import (
    address_for,
    bind,
    contents,
    counts,
    is_older,
    referenced,
    sensitive_in_template,
)
from lium_plan.kinds.differ import field_changes
from lium_plan.kinds.files import OTHERS, FileSpec, expand_files, file_inputs, with_secrets
from lium_plan.kinds.protocol import (
    NOTHING,
    Change,
    Comparison,
    FieldChange,
    Json,
    Observation,
    OpenEffect,
    Record,
    Resource,
    Scope,
    Verb,
)
from lium_plan.kinds.redaction import redact, redact_all

if TYPE_CHECKING:
    from lium_plan.kinds.pod.offers import Requirement
    from lium_plan.kinds.task.block import TaskBlock

DURATION_SHARE = 0.3
"""How much of its `max_duration` a task usually takes, about."""
USUAL_DURATION_S = 300.0
"""Of a task that says nothing of it."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    pod: Address
    peers: tuple[Address, ...]
    """The pods of all members that run this task, in member order."""
    rank: int
    gpus_per_node: int
    files: tuple[FileSpec, ...]
    env: Mapping[str, Text]
    commands: tuple[Text, ...]
    working_dir: str | None
    user: str
    wait: str
    """started | completed | port."""
    wait_port: int | None
    max_duration_s: int | None
    destroys_fleet: bool
    ssh_key: str | None
    also_secret: tuple[Text, ...] = ()
    """Sensitive values that the pod's own environment has: output may show them too."""


def expand(name: str, block: TaskBlock, scope: Scope) -> Iterable[Resource]:
    fleet = scope.block("fleets", block.fleet)
    if fleet is None:
        return  # reported where the name was checked
    all_members = scope.members(block.fleet)
    chosen = _members(block.members, all_members)
    files = expand_files(block.files, scope, "tasks", name, "files")
    _check_user(name, block.user, files, scope)
    peers = tuple(Address.of("fleet", block.fleet, member) for member in chosen)
    wait = block.wait if isinstance(block.wait, str) else "port"
    for rank, member in enumerate(chosen):
        pod = peers[rank]
        index = all_members.index(member)
        spec = TaskSpec(
            pod=pod,
            peers=peers,
            rank=rank,
            gpus_per_node=fleet.resources.gpu.count,
            files=tuple(bind(file, member, index) for file in files),
            env={key: text.bind_member(member, index) for key, text in block.env.items()},
            commands=tuple(text.bind_member(member, index) for text in block.commands),
            working_dir=block.working_dir,
            user=block.user,
            wait=str(wait),
            wait_port=None if isinstance(block.wait, str) else block.wait.port,
            max_duration_s=block.max_duration,
            destroys_fleet=str(block.on_completion) == "destroy-fleet",
            ssh_key=fleet.ssh_key,
            also_secret=sensitive_in_template(fleet, scope),
        )
        starts_after = tuple(address_for(peer) for peer in peers) if fleet.bootstrap is not None else peers
        others = referenced((*spec.env.values(), *spec.commands, *contents(spec.files)), scope, pod)
        yield Resource(
            Address.of("task", name, member),
            spec,
            depends_on=tuple(dict.fromkeys((pod, *starts_after, *others))),
            position=scope.position("tasks", name),
        )


def _check_user(name: str, user: str, files: Iterable[FileSpec], scope: Scope) -> None:
    closed = next((file for file in with_secrets(files) if not file.mode & OTHERS), None)
    if user != "root" and closed is not None:
        message = f"user: {user}: {closed.source.name} has a secret in it, so root alone may read it"
        hint = "pass the secret through `env:`, or write the `mode` that the file needs"
        scope.report(warning("secret-file", message, position=scope.position("tasks", name, "user"), hint=hint))


def _members(written: str | Sequence[str], members: tuple[str, ...]) -> tuple[str, ...]:
    if written == "all":
        return members
    if written == "first":
        return members[:1]
    return tuple(member for member in members if member in written)


class Tasks:
    name = "task"
    hosted = True
    create_first = False
    incidental = False
    links: tuple[tuple[str, ...], ...] = ()

    def inputs(self, spec: TaskSpec, comparison: Comparison) -> Mapping[str, Json]:
        return {
            "files": file_inputs(spec.files, comparison),
            "env": redact_all(spec.env, comparison),
            "commands": [redact(command, comparison) for command in spec.commands],
            "working_dir": spec.working_dir,
            "user": spec.user,
            "max_duration_s": spec.max_duration_s,
        }

    def compare(
        self, resource: Resource, record: Record, observation: Observation | None, comparison: Comparison
    ) -> Change:
        spec: TaskSpec = resource.spec
        verb = comparison.verbs.get(spec.pod)
        elsewhere = _runs_elsewhere(spec, record, observation, comparison)
        if elsewhere is not None:
            return Change(Verb.REPLACE, f"it runs on {elsewhere}: it is stopped there, and started on {spec.pod}")
        if verb in (Verb.CREATE, Verb.REPLACE, Verb.REBOOT):
            return Change(Verb.RUN, f"{spec.pod} is {'rebooted' if verb is Verb.REBOOT else 'new'}")
        pod = comparison.records.get(str(spec.pod))
        if pod is None or record.attributes.get("pod_id") != pod.id:
            return Change(Verb.RUN, f"{spec.pod} is another pod now")
        if verb is Verb.ADOPT or is_older(record, pod):
            return Change(Verb.RUN, "its pod was rebooted")
        changes = _as_written(field_changes(record.inputs, self.inputs(spec, comparison)))
        ended = _ended_since(record, observation)
        if changes and record.status == "running" and ended is None:
            return Change(Verb.REPLACE, "it changed while running: it is stopped and started anew", changes)
        if changes:
            return Change(Verb.RUN, "it changed", changes)
        match record.status:
            case "completed":
                return NOTHING
            case "running" if spec.wait == "completed" or not reached(spec, record):
                return Change(
                    Verb.ADOPT,
                    "it is running: attach to it and wait" if ended is None else "attach to see how it ended",
                )
            case "running":
                return _as_seen(record, observation, ended)
            case "failed" if record.attributes.get("ending") == "not-started":
                return Change(Verb.RUN, "it could not be started")
            case status:
                return Change(Verb.RUN, _how_it_ended(status, record.attributes.get("exit_code")))

    def title(self, resource: Resource | None, record: Record | None) -> str:
        if resource is None:
            return "task"
        return counts(len(resource.spec.commands), len(resource.spec.files))

    def will(self, effect: OpenEffect, *, destroying: bool) -> str:
        then = "stop it, or forget it with its pod" if destroying else "attach or start it"
        return f"ask the pod whether it started, and {then}"

    def takes_s(self, spec: TaskSpec) -> float:
        if spec.wait == "started":
            return 1.0
        return DURATION_SHARE * spec.max_duration_s if spec.max_duration_s is not None else USUAL_DURATION_S

    def requirement(self, spec: TaskSpec) -> Requirement | None:
        return None

    def price_per_hour_usd(self, record: Record) -> Decimal:
        return Decimal(0)

    def exported(self, record: Record, path: Sequence[str]) -> Json | None:
        raise KeyError(".".join(path))


def reached(spec: TaskSpec, record: Record | None) -> bool:
    """Whether what is waited for, short of its end, has come."""
    if spec.wait == "started":
        return True
    return record is not None and record.attributes.get("reached") == f"port {spec.wait_port}"


def _as_written(changes: Iterable[FieldChange]) -> tuple[FieldChange, ...]:
    """As the manifest has it: `max_duration: 1h -> 90m`."""
    return tuple(
        replace(change, path="max_duration", before=_duration(change.before), after=_duration(change.after))
        if change.path == "max_duration_s"
        else change
        for change in changes
    )


def _duration(seconds: Json) -> Json:
    if not isinstance(seconds, int):
        return seconds
    whole = next((size, unit) for size, unit in ((3600, "h"), (60, "m"), (1, "s")) if seconds % size == 0)
    return f"{seconds // whole[0]}{whole[1]}"


def _runs_elsewhere(
    spec: TaskSpec, record: Record, observation: Observation | None, comparison: Comparison
) -> Address | None:
    """Another pod of ours, on which it goes on for as long as nobody stops it there."""
    if record.status != "running" or _ended_since(record, observation) is not None:
        return None
    here = record.attributes.get("pod_id")
    hosts = ((host, comparison.records.get(str(host))) for host in record.depends_on if host != spec.pod)
    return next((host for host, pod in hosts if pod is not None and pod.id == here), None)


def _ended_since(record: Record, seen: Observation | None) -> str | None:
    """How one that ran when it was last looked at has ended, by its pod; None while it runs or nobody knows."""
    if record.status != "running" or seen is None or seen.status == "running":
        return None
    return seen.status


def _as_seen(record: Record, seen: Observation | None, ended: str | None) -> Change:
    """Of a task that nobody waits for any more."""
    if ended == "completed":
        return Change(Verb.ADOPT, "it has ended with exit code 0: written down", counted=False)
    if ended is not None:
        exit_code = seen.attributes.get("exit_code") if seen is not None else None
        return Change(Verb.RUN, f"{_how_it_ended(ended, exit_code)} since the last apply", drift=ended)
    if seen is None or seen.status is not None:
        return NOTHING
    unseen = warning(
        "task-unseen",
        f"its pod can't be asked whether it still runs: {seen.reason}",
        address=str(record.address),
        hint="it is taken as running; `--replace` starts it anew, `--no-refresh` does not ask",
    )
    return Change(None, diagnostics=(unseen,))


def _how_it_ended(status: str, exit_code: Json) -> str:
    match status:
        case "failed":
            return f"it failed with exit code {exit_code}"
        case "timed-out":
            return "it timed out"
        case "unknown":
            return "it ended without an exit code"
    return "it did not start"
