"""Volumes: S3-backed storage that outlives pods. No size, no region; attached at `/mnt` (contract §2.10). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from lium_plan.addresses import Address
from lium_plan.kinds.differ import field_changes
from lium_plan.kinds.lifecycles import lifecycle_of, without_ignored
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

if TYPE_CHECKING:
    from lium_plan.kinds.pod.offers import Requirement
    from lium_plan.kinds.volume.block import VolumeBlock


@dataclass(frozen=True, slots=True)
class VolumeSpec:
    name: str
    """The remote name without our mark."""
    description: str


def expand(name: str, block: VolumeBlock, scope: Scope) -> Iterable[Resource]:
    if block.id is not None:
        return  # somebody else's: used, never managed
    yield Resource(
        Address.of("volume", name),
        VolumeSpec(block.name or name, block.description or ""),
        lifecycle=lifecycle_of(block.lifecycle),
        position=scope.position("volumes", name),
    )


class Volumes:
    name = "volume"
    hosted = False
    create_first = False
    incidental = False
    links: tuple[tuple[str, ...], ...] = ()

    def inputs(self, spec: VolumeSpec, comparison: Comparison) -> Mapping[str, Json]:
        return {"name": spec.name, "description": spec.description}

    def compare(
        self, resource: Resource, record: Record, observation: Observation | None, comparison: Comparison
    ) -> Change:
        applied = dict(record.inputs)
        if observation is not None:
            # Renamed by hand: what the server shows is what we would change back.
            applied.update({key: value for key, value in observation.attributes.items() if key in applied})
        wanted = self.inputs(resource.spec, comparison)
        changes = without_ignored(resource.lifecycle, field_changes(applied, wanted))
        drift = "changed" if applied != dict(record.inputs) else None
        return (
            Change(Verb.UPDATE, fields=changes, drift=drift)
            if changes
            else (Change(None, drift=drift) if drift else NOTHING)
        )

    def title(self, resource: Resource | None, record: Record | None) -> str:
        if resource is not None and record is None:
            return "S3 volume, no fixed size\tusage-billed"
        name = record.attributes.get("name") if record is not None else None
        size = record.attributes.get("size_gb") if record is not None else None
        return f"S3 volume {name}" + (f", {size} GB stored" if size else "")

    def will(self, effect: OpenEffect, *, destroying: bool) -> str:
        match effect.op:
            case "create":
                return "look for the volume by its name and adopt it, or make it anew"
            case "delete":
                return "look whether it is gone"
            case _:
                return "read it again"

    def takes_s(self, spec: VolumeSpec) -> float:
        return 1.0

    def requirement(self, spec: VolumeSpec) -> Requirement | None:
        return None

    def price_per_hour_usd(self, record: Record) -> Decimal:
        return Decimal(0)

    def exported(self, record: Record, path: Sequence[str]) -> Json | None:
        if tuple(path) != ("id",):
            raise KeyError(".".join(path))
        return record.id
