"""Everything that is said about a manifest, with its place, as data in `tests/cases/manifest`."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_cases import Case, cases, findings, told

ALL = tuple(cases())


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_what_is_said_where_it_is_once_and_without_a_secret(case: Case, tmp_path: Path) -> None:
    found = findings(case, tmp_path)
    lines = [told(item) for item in found]
    assert len(lines) == len(case.expect), lines
    for said, expected in zip(lines, case.expect, strict=True):
        assert said.startswith(expected)
    for item in found:
        assert "canary" not in repr(item)
        if item.position is not None:
            assert item.position.file.endswith("lium.yaml")
            line = case.manifest.splitlines()[item.position.line - 1]
            assert item.source_line in (line, None)
            assert item.position.column <= len(line) + 1
    places = [(item.position, item.message) for item in found]
    assert len(places) == len(set(places)), "a fault is told twice at one place"
