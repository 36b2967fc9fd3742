"""Validate: everything that can be known without the API, a key or a state. Loads nothing that talks to anybody."""

from __future__ import annotations

from dataclasses import dataclass

from lium_plan.diagnostics import Diagnostic
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
    return Validated(manifest.project, desired.diagnostics)


def load_manifest(settings: Settings, sources: Sources) -> Manifest:
    """Raises `Failure` with all faults."""
    return load(
        sources.files,
        stack=settings.stack,
        variables=sources.variables,
        var_files=sources.var_files,
        environ=settings.environ,
    )
