"""Graph: what a manifest declares and what waits for what. Offline, without a key or a state."""

from __future__ import annotations

from lium_plan.answers import GraphAnswer
from lium_plan.kinds.registry import kind
from lium_plan.manifest.expand import expand
from lium_plan.operations.validating import load_manifest
from lium_plan.requests import Sources
from lium_plan.settings import Settings


def graph(settings: Settings, sources: Sources) -> GraphAnswer:
    """Every resource of the manifest as it stands alone: fleets that may grow have as many members as it says.

    Raises `Failure` with all faults.
    """
    desired = expand(load_manifest(settings, sources), stack=settings.stack)
    resources = sorted(desired.resources.values(), key=lambda resource: resource.address)
    nodes = tuple((str(item.address), kind(item.kind).title(item, None).partition("\t")[0]) for item in resources)
    edges = tuple(
        (str(before), str(item.address))
        for item in resources
        for before in sorted(set(item.depends_on))
        if before in desired.resources
    )
    return GraphAnswer(nodes, edges, desired.diagnostics)
