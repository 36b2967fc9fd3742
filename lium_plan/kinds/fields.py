"""The field types of the manifest's blocks: for each, how it is read and what its JSON Schema says.

Owns the link between `values` (meaning) and pydantic plus JSON Schema (shape), so that both validators come from one
place. Importing this loads pydantic: only blocks do. Refuses coercion: every type reads through `values.read_*`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from lium_plan.addresses import NAME
from lium_plan.expressions import Text
from lium_plan.kinds import values
from lium_plan.kinds.values import (
    Canary,
    Fault,
    Nodes,
    OnCompletion,
    OnFailure,
    Placement,
    Range,
    RetryEvent,
    RunWhen,
    ScaleDown,
    SpotPolicy,
    VariableType,
    read_string,
    shown,
)

__all__ = ["Range", "Text"]

Schema = dict[str, Any]
EXPRESSION: Schema = {"type": "string", "pattern": r"\$\{\{[\s\S]*\}\}"}
"""What the schema allows in every typed field besides its own type."""
REMEMBERED = 256
"""Texts of which each type of field remembers the meaning."""
_SCALAR = ["string", "number", "boolean"]


class Block(BaseModel):
    """The base of everything that is written in a manifest: immutable, and nothing unknown in it."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, strict=False)


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads a value with a function of ours, whatever the field's type; `Fault` becomes pydantic's error."""

    read: Callable[[object], object]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(_telling(self.read))


def _telling(read: Callable[[object], object]) -> Callable[[object], object]:
    # What is written is written many times over in a big manifest, and what is read is immutable.
    read_text = lru_cache(maxsize=REMEMBERED)(read)

    def validate(value: object) -> object:
        try:
            return read_text(value) if type(value) is str else read(value)
        except Fault as fault:
            raise PydanticCustomError("bad-value", "{message}", {"message": str(fault)}) from None

    return validate


def _schema(*alternatives: Schema, description: str = "") -> WithJsonSchema:
    schema: Schema = {"anyOf": [*alternatives, EXPRESSION]}
    if description:
        schema["description"] = description
    return WithJsonSchema(schema)


_SAMPLES: tuple[tuple[str, Schema], ...] = (
    ("12", {"type": "integer", "minimum": 0}),
    ("1.5", {"type": "number", "minimum": 0}),
    ("true", {"type": "boolean"}),
)


def _matching(pattern: str, *, description: str = "") -> WithJsonSchema:
    """A string of a shape. An unquoted number or boolean whose text has the shape is one too."""
    others = [schema for sample, schema in _SAMPLES if re.fullmatch(pattern, sample)]
    return _schema({"type": "string", "pattern": f"^(?:{pattern})$"}, *others, description=description)


def _words(words: type[StrEnum]) -> tuple[Reading, WithJsonSchema]:
    return Reading(lambda value: values.read_word(words, value)), _schema({"enum": [str(word) for word in words]})


def _pattern(pattern: str, expected: str) -> Callable[[object], str]:
    compiled = re.compile(pattern)

    def read(value: object) -> str:
        text = read_string(value)
        if not compiled.fullmatch(text):
            raise Fault(f"expected {expected}, found {shown(value)}")
        return text

    return read


def _integer(minimum: int, maximum: int) -> tuple[Reading, WithJsonSchema]:
    return (
        Reading(lambda value: values.read_integer(value, minimum=minimum, maximum=maximum)),
        _schema({"type": "integer", "minimum": minimum, "maximum": maximum}),
    )


def shaped(pattern: str, expected: str) -> tuple[Reading, WithJsonSchema]:
    """A string of a shape, quoted or not."""
    return Reading(_pattern(pattern, expected)), _matching(pattern)


_NOT_EMPTY = Reading(_pattern(r"[\s\S]+", "something, not an empty string"))

String = Annotated[str, Reading(read_string), WithJsonSchema({"type": _SCALAR})]
Filled = Annotated[str, _NOT_EMPTY, WithJsonSchema({"type": _SCALAR, "minLength": 1})]
TextField = Annotated[Text, Reading(values.read_text), WithJsonSchema({"type": _SCALAR})]
Flag = Annotated[bool, Reading(values.read_boolean), _schema({"type": "boolean"})]
Anything = Annotated[object, WithJsonSchema({})]

Number = Annotated[Decimal, Reading(values.read_decimal), _schema({"type": "number"})]
Count = Annotated[int, *_integer(0, 10**6)]
Positive = Annotated[int, *_integer(1, 10**6)]
_PORT = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
PORT_SCHEMA: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": 65535},
        {"type": "string", "pattern": f"^(?:{_PORT})$"},
        EXPRESSION,
    ],
    "description": "A container TCP port",
}
Port = Annotated[int, Reading(values.read_port), WithJsonSchema(PORT_SCHEMA)]
Money = Annotated[
    Decimal, Reading(values.read_money), _schema({"type": "number", "exclusiveMinimum": 0, "maximum": values.MAX_USD})
]
_DURATION = r"(?=.*[1-9])(?:[0-9]{1,6}d)?(?:[0-9]{1,6}h)?(?:[0-9]{1,6}m)?(?:[0-9]{1,9}s)?"
Duration = Annotated[int, Reading(values.read_duration), _matching(_DURATION, description="6h, 2d, 90m, 10m30s")]
_DAYS, _HOURS = "0*(?:30|[12]?[0-9])", "0*(?:720|7[01][0-9]|[1-6]?[0-9]{1,2})"
# No pattern adds up: minutes that can make whole hours, and seconds, are left to the reader.
_TTL = (
    rf"(?=.*[1-9])(?:(?:{_DAYS}d)?(?:{_HOURS}h)?(?:(?:[0-9]{{0,4}}[02468])?0m)?"
    r"|(?:[0-9]{1,6}d)?(?:[0-9]{1,6}h)?(?:[0-9]{1,6}m)?[0-9]{1,9}s)"
)
Ttl = Annotated[
    int,
    Reading(values.read_ttl),
    _matching(_TTL, description="Whole hours, 1h to 720h, or 2d"),
]


def _ranges(amount: str) -> str:
    return rf"\s*{amount}\s*|\s*{amount}\s*\.\.\s*(?:{amount}\s*)?|\s*\.\.\s*{amount}\s*"


CountRange = Annotated[
    Range,
    Reading(values.read_range),
    _matching(_ranges(r"[0-9]{1,9}"), description="8, 8.., ..32 or 8..32"),
]
SIZE = r"[0-9]+(?:\.[0-9]+)?\s*(?:[mMgGtT][iI]?[bB])?"
SIZE_RANGE = _ranges(SIZE)
SizeRange = Annotated[
    Range,
    Reading(values.read_size_range),
    _matching(SIZE_RANGE, description="20GB, 20GB.., ..64GB or 20GB..64GB"),
]
Speed = Annotated[
    Decimal,
    Reading(values.read_speed),
    _matching(r"[0-9]{1,9}(?:\.[0-9]{1,9})?\s*[mMgG][bB][pP][sS]", description="500Mbps or 1Gbps"),
]
Version = Annotated[
    Decimal,
    Reading(lambda value: Decimal(_pattern(r"[0-9]{1,3}(\.[0-9]{1,3})?", "a version such as 12.4")(value))),
    _matching(r"[0-9]{1,3}(?:\.[0-9]{1,3})?"),
]
_MEMBER = r"(?!first$)(?:[a-z][a-z0-9-]{0,31}|0|[1-9][0-9]{0,8})"
MEMBER_SCHEMA: Schema = {
    "anyOf": [
        {"type": "string", "pattern": f"^{_MEMBER}$"},
        {"type": "integer", "minimum": 0, "maximum": values.MAX_MEMBER},
        {"type": "boolean"},
        EXPRESSION,
    ]
}
NodesField = Annotated[
    Nodes,
    Reading(values.read_nodes),
    _schema(
        {"type": "integer", "minimum": 0, "maximum": values.MAX_NODES},
        {"type": "string", "pattern": r"^[0-9]{1,9}\.\.[0-9]{1,9}$"},
        {"type": "array", "uniqueItems": True, "items": MEMBER_SCHEMA},
        description="How many pods: N, MIN..MAX, or a list of member names",
    ),
]
Name = Annotated[str, *shaped(NAME, "a name: a-z, 0-9 and -, beginning with a letter, at most 32 characters")]
Variable = Annotated[str, *shaped(r"[a-z_][a-z0-9_]{0,63}", "a variable's name: a-z, 0-9 and _")]
Output = Annotated[str, *shaped(r"[a-z][a-z0-9_-]{0,63}", "an output's name: a-z, 0-9, - and _")]
_ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
EnvName = Annotated[str, *shaped(_ENV_NAME, "an environment variable's name: letters, digits, _")]
Member = Annotated[str, Reading(values.read_member), _matching(r"[a-z][a-z0-9-]{0,31}|0|[1-9][0-9]{0,8}")]
Region = Annotated[
    str,
    *shaped(r"[A-Za-z]{2}(?:-[A-Za-z0-9]{1,8})?", "a country or country-subdivision such as us or jp-13"),
]
NodeId = Annotated[str, *shaped(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}", "a node's id")]
Uuid = Annotated[
    str,
    *shaped(
        r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
        "an id such as 6b1f2a7e-4c1d-4e0f-9a3b-2d5e6f708192",
    ),
]
AbsolutePath = Annotated[str, *shaped(r"/[^\0\n]*", "an absolute path such as /root")]
Mode = Annotated[str, *shaped("[0-7]{3,4}", "octal permissions such as 0755")]
Percentage = Annotated[str, *shaped(r"[0-9]{1,6}|(?:100|[0-9]{1,2})%", "a number of pods, or a percentage such as 30%")]

SpotPolicyField = Annotated[SpotPolicy, *_words(SpotPolicy)]
PlacementField = Annotated[Placement, *_words(Placement)]
ScaleDownField = Annotated[ScaleDown, *_words(ScaleDown)]
RunWhenField = Annotated[RunWhen, *_words(RunWhen)]
OnFailureField = Annotated[OnFailure, *_words(OnFailure)]
CanaryField = Annotated[Canary, *_words(Canary)]
OnCompletionField = Annotated[OnCompletion, *_words(OnCompletion)]
RetryEventField = Annotated[RetryEvent, *_words(RetryEvent)]
VariableTypeField = Annotated[VariableType, *_words(VariableType)]

Environment = Annotated[
    dict[EnvName, TextField],
    _schema(
        {
            "type": "object",
            "propertyNames": {"pattern": f"^{_ENV_NAME}$"},
            "additionalProperties": {"type": _SCALAR},
        }
    ),
]
_SHELL_NAME = r"(?!(?:IFS|OPTIND|PPID|UID|EUID|SHELLOPTS|BASHOPTS|BASH_VERSINFO|PWD|OLDPWD|_)$|__lp_)" + _ENV_NAME
ShellEnvironment = Annotated[
    dict[
        Annotated[
            str, *shaped(_SHELL_NAME, "a name of letters, digits and _ that is not the shell's own, as PWD and UID are")
        ],
        TextField,
    ],
    _schema(
        {
            "type": "object",
            "propertyNames": {"pattern": f"^{_SHELL_NAME}$"},
            "additionalProperties": {"type": _SCALAR},
        }
    ),
]
"""What a shell sets for commands, rather than the server for a container."""


@dataclass(frozen=True, slots=True)
class Shorthand:
    """Lets a block also be written as a scalar: `expand` turns that into the mapping it stands for.

    `schema` is the scalar's JSON Schema. `expand` gets anything but a mapping and raises `Fault`.
    """

    expand: Callable[[object], Mapping[str, object]]
    schema: Mapping[str, object]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        expand = _telling(self.expand)
        known: dict[str, object] = {}

        def validate(value: object, read: Callable[[object], object]) -> object:
            """Blocks are immutable: one stands for all that are written alike."""
            if isinstance(value, Mapping | BaseModel):
                return read(value)
            found = known.get(value) if type(value) is str else None
            if found is None:
                found = read(expand(value))
                if type(value) is str and len(known) < REMEMBERED:
                    known[value] = found
            return found

        return core_schema.no_info_wrap_validator_function(validate, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        return {"anyOf": [dict(self.schema), handler(schema), EXPRESSION]}
