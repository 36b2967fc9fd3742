"""The `${{ … }}` language: parsing, and texts whose parts become known at different times.

Owns the grammar, `Reference` (what one resource may ask of another) and `Text` (a string with deferred parts and a
sensitivity of its own). Refuses everything that is not `${{ … }}`: `$VAR`, `${VAR}` and `$(…)` belong to the shell.
A literal `${{` is written `$${{`. Looks nothing up itself: values come from whoever calls `resolve` (variables,
environment, files; at load) and `fill` (other resources; during plan and apply).

    expression := literal | call | name
    literal    := 'text' | "text" | 12 | 1.5 | true | false | null
    call       := FUNCTION ( expression, … )          default join file length lower replace
    name       := var.NAME[.KEY…] | env.NAME | member.name | member.index | project | stack | volume.NAME.id
                | fleet.NAME[MEMBER].FIELD | fleet.NAME[*].FIELD | fleet.NAME.first.FIELD
    FIELD      := host | ip | ssh_port | pod_id | price | ports.N
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, NoReturn, Protocol

from lium_plan.addresses import MEMBER, NAME, Address

if TYPE_CHECKING:
    from lium_plan.kinds.protocol import Json

FLEET_FIELDS = ("host", "ip", "ssh_port", "ports", "pod_id", "price")
EVERY = "*"
FIRST = "first"
ROOTS = ("var", "env", "fleet", "volume", "member", "project", "stack")
FUNCTIONS: Mapping[str, tuple[int, int]] = {
    "default": (2, 8),
    "join": (2, 2),
    "file": (1, 1),
    "length": (1, 1),
    "lower": (1, 1),
    "replace": (3, 3),
}
MAX_DEPTH = 20
_TOKEN = re.compile(
    r"""\s*(?:(?P<end>\}\})|(?P<string>'[^'\n]*'|"(?:[^"\\\n]|\\.)*")|(?P<number>-?[0-9]+(?:\.[0-9]+)?(?![A-Za-z_]))"""
    r"""|(?P<word>[A-Za-z_][A-Za-z0-9_-]*)|(?P<mark>[.\[\](),*])|(?P<other>\S))"""
)


class ExpressionError(ValueError):
    """A text that can't be understood or computed. `offset` counts characters from the start of the text."""

    def __init__(self, message: str, offset: int = 0) -> None:
        self.offset = offset
        super().__init__(message)


class MissingValue(ExpressionError):
    """A name that exists but has no value here (an unset environment variable); `default(…)` steps over it."""


class Names(Protocol):
    """Where names get their values when a manifest is loaded."""

    def value(self, root: str, key: str) -> tuple[Json, bool]:
        """Value and sensitivity of `var.KEY`, `env.KEY`, `project` or `stack` (key ""). Raises `ExpressionError`."""
        ...

    def file(self, path: str) -> str:
        """The content of a text file. Raises `ExpressionError`."""
        ...


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


Lookup = Callable[[Reference], "Json | None"]


# --- nodes: what a text consists of ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Literal:
    """A known value. `source` is the expression that it came from, shown in place of a sensitive value."""

    value: Json
    sensitive: bool = False
    source: str | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        return hash(self.value) if isinstance(self.value, str) else hash(json.dumps(self.value, default=list))

    def __repr__(self) -> str:
        return f"_Literal({self.display()!r})"

    def display(self) -> str:
        if not self.sensitive:
            return render(self.value)
        return f"${{{{ {self.source} }}}}" if self.source else "(sensitive)"


@dataclass(frozen=True, slots=True)
class _Name:
    """`var.x`, `env.X`, `project`, `stack` (gone after `resolve`), `member.name|index` (gone after `bind_member`)."""

    root: str
    key: str = ""
    path: tuple[str, ...] = ()
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class _Deferred:
    reference: Reference
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class _Call:
    function: str
    arguments: tuple[_Node, ...]
    offset: int = field(default=0, compare=False)


_Node = _Literal | _Name | _Deferred | _Call


def _walk(nodes: Iterable[_Node]) -> Iterator[_Node]:
    for node in nodes:
        yield node
        if isinstance(node, _Call):
            yield from _walk(node.arguments)


def _written(node: _Node) -> str:
    """The node as an expression, with nothing sensitive in it."""
    if isinstance(node, _Deferred):
        return node.reference.text
    if isinstance(node, _Name):
        return ".".join(part for part in (node.root, node.key, *node.path) if part)
    if isinstance(node, _Call):
        return f"{node.function}({', '.join(_written(argument) for argument in node.arguments)})"
    if node.sensitive:
        return node.source or "(sensitive)"
    return json.dumps(node.value, ensure_ascii=False, default=list)


def render(value: Json) -> str:
    """A value as it stands inside a string: `true`, `8000`, nothing for null, JSON for lists and maps."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, default=list)


def _is_list(value: Json) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _list_valued(node: _Node) -> bool | None:
    """Whether a node yields a list or a map; None when that can't be known yet."""
    if isinstance(node, _Literal):
        return _is_list(node.value) or isinstance(node.value, Mapping)
    if isinstance(node, _Deferred):
        return node.reference.is_list
    if isinstance(node, _Call) and node.function == "default":
        kinds = {
            _list_valued(argument)
            for argument in node.arguments
            if not (isinstance(argument, _Literal) and argument.value is None)
        }
        return kinds.pop() if len(kinds) == 1 else None
    return None if isinstance(node, _Name) and node.root == "var" else False


# --- functions -------------------------------------------------------------------------------------------------


def _call(node: _Call) -> _Node:
    """The call's value when its arguments allow one, else the call itself. Raises `ExpressionError`."""
    arguments = node.arguments
    _check_types(node)
    if node.function == "default":
        for position, argument in enumerate(arguments):
            if not isinstance(argument, _Literal):
                rest = arguments[position:]
                return argument if len(rest) == 1 else _Call("default", rest, node.offset)
            if argument.value is not None:
                return argument
        return _Literal(None)
    if node.function == "file" or not all(isinstance(argument, _Literal) for argument in arguments):
        return node
    literals = [argument for argument in arguments if isinstance(argument, _Literal)]
    value = _compute(node.function, [argument.value for argument in literals], node.offset)
    return _Literal(value, any(argument.sensitive for argument in literals), _written(node))


def _check_types(node: _Call) -> None:
    lists = [_list_valued(argument) for argument in node.arguments]
    if node.function in ("lower", "replace", "file") and True in lists:
        raise ExpressionError(f"{node.function}() takes strings, not a list: use join() first", node.offset)
    if node.function == "join" and (None not in lists) and lists.count(True) != 1:
        raise ExpressionError("join() takes a separator and a list: join(', ', fleet.x[*].host)", node.offset)


def _compute(function: str, values: Sequence[Json], offset: int) -> Json:
    if function == "join":
        first, second = values
        separator, items = (second, first) if _is_list(first) else (first, second)
        if not isinstance(separator, str) or isinstance(items, str) or not isinstance(items, Sequence):
            raise ExpressionError("join() takes a separator and a list: join(', ', fleet.x[*].host)", offset)
        return separator.join(render(item) for item in items)
    subject = values[0]
    if function == "length":
        if not isinstance(subject, str | Sequence | Mapping):
            raise ExpressionError("length() takes a list, a map or a string", offset)
        return len(subject)
    if isinstance(subject, Mapping):
        raise ExpressionError(f"{function}() takes strings, not a map", offset)
    if function == "lower":
        return render(subject).lower()
    return render(subject).replace(render(values[1]), render(values[2]))


# --- text ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Text:
    """A string that may have deferred parts. Immutable; every step towards knowing it gives a new one.

    Showing one (`str`, `repr`, `source`) never shows a sensitive part: that takes `reveal`.
    """

    parts: tuple[_Node, ...]

    @classmethod
    def of(cls, value: str, sensitive: bool = False) -> Text:
        """A known text in which nothing is an expression."""
        return cls((_Literal(value, sensitive),))

    @classmethod
    def of_value(cls, value: Json, sensitive: bool = False, source: str | None = None) -> Text:
        """A known value that keeps its type, as a whole expression would. `source` is shown if it is sensitive."""
        return cls((_Literal(value, sensitive, source),))

    @property
    def known(self) -> bool:
        if len(self.parts) == 1:
            return isinstance(self.parts[0], _Literal)
        return all(isinstance(part, _Literal) for part in self.parts)

    @property
    def sensitive(self) -> bool:
        return any(isinstance(node, _Literal) and node.sensitive for node in _walk(self.parts))

    @property
    def references(self) -> tuple[Reference, ...]:
        """Each reference once, in order of appearance."""
        if self.known:
            return ()
        found = (node.reference for node in _walk(self.parts) if isinstance(node, _Deferred))
        return tuple(dict.fromkeys(found))

    @property
    def located_references(self) -> tuple[tuple[Reference, int], ...]:
        """Every reference with its offset in the text as written."""
        return tuple((node.reference, node.offset) for node in _walk(self.parts) if isinstance(node, _Deferred))

    @property
    def uses_member(self) -> bool:
        return not self.known and any(isinstance(node, _Name) and node.root == "member" for node in _walk(self.parts))

    @property
    def list_valued(self) -> bool:
        """A list or map stands in it where only a string makes sense."""
        return any(_list_valued(part) is True for part in self.parts)

    @property
    def source(self) -> str:
        """For display: known parts as they are, the others as expressions, nothing sensitive."""
        return "".join(
            part.display() if isinstance(part, _Literal) else f"${{{{ {_written(part)} }}}}" for part in self.parts
        )

    def reveal(self) -> str:
        """The string, secrets included. Raises ValueError when a part is not known yet."""
        if len(self.parts) == 1 and isinstance(self.parts[0], _Literal):
            return render(self.parts[0].value)
        if not self.known:
            raise ValueError(f"not known yet: {self.source}")
        return "".join(render(part.value) for part in self.parts if isinstance(part, _Literal))

    def secrets(self) -> tuple[str, ...]:
        """The sensitive values in it, each by itself: what must not show up in any output."""
        found = (node for node in _walk(self.parts) if isinstance(node, _Literal) and node.sensitive)
        return tuple(dict.fromkeys(text for node in found if (text := render(node.value))))

    def fingerprint(self) -> str:
        """Equal for equal texts, and telling nothing of sensitive parts but whether they changed."""
        return "".join(_fingerprint(part) for part in self.parts)

    def resolve(self, names: Names) -> Text:
        """Variables, environment, project, stack and files filled in. Raises `ExpressionError`."""
        if self.known:
            return self
        return _text(_resolve(part, names) for part in self.parts)

    def bind_member(self, name: str, index: int) -> Text:
        """`member.name` and `member.index` filled in for one member of a fleet."""
        if not self.uses_member:
            return self
        return _text(_bind(part, {"name": name, "index": index}) for part in self.parts)

    def fill(self, lookup: Lookup) -> Text:
        """Every reference that `lookup` has a value for, filled in. Raises `ExpressionError` for a wrong type."""
        if self.known:
            return self
        return _text(_fill(part, lookup) for part in self.parts)

    def value(self, lookup: Lookup) -> Json | None:
        """The value, typed when the text is one whole expression; None while a part is unknown."""
        filled = self.fill(lookup)
        if len(filled.parts) == 1:
            part = filled.parts[0]
            return part.value if isinstance(part, _Literal) else None
        return filled.reveal() if filled.known else None

    def __str__(self) -> str:
        return self.source

    def __repr__(self) -> str:
        return f"Text({self.source!r})"


def _fingerprint(node: _Node) -> str:
    if isinstance(node, _Literal) and node.sensitive:
        return f"sha256:{sha256(render(node.value).encode()).hexdigest()}"
    if isinstance(node, _Call):
        return f"{node.function}({', '.join(_fingerprint(each) for each in node.arguments)})"
    return _written(node)


def _text(nodes: Iterable[_Node]) -> Text:
    """Neighbouring known parts become one, unless a single value keeps its type."""
    merged: list[_Node] = []
    for node in nodes:
        last = merged[-1] if merged else None
        if isinstance(node, _Literal) and isinstance(last, _Literal) and node.sensitive is last.sensitive is False:
            merged[-1] = _Literal(render(last.value) + render(node.value))
        else:
            merged.append(node)
    return Text(tuple(merged))


def _resolve(node: _Node, names: Names) -> _Node:
    if isinstance(node, _Name) and node.root != "member":
        try:
            value, sensitive = names.value(node.root, node.key)
            return _Literal(_dig(value, node), sensitive, _written(node))
        except ExpressionError as unknown:
            raise type(unknown)(str(unknown), node.offset) from None
    if not isinstance(node, _Call):
        return node
    arguments = []
    for position, argument in enumerate(node.arguments):
        try:
            arguments.append(_resolve(argument, names))
        except MissingValue:
            if node.function != "default" or position == len(node.arguments) - 1:
                raise
            arguments.append(_Literal(None))
    if node.function != "file":
        return _call(_Call(node.function, tuple(arguments), node.offset))
    path = arguments[0]
    if not isinstance(path, _Literal) or path.sensitive or not isinstance(path.value, str):
        raise ExpressionError("file() takes a path that is known beforehand and not sensitive", node.offset)
    try:
        return _Literal(names.file(path.value), False, _written(node))
    except ExpressionError as unreadable:
        raise ExpressionError(str(unreadable), node.offset) from None


def _dig(value: Json, node: _Name) -> Json:
    """The part of a list or map variable that the path after its name means."""
    for step in node.path:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif _is_list(value) and isinstance(value, Sequence) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise ExpressionError(f"{_written(node)}: there is no '{step}' in {node.root}.{node.key}", node.offset)
    return value


def _bind(node: _Node, member: Mapping[str, str | int]) -> _Node:
    if isinstance(node, _Name) and node.root == "member":
        return _Literal(member[node.key])
    if isinstance(node, _Call):
        return _call(_Call(node.function, tuple(_bind(each, member) for each in node.arguments), node.offset))
    return node


def _fill(node: _Node, lookup: Lookup) -> _Node:
    if isinstance(node, _Deferred):
        value = lookup(node.reference)
        return node if value is None else _Literal(value, False, node.reference.text)
    if isinstance(node, _Call):
        return _call(_Call(node.function, tuple(_fill(each, lookup) for each in node.arguments), node.offset))
    return node


# --- parsing ---------------------------------------------------------------------------------------------------


def has_expression(text: str) -> bool:
    return "${{" in text


def parse(text: str) -> Text:
    """A text with its `${{ … }}` understood. Raises `ExpressionError` with the offset of the fault."""
    if "${{" not in text:
        return Text((_Literal(text),))
    nodes: list[_Node] = []
    plain: list[str] = []
    at = 0
    while (start := text.find("${{", at)) >= 0:
        if start > at and text[start - 1] == "$":
            plain.append(text[at : start - 1] + "${{")
            at = start + 3
            continue
        plain.append(text[at:start])
        if any(plain):
            nodes.append(_Literal("".join(plain)))
        plain = []
        parser = _Parser(text, start + 3)
        nodes.append(parser.whole())
        at = parser.at
    plain.append(text[at:])
    if any(plain):
        nodes.append(_Literal("".join(plain)))
    return Text(tuple(nodes))


class _Parser:
    """Recursive descent over one `${{ … }}`; `at` ends up behind its `}}`."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.start = at - 3
        self.at = at
        self.kind = ""
        self.token = ""
        self.offset = at
        self.advance()

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.at)
        if match is None or match.lastgroup is None:
            raise ExpressionError("'${{' without its '}}'", self.start)
        self.kind, self.token = match.lastgroup, match[match.lastgroup]
        self.offset = match.start(match.lastgroup)
        self.at = match.end()

    def fail(self, message: str) -> NoReturn:
        raise ExpressionError(message, self.offset)

    def take(self, mark: str, context: str) -> None:
        if self.token != mark or self.kind != "mark":
            self.fail(f"expected '{mark}' {context}, found '{self.token}'")
        self.advance()

    def whole(self) -> _Node:
        if self.kind == "end":
            self.fail("'${{ }}' is empty")
        node = self.expression(0)
        # The end mark is the current token: `at` already stands behind it.
        if self.kind != "end":
            self.fail(f"expected '}}}}' after the expression, found '{self.token}'")
        return node

    def expression(self, depth: int) -> _Node:
        if depth > MAX_DEPTH:
            self.fail("expression nested too deeply")
        token, offset = self.token, self.offset
        if self.kind == "string":
            value = token[1:-1]
            if token[0] == '"':
                try:
                    value = str(json.loads(token, strict=False))
                except ValueError:
                    self.fail("a bad escape in the string: only JSON's (\\n, \\\", \\\\, \\u00e9)")
            self.advance()
            return _Literal(value)
        if self.kind == "number":
            self.advance()
            return _Literal(float(token) if "." in token else int(token))
        if self.kind != "word":
            self.fail(f"expected a name, a function or a literal, found '{token}'")
        self.advance()
        if self.kind == "mark" and self.token == "(":
            return self.call(token, offset, depth)
        if token in ("true", "false", "null"):
            return _Literal({"true": True, "false": False, "null": None}[token])
        return self.name(token, offset)

    def call(self, function: str, offset: int, depth: int) -> _Node:
        if function not in FUNCTIONS:
            raise ExpressionError(f"unknown function '{function}'{_nearest(function, tuple(FUNCTIONS))}", offset)
        self.advance()
        arguments: list[_Node] = []
        while not (self.kind == "mark" and self.token == ")"):
            if arguments:
                self.take(",", f"between the arguments of {function}()")
            arguments.append(self.expression(depth + 1))
        self.advance()
        least, most = FUNCTIONS[function]
        if not least <= len(arguments) <= most:
            wanted = str(least) if least == most else f"{least} or more"
            plural = "" if most == 1 else "s"
            raise ExpressionError(f"{function}() takes {wanted} argument{plural}, not {len(arguments)}", offset)
        node = _Call(function, tuple(arguments), offset)
        _check_types(node)
        return node

    def name(self, root: str, offset: int) -> _Node:
        if root not in ROOTS:
            hint = _nearest(root, ROOTS) or f"; known: {', '.join(ROOTS)}"
            raise ExpressionError(f"unknown name '{root}'{hint}", offset)
        if root in ("project", "stack"):
            return _Name(root, offset=offset)
        key = self.step(f"after {root}")
        if root == "fleet":
            return self.fleet(key, offset)
        if root == "volume":
            return self.volume(key, offset)
        if root == "member":
            if key not in ("name", "index"):
                raise ExpressionError(f"unknown name 'member.{key}'; known: member.name, member.index", offset)
            return _Name(root, key, offset=offset)
        pattern = r"[a-z_][a-z0-9_]*" if root == "var" else r"[A-Za-z_][A-Za-z0-9_]*"
        if not re.fullmatch(pattern, key):
            raise ExpressionError(f"'{root}.{key}' is no name: expected {pattern}", offset)
        path: list[str] = []
        while root == "var" and self.kind == "mark" and self.token in ".[":
            path.append(self.bracket() if self.token == "[" else self.step(f"after var.{key}"))
        return _Name(root, key, tuple(path), offset)

    def step(self, context: str) -> str:
        self.take(".", context)
        if self.kind not in ("word", "number"):
            self.fail(f"expected a name {context}, found '{self.token}'")
        token = self.token
        self.advance()
        return token

    def bracket(self) -> str:
        self.take("[", "")
        token = self.token[1:-1] if self.kind == "string" else self.token
        if self.kind not in ("word", "number", "string") and token != EVERY:
            self.fail(f"expected a member's name, a number or * in [ ], found '{self.token}'")
        self.advance()
        self.take("]", f"after '{token}'")
        return token

    def fleet(self, name: str, offset: int) -> _Node:
        if not re.fullmatch(NAME, name):
            raise ExpressionError(f"'{name}' is no fleet's name: expected {NAME}", offset)
        if self.kind == "mark" and self.token == "[":
            member = self.bracket()
            if member != EVERY and not re.fullmatch(MEMBER, member):
                raise ExpressionError(f"'{member}' is no member: a name, a number, or * for all", offset)
        else:
            member = self.step(f"or a member in [ ] after fleet.{name}")
            if member != FIRST:
                raise ExpressionError(
                    f"fleet.{name}.{member}: say of which member: fleet.{name}[0].{member}, "
                    f"fleet.{name}.first.{member} or fleet.{name}[*].{member}",
                    offset,
                )
        path: tuple[str, ...] = (self.step(f"after fleet.{name}[{member}]"),)
        if path[0] not in FLEET_FIELDS:
            hint = _nearest(path[0], FLEET_FIELDS) or f"; known: {', '.join(FLEET_FIELDS)}"
            raise ExpressionError(f"a fleet's member has no '{path[0]}'{hint}", offset)
        if path == ("ports",):
            port = self.step("with a container port's number after ports")
            if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
                raise ExpressionError(f"'{port}' is no port: write ports.8000", offset)
            path = ("ports", port)
        return _Deferred(Reference("fleet", name, member, path), offset)

    def volume(self, name: str, offset: int) -> _Node:
        field_name = self.step(f"after volume.{name}")
        if field_name != "id":
            raise ExpressionError(f"a volume has no '{field_name}'; known: id", offset)
        if not re.fullmatch(NAME, name):
            raise ExpressionError(f"'{name}' is no volume's name: expected {NAME}", offset)
        return _Deferred(Reference("volume", name, None, ("id",)), offset)


def _nearest(word: str, known: tuple[str, ...]) -> str:
    found = get_close_matches(word, known, 1, 0.6)
    return f"; did you mean '{found[0]}'?" if found else ""
