"""Files that a bootstrap or a task sends to a pod. Pure but for reading, which the scope does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lium_plan.expressions import Text
from lium_plan.kinds.protocol import Comparison, Json, Scope
from lium_plan.kinds.redaction import redact

if TYPE_CHECKING:
    from lium_plan.kinds.bootstrap.block import FileBlock


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
    """What could be read; the rest was reported to the scope."""
    files = []
    for index, block in enumerate(blocks):
        position = scope.position(*path, index, "source")
        loaded = scope.load_file(block.source, at=position)
        if loaded is None:
            continue
        content = scope.text_of(loaded, at=position) if block.template else None
        files.append(FileSpec(loaded.path, block.target, int(block.mode, 8), loaded.sha256, content))
    return tuple(files)


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
