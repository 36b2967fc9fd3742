"""Columns: aligned text tables without lines, readable by people and by `awk`.

On a terminal that is narrower than the table, ids are cut to 8 characters, and then the columns go that matter least.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lium_plan.views.paint import PLAIN, Paint

_PROSE = 24
"""Columns that prose needs beside the others."""
_BELOW = " " * 4
_ID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


def columns(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    paint: Paint = PLAIN,
    indent: str = "",
    least: Sequence[int] = (),
    wrap: bool = False,
) -> str:
    """Headers and rows as lines; the columns numbered in `right` are right-aligned, empty columns are left out.

    `least`: those that can go where the terminal (`paint.width`) is too narrow, the first one first. `wrap`: the last
    column is prose, broken at spaces there; where it has hardly any room it goes below its row.
    """
    shown = [index for index in range(len(headers)) if not rows or any(row[index] for row in rows)]
    widths = _widths(headers, rows, shown)
    if paint.width is not None and _total(widths, indent) > paint.width:
        rows = [[_ID.sub(r"\1", cell) for cell in row] for row in rows]
        widths = _widths(headers, rows, shown)
        for index in least:
            if index in shown and _total(widths, indent) > paint.width:
                shown.remove(index)
                del widths[index]

    prose = shown[-1] if wrap and shown and paint.width is not None and _total(widths, indent) > paint.width else None
    if prose is not None:
        shown.remove(prose)

    def line(cells: Sequence[str]) -> str:
        padded = [cells[i].rjust(widths[i]) if i in right else cells[i].ljust(widths[i]) for i in shown]
        return (indent + "  ".join(padded)).rstrip()

    if prose is None or paint.width is None:
        return "".join(f"{text}\n" for text in (paint("bold", line(headers)), *(line(row) for row in rows)))
    lead = len(indent) + sum(widths[index] + 2 for index in shown)
    beside = paint.width - lead >= _PROSE
    texts = [paint("bold", f"{line(headers):<{lead}}{headers[prose]}" if beside else line(headers))]
    for row in rows:
        first, *more = broken(row[prose], paint.width - (lead if beside else len(_BELOW))) or [""]
        texts.append(f"{line(row):<{lead}}{first}".rstrip() if beside else line(row))
        texts += [" " * lead + text for text in more] if beside else [_BELOW + text for text in (first, *more) if text]
    return "".join(f"{text}\n" for text in texts)


def broken(text: str, width: int) -> list[str]:
    """Broken at spaces, double spaces kept within a line; a word that is too long stands alone."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        if line.strip() and len(line) + 1 + len(word) > width:
            lines.append(line.rstrip())
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


def _widths(headers: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int]) -> dict[int, int]:
    return {index: max([len(headers[index]), *(len(row[index]) for row in rows)]) for index in shown}


def _total(widths: dict[int, int], indent: str) -> int:
    return len(indent) + sum(widths.values()) + 2 * (len(widths) - 1)
