"""What a text consists of, and what can be said of it before it is computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, TypeGuard

from lium_plan.addresses import Address

if TYPE_CHECKING:
    from lium_plan.kinds.protocol import Json

EVERY = "*"
FIRST = "first"


class PlainFloat(float):
    """A decimal number that remembers how it was written: `3.10` is not `3.1` where a string is meant."""

    text: str

    def __new__(cls, text: str) -> PlainFloat:
        number = super().__new__(cls, text)
        number.text = text
        return number


class ExpressionError(ValueError):
    """A text that can't be understood or computed. `offset` counts characters from the start of the text."""

    def __init__(self, message: str, offset: int = 0) -> None:
        self.offset = offset
        super().__init__(message)


class MissingValue(ExpressionError):
    """A name that exists but has no value here (an unset environment variable); `default(…)` steps over it."""


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """A value of another resource: `fleet.trainers[0].ports.8000` is ("fleet", "trainers", "0", ("ports", "8000")).

    `member` is `"*"` for a list over all members, `"first"` for the first one, None for a volume.
    """

    head: str
    name: str
    member: str | None
    path: tuple[str, ...]

    @property
    def text(self) -> str:
        members = {None: "", FIRST: f".{FIRST}"}
        return f"{self.head}.{self.name}{members.get(self.member, f'[{self.member}]')}.{'.'.join(self.path)}"

    @property
    def is_list(self) -> bool:
        return self.member == EVERY

    def addresses(self, members: Callable[[str], tuple[str, ...]]) -> tuple[Address, ...]:
        """The resources that must exist before this has a value; `members` gives a fleet's members in order."""
        if self.member is None:
            return (Address.of(self.head, self.name),)
        if self.member == EVERY:
            return _addresses(self.head, self.name, members(self.name))
        if self.member == FIRST:
            return tuple(Address.of(self.head, self.name, member) for member in members(self.name)[:1])
        return (Address.of(self.head, self.name, self.member),)

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=256)
def _addresses(head: str, name: str, members: tuple[str, ...]) -> tuple[Address, ...]:
    return tuple(Address.of(head, name, member) for member in members)


@dataclass(frozen=True, slots=True)
class Literal:
    """A known value. `source` is the expression that it came from, shown in place of a sensitive value."""

    value: Json
    sensitive: bool = False
    source: str | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        return hash(self.value) if isinstance(self.value, str) else hash(json.dumps(self.value, default=list))

    def __repr__(self) -> str:
        return f"Literal({self.display()!r})"

    def display(self) -> str:
        if not self.sensitive:
            return render(self.value)
        return f"${{{{ {self.source} }}}}" if self.source else "(sensitive)"


@dataclass(frozen=True, slots=True)
class Name:
    """`var.x`, `env.X`, `project`, `stack` (gone after `resolve`), `member.name|index` (gone after `bind_member`)."""

    root: str
    key: str = ""
    path: tuple[str, ...] = ()
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Deferred:
    reference: Reference
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    arguments: tuple[Node, ...]
    offset: int = field(default=0, compare=False)


Node = Literal | Name | Deferred | Call


def walk(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        if isinstance(node, Call):
            yield from walk(node.arguments)


def written(node: Node) -> str:
    """The node as an expression, with nothing sensitive in it."""
    if isinstance(node, Deferred):
        return node.reference.text
    if isinstance(node, Name):
        return ".".join(part for part in (node.root, node.key, *node.path) if part)
    if isinstance(node, Call):
        return f"{node.function}({', '.join(written(argument) for argument in node.arguments)})"
    if node.sensitive:
        return node.source or "(sensitive)"
    return _json(node.value)


def render(value: Json) -> str:
    """A value as it stands inside a string: `true`, `8000`, nothing for null, JSON for lists and maps."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return _json(value)


def _json(value: Json) -> str:
    """As `json.dumps`, but that numbers stand as they were written."""
    if isinstance(value, PlainFloat):
        return value.text
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_json(key)}: {_json(item)}' for key, item in value.items())}}}"
    if is_list(value):
        return f"[{', '.join(_json(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False)


def is_list(value: Json) -> TypeGuard[Sequence[Json]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def list_valued(node: Node) -> bool | None:
    """Whether a node yields a list or a map; None when that can't be known yet."""
    if isinstance(node, Literal):
        return is_list(node.value) or isinstance(node.value, Mapping)
    if isinstance(node, Deferred):
        return node.reference.is_list
    if isinstance(node, Call) and node.function == "default":
        kinds = {
            list_valued(argument)
            for argument in node.arguments
            if not (isinstance(argument, Literal) and argument.value is None)
        }
        return kinds.pop() if len(kinds) == 1 else None
    return None if isinstance(node, Name) and node.root == "var" else False
