"""Checks of texts: what their expressions refer to, where secrets may stand, and that nothing waits for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import Any

from lium_plan.diagnostics import Diagnostic, Severity
from lium_plan.expressions import EVERY, FIRST, Reference, Text
from lium_plan.manifest.checks import Findings, describe
from lium_plan.manifest.document import Document, Place
from lium_plan.manifest.tree import Path, locate, offset_place, value_at

_SECRET_PLACES = ("env", "registry_auth")
LONGEST_VARIABLE_BYTES = 128 * 1024
"""MAX_ARG_STRLEN of Linux, with the name, the `=` and the NUL."""
_MEMBER_SECTIONS = ("fleets", "tasks")


def check_texts(findings: Findings, texts: Sequence[tuple[Path, Text]]) -> None:
    edges: dict[str, dict[str, Path]] = {}
    told = {item.position for item in findings.diagnostics.errors}
    for path, text in texts:
        if path[0] == "outputs" or findings.manifest.position(*path) in told:
            continue
        _check_text(findings, path, text)
        if path[0] == "templates":
            for reference in text.references:
                if reference.head == "fleet":
                    edges.setdefault(f"template.{path[1]}", {}).setdefault(f"fleet.{reference.name}", path)
    for name, text in findings.manifest.outputs.items():
        _check_text(findings, ("outputs", name), text)
    for name, fleet in findings.blocks("fleets"):
        if fleet.template is not None:
            edges.setdefault(f"fleet.{name}", {})[f"template.{fleet.template}"] = ("fleets", name, "template")
    _check_cycles(findings, edges)


def check_lengths(findings: Findings) -> None:
    """Of variables of the environment that a shell on a pod is given; what is not known yet may still be too long."""
    environments: list[tuple[Path, Mapping[str, Text]]] = [
        (("fleets", name, "bootstrap", "env"), fleet.bootstrap.env)
        for name, fleet in findings.blocks("fleets")
        if fleet.bootstrap is not None
    ]
    environments += ((("tasks", name, "env"), task.env) for name, task in findings.blocks("tasks"))
    for path, environment in environments:
        for key, text in environment.items():
            if text.known and len(f"{key}={text.reveal()}".encode()) >= LONGEST_VARIABLE_BYTES:
                limit = f"{LONGEST_VARIABLE_BYTES // 1024} KiB"
                message = f"{key} is longer than {limit}, the most that Linux gives a program in one variable"
                findings.error((*path, key), "too-long", message, hint="send it as a file: `files:`")


def _check_text(findings: Findings, path: Path, text: Text) -> None:
    if text.sensitive and not any(place in path[2:] for place in _SECRET_PLACES):
        what = "outputs" if path[0] == "outputs" else str(next(s for s in reversed(path) if isinstance(s, str)))
        message = f"{text.source}: a sensitive value can't stand in {what}"
        findings.error(path, "sensitive-value", message, hint="pass it through `env:`, where it is kept out of sight")
    if text.uses_member and path[0] not in _MEMBER_SECTIONS:
        message = "member.name and member.index mean something only in a fleet's bootstrap and in tasks"
        findings.error(path, "bad-expression", message)
    for reference, offset in text.located_references:
        fault = reference_fault(findings.manifest.sections, findings, reference)
        if fault is not None:
            _report(findings, path, offset, *fault)


def reference_fault(
    sections: Mapping[str, Mapping[str, Any]], findings: Findings, reference: Reference
) -> tuple[str, str, str | None] | None:
    """Code, message and hint of what is wrong with a reference."""
    section = f"{reference.head}s"
    declared = list(findings.declared(section))
    if reference.name not in declared:
        near = get_close_matches(reference.name, declared, 1, 0.5)
        hint = f"did you mean '{reference.head}.{near[0]}'?" if near else f"declare it under `{section}:`"
        return "unknown-name", f"{reference}: no {reference.head} '{reference.name}' is declared", hint
    fleet = sections.get("fleets", {}).get(reference.name) if reference.head == "fleet" else None
    if fleet is None:
        return None
    if reference.member == FIRST and not fleet.nodes.maximum:
        return "unknown-member", f"{reference}: fleet.{reference.name} has no members", None
    if reference.member not in (EVERY, FIRST, None) and not fleet.nodes.has(reference.member):
        message = f"{reference}: fleet.{reference.name} has no member '{reference.member}'"
        return "unknown-member", message, describe(fleet.nodes.members())
    if reference.path[0] == "ports":
        return _port_fault(sections, fleet, reference)
    return None


def _port_fault(
    sections: Mapping[str, Mapping[str, Any]], fleet: Any, reference: Reference
) -> tuple[str, str, str | None] | None:
    port = int(reference.path[1])
    template = sections.get("templates", {}).get(fleet.template) if fleet.template else None
    if port == 22 or (fleet.image is None and (template is None or template.id is not None)):
        return None
    if template is not None and port in template.ports:
        return None
    message = f"{reference}: port {port} is not published"
    hint = f"add it to `ports` of template.{fleet.template}" if template else "use a template with `ports`"
    return "unknown-port", message, hint


def _report(findings: Findings, path: Path, offset: int, code: str, message: str, hint: str | None) -> None:
    written = findings.manifest.written
    document: Document
    place: Place
    document, place = locate(written, path)
    raw = value_at(written, path)
    if isinstance(raw, str):
        place = offset_place(document, place, raw, offset)
    findings.diagnostics.add(
        Diagnostic(
            Severity.ERROR,
            code,
            message,
            findings.address(path),
            document.position(place),
            hint,
            document.shown_line(place),
        )
    )


def _check_cycles(findings: Findings, edges: Mapping[str, Mapping[str, Path]]) -> None:
    """Templates that wait for a fleet which waits for them. Bootstraps and tasks come after all rents: never in one."""
    try:
        TopologicalSorter({node: tuple(following) for node, following in edges.items()}).prepare()
    except CycleError as found:
        cycle: list[str] = list(reversed(found.args[1]))
        path = edges[cycle[0]][cycle[1]]
        findings.error(path, "reference-cycle", f"these wait for each other: {' -> '.join(cycle)}")
