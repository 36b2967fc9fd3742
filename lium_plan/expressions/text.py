"""A text, and the steps by which its parts become known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from lium_plan.expressions.functions import call
from lium_plan.expressions.nodes import (
    Call,
    Deferred,
    ExpressionError,
    Literal,
    MissingValue,
    Name,
    Node,
    Reference,
    is_list,
    list_valued,
    render,
    walk,
    written,
)

if TYPE_CHECKING:
    from lium_plan.kinds.protocol import Json

Lookup = Callable[[Reference], "Json | None"]


class Names(Protocol):
    """Where names get their values when a manifest is loaded."""

    def value(self, root: str, key: str) -> tuple[Json, bool]:
        """Value and sensitivity of `var.KEY`, `env.KEY`, `project` or `stack` (key ""). Raises `ExpressionError`."""
        ...

    def file(self, path: str) -> str:
        """The content of a text file. Raises `ExpressionError`."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Text:
    """A string that may have deferred parts. Immutable; every step towards knowing it gives a new one.

    Showing one (`str`, `repr`, `source`) never shows a sensitive part: that takes `reveal`.
    """

    parts: tuple[Node, ...]

    @classmethod
    def of(cls, value: str, sensitive: bool = False) -> Text:
        """A known text in which nothing is an expression."""
        return cls((Literal(value, sensitive),))

    @classmethod
    def of_value(cls, value: Json, sensitive: bool = False, source: str | None = None) -> Text:
        """A known value that keeps its type, as a whole expression would. `source` is shown if it is sensitive."""
        return cls((Literal(value, sensitive, source),))

    @property
    def known(self) -> bool:
        if len(self.parts) == 1:
            return isinstance(self.parts[0], Literal)
        return all(isinstance(part, Literal) for part in self.parts)

    @property
    def sensitive(self) -> bool:
        return any(isinstance(node, Literal) and node.sensitive for node in walk(self.parts))

    @property
    def references(self) -> tuple[Reference, ...]:
        """Each reference once, in order of appearance."""
        if self.known:
            return ()
        found = (node.reference for node in walk(self.parts) if isinstance(node, Deferred))
        return tuple(dict.fromkeys(found))

    @property
    def located_references(self) -> tuple[tuple[Reference, int], ...]:
        """Every reference with its offset in the text as written."""
        return tuple((node.reference, node.offset) for node in walk(self.parts) if isinstance(node, Deferred))

    @property
    def uses_member(self) -> bool:
        return not self.known and any(isinstance(node, Name) and node.root == "member" for node in walk(self.parts))

    @property
    def list_valued(self) -> bool:
        """A list or map stands in it where only a string makes sense."""
        return any(list_valued(part) is True for part in self.parts)

    @property
    def source(self) -> str:
        """For display: known parts as they are, the others as expressions, nothing sensitive."""
        return "".join(
            part.display() if isinstance(part, Literal) else f"${{{{ {written(part)} }}}}" for part in self.parts
        )

    def reveal(self) -> str:
        """The string, secrets included. Raises ValueError when a part is not known yet."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Literal):
            return render(self.parts[0].value)
        if not self.known:
            raise ValueError(f"not known yet: {self.source}")
        return "".join(render(part.value) for part in self.parts if isinstance(part, Literal))

    def secrets(self) -> tuple[str, ...]:
        """The sensitive values in it, each by itself: what must not show up in any output."""
        found = (node for node in walk(self.parts) if isinstance(node, Literal) and node.sensitive)
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
            return part.value if isinstance(part, Literal) else None
        return filled.reveal() if filled.known else None

    def __str__(self) -> str:
        return self.source

    def __repr__(self) -> str:
        return f"Text({self.source!r})"


def _fingerprint(node: Node) -> str:
    if isinstance(node, Literal) and node.sensitive:
        return f"sha256:{sha256(render(node.value).encode()).hexdigest()}"
    if isinstance(node, Call):
        return f"{node.function}({', '.join(_fingerprint(each) for each in node.arguments)})"
    return written(node)


def _text(nodes: Iterable[Node]) -> Text:
    """Neighbouring known parts become one, unless a single value keeps its type."""
    merged: list[Node] = []
    for node in nodes:
        last = merged[-1] if merged else None
        if isinstance(node, Literal) and isinstance(last, Literal) and node.sensitive is last.sensitive is False:
            merged[-1] = Literal(render(last.value) + render(node.value))
        else:
            merged.append(node)
    return Text(tuple(merged))


def _resolve(node: Node, names: Names) -> Node:
    if isinstance(node, Name) and node.root != "member":
        try:
            value, sensitive = names.value(node.root, node.key)
            return Literal(_dig(value, node), sensitive, written(node))
        except ExpressionError as unknown:
            raise type(unknown)(str(unknown), node.offset) from None
    if not isinstance(node, Call):
        return node
    arguments = []
    for position, argument in enumerate(node.arguments):
        try:
            arguments.append(_resolve(argument, names))
        except MissingValue:
            if node.function != "default" or position == len(node.arguments) - 1:
                raise
            arguments.append(Literal(None))
    if node.function != "file":
        return call(Call(node.function, tuple(arguments), node.offset))
    path = arguments[0]
    if not isinstance(path, Literal) or path.sensitive or not isinstance(path.value, str):
        raise ExpressionError("file() takes a path that is known beforehand and not sensitive", node.offset)
    try:
        return Literal(names.file(path.value), False, written(node))
    except ExpressionError as unreadable:
        raise ExpressionError(str(unreadable), node.offset) from None


def _dig(value: Json, node: Name) -> Json:
    """The part of a list or map variable that the path after its name means."""
    for step in node.path:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif is_list(value) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            # A map or list may lack a part, which `default(…)` steps over; nothing else has parts.
            fault = MissingValue if isinstance(value, Mapping) or is_list(value) else ExpressionError
            raise fault(f"{written(node)}: there is no '{step}' in {node.root}.{node.key}", node.offset)
    return value


def _bind(node: Node, member: Mapping[str, str | int]) -> Node:
    if isinstance(node, Name) and node.root == "member":
        return Literal(member[node.key])
    if isinstance(node, Call):
        return call(Call(node.function, tuple(_bind(each, member) for each in node.arguments), node.offset))
    return node


def _fill(node: Node, lookup: Lookup) -> Node:
    if isinstance(node, Deferred):
        value = lookup(node.reference)
        return node if value is None else Literal(value, False, node.reference.text)
    if isinstance(node, Call):
        return call(Call(node.function, tuple(_fill(each, lookup) for each in node.arguments), node.offset))
    return node
