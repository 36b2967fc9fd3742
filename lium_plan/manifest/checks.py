"""What can be known about a manifest without the API, beyond the shapes of its blocks.

Each check gets a `Findings`, which knows where everything was written. Nothing is repaired here, only reported; what
Lium cannot do is refused with the reason. Blocks whose shape was wrong aren't here, but their names count as declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from lium_plan.addresses import NAME
from lium_plan.diagnostics import Diagnostics, Severity
from lium_plan.expressions import Text
from lium_plan.kinds import registry
from lium_plan.kinds.redaction import normalise_image
from lium_plan.kinds.template.spec import implied_name
from lium_plan.kinds.values import shown
from lium_plan.manifest.model import Manifest
from lium_plan.manifest.tree import Path, diagnose, value_at

if TYPE_CHECKING:
    from lium_plan.kinds.pod.block import FleetBlock
    from lium_plan.kinds.task.block import TaskBlock


@dataclass(frozen=True, slots=True)
class Findings:
    manifest: Manifest
    diagnostics: Diagnostics

    def error(self, path: Path, code: str, message: str, *, hint: str | None = None, key: bool = False) -> None:
        self._add(path, code, message, hint, key, Severity.ERROR)

    def warn(self, path: Path, code: str, message: str, *, hint: str | None = None, key: bool = False) -> None:
        self._add(path, code, message, hint, key, Severity.WARNING)

    def _add(self, path: Path, code: str, message: str, hint: str | None, key: bool, severity: Severity) -> None:
        address = self.address(path)
        self.diagnostics.add(
            diagnose(
                self.manifest.written,
                path,
                code,
                message,
                address=address,
                hint=hint,
                key=key,
                severity=severity,
            )
        )

    def address(self, path: Path) -> str | None:
        is_entry = len(path) > 1 and any(section.key == path[0] for section in registry.sections())
        return f"{str(path[0]).removesuffix('s')}.{path[1]}" if is_entry else None

    def declared(self, section: str) -> Iterable[str]:
        """The names in a section, those with wrong blocks too."""
        found = value_at(self.manifest.written, (section,))
        return found.keys() if isinstance(found, Mapping) else ()

    def known(self, path: Path, section: str, name: str) -> bool:
        """Whether an entry exists; reported at `path` when it doesn't."""
        declared = self.declared(section)
        if name in declared:
            return True
        near = get_close_matches(name, list(declared), 1, 0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"declare it under `{section}:`"
        self.error(path, "unknown-name", f"no {section.removesuffix('s')} {shown(name)} is declared", hint=hint)
        return False

    def check_names(self, section: str, key: str, target: str) -> None:
        """Names at `key` of every entry, those with faults elsewhere too, must be declared in `target`."""
        entries = value_at(self.manifest.filled, (section,))
        for name, entry in entries.items() if isinstance(entries, Mapping) else ():
            value = entry.get(key) if isinstance(entry, Mapping) else None
            if isinstance(value, str) and re.fullmatch(NAME, value):
                self.known((section, name, key), target, value)

    def blocks(self, section: str) -> Iterator[tuple[str, Any]]:
        yield from self.manifest.sections.get(section, {}).items()


def check(manifest: Manifest, texts: Sequence[tuple[Path, Text]], diagnostics: Diagnostics) -> None:
    """Everything wrong or doubtful, into `diagnostics`. `texts` are those with deferred or sensitive parts."""
    from lium_plan.manifest.checks_fleets import check_fleets
    from lium_plan.manifest.checks_templates import check_templates, check_volumes
    from lium_plan.manifest.checks_texts import check_lengths, check_texts

    findings = Findings(manifest, diagnostics)
    findings.check_names("fleets", "template", "templates")
    findings.check_names("fleets", "volume", "volumes")
    findings.check_names("tasks", "fleet", "fleets")
    check_volumes(findings)
    check_templates(findings)
    check_fleets(findings)
    for name, task in findings.blocks("tasks"):
        _check_task(findings, name, task)
    _check_moves(findings)
    check_lengths(findings)
    check_texts(findings, texts)


def _check_task(findings: Findings, name: str, task: TaskBlock) -> None:
    path: Path = ("tasks", name)
    if not task.commands:
        findings.error((*path, "commands"), "bad-value", "a task needs at least one command")
    if task.on_completion == "destroy-fleet" and task.wait != "completed":
        message = "on_completion: destroy-fleet needs `wait: completed`: the end must be seen before the fleet goes"
        findings.error((*path, "on_completion"), "bad-combination", message)
    fleet = findings.manifest.block("fleets", task.fleet)
    if fleet is None:
        return
    _check_members(findings, path, task, fleet)
    setup = fleet.bootstrap.timeout if fleet.bootstrap is not None else 0
    if fleet.ttl is not None and task.max_duration is not None and task.max_duration + setup > fleet.ttl:
        message = (
            f"max_duration ({_hours(task.max_duration)}) and the bootstrap's timeout ({_hours(setup)}) together "
            f"exceed the ttl of fleet.{task.fleet} ({_hours(fleet.ttl)}): the pod may go before the task ends"
        )
        findings.warn((*path, "max_duration"), "ttl-short", message)
    if task.user != "root" and fleet.volume is not None:
        message = f"user: {task.user}: the server mounts volumes for root only, so /mnt may not be writable"
        findings.warn((*path, "user"), "volume-user", message)


def _check_members(findings: Findings, path: Path, task: TaskBlock, fleet: FleetBlock) -> None:
    if isinstance(task.members, str):
        return
    for index, member in enumerate(task.members):
        if not fleet.nodes.has(member):
            message = f"fleet.{task.fleet} has no member {shown(member)}"
            findings.error((*path, "members", index), "unknown-member", message, hint=describe(fleet.nodes.members()))


def describe(members: Sequence[str]) -> str:
    """What members there are, for a hint."""
    if not members:
        return "it has no members"
    few = ", ".join(members) if len(members) <= 8 else f"{members[0]} … {members[-1]}"
    return f"its members: {few}"


def _hours(seconds: int) -> str:
    if seconds % 3600 == 0:
        return f"{seconds // 3600}h"
    return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"


def _check_moves(findings: Findings) -> None:
    manifest = findings.manifest
    for index, block in enumerate(manifest.imports):
        _check_declared(findings, ("imports", index, "to"), block.to)
    steps = {moved.from_: moved.to for moved in reversed(manifest.moved)}  # of two, the first counts
    taken: dict[str, str] = {}
    for index, moved in enumerate(manifest.moved):
        path = ("moved", index)
        end = _end_of(steps, moved.from_)
        if moved.from_.partition(".")[0] != moved.to.partition(".")[0]:
            findings.error((*path, "to"), "bad-move", f"{moved.from_} can't become {moved.to}: another kind")
        elif ("[" in moved.from_) != ("[" in moved.to):
            findings.error((*path, "to"), "bad-move", "either both name a member, or neither")
        elif moved.from_ == moved.to:
            findings.error((*path, "to"), "bad-move", "from and to are the same")
        elif steps[moved.from_] != moved.to:
            findings.error((*path, "from"), "bad-move", f"{moved.from_} moves twice, to {steps[moved.from_]} too")
        elif moved.to in taken:
            findings.error((*path, "to"), "bad-move", f"{taken[moved.to]} moves to {moved.to} too")
        elif end is None:
            findings.error((*path, "to"), "bad-move", "these entries lead round in a circle")
        elif moved.to == end and not _check_declared(findings, (*path, "to"), end):
            pass
        elif is_declared(findings, end) and is_declared(findings, moved.from_):
            findings.error((*path, "from"), "bad-move", f"{moved.from_} is still declared")
        taken.setdefault(moved.to, moved.from_)
    for index, removed in enumerate(manifest.removed):
        if is_declared(findings, removed.from_):
            message = f"{removed.from_} is still declared: take its block away"
            findings.error(("removed", index, "from"), "bad-move", message)


def _end_of(steps: Mapping[str, str], address: str) -> str | None:
    """Where a chain of moves ends: a history of several renames may stay written. None: nowhere."""
    for _ in range(len(steps) + 1):
        if address not in steps:
            return address
        address = steps[address]
    return None


def is_declared(findings: Findings, address: str) -> bool:
    head, _, rest = address.partition(".")
    name, _, member = rest.partition("[")
    section = f"{head}s"
    if head == "credential":
        template = findings.manifest.block("templates", name)
        return template is not None and template.registry_auth is not None
    if name not in findings.declared(section):
        return head == "template" and name in _implied_templates(findings)
    fleet_name = name
    if head == "task":
        task = findings.manifest.block("tasks", name)
        fleet_name = name if task is None else task.fleet
    fleet = findings.manifest.block("fleets", fleet_name)
    return not member or fleet is None or bool(fleet.nodes.has(member.rstrip("]")))


def _implied_templates(findings: Findings) -> set[str]:
    """The names of those that stand as `image:` in a fleet."""
    images = (fleet.image for _, fleet in findings.blocks("fleets") if fleet.image is not None)
    return {implied_name(normalise_image(image)) for image in images}


def _may_be_declared(findings: Findings, address: str) -> bool:
    """Of a fleet that is counted, which numbers live is known to the state alone; entries that are done may stay."""
    group, _, member = address.rstrip("]").partition("[")
    if is_declared(findings, address):
        return True
    head, _, name = group.partition(".")
    task = findings.manifest.block("tasks", name) if head == "task" else None
    fleet = findings.manifest.block("fleets", name if task is None else task.fleet)
    return member.isdigit() and is_declared(findings, group) and fleet is not None and fleet.nodes.names is None


def _check_declared(findings: Findings, path: Path, address: str) -> bool:
    if _may_be_declared(findings, address):
        return True
    hint = "declare it, or take the entry out"
    findings.error(path, "unknown-name", f"{address} is not declared", hint=hint)
    return False
