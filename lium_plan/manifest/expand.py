"""`Manifest` to `Desired`: one resource per address.

Owns the `Scope` that the kinds' `expand` functions ask, membership, the order of resources and the digest. Reads the
files that a manifest names, each once; knows no kind by name but for fleets, which are groups of members.
Raises `Failure` (exit 1) with every finding.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lium_plan.addresses import Address
from lium_plan.addresses import parse as parse_address
from lium_plan.diagnostics import Diagnostic, Diagnostics, Position, error
from lium_plan.expressions import ExpressionError, Text, parse
from lium_plan.garbage import collection_paused
from lium_plan.kinds import registry
from lium_plan.kinds.desired import Desired, Fleet, Import, Move, Policy, Removal
from lium_plan.kinds.protocol import LoadedFile, Resource
from lium_plan.kinds.values import PlainFloat, ScaleDown, shown
from lium_plan.manifest.checks import Findings
from lium_plan.manifest.checks_files import FILE_HINT
from lium_plan.manifest.checks_texts import reference_fault
from lium_plan.manifest.model import Manifest
from lium_plan.manifest.names import MAX_FILE_BYTES
from lium_plan.manifest.tree import position_at

_CHUNK = 2**20
MAX_FILES = 10_000
"""In one directory that is sent to pods; more than that belongs into an archive or an image."""


def expand(
    manifest: Manifest,
    *,
    stack: str | None = None,
    members: Mapping[str, tuple[str, ...]] | None = None,
    declared: Desired | None = None,
) -> Desired:
    """What the manifest means. `declared`: its `outline`, where that was made already.

    `members` are the members of fleets that are counted rather than named, as the planner chose them from what is
    living; without it they are "0" up to the count. Raises `Failure` (exit 1).
    """
    if stack is not None and stack != manifest.stack:
        raise ValueError(f"the manifest was loaded for stack {manifest.stack}, not {stack}")
    with collection_paused():
        return _expand(manifest, members or {}, declared)


def outline(manifest: Manifest) -> Desired:
    """Fleets, moves and imports without resources: enough to choose the members of fleets, and cheap."""
    return _desired(manifest)


def _expand(manifest: Manifest, members: Mapping[str, tuple[str, ...]], declared: Desired | None) -> Desired:
    diagnostics = Diagnostics(manifest.diagnostics)
    membership = _membership(manifest, members)
    scope = ManifestScope(manifest.project, manifest.stack, manifest.root, manifest, diagnostics, membership)
    resources: dict[Address, Resource] = {}
    for section in registry.sections():
        for name, block in manifest.sections.get(section.key, {}).items():
            for expand_block in section.expand:
                for resource in expand_block(name, block, scope):
                    _add(resources, resource, diagnostics)
    diagnostics.raise_errors()
    return replace(
        declared or _desired(manifest),
        resources=resources,
        digest=_digest(manifest, scope.files.values()),
        diagnostics=tuple(diagnostics),
    )


def _desired(manifest: Manifest) -> Desired:
    return Desired(
        project=manifest.project,
        stack=manifest.stack,
        resources={},
        fleets={name: _fleet(manifest, name, block) for name, block in manifest.sections["fleets"].items()},
        outputs=manifest.outputs,
        policy=_policy(manifest),
        moved=tuple(Move(entry.from_, entry.to) for entry in manifest.moved),
        removed=tuple(Removal(entry.from_, entry.destroy) for entry in manifest.removed),
        imports=tuple(
            Import(parse_address(entry.to), entry.id, manifest.position("imports", index))
            for index, entry in enumerate(manifest.imports)
        ),
    )


def _membership(manifest: Manifest, chosen: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    """What was decided for this run, else what the manifest says; names that are listed are never added to."""
    return {
        name: tuple(
            member
            for member in chosen.get(name, block.nodes.members())
            if block.nodes.names is None or member in block.nodes.names
        )
        for name, block in manifest.sections.get("fleets", {}).items()
    }


def _add(resources: dict[Address, Resource], resource: Resource, diagnostics: Diagnostics) -> None:
    """Two sections may imply the very same thing (a template by its image); two different ones can't be."""
    known = resources.setdefault(resource.address, resource)
    if known is resource or known.spec == resource.spec:
        return
    message = f"{resource.address} is declared twice with different meaning; first at {known.position}"
    diagnostics.add(error("duplicate-address", message, address=str(resource.address), position=resource.position))


def _fleet(manifest: Manifest, name: str, block: Any) -> Fleet:
    bootstrap = block.bootstrap
    scale_down = ScaleDown.NEWEST if block.scale_down is ScaleDown.UNHEALTHY_FIRST else block.scale_down
    return Fleet(
        name=name,
        minimum=block.nodes.minimum,
        maximum=block.nodes.maximum,
        names=block.nodes.names,
        scale_down=str(scale_down),
        ttl_renew=block.ttl_renew,
        max_failures=None if bootstrap is None else bootstrap.max_failures,
        canary=bootstrap is not None and str(bootstrap.canary) == "first",
        update_parallel=1 if block.update is None else block.update.parallel,
        position=manifest.position("fleets", name),
    )


def _policy(manifest: Manifest) -> Policy:
    policy = manifest.policy
    return Policy(policy.max_hourly_cost, policy.max_total_cost, policy.require_ttl, policy.max_destroy)


@dataclass(slots=True)
class ManifestScope:
    """What a kind's `expand` may ask; implements `kinds.protocol.Scope`."""

    project: str
    stack: str
    root: Path
    manifest: Manifest
    diagnostics: Diagnostics
    membership: Mapping[str, tuple[str, ...]]
    files: dict[Path, LoadedFile] = field(default_factory=dict)
    _texts: dict[Path, Text | None] = field(default_factory=dict)

    def position(self, *path: str | int) -> Position | None:
        return position_at(self.manifest.written, path)

    def report(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.add(diagnostic)

    def block(self, section: str, name: str) -> Any | None:
        return self.manifest.block(section, name)

    def members(self, fleet: str) -> tuple[str, ...]:
        return self.membership.get(fleet, ())

    def load_file(self, path: str, *, at: Position | None) -> LoadedFile | None:
        directory = self._directory(at)
        try:
            real = (directory / Path(path).expanduser()).absolute()
            known = self.files.get(real)
            if known is not None:
                return known
            if not real.is_file():
                what = (
                    "is a directory" if real.is_dir() else "is no ordinary file" if real.exists() else "does not exist"
                )
                self._file_fault(f"{shown(path)} {what}", at)
                return None
            loaded = _read(real)
        except (OSError, RuntimeError, ValueError) as fault:
            reason = getattr(fault, "strerror", None) or str(fault)
            self._file_fault(f"can't read {shown(path)}: {reason}", at)
            return None
        self.files[real] = loaded
        return loaded

    def load_directory(self, path: str, *, at: Position | None) -> tuple[tuple[str, LoadedFile], ...] | None:
        try:
            root = (self._directory(at) / Path(path).expanduser()).absolute()
            if not root.is_dir():
                return None
            inside = sorted(_files_below(root))
        except (OSError, RuntimeError, ValueError) as fault:
            self._file_fault(f"can't list {shown(path)}: {getattr(fault, 'strerror', None) or fault}", at)
            return ()
        if len(inside) > MAX_FILES:
            self._file_fault(f"{shown(path)} holds {len(inside)} files; at most {MAX_FILES} can be sent one by one", at)
            return ()
        found = ((name, self.load_file(str(root / name), at=at)) for name in inside)
        return tuple((name, loaded) for name, loaded in found if loaded is not None)

    def text_of(self, file: LoadedFile, *, at: Position | None) -> Text:
        """The content with all filled in that is known now; an empty text, and a finding, when that fails."""
        if file.path in self._texts:
            return self._texts[file.path] or Text.of("")
        text = self._parse_file(file, at)
        self._texts[file.path] = text
        return text or Text.of("")

    def _parse_file(self, file: LoadedFile, at: Position | None) -> Text | None:
        if file.size > MAX_FILE_BYTES:
            self._file_fault(f"{file.path.name} is too big to be a template (over {MAX_FILE_BYTES // 2**20} MiB)", at)
            return None
        try:
            content = file.path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError):
            self._file_fault(f"{file.path.name} is not UTF-8 text, so it can't be a template", at)
            return None
        try:
            text = self.manifest.inputs.resolve_in(parse(content), file.path.parent, sensitive_environment=True)
        except ExpressionError as fault:
            line = content.count("\n", 0, fault.offset) + 1
            self._file_fault(f"{file.path.name}, line {line}: {fault}", at)
            return None
        findings = Findings(self.manifest, self.diagnostics)
        for reference in text.references:
            wrong = reference_fault(self.manifest.sections, findings, reference)
            if wrong is not None:
                code, message, hint = wrong
                self.report(error(code, f"{file.path.name}: {message}", position=at, hint=hint))
        return text

    def _file_fault(self, message: str, at: Position | None) -> None:
        self.report(error("unreadable-file", message, position=at, hint=FILE_HINT))

    def _directory(self, at: Position | None) -> Path:
        """Of the file that names a path; several files of one manifest may lie in several directories."""
        path = None if at is None else self.manifest.named_files.get(at.file)
        return self.manifest.root if path is None else path.parent


def _files_below(root: Path) -> Iterator[str]:
    """Paths relative to `root`. Links to files are followed, links to directories refused: they may lead anywhere."""

    def refuse(fault: OSError) -> None:
        raise fault

    for folder, folders, names in os.walk(root, onerror=refuse):
        for name in folders:
            if os.path.islink(os.path.join(folder, name)):
                raise ValueError(f"{name} in it is a link to a directory, which is not followed")
        for name in names:
            yield (Path(folder) / name).relative_to(root).as_posix()


def _read(path: Path) -> LoadedFile:
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return LoadedFile(path, digest.hexdigest(), size)


def _digest(manifest: Manifest, files: Iterable[LoadedFile]) -> str:
    """Of all that was written and given: equal manifests have equal digests, whatever their order and comments."""
    tree = {key: _exact(value) for key, value in manifest.filled.items() if key != "variables"}
    written = json.dumps(tree, sort_keys=True, default=_told, ensure_ascii=True)
    sums = sorted(file.sha256 for file in files)
    parts = (manifest.project, manifest.stack, written, *sums)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _exact(value: object) -> object:
    """The same with numbers by their text: JSON would make `3.1` of `3.10`."""
    if isinstance(value, dict):
        return {key: inner if type(inner) is str else _exact(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [inner if type(inner) is str else _exact(inner) for inner in value]
    return value.text if isinstance(value, PlainFloat) else value


def _told(value: object) -> str:
    """A text that isn't plain: secrets by their own digest, deferred parts as they are written."""
    return value.fingerprint() if isinstance(value, Text) else str(value)
