"""Everything that is said about a manifest, with its place, as data in `tests/cases/manifest`."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_cases import Case, cases, findings, told

ALL = tuple(cases())


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_what_is_said(case: Case, tmp_path: Path) -> None:
    found = [told(item) for item in findings(case, tmp_path)]
    assert len(found) == len(case.expect), found
    for said, expected in zip(found, case.expect, strict=True):
        assert said.startswith(expected)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_every_finding_has_its_line_and_no_secret(case: Case, tmp_path: Path) -> None:
    for item in findings(case, tmp_path):
        assert "canary" not in repr(item)
        if item.position is not None:
            assert item.position.file.endswith("lium.yaml")
            line = case.manifest.splitlines()[item.position.line - 1]
            assert item.source_line in (line, None)
            assert item.position.column <= len(line) + 1


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_no_fault_is_told_twice_at_one_place(case: Case, tmp_path: Path) -> None:
    found = [(item.position, item.message) for item in findings(case, tmp_path)]
    assert len(found) == len(set(found))
