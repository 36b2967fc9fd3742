"""Bootstraps: what makes a rented pod ready. Their own record, so that a failed one never costs another rent. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from lium_plan.addresses import Address
from lium_plan.expressions import Text
from lium_plan.kinds.differ import field_changes
from lium_plan.kinds.files import FileSpec, expand_files, file_inputs
from lium_plan.kinds.lifecycles import ignored_below, lifecycle_of, without_ignored
from lium_plan.kinds.pod.spec import READY_AT
from lium_plan.kinds.protocol import (
    NOTHING,
    Change,
    Comparison,
    Json,
    Observation,
    OpenEffect,
    Record,
    Resource,
    Scope,
    Verb,
)
from lium_plan.kinds.redaction import is_unknown, redact, redact_all
from lium_plan.marks import canonical

if TYPE_CHECKING:
    from lium_plan.kinds.bootstrap.block import BootstrapBlock
    from lium_plan.kinds.pod.block import FleetBlock
    from lium_plan.kinds.pod.offers import Requirement

CONTAINER = "container_ready_at"
"""The attribute of what ran on a pod that says in which container: its pod's `READY_AT` of then."""
TIMEOUT_SHARE = 0.2
"""How much of its timeout a bootstrap usually takes, about."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What must answer before the bootstrap counts as done; at most one of the two."""

    port: int | None = None
    command: Text | None = None


@dataclass(frozen=True, slots=True)
class BootstrapSpec:
    pod: Address
    files: tuple[FileSpec, ...]
    env: Mapping[str, Text]
    commands: tuple[Text, ...]
    ready: Ready | None
    timeout_s: int
    run: str
    """once | changed | always."""
    delete_on_failure: bool
    ssh_key: str | None
    canary: bool = False
    max_failures: int | None = None
    also_secret: tuple[Text, ...] = ()
    """Sensitive values that the pod's own environment has: output may show them too."""


def address_for(pod: Address) -> Address:
    return Address.of(pod.head, pod.name, pod.member, "bootstrap")


def expand(name: str, block: FleetBlock, scope: Scope) -> Iterable[Resource]:
    bootstrap: BootstrapBlock | None = block.bootstrap
    if bootstrap is None:
        return
    files = expand_files(bootstrap.files, scope, "fleets", name, "bootstrap", "files")
    members = scope.members(name)
    ignored = ignored_below(lifecycle_of(block.lifecycle), "bootstrap", ("files", "env", "commands", "ready"))
    for index, member in enumerate(members):
        pod = Address.of("fleet", name, member)
        spec = BootstrapSpec(
            pod=pod,
            files=tuple(bind(file, member, index) for file in files),
            env={key: text.bind_member(member, index) for key, text in bootstrap.env.items()},
            commands=tuple(text.bind_member(member, index) for text in bootstrap.commands),
            ready=_ready(bootstrap, member, index),
            timeout_s=bootstrap.timeout,
            run=str(bootstrap.run),
            delete_on_failure=str(bootstrap.on_failure) == "delete",
            ssh_key=block.ssh_key,
            canary=str(bootstrap.canary) == "first",
            max_failures=bootstrap.max_failures,
            also_secret=sensitive_in_template(block, scope),
        )
        first = Address.of("fleet", name, members[0], "bootstrap")
        waits_for_canary = (first,) if spec.canary and index > 0 else ()
        yield Resource(
            address_for(pod),
            spec,
            depends_on=(pod, *waits_for_canary, *referenced(texts_of(spec), scope, pod)),
            lifecycle=ignored,
            position=scope.position("fleets", name, "bootstrap"),
        )


def _ready(bootstrap: BootstrapBlock, member: str, index: int) -> Ready | None:
    if bootstrap.ready is None:
        return None
    command = bootstrap.ready.command
    return Ready(bootstrap.ready.port, None if command is None else command.bind_member(member, index))


def _ready_inputs(ready: Ready | None, comparison: Comparison) -> Json:
    if ready is None:
        return None
    return {"port": ready.port} if ready.command is None else {"command": redact(ready.command, comparison)}


def sensitive_in_template(block: FleetBlock, scope: Scope) -> tuple[Text, ...]:
    """The secrets among the environment that a fleet's template gives to its containers."""
    template = scope.block("templates", block.template) if block.template is not None else None
    return () if template is None else tuple(text for text in template.env.values() if text.sensitive)


def attempt_digest(inputs: Mapping[str, Json]) -> str:
    """Tells whether a bootstrap that did not finish is still the same one; secrets in it are hashes already."""
    return hashlib.sha256(canonical(inputs).encode()).hexdigest()[:16]


def bind(file: FileSpec, member: str, index: int) -> FileSpec:
    if file.content is None:
        return file
    content = file.content.bind_member(member, index)
    return FileSpec(file.source, file.target, file.mode, file.sha256, content)


def texts_of(spec: BootstrapSpec) -> tuple[Text, ...]:
    ready = (spec.ready.command,) if spec.ready is not None and spec.ready.command is not None else ()
    return (*spec.env.values(), *spec.commands, *ready, *contents(spec.files))


def contents(files: Iterable[FileSpec]) -> tuple[Text, ...]:
    return tuple(file.content for file in files if file.content is not None)


def referenced(texts: Iterable[Text], scope: Scope, pod: Address) -> tuple[Address, ...]:
    """The other resources that must exist before these texts are known: edges of the graph."""
    found: dict[Address, None] = {}
    for text in texts:
        for reference in text.references:
            found.update(dict.fromkeys(reference.addresses(scope.members)))
    found.pop(pod, None)
    return tuple(found)


class Bootstraps:
    name = "bootstrap"
    hosted = True
    create_first = False
    incidental = False
    links: tuple[tuple[str, ...], ...] = ()

    def inputs(self, spec: BootstrapSpec, comparison: Comparison) -> Mapping[str, Json]:
        return {
            "files": file_inputs(spec.files, comparison),
            "env": redact_all(spec.env, comparison),
            "commands": [redact(command, comparison) for command in spec.commands],
            "ready": _ready_inputs(spec.ready, comparison),
        }

    def compare(
        self, resource: Resource, record: Record, observation: Observation | None, comparison: Comparison
    ) -> Change:
        spec: BootstrapSpec = resource.spec
        verb = comparison.verbs.get(spec.pod)
        if verb in (Verb.CREATE, Verb.REPLACE, Verb.REBOOT):
            return Change(Verb.RUN, f"{spec.pod} is {'rebooted' if verb is Verb.REBOOT else 'new'}")
        if record.attributes.get("pod_id") != _pod_id(spec, comparison):
            return Change(Verb.RUN, f"{spec.pod} is another pod now")
        if verb is Verb.ADOPT or is_older(record, comparison.records.get(str(spec.pod))):
            return Change(Verb.RUN, "its pod was rebooted")
        if record.status != "ready":
            return Change(Verb.RUN, _why_again(record))
        if spec.run == "always":
            return Change(Verb.RUN, "run: always", counted=False)
        if spec.run == "once":
            return NOTHING
        wanted = self.inputs(spec, comparison)
        changes = tuple(
            change
            for change in without_ignored(resource.lifecycle, field_changes(record.inputs, wanted))
            if not change.unknown or not is_unknown(change.after)
        )
        return Change(Verb.RUN, "it changed", changes) if changes else NOTHING

    def title(self, resource: Resource | None, record: Record | None) -> str:
        if resource is None:
            return "bootstrap"
        return counts(len(resource.spec.commands), len(resource.spec.files))

    def will(self, effect: OpenEffect, *, destroying: bool) -> str:
        if destroying:
            return "forget it with its pod"
        return "ask the pod what of it has finished, and run the rest or all of it again"

    def takes_s(self, spec: BootstrapSpec) -> float:
        return TIMEOUT_SHARE * spec.timeout_s if spec.commands or spec.ready is not None else 1.0

    def requirement(self, spec: BootstrapSpec) -> Requirement | None:
        return None

    def price_per_hour_usd(self, record: Record) -> Decimal:
        return Decimal(0)

    def exported(self, record: Record, path: Sequence[str]) -> Json | None:
        raise KeyError(".".join(path))


def _why_again(record: Record) -> str:
    """In words of how it ended; `ending` is what the driver recorded."""
    match record.attributes.get("ending"):
        case "exit":
            return f"it failed with exit code {record.attributes.get('exit_code')}"
        case "timeout":
            return "it took too long"
        case "connection":
            return "its connection was lost"
        case "interrupted":
            return "it was interrupted"
    return "it failed" if record.status == "failed" else "it did not finish"


def counts(commands: int, files: int) -> str:
    """`2 commands, 1 file`."""
    parts = []
    if commands:
        parts.append(f"{commands} command{'s' * (commands != 1)}")
    if files:
        parts.append(f"{files} file{'s' * (files != 1)}")
    return ", ".join(parts) or "nothing but readiness"


def is_older(record: Record, pod: Record | None) -> bool:
    """Whether what ran on a pod ran in another container than the one that it has now."""
    now = pod.attributes.get(READY_AT) if pod is not None else None
    return now is not None and record.attributes.get(CONTAINER) != now


def _pod_id(spec: BootstrapSpec, comparison: Comparison) -> str | None:
    pod = comparison.records.get(str(spec.pod))
    return pod.id if pod is not None else None
