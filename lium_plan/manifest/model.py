"""A manifest: what was written, understood and checked. Immutable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lium_plan.diagnostics import Diagnostic, Position
from lium_plan.expressions import Text
from lium_plan.manifest.document import Map
from lium_plan.manifest.names import Inputs
from lium_plan.manifest.tree import position_at

if TYPE_CHECKING:
    from lium_plan.manifest.blocks import ImportBlock, MovedBlock, PolicyBlock, RemovedBlock


@dataclass(frozen=True, slots=True)
class Manifest:
    """Made by `load.load`, which raises unless all of it is right."""

    project: str
    stack: str
    root: Path
    """The directory of the first `-f`."""
    sections: Mapping[str, Mapping[str, Any]]
    """Section key -> name -> block, for the kinds' sections."""
    outputs: Mapping[str, Text]
    policy: PolicyBlock
    imports: tuple[ImportBlock, ...]
    moved: tuple[MovedBlock, ...]
    removed: tuple[RemovedBlock, ...]
    written: Map
    """The merged tree as written, with its places."""
    filled: Map
    """The same with known values filled in."""
    inputs: Inputs
    named_files: Mapping[str, Path]
    """The files read, by their names in positions."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """Warnings."""

    def block(self, section: str, name: str) -> Any | None:
        return self.sections.get(section, {}).get(name)

    def position(self, *path: str | int) -> Position | None:
        """Where the value at this path was written: `position("fleets", "x", "ttl")`."""
        return position_at(self.written, path)

    def members(self) -> Mapping[str, Sequence[str]]:
        """Each fleet's members as far as the manifest alone says."""
        return {name: block.nodes.members() for name, block in self.sections.get("fleets", {}).items()}
