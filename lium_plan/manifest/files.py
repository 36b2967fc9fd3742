"""Which files make up a manifest, and how they become one tree.

Owns the rules for `-f`, `include` and merging. Refuses a name defined twice (naming both places), an include that
leaves the root directory, and a cycle of includes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lium_plan.diagnostics import Diagnostics, Position, error
from lium_plan.kinds.values import shown
from lium_plan.manifest.document import Document, Map, Seq
from lium_plan.manifest.source import read

INCLUDE = "include"
_ONCE = ("version", "project")


@dataclass(frozen=True, slots=True)
class Found:
    """A file to read: where it is, what to call it, and the directory that its includes must stay in."""

    path: Path
    name: str
    root: Path


def discover(
    paths: Iterable[str | Path], var_files: Iterable[str | Path], diagnostics: Diagnostics
) -> tuple[Found, ...]:
    """The files that `-f` means, in name order within each directory, each once."""
    values = {Path(file).resolve() for file in var_files}
    found: dict[Path, Found] = {}
    for given in paths:
        path = Path(given)
        name = os.path.normpath(given)
        if path.is_dir():
            for file in _in_directory(path, name, values, diagnostics):
                shown_name = os.path.normpath(os.path.join(given, file))
                found.setdefault((path / file).resolve(), Found(path / file, shown_name, path.resolve()))
        elif path.exists():
            found.setdefault(path.resolve(), Found(path, name, path.resolve().parent))
        else:
            diagnostics.add(error("no-manifest", f"{shown(name)} does not exist", position=Position(name, 1, 1)))
    return tuple(found.values())


def _in_directory(path: Path, name: str, values: set[Path], diagnostics: Diagnostics) -> tuple[str, ...]:
    try:
        # What is called lium.yaml is meant to be read, whatever it is: reading says what is wrong with it.
        names = sorted(
            entry.name
            for entry in os.scandir(path)
            if entry.name == "lium.yaml" or (not entry.name.startswith(".") and entry.is_file())
        )
    except OSError as fault:
        diagnostics.add(error("unreadable-file", f"can't list {name}: {fault.strerror}"))
        return ()
    chosen = tuple(file for file in names if file == "lium.yaml" or file.endswith(".lium.yaml"))
    if chosen:
        return chosen
    chosen = tuple(
        file
        for file in names
        if file.endswith((".yaml", ".yml"))
        and not file.endswith((".vars.yaml", ".vars.yml"))
        and (path / file).resolve() not in values
    )
    if not chosen:
        message = f"no manifest in {shown(name)}: neither lium.yaml nor any other *.yaml"
        diagnostics.add(error("no-manifest", message, hint="`lium-plan init` writes one, `-f` names one"))
    return chosen


def read_all(found: Sequence[Found], diagnostics: Diagnostics) -> tuple[Document, ...]:
    """Every document with those that it includes; what can't be read is in `diagnostics`."""
    reader = _Reader(diagnostics)
    for file in found:
        reader.read(file, ())
    return tuple(reader.documents.values())


class _Reader:
    def __init__(self, diagnostics: Diagnostics) -> None:
        self.diagnostics = diagnostics
        self.documents: dict[Path, Document] = {}
        self.seen: set[Path] = set()

    def read(self, file: Found, chain: tuple[Path, ...]) -> None:
        real = file.path.resolve()
        if real in self.seen:
            return
        self.seen.add(real)
        document = read(file.path, file.name, self.diagnostics)
        if document is None:
            return
        self.documents[real] = document
        root = document.root
        if root is None:
            return
        if not isinstance(root, Map):
            message = f"a manifest is a mapping, not {shown(root)}"
            self.diagnostics.add(document.error("wrong-type", message, (0, 0)))
            return
        if INCLUDE in root:
            self.includes(root, file, (*chain, real))

    def includes(self, root: Map, file: Found, chain: tuple[Path, ...]) -> None:
        written = root[INCLUDE]
        document, _, at = root.places[INCLUDE]
        if not isinstance(written, Seq):
            self.diagnostics.add(document.error("wrong-type", "include takes a list of paths: [base.yaml]", at))
            return
        for index, item in enumerate(written):
            place = written.places[index][1]
            if not isinstance(item, str) or not item or "${{" in item or "\0" in item:
                self.diagnostics.add(document.error("bad-include", "include takes plain paths", place))
                continue
            path = file.path.parent / item
            real = path.resolve()
            if not real.is_relative_to(file.root):
                message = f"{shown(item)} lies outside of the root directory {file.root.name or file.root}"
                self.diagnostics.add(document.error("bad-include", message, place))
            elif real in chain:
                message = f"{shown(item)} includes itself" + (" through this file" if real != chain[-1] else "")
                self.diagnostics.add(document.error("bad-include", message, place))
            elif not real.is_file():
                message = f"{shown(item)} " + ("is no ordinary file" if real.exists() else "does not exist")
                self.diagnostics.add(document.error("bad-include", message, place))
            else:
                name = os.path.normpath(os.path.join(os.path.dirname(file.name), item))
                self.read(Found(path, name, file.root), chain)


def merge(documents: Sequence[Document], diagnostics: Diagnostics) -> Map | None:
    """One tree of all documents: sections merge by name, lists are joined. None when nothing is written at all."""
    result: Map | None = None
    for document in documents:
        root = document.root
        if not isinstance(root, Map):
            continue
        if result is None:
            result = Map(root.document, root.at)
        for key, value in root.items():
            if key == INCLUDE:
                continue
            if result.get(key) is None:
                result[key] = value
                result.places[key] = root.places[key]
            elif value is not None:
                _merge_key(result, root, key, diagnostics)
    return result


def _merge_key(result: Map, root: Map, key: str, diagnostics: Diagnostics) -> None:
    old, new = result[key], root[key]
    document, key_at, value_at = root.places[key]
    if isinstance(old, Map) and isinstance(new, Map):
        merged = Map(old.document, old.at)
        merged.update(old)
        merged.places.update(old.places)
        for name, value in new.items():
            if name in merged:
                _report_twice(f"{key}.{name}", merged.places[name], new.places[name], diagnostics)
            else:
                merged[name] = value
                merged.places[name] = new.places[name]
        result[key] = merged
    elif isinstance(old, Seq) and isinstance(new, Seq):
        joined = Seq(old.document, old.at)
        joined.extend([*old, *new])
        joined.places = [*old.places, *new.places]
        result[key] = joined
    elif key not in _ONCE or old != new:
        _report_twice(key, result.places[key], (document, key_at, value_at), diagnostics)


def _report_twice(
    what: str,
    first: tuple[Document, tuple[int, int], tuple[int, int]],
    second: tuple[Document, tuple[int, int], tuple[int, int]],
    diagnostics: Diagnostics,
) -> None:
    where = first[0].position(first[1])
    diagnostics.add(second[0].error("duplicate-name", f"'{what}' is defined twice; first at {where}", second[1]))
