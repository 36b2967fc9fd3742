"""From tree to blocks, and what is said when a shape is wrong.

pydantic decides. Only when it says no is the generated JSON Schema asked too, about the entry as it was written, for
faults that pydantic did not reach; each fault is reported once. Owns the words for shape errors, and the guesses
about misspelt and misplaced keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from lium_plan.diagnostics import Diagnostics
from lium_plan.expressions import Text
from lium_plan.kinds.values import Fault, refuse_text, shown
from lium_plan.manifest.document import Map
from lium_plan.manifest.refusals import refusal
from lium_plan.manifest.tree import Path, diagnose, value_at

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

B = TypeVar("B", bound=BaseModel)
MAX_ASKED = 200
"""Entries about which the schema is asked too: it is ten times slower, and nobody reads more at once."""
_LISTS = ("tuple_type", "list_type")
_MAPPINGS = ("dict_type", "model_type", "mapping_type", "model_attributes_type", "dataclass_type")


class Shaper:
    """Validates entries of one manifest. `raw` is the tree as written, `filled` the one with known values."""

    def __init__(self, raw: Map, filled: Map, broken: set[Path], diagnostics: Diagnostics) -> None:
        self.raw = raw
        self.filled = filled
        self.broken = broken
        self.diagnostics = diagnostics
        self.asked = 0

    def block(self, model: type[B], path: Path, *, address: str | None = None) -> B | None:
        """The entry at `path`; None, and why in the diagnostics, when its shape is wrong."""
        value = value_at(self.filled, path)
        try:
            return model.model_validate({} if value is None else value)
        except ValidationError as fault:
            errors = fault.errors(include_url=False, include_context=False, include_input=False)
        places = []
        for detail in errors:
            place = self.report(model, path, detail, address)
            if place is not None:
                places.append(place)
        self.ask_schema(model, path, places, address)
        return None

    def report(self, model: type[BaseModel], path: Path, detail: ErrorDetails, address: str | None) -> Path | None:
        """One of pydantic's findings, in our words. Returns the place that it is about."""
        inside, is_key = _real(value_at(self.filled, path), detail["loc"])
        where = (*path, *inside)
        if any(where[: len(broken)] == broken for broken in self.broken):
            return where
        kind = detail["type"]
        if kind == "extra_forbidden":
            self.unknown_key(model, path, inside, address)
            return where
        if kind == "missing":
            parent = where[:-1]
            what = f"'{where[-1]}' is missing"
            self.add(parent, "missing-key", what, address, key=True)
            return where
        where = _written_part(self.filled, where)
        value = value_at(self.filled, where)
        message = self.explain(kind, value, detail["msg"], where)
        refused = None
        if isinstance(value, dict | list | str):
            refused = refusal(path[0], (*inside, value) if isinstance(value, str) else inside)
        code = "sensitive-value" if isinstance(value, Text) and value.sensitive else "bad-value"
        self.add(where, code, message, address, key=is_key, hint=refused)
        return where

    def explain(self, kind: str, value: object, message: str, where: Path) -> str:
        if isinstance(value, Text) and kind != "bad-value":
            try:
                refuse_text(value)
            except Fault as fault:
                return str(fault)
        name = next((step for step in reversed(where) if isinstance(step, str)), "")
        if kind in _LISTS:
            simple = isinstance(value, str) and re.fullmatch(r"[\w./-]{1,30}", value)
            example = f": write [{value}]" if simple else ""
            return f"{name}: expected a list, found {shown(value)}{example}"
        if kind in _MAPPINGS:
            return f"{name}: expected a mapping, found {shown(value)}"
        return f"{name}: {message}"

    def unknown_key(self, model: type[BaseModel], path: Path, inside: Path, address: str | None) -> None:
        key = str(inside[-1])
        refused = refusal(path[0], inside)
        if refused is not None:
            self.add((*path, *inside), "not-supported", f"'{key}': {refused}", address, key=True)
            return
        owner = _model_at(model, inside[:-1])
        hint = guess(key, owner, model) if owner is not None else None
        self.add((*path, *inside), "unknown-key", f"unknown key {shown(key)}", address, key=True, hint=hint)

    def add(
        self,
        where: Path,
        code: str,
        message: str,
        address: str | None,
        *,
        key: bool = False,
        hint: str | None = None,
    ) -> None:
        self.diagnostics.add(diagnose(self.raw, where, code, message, address=address, key=key, hint=hint))

    def ask_schema(self, model: type[BaseModel], path: Path, told: Sequence[Path], address: str | None) -> None:
        """What the schema finds where pydantic said nothing."""
        if self.asked >= MAX_ASKED:
            return
        self.asked += 1
        from lium_plan.manifest.schema import validator_for

        raw: Any = value_at(self.raw, path)
        for fault in validator_for(model).iter_errors({} if raw is None else raw):
            where = (*path, *fault.absolute_path)
            if any(where[: len(one)] == one or one[: len(where)] == where for one in told):
                continue
            name = next((step for step in reversed(where) if isinstance(step, str)), "")
            found = shown(value_at(self.raw, where))
            self.add(where, "bad-value", f"{name}: {found} is not what is expected here", address)


def _real(root: object, loc: Sequence[str | int]) -> tuple[Path, bool]:
    """pydantic's location without the steps that are no keys, and whether it is about a key itself."""
    path: list[str | int] = []
    node = root
    for number, step in enumerate(loc):
        if step == "[key]":
            return tuple(path), True
        inner = value_at(node, (step,))
        if inner is not None:
            node = inner
        elif number < len(loc) - 1:
            continue
        path.append(step)
    return tuple(path), False


def _written_part(root: object, path: Path) -> Path:
    """The path without steps into what was written as a scalar: the parts of a shorthand have no place."""
    while path and not isinstance(value_at(root, path[:-1]), dict | list):
        path = path[:-1]
    return path


# --- guesses ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=128)
def keys_of(model: type[BaseModel]) -> Mapping[str, type[BaseModel] | None]:
    """The keys that may be written in a block, with the block behind each."""
    return {
        field.alias or name: next(iter(_models_in(field.annotation)), None)
        for name, field in model.model_fields.items()
    }


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _model_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    found: type[BaseModel] | None = model
    for step in path:
        if isinstance(step, str) and found is not None:
            found = keys_of(found).get(step)
    return found


@lru_cache(maxsize=1024)
def guess(key: str, owner: type[BaseModel], top: type[BaseModel]) -> str | None:
    """What a key that doesn't exist was meant to be: a misspelling, or one that belongs a level off."""
    for where, keys in _levels(top, ()):
        if key in keys and where:
            return f"'{key}' belongs in `{'.'.join(where)}`"
        if key in keys:
            return f"'{key}' belongs one level up or more, beside `{next(iter(keys))}`"
    near = get_close_matches(key, list(keys_of(owner)), 1, 0.6)
    if not near:
        squeezed = {name.replace("_", ""): name for name in keys_of(owner)}
        near = [squeezed[found] for found in get_close_matches(key.replace("-", "").lower(), squeezed, 1, 0.7)]
    if near:
        return f"did you mean '{near[0]}'?"
    for where, keys in _levels(top, ()):
        close = get_close_matches(key, list(keys), 1, 0.9)
        if close:
            return f"did you mean '{'.'.join((*where, close[0]))}'?"
    return f"known here: {', '.join(keys_of(owner))}"


def _levels(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    keys = keys_of(model)
    yield path, keys
    for name, inner in keys.items():
        if inner is not None:
            yield from _levels(inner, (*path, name))
