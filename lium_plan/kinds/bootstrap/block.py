"""What is written for a bootstrap: files, environment and commands that make a fresh pod ready."""

from __future__ import annotations

from pydantic import Field

from lium_plan.kinds.fields import (
    Block,
    CanaryField,
    Count,
    Duration,
    Filled,
    Flag,
    Mode,
    OnFailureField,
    Port,
    RunWhenField,
    ShellEnvironment,
    TextField,
)
from lium_plan.kinds.values import Canary, OnFailure, RunWhen


class FileBlock(Block):
    """A local file, or a directory with all in it, to put on the pod. `source` is relative to the manifest's file."""

    source: Filled = Field(description="Path here, relative to the manifest's file")
    target: Filled = Field(description="Path on the pod")
    mode: Mode | None = Field(
        None, description="Octal permissions; default 0644, 0755 for programs in a directory, 0600 around a secret"
    )
    template: Flag = Field(False, description="Fill in ${{ }} in the file's content")


class ReadyBlock(Block):
    """When the pod counts as ready: exactly one of the two."""

    port: Port | None = Field(None, description="This container port accepts connections")
    command: TextField | None = Field(None, description="This command exits with 0")


class BootstrapBlock(Block):
    files: tuple[FileBlock, ...] = Field((), description="Sent before the commands run")
    env: ShellEnvironment = Field({}, description="Environment of the commands; the place for secrets")
    commands: tuple[TextField, ...] = Field((), description="Run in order in one `sh -eu`")
    ready: ReadyBlock | None = Field(None, description="Waited for after the commands: a port or a command")
    timeout: Duration = Field(600, description="For all of it; default 10m")
    run: RunWhenField = Field(RunWhen.CHANGED, description="When an existing pod is set up again")
    on_failure: OnFailureField = Field(OnFailure.KEEP, description="keep: marked and retried; delete: stops the bill")
    canary: CanaryField = Field(Canary.NONE, description="first: one member before all others")
    max_failures: Count | None = Field(None, description="More failed members than this stop the rest")
