"""A run on a terminal: a line per resource with its phase, its time and its dollars so far, redrawn in place."""

from __future__ import annotations

from datetime import datetime

from rich.table import Table
from rich.text import Text

from lium_plan.money import amount, rate
from lium_plan.views.board import Board, Row, RowState
from lium_plan.views.paint import one_line
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
_ORDER = (RowState.FAILED, RowState.WORKING, RowState.DONE, RowState.SKIPPED, RowState.WAITING)


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
    # Who it is comes before what it does: the phase gets what the addresses leave, eight columns at least.
    longest = max((len(str(row.address)) for row in rows), default=0)
    address_width = max(12, min(longest, words - 8))
    for row in rows:
        table.add_row(*_cells(row, now, (address_width, max(8, words - address_width))))
    if hidden:
        table.add_row("", Text(f"… and {hidden} more", style="dim"), "", "", "", "")
    table.add_row("", Text(sums[0], style="bold"), "", "", *(Text(text, style="bold") for text in sums[1:]))
    return table


def _phase(row: Row) -> str:
    return one_line(row.phase) or row.state.value


def _address(text: str, width: int) -> str:
    """Cut in the middle: the end says which member, and whether it is its bootstrap."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
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
    phase = Text(one_line(_phase(row), widths[1]), style=style)
    return Text(symbol), what, phase, Text(time), Text(price), Text(spent)
