"""Validate: everything that can be known without the API, a key or a state. Loads nothing that talks to anybody."""

from __future__ import annotations

from dataclasses import dataclass

from lium_plan.diagnostics import Diagnostic, Diagnostics, error
from lium_plan.kinds.bootstrap.spec import BootstrapSpec
from lium_plan.kinds.desired import Desired
from lium_plan.kinds.task.spec import TaskSpec
from lium_plan.manifest.expand import expand
from lium_plan.manifest.load import load
from lium_plan.manifest.model import Manifest
from lium_plan.requests import Sources
from lium_plan.settings import Settings


@dataclass(frozen=True, slots=True)
class Validated:
    """A manifest that can be planned; `diagnostics` are warnings."""

    project: str | None
    diagnostics: tuple[Diagnostic, ...]


def validate(settings: Settings, sources: Sources) -> Validated:
    """Everything that can be known without the API. Raises `Failure` with all faults."""
    manifest = load_manifest(settings, sources)
    desired = expand(manifest, stack=settings.stack)
    refuse_state_in_files(settings, desired)
    return Validated(manifest.project, desired.diagnostics)


def refuse_state_in_files(settings: Settings, desired: Desired) -> None:
    """Raises `Failure` (1) when the state would be sent to pods: it changes with every apply, its salt is secret."""
    places = {settings.state_dir.absolute(), settings.state_dir.resolve()}
    looked: set[int] = set()  # members of a fleet share what they are sent
    problems = Diagnostics()
    for resource in desired.resources.values():
        if not isinstance(resource.spec, BootstrapSpec | TaskSpec) or id(resource.spec.files) in looked:
            continue
        looked.add(id(resource.spec.files))
        sources = (file.source for file in resource.spec.files)
        inside = next((source for source in sources if not places.isdisjoint(source.parents)), None)
        if inside is not None:
            message = f"files: {inside.name} is part of the state, which lies in {settings.state_dir}"
            hint = "send a directory that does not hold the state, or keep it elsewhere: --state file:DIR"
            problems.add(error("state-in-files", message, address=str(resource.address), hint=hint))
    problems.raise_errors()


def load_manifest(settings: Settings, sources: Sources) -> Manifest:
    """Raises `Failure` with all faults."""
    return load(
        sources.files,
        stack=settings.stack,
        variables=sources.variables,
        var_files=sources.var_files,
        environ=settings.environ,
    )
