"""Mutants of a module: each lacks one statement, or takes one turning always or never.

Not mutated: docstrings, imports, definitions, `pass`, declarations without a value, and what only types need.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

Place = tuple[int, int]
"""Line and column of a node."""
Function = tuple[str, int]
"""Qualified name, and the line of the `def` or of its first decorator: as code objects have them."""


Identity = tuple[str, str, str, str, int]
"""File, function, change, text, and which of several that are equal in all that: a mutant whatever its line."""


class Change(StrEnum):
    DELETED = "deleted"
    NEVER = "never"
    """The condition is false; the loop goes over nothing."""
    ALWAYS = "always"
    """The condition is true."""
    UNWRAPPED = "unwrapped"
    """The body of a `with` alone."""
    NO_HANDLER = "no handler"
    """A `try` without one of its `except`."""
    NO_FINALLY = "no finally"
    """What stands under `finally` follows only what went well."""
    NO_CASE = "no case"
    """A `match` without one of its cases."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file. `lines` is what must have been run for a test to notice."""

    file: str
    within: str
    """The qualified name of the function or class around it."""
    function: Function | None
    """The outermost function around it, which is compiled anew. None outside of functions."""
    change: Change
    place: Place
    lines: range
    around: range
    """The lines of the outermost function."""
    text: str
    nth: int = 1
    """Among those of the same text in the same function."""

    @property
    def identity(self) -> Identity:
        return self.file, self.within, str(self.change), self.text, self.nth

    def __str__(self) -> str:
        number = f"  (no. {self.nth})" if self.nth > 1 else ""
        return f"{self.file}:{self.place[0]}  {self.within or '(module)'}  [{self.change}]  {self.text}{number}"


def mutants(file: str, source: str, prefixes: Sequence[str] = ("",)) -> list[Mutant]:
    """All of a file's, in its order, that lie in functions whose qualified name begins with one of `prefixes`."""
    seen: Counter[Identity] = Counter()
    found = []
    for mutant in _Finder(file, source).found(ast.parse(source)):
        if any(mutant.within.startswith(prefix) for prefix in prefixes):
            seen[mutant.identity] += 1
            found.append(replace(mutant, nth=seen[mutant.identity]))
    return found


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """The tree of the changed module; every line keeps its number. Raises `ValueError` when there is no such place."""
    changer = _Changer(mutant)
    tree = ast.fix_missing_locations(changer.visit(ast.parse(source)))
    if not changer.done:
        raise ValueError(f"no such place: {mutant}")
    return tree  # type: ignore[no-any-return]


class _Finder:
    def __init__(self, file: str, source: str) -> None:
        self._file = file
        self._source = source.splitlines()

    def found(self, module: ast.Module) -> Iterator[Mutant]:
        yield from self._of_body(module.body, "", None, range(0))

    def _of_body(
        self, body: Sequence[ast.stmt], within: str, function: Function | None, around: range
    ) -> Iterator[Mutant]:
        for index, node in enumerate(body):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{within}.{node.name}".lstrip(".")
                first_line = min(part.lineno for part in (node, *node.decorator_list))
                lines = around or range(first_line, (node.end_lineno or first_line) + 1)
                yield from self._of_body(node.body, name, function or (name, first_line), lines)
            elif isinstance(node, ast.ClassDef):
                yield from self._of_body(node.body, f"{within}.{node.name}".lstrip("."), function, around)
            else:
                yield from self._of_statement(node, within, function, around, first=index == 0)

    def _of_statement(
        self, node: ast.stmt, within: str, function: Function | None, around: range, *, first: bool
    ) -> Iterator[Mutant]:
        def one(change: Change, at: ast.AST, last: int, text: str | None = None) -> Mutant:
            place, lines = (at.lineno, at.col_offset), range(at.lineno, last + 1)  # type: ignore[attr-defined]
            return Mutant(
                self._file, within, function, change, place, lines, around, text or self._text(lines, place[1])
            )

        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
            case ast.If(test=test) | ast.While(test=test):
                last = test.end_lineno or test.lineno
                yield one(Change.NEVER, node, last)
                if not (isinstance(test, ast.Constant) and test.value is True):
                    yield one(Change.ALWAYS, node, last)
            case ast.For(iter=over) | ast.AsyncFor(iter=over):
                yield one(Change.NEVER, node, over.end_lineno or over.lineno)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                yield one(Change.UNWRAPPED, node, items[-1].context_expr.end_lineno or node.lineno)
            case ast.Try():
                for handler in node.handlers:
                    yield one(Change.NO_HANDLER, handler, handler.lineno)
                if node.finalbody:
                    yield one(Change.NO_FINALLY, node, node.lineno, "try: … finally:")
            case ast.Match():
                for case in node.cases:
                    pattern = case.pattern
                    yield one(Change.NO_CASE, pattern, pattern.end_lineno or pattern.lineno)
            case _:
                if not _is_left_alone(node, first=first):
                    yield one(Change.DELETED, node, node.end_lineno or node.lineno)
        for body in _bodies(node):
            yield from self._of_body(body, within, function, around)

    def _text(self, lines: range, column: int) -> str:
        rows = [self._source[line - 1] for line in lines]
        rows[0] = rows[0].encode()[column:].decode()
        return " ".join(row.strip() for row in rows)


def _bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        if found := getattr(node, field, None):
            yield found
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def _is_left_alone(node: ast.stmt, *, first: bool) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Nonlocal() | ast.Global():
            return True
        case ast.Expr(value=ast.Constant()):
            return True  # a docstring, of a field too
        case ast.AnnAssign(value=None):
            return True
        case ast.Assign(targets=[ast.Name(id="__slots__")]):
            return True
        case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar"))):
            return True
    return False


class _Changer(ast.NodeTransformer):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self.done = False

    def visit(self, node: ast.AST) -> object:
        change = self._mutant.change
        if isinstance(node, ast.Try) and change is Change.NO_HANDLER:
            kept = [handler for handler in node.handlers if not self._is_here(handler)]
            if len(kept) < len(node.handlers):
                self.done = True
                return self._tried(node, kept, node.finalbody)
        elif isinstance(node, ast.Match) and change is Change.NO_CASE:
            cases = [case for case in node.cases if not self._is_here(case.pattern)]
            if len(cases) < len(node.cases):
                self.done = True
                node.cases = cases
                return node if cases else ast.copy_location(ast.Pass(), node)
        elif isinstance(node, ast.stmt) and change not in (Change.NO_HANDLER, Change.NO_CASE) and self._is_here(node):
            self.done = True
            return self._changed(node)
        return self.generic_visit(node)

    def _is_here(self, node: ast.AST) -> bool:
        return (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)) == self._mutant.place

    def _changed(self, node: ast.stmt) -> object:
        match node, self._mutant.change:
            case ast.If() | ast.While(), Change.NEVER | Change.ALWAYS:
                value = self._mutant.change is Change.ALWAYS
                node.test = ast.copy_location(ast.Constant(value), node.test)
            case ast.For(), Change.NEVER:
                node.iter = ast.copy_location(ast.Tuple([], ast.Load()), node.iter)
            case ast.AsyncFor() | ast.With() | ast.AsyncWith(), _:
                return node.body if self._mutant.change is Change.UNWRAPPED else ast.copy_location(ast.Pass(), node)
            case ast.Try(), Change.NO_FINALLY:
                body = self._tried(node, node.handlers, [])
                return [*(body if isinstance(body, list) else [body]), *node.finalbody]
            case _:
                return ast.copy_location(ast.Pass(), node)
        return node

    def _tried(
        self, node: ast.Try, handlers: list[ast.ExceptHandler], finalbody: list[ast.stmt]
    ) -> ast.Try | list[ast.stmt]:
        if not handlers and not finalbody:
            return [*node.body, *node.orelse]
        orelse = node.orelse if handlers else []
        body = node.body if handlers else [*node.body, *node.orelse]
        return ast.copy_location(ast.Try(body, handlers, orelse, finalbody), node)
