"""Files that a manifest names, looked for while it has other faults: those keep it from being expanded, where they are
read, and everything that is wrong is to be told at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from lium_plan.kinds.values import shown
from lium_plan.manifest.checks import Findings
from lium_plan.manifest.tree import position_at, value_at

FILE_HINT = "paths are relative to the manifest's file"
_PLACES = (("fleets", ("bootstrap", "files")), ("tasks", ("files",)))


def check_files(findings: Findings) -> None:
    """Report every `source:` that is not there."""
    for path, source in _sources(findings):
        position = position_at(findings.manifest.written, path)
        file = None if position is None else findings.manifest.named_files.get(position.file)
        directory = findings.manifest.root if file is None else file.parent
        try:
            there = (directory / Path(source).expanduser()).exists()
        except (OSError, RuntimeError, ValueError):
            continue  # told once it can be read, or not
        if not there:
            findings.error(path, "unreadable-file", f"{shown(source)} does not exist", hint=FILE_HINT)


def _sources(findings: Findings) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Of blocks with other faults too."""
    for section, inner in _PLACES:
        entries = value_at(findings.manifest.filled, (section,))
        for name in entries if isinstance(entries, Mapping) else ():
            files = value_at(findings.manifest.filled, (section, name, *inner))
            for index, file in enumerate(files if isinstance(files, list) else ()):
                source = file.get("source") if isinstance(file, Mapping) else None
                if isinstance(source, str) and source:
                    yield (section, name, *inner, index, "source"), source
