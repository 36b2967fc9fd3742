"""How one request's outcome differs from the ordinary, because a fault says so. Defaults are: not at all."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from lium_plan.sim.settings import Seconds


class Twist(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    hide_seconds: Seconds | None = Field(
        default=None, description="The created object is missing from lists for so long."
    )
    linger_seconds: Seconds | None = Field(default=None, description="The deleted object stays in lists for so long.")
    gpu_count: int | None = Field(default=None, ge=0, le=1024, description="The pod's row and bill say this many GPUs.")
    visible_gpus: int | None = Field(default=None, ge=0, le=1024, description="The container shows this many GPUs.")
    price_factor: float | None = Field(default=None, gt=0, le=1e6, description="The pod costs so many times the offer.")
    create_seconds: Seconds | None = None
    fails: str | None = Field(default=None, description="The creation fails with this error.")
    ssh: str | None = Field(default=None, description="A `SshFault` mode from the container's start on, for ever.")
    ssh_delay_seconds: Seconds | None = None
    volume_mount_fails: bool | None = None
    stuck_delete: bool | None = Field(default=None, description="The pod never leaves DELETING.")
    detail_404: bool | None = Field(default=None, description="GET of the pod answers 404 while it is listed.")
    conflict: bool | None = Field(default=None, description="DELETE of the pod while it is created answers 409.")

    def merged(self, other: Twist) -> Twist:
        """Both; `other` wins where they disagree."""
        return self.model_copy(update=other.model_dump(exclude_none=True))


PLAIN = Twist()
