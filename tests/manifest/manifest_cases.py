"""Cases as data: a manifest, and what is said about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from lium_plan.diagnostics import Diagnostic, Failure
from lium_plan.manifest.load import load

DIRECTORY = Path(__file__).parents[1] / "cases" / "manifest"


@dataclass(frozen=True)
class Case:
    name: str
    manifest: str
    expect: tuple[str, ...] = ()
    """`LINE:COLUMN severity code words of the message`, one per finding, in order."""
    variables: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


def cases() -> Iterator[Case]:
    for path in sorted(DIRECTORY.glob("*.yaml")):
        for row in yaml.safe_load(path.read_text(encoding="utf-8")):
            row["expect"] = tuple(row.get("expect", ()))
            yield Case(**{**row, "name": f"{path.stem}: {row['name']}"})


def findings(case: Case, directory: Path) -> tuple[Diagnostic, ...]:
    file = directory / "lium.yaml"
    file.write_text(case.manifest, encoding="utf-8")
    try:
        return load([file], stack="test", variables=case.variables, environ=case.environ).diagnostics
    except Failure as failure:
        return failure.diagnostics


def told(item: Diagnostic) -> str:
    """A finding on one line; the hint belongs to the message."""
    place = f"{item.position.line}:{item.position.column}" if item.position else "-"
    hint = f" [{item.hint}]" if item.hint else ""
    return f"{place} {item.severity} {item.code} {item.message}{hint}"
