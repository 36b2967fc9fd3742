"""Dataclasses to JSON and back, with a JSON Schema, all from the type hints: one source for three things.

Strict: unknown and missing members, wrong types and non-canonical texts are refused with the path to them. Knows the
handful of types that the state is made of and refuses to learn others silently.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from lium_plan.addresses import Address, AddressError, parse
from lium_plan.kinds.protocol import Json
from lium_plan.state.values import moment

Path = tuple[str | int, ...]

_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z")
_MOMENT_PATTERN = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$"
_ADDRESS_PATTERN = (
    r"^(volume|credential|template|fleet|task)\.[a-z][a-z0-9-]{0,31}(\[[a-z0-9-]{1,32}\])?(\.bootstrap)?$"
)


class ShapeError(ValueError):
    """JSON that does not have the shape. `path` leads to the value from the root of what was decoded."""

    def __init__(self, path: Path, message: str, code: str = "state-shape") -> None:
        self.path = path
        self.code = code
        super().__init__(message)


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """How values of one type are read, written and described."""

    decode: Callable[[Json, Path], Any]
    encode: Callable[[Any], Json]
    schema: Mapping[str, Json]


@cache
def shape_of(hint: Any) -> Shape:
    """The shape of a type. Raises `TypeError` for a type that no state is made of."""
    if hint in _SCALARS:
        return _SCALARS[hint]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass_shape(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union) and len(args) == 2 and NoneType in args:
        return _optional(shape_of(next(item for item in args if item is not NoneType)))
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _tuple(shape_of(args[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if float in get_args(args[1]):  # the recursive `Json`, the only union with a float in it
            return _JSON_OBJECT
        return _mapping(args[0], shape_of(args[1]))
    raise TypeError(f"{hint!r} has no place in a state")


def _kind_of(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return "a number"
    return "an object" if isinstance(value, Mapping) else "an array"


def _wrong(value: Json, path: Path, expected: str) -> ShapeError:
    where = f"`{path[-1]}`" if path and isinstance(path[-1], str) else "the value"
    return ShapeError(path, f"{where} must be {expected}, not {_kind_of(value)}")


# --- scalars -------------------------------------------------------------------------------------------------


def _string(value: Json, path: Path) -> str:
    if type(value) is not str:
        raise _wrong(value, path, "a string")
    return value


def _integer(value: Json, path: Path) -> int:
    if type(value) is not int:
        raise _wrong(value, path, "a whole number")
    return value


def _boolean(value: Json, path: Path) -> bool:
    if type(value) is not bool:
        raise _wrong(value, path, "true or false")
    return value


def _bytes(value: Json, path: Path) -> bytes:
    text = _string(value, path)
    if re.fullmatch(r"(?:[0-9a-f]{2})+", text) is None:
        raise ShapeError(path, f"`{path[-1]}` must be lower-case hexadecimal")
    return bytes.fromhex(text)


def _datetime(value: Json, path: Path) -> datetime:
    text = _string(value, path)
    try:
        if _MOMENT.fullmatch(text) is None:
            raise ValueError
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise ShapeError(path, f"'{text[:40]}' is no time: expected RFC 3339 with Z") from None


def _address(value: Json, path: Path) -> Address:
    text = _string(value, path)
    try:
        return parse(text)
    except AddressError as fault:
        # Only a well-formed address with a foreign head is a matter of kinds; the rest is damage.
        foreign = re.fullmatch(r"[a-z][a-z0-9_-]*\.[a-z][^\s]*", text) and text.partition(".")[0] not in _HEADS
        if foreign:
            message = f"'{text}' is of no kind that this version knows"
            raise ShapeError(path, message, "unknown-kind") from None
        raise ShapeError(path, str(fault)) from None


def _object(value: Json, path: Path) -> Mapping[str, Json]:
    if not isinstance(value, Mapping):
        raise _wrong(value, path, "an object")
    return value


def _json_object(value: Json, path: Path) -> Mapping[str, Json]:
    # What `codec` parsed is in the one shape of `values.freeze` already.
    return _object(value, path)


def _same(value: Any) -> Json:
    return value  # type: ignore[no-any-return]


_HEADS = ("volume", "credential", "template", "fleet", "task")
_JSON_OBJECT = Shape(_json_object, _same, {"type": "object"})
_SCALARS: Mapping[Any, Shape] = {
    str: Shape(_string, _same, {"type": "string"}),
    int: Shape(_integer, _same, {"type": "integer"}),
    bool: Shape(_boolean, _same, {"type": "boolean"}),
    bytes: Shape(_bytes, lambda value: value.hex(), {"type": "string", "pattern": "^([0-9a-f]{2})+$"}),
    datetime: Shape(_datetime, moment, {"type": "string", "pattern": _MOMENT_PATTERN}),
    Address: Shape(_address, str, {"type": "string", "pattern": _ADDRESS_PATTERN}),
}


# --- composites ----------------------------------------------------------------------------------------------


def _optional(inner: Shape) -> Shape:
    return Shape(
        lambda value, path: None if value is None else inner.decode(value, path),
        lambda value: None if value is None else inner.encode(value),
        {"anyOf": [inner.schema, {"type": "null"}]},
    )


def _tuple(inner: Shape) -> Shape:
    def decode(value: Json, path: Path) -> tuple[Any, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise _wrong(value, path, "an array")
        return tuple(inner.decode(item, (*path, index)) for index, item in enumerate(value))

    return Shape(decode, lambda value: [inner.encode(item) for item in value], {"type": "array", "items": inner.schema})


def _mapping(key_type: Any, inner: Shape) -> Shape:
    def decode(value: Json, path: Path) -> Mapping[Any, Any]:
        result: dict[Any, Any] = {}
        for key, item in _object(value, path).items():
            if key_type is int and re.fullmatch(r"0|[1-9][0-9]{0,17}", key) is None:
                raise ShapeError((*path, key), f"'{key}' must be a number")
            result[key_type(key)] = inner.decode(item, (*path, key))
        return dict(sorted(result.items()))

    return Shape(
        decode,
        lambda value: {str(key): inner.encode(value[key]) for key in sorted(value)},
        {"type": "object", "additionalProperties": inner.schema},
    )


def _dataclass_shape(cls: type) -> Shape:
    hints = get_type_hints(cls)
    shapes = {field.name: shape_of(hints[field.name]) for field in dataclasses.fields(cls)}
    getters = tuple(shapes.items())

    def decode(value: Json, path: Path) -> Any:
        members = _object(value, path)
        if members.keys() != shapes.keys():
            unknown = sorted(members.keys() - shapes.keys())
            if unknown:
                raise ShapeError((*path, unknown[0]), f"`{unknown[0]}` is no member of a {_words(cls)}")
            missing = next(name for name in shapes if name not in members)
            raise ShapeError(path, f"the {_words(cls)} lacks `{missing}`")
        return cls(*[shape.decode(members[name], (*path, name)) for name, shape in getters])

    def encode(value: Any) -> Json:
        return {name: shape.encode(getattr(value, name)) for name, shape in getters}

    schema: Mapping[str, Json] = {
        "type": "object",
        "additionalProperties": False,
        "required": list(shapes),
        "properties": {name: shape.schema for name, shape in shapes.items()},
    }
    return Shape(decode, encode, schema)


def _words(cls: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", cls.__name__).lower()
