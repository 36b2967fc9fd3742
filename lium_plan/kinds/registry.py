"""The kinds there are: one line each. Blocks and drivers are loaded when first asked for.

Order matters twice: blocks expand in this order, and plans list addresses in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lium_plan.kinds.bootstrap import spec as bootstrap
from lium_plan.kinds.credential import spec as credential
from lium_plan.kinds.pod import spec as pod
from lium_plan.kinds.protocol import Driver, Kind, Resource, Scope
from lium_plan.kinds.task import spec as task
from lium_plan.kinds.template import spec as template
from lium_plan.kinds.volume import spec as volume

if TYPE_CHECKING:
    from pydantic import BaseModel

    from lium_plan.kinds.services import Services

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        volume.Volumes(),
        credential.Credentials(),
        template.Templates(),
        pod.Pods(),
        bootstrap.Bootstraps(),
        task.Tasks(),
    )
}


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the manifest: the model of one of its entries, and what an entry means."""

    key: str
    kind: str
    model: str
    """Class in the kind's `block` module."""
    expand: tuple[Callable[[str, Any, Scope], Iterable[Resource]], ...]

    def load_block(self) -> type[BaseModel]:
        found: type[BaseModel] = getattr(import_module(f"lium_plan.kinds.{self.kind}.block"), self.model)
        return found


SECTIONS = (
    Section("volumes", "volume", "VolumeBlock", (volume.expand,)),
    Section("templates", "template", "TemplateBlock", (template.expand,)),
    Section("fleets", "pod", "FleetBlock", (pod.expand, bootstrap.expand)),
    Section("tasks", "task", "TaskBlock", (task.expand,)),
)


def sections() -> tuple[Section, ...]:
    return SECTIONS


def kind(name: str) -> Kind:
    return KINDS[name]


def load_driver(name: str, services: Services) -> Driver:
    """The I/O half of a kind; its module is imported now, with all that it needs."""
    driver: Driver = import_module(f"lium_plan.kinds.{name}.driver").open_driver(services)
    return driver
