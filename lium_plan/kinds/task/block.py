"""What is written for a task: commands that run detached on a fleet's pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, WithJsonSchema

from lium_plan.kinds.bootstrap.block import FileBlock
from lium_plan.kinds.fields import (
    EXPRESSION,
    MEMBER_SCHEMA,
    PORT_SCHEMA,
    Block,
    Duration,
    Name,
    OnCompletionField,
    Reading,
    ShellEnvironment,
    TextField,
    shaped,
)
from lium_plan.kinds.values import (
    Fault,
    OnCompletion,
    WaitFor,
    read_member,
    read_port,
    read_string,
    refuse_text,
    shown,
)


def _members(value: object) -> str | tuple[str, ...]:
    refuse_text(value)
    if isinstance(value, list | tuple):
        names = tuple(read_member(item) for item in value)
        if not names or len(set(names)) != len(names):
            raise Fault("a list of members names each once, and at least one")
        return names
    text = read_string(value)
    if text not in ("all", "first"):
        raise Fault(f"expected all, first or a list of members, found {shown(value)}")
    return text


@dataclass(frozen=True, slots=True)
class WaitPort:
    """Waits until this container port accepts connections."""

    port: int


def _wait(value: object) -> WaitFor | WaitPort:
    refuse_text(value)
    if isinstance(value, dict) and set(value) == {"port"}:
        return WaitPort(read_port(value["port"]))
    if isinstance(value, str) and value in ("started", "completed"):
        return WaitFor(value)
    raise Fault(f"expected started, completed or {{port: N}}, found {shown(value)}")


class TaskBlock(Block):
    fleet: Name = Field(description="The fleet on whose pods it runs")
    members: Annotated[
        str | tuple[str, ...],
        Reading(_members),
        WithJsonSchema(
            {
                "anyOf": [
                    {"enum": ["all", "first"]},
                    {"type": "array", "minItems": 1, "uniqueItems": True, "items": MEMBER_SCHEMA},
                    EXPRESSION,
                ]
            }
        ),
    ] = Field("all", description="all, first, or a list of names or numbers")
    files: tuple[FileBlock, ...] = Field((), description="Sent before the commands run")
    env: ShellEnvironment = Field({}, description="Environment of the commands; the place for secrets")
    commands: tuple[TextField, ...] = Field(description="Run in order in one `sh -eu`, detached from the connection")
    working_dir: Annotated[str, *shaped(r"(?!~)[\s\S]+", "a path; ~ is not expanded in it")] | None = Field(
        None, description="Default: the image's"
    )
    user: Annotated[str, *shaped(r"[a-z_][a-z0-9_-]{0,31}", "root, image or a user's name")] = Field(
        "root", description="Who runs it: root, image (the image's user) or a name; default root"
    )
    wait: Annotated[
        WaitFor | WaitPort,
        Reading(_wait),
        WithJsonSchema(
            {
                "anyOf": [
                    {"enum": ["started", "completed"]},
                    {
                        "type": "object",
                        "properties": {"port": PORT_SCHEMA},
                        "required": ["port"],
                        "additionalProperties": False,
                    },
                    EXPRESSION,
                ]
            }
        ),
    ] = Field(WaitFor.COMPLETED, description="What an apply waits for: completed (default), started or {port: N}")
    max_duration: Duration | None = Field(None, description="Stopped when it runs longer")
    on_completion: OnCompletionField = Field(
        OnCompletion.KEEP, description="keep (default), or destroy-fleet: its end takes the fleet with it"
    )
