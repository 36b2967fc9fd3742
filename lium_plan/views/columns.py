"""Columns: aligned text tables without lines, readable by people and by `awk`."""

from __future__ import annotations

from collections.abc import Sequence

from lium_plan.views.paint import PLAIN, Paint


def columns(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    paint: Paint = PLAIN,
    indent: str = "",
) -> str:
    """Headers and rows as lines; the columns numbered in `right` are right-aligned, empty columns are left out."""
    shown = [index for index in range(len(headers)) if not rows or any(row[index] for row in rows)]
    widths = {index: max([len(headers[index]), *(len(row[index]) for row in rows)]) for index in shown}

    def line(cells: Sequence[str]) -> str:
        padded = [cells[i].rjust(widths[i]) if i in right else cells[i].ljust(widths[i]) for i in shown]
        return (indent + "  ".join(padded)).rstrip()

    return "".join(f"{text}\n" for text in (paint("bold", line(headers)), *(line(row) for row in rows)))
