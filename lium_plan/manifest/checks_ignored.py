"""`ignore_changes` must name fields whose change would do something: any other name would ignore nothing, silently."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from lium_plan.kinds.values import shown
from lium_plan.manifest.checks import Findings
from lium_plan.manifest.tree import Path

if TYPE_CHECKING:
    from lium_plan.kinds.pod.block import FleetBlock
    from lium_plan.kinds.template.block import TemplateBlock
    from lium_plan.kinds.volume.block import VolumeBlock

IGNORABLE: Mapping[str, tuple[str, ...]] = {
    "volumes": ("name", "description"),
    "templates": (
        *("image", "ports", "env", "entrypoint", "command", "local_volume"),
        *("registry_auth", "registry_auth.username", "registry_auth.password"),
    ),
    "fleets": (
        *("resources", "resources.gpu", "resources.gpu.name", "resources.gpu.memory", "resources.gpu.count"),
        *("resources.cpu", "resources.memory", "resources.disk", "regions", "spot_policy"),
        *("max_price", "node_ids", "exclude_nodes", "template", "image", "volume", "ttl"),
        *("bootstrap", "bootstrap.files", "bootstrap.env", "bootstrap.commands", "bootstrap.ready"),
    ),
}
OPEN_BELOW = ("env.", "bootstrap.env.")
"""Below these stand names that the user chose."""


def check_ignored(findings: Findings, path: Path, block: FleetBlock | TemplateBlock | VolumeBlock) -> None:
    lifecycle = block.lifecycle
    if lifecycle is None:
        return
    known = IGNORABLE[str(path[0])]
    fields = {field.alias or key for key, field in type(block).model_fields.items()}
    for index, name in enumerate(lifecycle.ignore_changes):
        if name in known or (name.startswith(OPEN_BELOW) and name.rpartition(".")[0] in known):
            continue
        where = (*path, "lifecycle", "ignore_changes", index)
        if name.partition(".")[0] in fields:
            message = f"ignore_changes: a change of {shown(name)} does nothing to what exists anyway"
            findings.error(where, "bad-value", message, hint=f"what can be ignored: {', '.join(known)}")
            continue
        near = get_close_matches(name, known, 1, 0.6)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
        findings.error(where, "unknown-key", f"ignore_changes: there is no field {shown(name)}", hint=hint)
