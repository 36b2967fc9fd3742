"""Finding places in a tree, and filling in expressions.

A path is a tuple of keys and indices from the root of the merged manifest: `("fleets", "x", "regions", 0)`.
Nothing is changed in place: what differs is copied, so that the tree as written stays at hand for the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lium_plan.diagnostics import Diagnostic, Diagnostics, Position, Severity
from lium_plan.expressions import ExpressionError, Text, has_expression, parse
from lium_plan.kinds.values import printable
from lium_plan.manifest.document import Document, Map, Place, Seq

Path = tuple[str | int, ...]
_CONTAINERS = (Map, Seq)
_SENSITIVE_ENVIRONMENT = ("env", "registry_auth")


def locate(root: Map, path: Sequence[str | int], *, key: bool = False) -> tuple[Document, Place]:
    """Where the value at `path` was written, or the deepest part of the path that was.

    A value that is a mapping or list is where its key is, and with `key` every value is.
    """
    node: object = root
    found = (root.document, root.at)
    for step in path:
        if isinstance(node, Map):
            places = node.places.get(step) if isinstance(step, str) else None
            if places is None or not isinstance(step, str):
                break
            node = node.get(step)
            document, key_place, value_place = places
            found = (
                document,
                key_place if key or node is None or isinstance(node, _CONTAINERS) else value_place,
            )
        elif isinstance(node, Seq) and isinstance(step, int) and step < len(node.places):
            found = node.places[step]
            node = node[step]
        else:
            break
    return found


def value_at(root: object, path: Sequence[str | int]) -> object:
    """The value at `path`, None when there is none."""
    for step in path:
        if isinstance(root, dict):
            root = root.get(step)
        elif isinstance(root, list) and isinstance(step, int) and step < len(root):
            root = root[step]
        else:
            return None
    return root


def diagnose(
    root: Map,
    path: Sequence[str | int],
    code: str,
    message: str,
    *,
    address: str | None = None,
    hint: str | None = None,
    key: bool = False,
    severity: Severity = Severity.ERROR,
) -> Diagnostic:
    """A diagnostic about the value at `path` (about its key, with `key`)."""
    document, place = locate(root, path, key=key)
    position = document.position(place)
    return Diagnostic(severity, code, printable(message), address, position, hint, document.shown_line(place))


def position_at(root: Map, path: Sequence[str | int]) -> Position | None:
    document, place = locate(root, path)
    return document.position(place)


def offset_place(document: Document, at: Place, text: str, offset: int) -> Place:
    """The place of a character of a scalar that starts at `at`, as well as the way it was written lets us tell."""
    line, column = at
    written = document.line(line)
    before = text[:offset]
    for shift in (0, 1):
        quoted = written[column : column + 1] in ("'", '"')
        if "\n" not in before and written.startswith(before, column + shift) and (quoted or not shift):
            return line, column + shift + offset
    if written[column : column + 1] in ("|", ">"):
        rows = before.split("\n")
        row = line + len(rows)
        content = document.line(row)
        indent = len(content) - len(content.lstrip(" "))
        if content[indent:].startswith(rows[-1].lstrip(" ")):
            return row, indent + len(rows[-1].lstrip(" "))
    return at


Resolve = Callable[[Text, Document, bool], Text]
"""Fills in what is known at load: a text, the document that it is in, whether `env.*` is sensitive there."""


class Filler:
    """One pass over the tree that parses every `${{ }}` and fills in what is known.

    Known values that aren't sensitive take their own type; what is deferred or sensitive becomes a `Text`.
    """

    def __init__(self, resolve: Resolve, diagnostics: Diagnostics, address_of: Callable[[Path], str | None]) -> None:
        self.resolve = resolve
        self.diagnostics = diagnostics
        self.address_of = address_of
        self.broken: set[Path] = set()
        """Paths whose expression could not be understood: what is said about their values is noise."""
        self.texts: list[tuple[Path, Text]] = []
        """What is deferred or sensitive, where it stands first (an alias repeats it unchanged)."""
        self._done: dict[tuple[int, bool], object] = {}

    def fill(self, node: object, path: Path, document: Document, at: Place, *, sensitive: bool = False) -> object:
        if isinstance(node, str):
            return self._scalar(node, path, document, at, sensitive=sensitive) if "${{" in node else node
        if isinstance(node, Map):
            return self._map(node, path, sensitive=sensitive)
        if isinstance(node, Seq):
            return self._seq(node, path, sensitive=sensitive)
        return node

    def _map(self, node: Map, path: Path, *, sensitive: bool) -> Map:
        known = self._done.get((id(node), sensitive))
        if isinstance(known, Map):
            return known
        changed: dict[str, object] = {}
        for key, value in node.items():
            if isinstance(value, str) and "${{" not in value:
                continue
            document, _, at = node.places[key]
            tainted = sensitive or (len(path) > 1 and key in _SENSITIVE_ENVIRONMENT)
            filled = self.fill(value, (*path, key), document, at, sensitive=tainted)
            if filled is not value:
                changed[key] = filled
        result = node
        if changed:
            result = Map(node.document, node.at)
            result.update(node)
            result.update(changed)
            result.places = node.places
        for key in node:
            if has_expression(key):
                message = f"an expression can't be part of a key: '{key}'"
                self.diagnostics.add(node.places[key][0].error("bad-expression", message, node.places[key][1]))
        self._done[id(node), sensitive] = result
        return result

    def _seq(self, node: Seq, path: Path, *, sensitive: bool) -> Seq:
        known = self._done.get((id(node), sensitive))
        if isinstance(known, Seq):
            return known
        filled = [
            value
            if isinstance(value, str) and "${{" not in value
            else self.fill(value, (*path, index), *node.places[index], sensitive=sensitive)
            for index, value in enumerate(node)
        ]
        result = node
        if any(new is not old for new, old in zip(filled, node, strict=True)):
            result = Seq(node.document, node.at)
            result.extend(filled)
            result.places = node.places
        self._done[id(node), sensitive] = result
        return result

    def _scalar(self, text: str, path: Path, document: Document, at: Place, *, sensitive: bool) -> object:
        try:
            parsed = parse(text)
        except ExpressionError as fault:
            return self._misunderstood(text, path, document, at, (fault,))
        try:
            filled = self.resolve(parsed, document, sensitive)
        except ExpressionError as fault:
            faults, rest = self._each(parsed, document, sensitive=sensitive)
            if not rest.known:
                self.texts.append((path, rest))  # what it refers to is checked all the same
            return self._misunderstood(text, path, document, at, faults or (fault,))
        if filled.known and not filled.sensitive:
            return filled.value(lambda _: None)
        self.texts.append((path, filled))
        return filled

    def _each(self, text: Text, document: Document, *, sensitive: bool) -> tuple[tuple[ExpressionError, ...], Text]:
        """The faults of all parts of a text, and the text without those parts."""
        faults: list[ExpressionError] = []
        sound: list[Text] = []
        for part in text.parts:
            try:
                sound.append(self.resolve(Text((part,)), document, sensitive))
            except ExpressionError as fault:
                faults.append(fault)
        return tuple(faults), Text(tuple(part for each in sound for part in each.parts))

    def _misunderstood(
        self, text: str, path: Path, document: Document, at: Place, faults: Iterable[ExpressionError]
    ) -> str:
        self.broken.add(path)
        for fault in faults:
            if isinstance(fault, Known):
                continue
            place = offset_place(document, at, text, fault.offset)
            self.diagnostics.add(
                Diagnostic(
                    Severity.ERROR,
                    "bad-expression",
                    printable(str(fault)),
                    self.address_of(path),
                    document.position(place),
                    source_line=document.shown_line(place),
                )
            )
        return text


class Known(ExpressionError):
    """A fault that was reported already, where it came from."""
