"""Files that a bootstrap or a task sends to a pod. Pure but for reading, which the scope does."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lium_plan.diagnostics import error
from lium_plan.expressions import Text
from lium_plan.kinds.protocol import Comparison, Json, LoadedFile, Scope
from lium_plan.kinds.redaction import redact

if TYPE_CHECKING:
    from lium_plan.diagnostics import Position
    from lium_plan.kinds.bootstrap.block import FileBlock

PLAIN_MODE, PROGRAM_MODE = 0o644, 0o755


@dataclass(frozen=True, slots=True)
class FileSpec:
    """One file to put on a pod. `content` is set for templates only; others are read when they are sent."""

    source: Path
    target: str
    mode: int
    sha256: str
    """Of the source as it was when the manifest was loaded."""
    content: Text | None = None


def expand_files(blocks: Iterable[FileBlock], scope: Scope, *path: str) -> tuple[FileSpec, ...]:
    """What could be read, a directory as the files below it; the rest was reported to the scope."""
    files: list[FileSpec] = []
    for index, block in enumerate(blocks):
        position = scope.position(*path, index, "source")
        # Paths are relative to root's home, and SFTP knows no `~`.
        target = block.target.removeprefix("~/") or "."
        inside = scope.load_directory(block.source, at=position)
        if inside is not None:
            files.extend(_directory(block, target, inside, scope, position))
            continue
        loaded = scope.load_file(block.source, at=position)
        if target.rsplit("/", 1)[-1] in ("", ".", "..", "~"):
            why = f"target: {block.target}: name the file on the pod, not the directory that it goes into"
            scope.report(error("bad-target", why, position=scope.position(*path, index, "target")))
        elif loaded is not None:
            files.append(_file(block, loaded, target, int(block.mode, 8), scope, position))
    return tuple(files)


def _directory(
    block: FileBlock, target: str, inside: Iterable[tuple[str, LoadedFile]], scope: Scope, position: Position | None
) -> Iterator[FileSpec]:
    """`target` is the directory. Without a mode of their own programs stay programs: one mode would fit few trees."""
    written = int(block.mode, 8) if "mode" in block.model_fields_set else None
    for name, loaded in inside:
        mode = _own_mode(loaded.path) if written is None else written
        yield _file(block, loaded, f"{target.rstrip('/')}/{name}", mode, scope, position)


def _file(
    block: FileBlock, loaded: LoadedFile, target: str, mode: int, scope: Scope, position: Position | None
) -> FileSpec:
    content = scope.text_of(loaded, at=position) if block.template else None
    return FileSpec(loaded.path, target, mode, loaded.sha256, content)


def _own_mode(path: Path) -> int:
    return PROGRAM_MODE if path.stat().st_mode & stat.S_IXUSR else PLAIN_MODE


def file_inputs(files: Iterable[FileSpec], comparison: Comparison) -> list[Json]:
    return [
        {
            "target": file.target,
            "mode": f"{file.mode:04o}",
            "content": file.sha256[:16] if file.content is None else _digest(redact(file.content, comparison)),
        }
        for file in files
    ]


def _digest(value: Json) -> Json:
    """A filled-in file is compared by digest too; a secret or unknown one stays marked as such."""
    return hashlib.sha256(value.encode()).hexdigest()[:16] if isinstance(value, str) else value
