"""A run on a terminal: a line per resource with its phase, its time and its dollars so far, redrawn in place."""

from __future__ import annotations

import io
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lium_plan.money import amount, rate
from lium_plan.views.board import Board, Row, RowState
from lium_plan.views.paint import Paint, one_line
from lium_plan.views.plan_text import SYMBOLS
from lium_plan.views.times import duration

_STYLES = {
    RowState.WAITING: "dim",
    RowState.WORKING: "cyan",
    RowState.DONE: "green",
    RowState.FAILED: "bold red",
    RowState.SKIPPED: "yellow",
}
_GAP = 2
"""Columns between two cells; six cells have five such gaps."""
_PHASE = 24
"""Columns for what is being done, such as `starting container ~12 s`, before an address has more than it needs."""
_ORDER = (RowState.FAILED, RowState.WORKING, RowState.DONE, RowState.SKIPPED, RowState.WAITING)


def live_lines(board: Board, now: datetime, *, height: int, paint: Paint) -> list[str]:
    """The board as lines of a terminal with `paint.width` columns; the last one stays free, for the cursor."""
    width = max(20, (paint.width or 80) - 1)
    screen = io.StringIO()
    console = Console(
        file=screen,
        width=width,
        force_terminal=True,
        color_system="auto" if paint.colours else None,
        highlight=False,
        legacy_windows=False,
    )
    console.print(live_table(board, now, width=width, height=height))
    return screen.getvalue().splitlines()


def live_table(board: Board, now: datetime, *, width: int, height: int) -> Table:
    """The board within `width` and `height`: what failed and what is being worked on before what is done or waits."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=True, header_style="bold", expand=False)
    table.add_column("", width=1)
    table.add_column("WHAT", no_wrap=True)
    table.add_column("PHASE", no_wrap=True)
    table.add_column("TIME", justify="right", no_wrap=True)
    table.add_column("$/H", justify="right", no_wrap=True)
    table.add_column("SO FAR", justify="right", no_wrap=True)
    rows = list(board)
    space = max(1, height - 3)
    hidden = 0
    if len(rows) > space:
        kept = sorted(range(len(rows)), key=lambda index: (_ORDER.index(rows[index].state), index))[: space - 1]
        hidden = len(rows) - len(kept)
        rows = [rows[index] for index in sorted(kept)]
    done = board.count(RowState.DONE)
    sums = (f"{done} of {len(board)} done", f"{amount(board.per_hour_usd())}/h", amount(board.spent_usd(now)))
    figures = [_figures(row, now) for row in rows]
    # The symbol, the gaps, and what the three figures need: the rest is for words.
    needed = (
        max(map(len, column)) for column in zip(("TIME", "$/H", "SO FAR"), ("", *sums[1:]), *figures, strict=True)
    )
    words = width - 1 - 5 * _GAP - sum(needed)
    # The phase gets what the addresses leave; when that is too little, they are cut until its usual words fit.
    longest = max((len(str(row.address)) for row in rows), default=0)
    phases = max((len(_phase(row)) for row in rows), default=0)
    address_width = max(12, min(longest, words - min(phases, _PHASE)))
    for row in rows:
        table.add_row(*_cells(row, now, (address_width, max(8, words - address_width))))
    if hidden:
        table.add_row("", Text(f"… and {hidden} more", style="dim"), "", "", "", "")
    table.add_row("", Text(sums[0], style="bold"), "", "", *(Text(text, style="bold") for text in sums[1:]))
    return table


def _phase(row: Row) -> str:
    return one_line(row.phase) or row.state.value


def _cut_phase(text: str, width: int) -> str:
    """How long it still takes is what people look for: the words before it go first."""
    words, about, left = text.rpartition(" ~")
    if len(text) <= width or not words or len(left) + 6 > width:
        return one_line(text, width)
    return f"{one_line(words, width - len(left) - 2)}{about}{left}"


def _address(text: str, width: int) -> str:
    """Cut in the middle: the end says which member, and whether it is its bootstrap."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 3 // 4
    return f"{text[: width - 1 - tail]}…{text[-tail:]}"


def _figures(row: Row, now: datetime) -> tuple[str, str, str]:
    """How long, for how much an hour, and how much so far; empty where there is nothing to say."""
    price = rate(row.price_per_hour_usd) if row.price_per_hour_usd is not None and row.billed_from else ""
    spent = amount(row.spent_usd(now)) if row.billed_from else ""
    return duration(row.seconds(now)) if row.started else "", price, spent


def _cells(row: Row, now: datetime, widths: tuple[int, int]) -> tuple[Text, Text, Text, Text, Text, Text]:
    style = _STYLES[row.state]
    symbol = SYMBOLS[row.verb] if row.verb is not None else ""
    time, price, spent = _figures(row, now)
    what = Text(_address(str(row.address), widths[0]))
    phase = Text(_cut_phase(_phase(row), widths[1]), style=style)
    return Text(symbol), what, phase, Text(time), Text(price), Text(spent)
