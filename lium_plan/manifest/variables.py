"""Variables: what is declared, what is given, and which value counts.

Owns the order `--var` > `--var-file` > `LIUM_PLAN_VAR_<name>` > default, the types, and the validation. Refuses
values of another type, and never puts a sensitive value into a message.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from lium_plan.diagnostics import Diagnostic, Diagnostics, error
from lium_plan.expressions import has_expression
from lium_plan.kinds.protocol import Json
from lium_plan.kinds.values import Fault, VariableType, scalar_text, shown
from lium_plan.manifest.document import Document, Map, Seq
from lium_plan.manifest.source import parse, read, resolve
from lium_plan.manifest.tree import diagnose

if TYPE_CHECKING:
    from lium_plan.manifest.blocks import VariableBlock

PATTERN_CPU_S = 1.0
ENVIRONMENT_PREFIX = "LIUM_PLAN_VAR_"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable's value; `value` of None: none could be found, which was reported."""

    value: Json
    sensitive: bool


@dataclass(frozen=True, slots=True)
class _Given:
    value: object
    origin: str
    typed: bool
    """Written as YAML; else a text that takes the declared type."""
    at: tuple[Document, tuple[int, int]] | None = None


def evaluate(
    declared: Mapping[str, VariableBlock | None],
    root: Map,
    *,
    given: Mapping[str, str],
    var_files: Iterable[str | Path],
    environ: Mapping[str, str],
    diagnostics: Diagnostics,
) -> Mapping[str, Variable | None]:
    """A value for each declared variable; None for one that has none, which is in `diagnostics`."""
    found: dict[str, _Given] = {}
    for name in declared:
        if ENVIRONMENT_PREFIX + name in environ:
            origin = ENVIRONMENT_PREFIX + name
            found[name] = _Given(environ[origin], origin, typed=False)
    for file in var_files:
        found.update(_from_file(file, declared, diagnostics))
    for name, text in given.items():
        if name not in declared:
            diagnostics.add(_unknown(name, f"--var {name}=…", declared))
        found[name] = _Given(text, f"--var {name}=…", typed=False)
    values: dict[str, Variable | None] = {}
    for name, block in declared.items():
        values[name] = None if block is None else _evaluate(name, block, found.get(name), root, diagnostics)
    return values


def _unknown(name: str, origin: str, declared: Iterable[str]) -> Diagnostic:
    near = get_close_matches(name, list(declared), 1, 0.6)
    hint = f"did you mean '{near[0]}'?" if near else "declare it under `variables:`"
    return error("unknown-variable", f"{origin}: no variable {shown(name)} is declared", hint=hint)


def _from_file(file: str | Path, declared: Mapping[str, object], diagnostics: Diagnostics) -> Mapping[str, _Given]:
    """A var file is a YAML mapping of names to values; its lines may be secrets and are never shown."""
    document = read(Path(file), str(file), diagnostics, private=True)
    if document is None or document.root is None:
        return {}
    root = document.root
    if not isinstance(root, Map):
        diagnostics.add(document.error("wrong-type", "a var file is a mapping of names to values", (0, 0)))
        return {}
    found = {}
    for name, value in root.items():
        where, key_at, value_at = root.places[name]
        if name in declared:
            found[name] = _Given(value, str(where.position(value_at)), typed=True, at=(where, value_at))
            continue
        near = get_close_matches(name, list(declared), 1, 0.6)
        hint = f"did you mean '{near[0]}'?" if near else "declare it under `variables:`"
        message = f"no variable {shown(name)} is declared"
        diagnostics.add(where.error("unknown-variable", message, key_at, hint=hint))
    return found


def _evaluate(
    name: str, block: VariableBlock, given: _Given | None, root: Map, diagnostics: Diagnostics
) -> Variable | None:
    path = ("variables", name)
    if given is None:
        if not block.has_default:
            hint = f"--var {name}=…, a --var-file, or {ENVIRONMENT_PREFIX}{name} in the environment"
            diagnostics.add(
                diagnose(root, path, "missing-variable", f"the variable '{name}' has no value", hint=hint, key=True)
            )
            return None
        given = _Given(block.default, "its default", typed=True)
    value: Json
    try:
        value = _as_declared(given, block)
        _validate(value, block)
    except Fault as fault:
        message = f"variable '{name}' from {given.origin}: {fault}"
        if given.at is not None:
            diagnostics.add(given.at[0].error("bad-variable", message, given.at[1]))
        else:
            where = (*path, "default") if given.origin == "its default" else path
            found = diagnose(root, where, "bad-variable", message, key=given.origin != "its default")
            diagnostics.add(replace(found, source_line=None) if block.sensitive else found)
        return None
    return Variable(value, block.sensitive)


def _as_declared(given: _Given, block: VariableBlock) -> Json:
    """Raises `Fault`; of a sensitive value it says the type alone."""
    try:
        return _typed(given.value, block.type) if given.typed else _from_text(str(given.value), block.type)
    except Fault:
        if block.sensitive:
            raise Fault(f"the value is not {_article(block.type)}") from None
        raise


def _typed(value: object, kind: VariableType) -> Json:
    """A value written as YAML. A string takes any scalar's text, the other types only what plainly is one."""
    if kind is VariableType.STRING:
        text = scalar_text(value)
        if text is not None:
            return text
    elif kind is VariableType.BOOLEAN:
        if isinstance(value, bool):
            return value
    elif kind is VariableType.INTEGER:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif kind is VariableType.NUMBER:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    elif (kind is VariableType.LIST and isinstance(value, Seq)) or (
        kind is VariableType.MAP and isinstance(value, Map)
    ):
        return _plain(value)
    raise Fault(f"expected {_article(kind)}, found {shown(value)}")


def _from_text(text: str, kind: VariableType) -> Json:
    """A value from the command line or the environment, where everything is text."""
    if kind is VariableType.STRING:
        return text
    if kind in (VariableType.LIST, VariableType.MAP):
        faults = Diagnostics()
        document = parse(text.encode(), Path(), "the value", faults, private=True)
        if document is None or faults.errors or not isinstance(document.root, Map | Seq):
            raise Fault(f"expected {_article(kind)} written as YAML or JSON, found {shown(text)}")
        return _typed(document.root, kind)
    return _typed(resolve(text), kind)


def _article(kind: VariableType) -> str:
    return {
        VariableType.STRING: "a string",
        VariableType.INTEGER: "a whole number",
        VariableType.NUMBER: "a number",
        VariableType.BOOLEAN: "true or false",
        VariableType.LIST: "a list",
        VariableType.MAP: "a map",
    }[kind]


def _plain(value: object) -> Json:
    """Lists and maps without their places."""
    if isinstance(value, Map):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Seq):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise Fault(f"{shown(value)} can't be part of a variable")


def _validate(value: Json, block: VariableBlock) -> None:
    """Raises `Fault` with the rule that the value breaks; a sensitive value is not in it."""
    rules, what = block.validation, "the value" if block.sensitive else shown(value)
    if rules is None:
        return
    if rules.pattern is not None:
        text = scalar_text(value)
        pattern = _compiled(rules.pattern)
        if pattern is not None and (text is None or not _matches(pattern, text, what)):
            raise Fault(f"{what} does not match the pattern '{rules.pattern}'")
    size: float | None = None
    if isinstance(value, str | Sequence | Mapping):
        size = len(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        size = value
    if size is not None and rules.min is not None and size < rules.min:
        raise Fault(f"{what} is below the minimum {rules.min}")
    if size is not None and rules.max is not None and size > rules.max:
        raise Fault(f"{what} is above the maximum {rules.max}")
    if rules.one_of is not None and not any(_same(value, allowed) for allowed in rules.one_of):
        raise Fault(f"{what} is none of {', '.join(scalar_text(item) or '?' for item in rules.one_of)}")


def _same(value: Json, allowed: object) -> bool:
    if isinstance(value, str):
        return value == scalar_text(allowed)
    return isinstance(value, bool) == isinstance(allowed, bool) and value == allowed


def _matches(pattern: re.Pattern[str], text: str, what: str) -> bool:
    """Raises `Fault` when that can't be told within `PATTERN_CPU_S`: some patterns try every way to divide a text.

    The clock is a signal of the process's own, which the main thread alone can have; others wait as long as it takes.
    """
    if threading.current_thread() is not threading.main_thread():
        return pattern.fullmatch(text) is not None

    def stop(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, PATTERN_CPU_S)
    try:
        return pattern.fullmatch(text) is not None
    except TimeoutError:
        message = f"whether {what} matches the pattern '{pattern.pattern}' takes too long to find out"
        raise Fault(f"{message}: repetitions within others, such as (a+)+, can be read in too many ways") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def check_declarations(declared: Mapping[str, VariableBlock | None], root: Map, diagnostics: Diagnostics) -> None:
    """Regular expressions that are none, and defaults that would have to be computed."""
    for name, block in declared.items():
        if block is None:
            continue
        path = ("variables", name)
        pattern = None if block.validation is None else block.validation.pattern
        if pattern is not None and _compiled(pattern) is None:
            at = (*path, "validation", "pattern")
            diagnostics.add(diagnose(root, at, "bad-value", f"no regular expression: {shown(pattern)}"))
        if has_expression(str(block.default)):
            message = "a default is a plain value: no ${{ }} in it"
            diagnostics.add(diagnose(root, (*path, "default"), "bad-expression", message))
