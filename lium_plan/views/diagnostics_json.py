"""Diagnostics for machines; and what every document begins and ends with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lium_plan.diagnostics import Diagnostic, Position, Severity
from lium_plan.views.documents import FORMAT_VERSION, DiagnosticRow, Document


def diagnostic_json(item: Diagnostic) -> DiagnosticRow:
    position = item.position
    return {
        "severity": item.severity.value,
        "code": item.code,
        "message": item.message,
        "address": item.address,
        "file": position.file if position else None,
        "line": position.line if position else None,
        "column": position.column if position else None,
        "hint": item.hint,
    }


def diagnostics_json(items: Iterable[Diagnostic]) -> list[DiagnosticRow]:
    return [diagnostic_json(item) for item in items]


def diagnostic_from_json(row: DiagnosticRow, source_line: str | None = None) -> Diagnostic:
    """The finding that `diagnostic_json` wrote."""
    file, line, column = row["file"], row["line"], row["column"]
    place = Position(file, line, column) if file is not None and line is not None and column is not None else None
    return Diagnostic(
        Severity(row["severity"]), row["code"], row["message"], row["address"], place, row["hint"], source_line
    )


def document(body: Mapping[str, object], diagnostics: Iterable[Diagnostic]) -> Document:
    """`body` as a document of its own: with the format's version first and the findings last."""
    return {"format_version": FORMAT_VERSION, **body, "diagnostics": diagnostics_json(diagnostics)}
