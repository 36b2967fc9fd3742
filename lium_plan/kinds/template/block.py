"""What is written for a template: an image and how its container starts (contract §2.9)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lium_plan.kinds.credential.block import RegistryAuthBlock
from lium_plan.kinds.fields import AbsolutePath, Block, Environment, Port, String, Uuid, shaped
from lium_plan.kinds.volume.block import VolumeLifecycle

_REFERENCE = (
    r"(?:[A-Za-z0-9.-]+(?::[0-9]{1,5})?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
Image = Annotated[str, *shaped(_REFERENCE, "an image such as pytorch/pytorch:2.4.0 or name@sha256:<64 hex digits>")]


class TemplateLifecycle(VolumeLifecycle):
    pass


class TemplateBlock(Block):
    """Either `image` with what belongs to it, or the `id` of somebody else's template."""

    id: Uuid | None = Field(None, description="Somebody else's template: used, never managed")
    image: Image | None = Field(None, description="Image with a tag or @sha256: digest")
    registry_auth: RegistryAuthBlock | None = Field(None, description="Login for a private image")
    ports: tuple[Port, ...] = Field((), description="Container TCP ports to publish; 22 is implied")
    env: Environment = Field({}, description="Environment of the container")
    entrypoint: String | None = Field(None, description="One word; with no command either: /bin/sh")
    command: String | None = Field(None, description="Arguments; no shell syntax outside quotes")
    local_volume: AbsolutePath | None = Field(None, description="Where the pod's local volume is mounted")
    lifecycle: TemplateLifecycle | None = Field(None, description="What plans may do to it")
