"""Files to `Manifest`: read, merge, fill in, validate, check; everything that is wrong is told at once.

Owns the order of these steps. Each lives in a module of its own; pydantic is loaded here, jsonschema only when a
shape is wrong. Raises `Failure` (exit 1) with all findings, warnings included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lium_plan.addresses import NAME
from lium_plan.diagnostics import Diagnostic, Diagnostics, error
from lium_plan.expressions import Text
from lium_plan.garbage import collection_paused
from lium_plan.kinds import registry
from lium_plan.kinds.values import Fault, read_text, shown
from lium_plan.manifest.document import Map, Seq
from lium_plan.manifest.files import discover, merge, read_all
from lium_plan.manifest.model import Manifest
from lium_plan.manifest.names import Inputs
from lium_plan.manifest.refusals import refusal
from lium_plan.manifest.tree import Filler, diagnose
from lium_plan.manifest.tree import Path as TreePath
from lium_plan.manifest.variables import Variable, check_declarations, evaluate

if TYPE_CHECKING:
    from lium_plan.manifest.shapes import Shaper

_LISTS = ("imports", "moved", "removed")
_OTHER_KEYS = ("version", "project", "include", "variables", "policy", "outputs", *_LISTS)
_NAME = re.compile(NAME)
_BEGIN = "begin with `version: 1` and `project: NAME`; `lium-plan init DIR` writes an example into another directory"
_OUTPUT = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_VARIABLE = re.compile(r"[a-z_][a-z0-9_]{0,63}")


def load(
    paths: Sequence[str | Path],
    *,
    stack: str,
    variables: Mapping[str, str] | None = None,
    var_files: Iterable[str | Path] = (),
    environ: Mapping[str, str] | None = None,
) -> Manifest:
    """The manifest in these files and directories.

    `variables` are those of `--var`; `environ` is what `${{ env.… }}` and `LIUM_PLAN_VAR_…` are read from.
    Raises `Failure` (exit 1) with every error found, and the warnings.
    """
    with collection_paused():
        return _Loading(stack, dict(variables or {}), tuple(var_files), dict(environ or {})).run(paths)


@dataclass(frozen=True, slots=True)
class _Loading:
    stack: str
    given: Mapping[str, str]
    var_files: tuple[str | Path, ...]
    environ: Mapping[str, str]

    def run(self, paths: Sequence[str | Path]) -> Manifest:
        diagnostics = Diagnostics()
        found = discover(paths, self.var_files, diagnostics)
        documents = read_all(found, diagnostics)
        written = merge(documents, diagnostics)
        if written is None:
            if not diagnostics.errors:
                names = ", ".join(document.name for document in documents)
                diagnostics.add(error("empty-manifest", f"nothing is written in {names}", hint=_BEGIN))
            diagnostics.raise_errors()
            raise AssertionError("unreachable: no tree and no error")
        _check_keys(written, diagnostics)
        project = _project(written, diagnostics)
        inputs = Inputs(
            project,
            self.stack,
            self._variables(written, diagnostics),
            self.environ,
            _foreign_volumes(written),
        )
        filler = Filler(inputs.resolve, diagnostics, address_of)
        filled = _fill(written, filler)
        from lium_plan.manifest.shapes import Shaper

        shaper = Shaper(written, filled, filler.broken, diagnostics)
        manifest = _shaped(shaper, inputs, found[0].root, {document.name: document.path for document in documents})
        from lium_plan.manifest.checks import Findings, check

        check(manifest, filler.texts, diagnostics)
        if diagnostics.errors:
            from lium_plan.manifest.checks_files import check_files

            check_files(Findings(manifest, diagnostics))
        found_all = Diagnostics(sorted(diagnostics, key=_place_of))
        found_all.raise_errors()
        return replace(manifest, diagnostics=tuple(found_all))

    def _variables(self, written: Map, diagnostics: Diagnostics) -> Mapping[str, Variable | None]:
        from lium_plan.manifest.blocks import VariableBlock
        from lium_plan.manifest.shapes import Shaper

        shaper = Shaper(written, written, set(), diagnostics)
        section = _section(written, "variables", _VARIABLE, diagnostics)
        declared = {name: shaper.block(VariableBlock, ("variables", name)) for name in section}
        check_declarations(declared, written, diagnostics)
        return evaluate(
            declared,
            written,
            given=self.given,
            var_files=self.var_files,
            environ=self.environ,
            diagnostics=diagnostics,
        )


def _place_of(item: Diagnostic) -> tuple[str, int, int]:
    """Findings are told in the order of the files."""
    position = item.position
    return ("", 0, 0) if position is None else (position.file, position.line, position.column)


def address_of(path: TreePath) -> str | None:
    """The address of the thing that a path of the tree is about: `fleet.x` for `("fleets", "x", …)`."""
    section = next((section for section in registry.sections() if path and section.key == path[0]), None)
    if section is None or len(path) < 2:
        return None
    return f"{section.key.removesuffix('s')}.{path[1]}"


def _check_keys(written: Map, diagnostics: Diagnostics) -> None:
    known = (*_OTHER_KEYS, *(section.key for section in registry.sections()))
    for key in written:
        if key in known:
            continue
        refused = refusal(key)
        if refused is not None:
            diagnostics.add(diagnose(written, (key,), "not-supported", f"'{key}': {refused}", key=True))
            continue
        hint = _near(key, known, 0.8) or _home_of(key) or _near(key, known, 0.6) or f"known here: {', '.join(known)}"
        diagnostics.add(diagnose(written, (key,), "unknown-key", f"unknown key {shown(key)}", key=True, hint=hint))
    version = written.get("version", 1)
    if isinstance(version, bool) or version != 1 or not isinstance(version, int):
        message = f"version {shown(version)} of the manifest is not known to this lium-plan"
        diagnostics.add(diagnose(written, ("version",), "bad-version", message, hint="write `version: 1`"))


def _near(key: str, known: Sequence[str], likeness: float) -> str | None:
    near = get_close_matches(key, known, 1, likeness)
    return f"did you mean '{near[0]}'?" if near else None


def _home_of(key: str) -> str | None:
    """Where a key that was written at the top belongs."""
    for section in registry.sections():
        if key in {field.alias or name for name, field in section.load_block().model_fields.items()}:
            return f"'{key}' belongs in an entry of `{section.key}`"
    return None


def _project(written: Map, diagnostics: Diagnostics) -> str:
    project = written.get("project")
    if project is None:
        hint = "its name marks everything on the account: `project: my-project`"
        diagnostics.add(diagnose(written, ("project",), "missing-key", "'project' is missing", hint=hint))
    elif not isinstance(project, str) or not _NAME.fullmatch(project):
        message = f"project: expected a-z, 0-9 and -, beginning with a letter, at most 32; found {shown(project)}"
        diagnostics.add(diagnose(written, ("project",), "bad-value", message))
    else:
        return project
    return "unknown"


def _section(written: Map, key: str, pattern: re.Pattern[str], diagnostics: Diagnostics) -> Mapping[str, object]:
    """The entries of a section whose names are right; the others are reported."""
    section = written.get(key)
    if section is None:
        return {}
    if not isinstance(section, Map):
        message = f"{key}: expected a mapping of names, found {shown(section)}"
        diagnostics.add(diagnose(written, (key,), "bad-value", message))
        return {}
    good = {}
    for name, entry in section.items():
        if pattern.fullmatch(name):
            good[name] = entry
            continue
        what = "0-9 and _" if pattern is _VARIABLE else "0-9, - and _" if pattern is _OUTPUT else "0-9 and -"
        most = 32 if pattern is _NAME else 64
        message = f"{shown(name)} is no name: a-z, {what}, beginning with a letter, at most {most} characters"
        diagnostics.add(diagnose(written, (key, name), "bad-name", message, key=True))
    return good


def _foreign_volumes(written: Map) -> Mapping[str, str]:
    volumes = written.get("volumes")
    entries = volumes.items() if isinstance(volumes, Map) else ()
    found = {}
    for name, entry in entries:
        identity = entry.get("id") if isinstance(entry, Map) else None
        if isinstance(identity, str) and "${{" not in identity:
            found[name] = identity
    return found


def _fill(written: Map, filler: Filler) -> Map:
    """All of the tree but what must be plain: variables are what expressions are made from."""
    result = Map(written.document, written.at)
    result.places = written.places
    for key, value in written.items():
        document, _, at = written.places[key]
        plain = key in ("version", "project", "variables")
        result[key] = value if plain else filler.fill(value, (key,), document, at)
    return result


def _shaped(shaper: Shaper, inputs: Inputs, root: Path, files: Mapping[str, Path]) -> Manifest:
    from lium_plan.manifest.blocks import ImportBlock, MovedBlock, PolicyBlock, RemovedBlock

    written, diagnostics = shaper.raw, shaper.diagnostics
    sections: dict[str, Mapping[str, Any]] = {}
    for section in registry.sections():
        model = section.load_block()
        head = section.key.removesuffix("s")
        blocks = {}
        for name in _section(written, section.key, _NAME, diagnostics):
            block = shaper.block(model, (section.key, name), address=f"{head}.{name}")
            if block is not None:
                blocks[name] = block
        sections[section.key] = blocks
    policy = shaper.block(PolicyBlock, ("policy",))
    return Manifest(
        project=inputs.project,
        stack=inputs.stack,
        root=root,
        sections=sections,
        outputs=_outputs(shaper),
        policy=policy or PolicyBlock.model_validate({}),
        imports=tuple(_items(shaper, "imports", ImportBlock)),
        moved=tuple(_items(shaper, "moved", MovedBlock)),
        removed=tuple(_items(shaper, "removed", RemovedBlock)),
        written=written,
        filled=shaper.filled,
        inputs=inputs,
        named_files=files,
    )


def _items(shaper: Shaper, key: str, model: Any) -> Iterable[Any]:
    items = shaper.filled.get(key)
    if items is None:
        return ()
    if not isinstance(items, Seq):
        shaper.add((key,), "bad-value", f"{key}: expected a list, found {shown(items)}", None)
        return ()
    found = (shaper.block(model, (key, index)) for index in range(len(items)))
    return tuple(block for block in found if block is not None)


def _outputs(shaper: Shaper) -> Mapping[str, Text]:
    outputs = {}
    for name in _section(shaper.raw, "outputs", _OUTPUT, shaper.diagnostics):
        section = shaper.filled["outputs"]
        value = section[name] if isinstance(section, Map) else None
        if ("outputs", name) in shaper.broken:
            continue
        try:
            outputs[name] = _output(value)
        except Fault as fault:
            shaper.add(("outputs", name), "bad-value", f"{name}: {fault}", None)
    return outputs


def _output(value: object) -> Text:
    if isinstance(value, Text):
        return value
    if isinstance(value, bool | int | float | list | dict) and not isinstance(value, Map | Seq):
        return Text.of_value(value)
    return read_text(value)
