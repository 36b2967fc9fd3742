"""What is written for a volume. It has neither size nor region: the server's volumes grow as they are filled."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lium_plan.kinds.fields import Block, Flag, String, Uuid, shaped

RemoteName = Annotated[
    str,
    *shaped(
        r"[A-Za-z0-9][A-Za-z0-9_. ,()!?/-]{0,79}", "a name of letters, digits and - _ . space , ( ) ! ? /, at most 80"
    ),
]


class VolumeLifecycle(Block):
    prevent_destroy: Flag = Field(False, description="Refuse every plan that would delete it")
    ignore_changes: tuple[String, ...] = Field((), description="Fields whose changes are left alone")


class VolumeBlock(Block):
    """An S3 volume, attached to one pod at a time, at /mnt."""

    name: RemoteName | None = Field(None, description="Remote name, before our mark; default: the key")
    description: String | None = Field(None, description="Shown in the account")
    lifecycle: VolumeLifecycle | None = Field(None, description="What plans may do to it")
    id: Uuid | None = Field(None, description="Somebody else's volume: used, never managed")
