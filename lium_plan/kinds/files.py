"""Files that a bootstrap or a task sends to a pod. Pure but for reading, which the scope does."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lium_plan.diagnostics import error, warning
from lium_plan.expressions import Text
from lium_plan.kinds.protocol import Comparison, Json, LoadedFile, Scope
from lium_plan.kinds.redaction import redact

if TYPE_CHECKING:
    from lium_plan.diagnostics import Position
    from lium_plan.kinds.bootstrap.block import FileBlock

PLAIN_MODE, PROGRAM_MODE = 0o644, 0o755
OTHERS = 0o077
"""What a mode allows the group and everybody else: nothing, of a file with a secret in it."""


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
            found = tuple(_directory(block, target, inside, scope, position))
            _warn_of_secrets(block, found, scope, *path, index)
            files.extend(found)
            continue
        loaded = scope.load_file(block.source, at=position)
        if target.rsplit("/", 1)[-1] in ("", ".", "..", "~"):
            why = f"target: {block.target}: name the file on the pod, not the directory that it goes into"
            scope.report(error("bad-target", why, position=scope.position(*path, index, "target")))
        elif loaded is not None:
            file = _file(block, loaded, target, PLAIN_MODE, scope, position)
            _warn_of_secrets(block, (file,), scope, *path, index)
            files.append(file)
    return tuple(files)


def _directory(
    block: FileBlock, target: str, inside: Iterable[tuple[str, LoadedFile]], scope: Scope, position: Position | None
) -> Iterator[FileSpec]:
    """`target` is the directory. Without a mode of their own programs stay programs: one mode would fit few trees."""
    for name, loaded in inside:
        yield _file(block, loaded, f"{target.rstrip('/')}/{name}", _own_mode(loaded.path), scope, position)


def _file(
    block: FileBlock, loaded: LoadedFile, target: str, usual: int, scope: Scope, position: Position | None
) -> FileSpec:
    content = scope.text_of(loaded, at=position) if block.template else None
    if block.mode is not None:
        mode = int(block.mode, 8)
    else:
        mode = usual & ~OTHERS if content is not None and content.sensitive else usual
    return FileSpec(loaded.path, target, mode, loaded.sha256, content)


def with_secrets(files: Iterable[FileSpec]) -> Iterator[FileSpec]:
    return (file for file in files if file.content is not None and file.content.sensitive)


def _warn_of_secrets(block: FileBlock, files: Iterable[FileSpec], scope: Scope, *path: str | int) -> None:
    file = next(with_secrets(files), None)
    if file is not None and file.mode & OTHERS:
        message = f"mode {block.mode}: {file.source.name} has a secret in it, and others on the pod may reach it"
        hint = "leave `mode` out: then it is 0600; or write 0700, for a program"
        scope.report(warning("secret-file", message, position=scope.position(*path, "mode"), hint=hint))


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
