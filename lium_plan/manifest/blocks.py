"""What is written outside of the kinds' sections: variables, policy, imports, moves, removals.

Importing this loads pydantic: only loading a manifest and generating the schema do.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lium_plan.addresses import MEMBER, NAME
from lium_plan.kinds.fields import (
    Anything,
    Block,
    Flag,
    Money,
    Number,
    Percentage,
    String,
    Uuid,
    VariableTypeField,
    shaped,
)
from lium_plan.kinds.values import VariableType

_EXACT = rf"(?:(?:volume|template|credential)\.{NAME}|fleet\.{NAME}\[{MEMBER}\])"
_ANY = rf"(?:{_EXACT}|(?:fleet|task)\.{NAME}|task\.{NAME}\[{MEMBER}\])"
ExactAddress = Annotated[str, *shaped(_EXACT, "an address such as fleet.trainers[0] or volume.data")]
GroupAddress = Annotated[str, *shaped(_ANY, "an address such as fleet.trainers, fleet.trainers[0] or volume.data")]


class ValidationBlock(Block):
    """What a value must be like. `min` and `max` are for numbers, or for the length of strings and lists."""

    pattern: String | None = Field(None, description="The whole string must match this regular expression")
    min: Number | None = Field(None, description="Smallest number, or shortest string or list")
    max: Number | None = Field(None, description="Greatest number, or longest string or list")
    one_of: tuple[Anything, ...] | None = Field(None, description="The only values allowed")


class VariableBlock(Block):
    """A value given from outside: --var, --var-file, LIUM_PLAN_VAR_NAME, or the default."""

    type: VariableTypeField = Field(VariableType.STRING, description="What a value must be; default string")
    default: Anything = Field(None, description="Without one, the value must be given")
    description: String | None = Field(None, description="What it is for, for whoever has to give it")
    sensitive: Flag = Field(False, description="Never shown nor stored; only for env: and registry_auth")
    validation: ValidationBlock | None = Field(None, description="What values are allowed")

    @property
    def has_default(self) -> bool:
        return "default" in self.model_fields_set


class PolicyBlock(Block):
    """Limits of everything in this stack together."""

    max_hourly_cost: Money | None = Field(None, description="USD per hour")
    max_total_cost: Money | None = Field(None, description="USD spent and still possible; every fleet needs a ttl")
    require_ttl: Flag = Field(False, description="Refuse fleets without a ttl")
    max_destroy: Percentage | None = Field(None, description="Pods deleted, replaced or rebooted by one apply")


class ImportBlock(Block):
    """Take an existing remote object under management."""

    to: ExactAddress = Field(description="The address that it gets here; it must be declared")
    id: Uuid = Field(description="Its id on the account")


class MovedBlock(Block):
    """What was declared under one address is now declared under another."""

    from_: GroupAddress = Field(alias="from", description="The address that it had")
    to: GroupAddress = Field(description="The address that it has now; it must be declared")


class RemovedBlock(Block):
    """No longer declared here. `destroy: false` releases it instead of deleting it."""

    from_: GroupAddress = Field(alias="from", description="The address that it had; no longer declared")
    destroy: Flag = Field(True, description="false: given up, and left running on the account")
