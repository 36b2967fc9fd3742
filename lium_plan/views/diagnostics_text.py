"""Diagnostics for people: what is wrong, where, the line itself, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lium_plan.diagnostics import Diagnostic, Severity
from lium_plan.views.paint import PLAIN, Paint, printable

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow"}


def diagnostics_text(diagnostics: Iterable[Diagnostic], paint: Paint = PLAIN) -> str:
    """All of them, errors after warnings so that they end up nearest the prompt; empty for none."""
    items = tuple(diagnostics)
    ordered = [item for item in items if item.severity is not Severity.ERROR]
    ordered += [item for item in items if item.severity is Severity.ERROR]
    return "".join(diagnostic_text(item, paint) for item in ordered)


def diagnostic_text(item: Diagnostic, paint: Paint = PLAIN) -> str:
    """`FILE:LINE:COL: error: message`, the source line with a caret, and the hint, each on lines of its own."""
    head = paint(_COLOURS[item.severity], f"{item.severity}:")
    place = paint("bold", f"{item.position}:") + " " if item.position else ""
    message, *detail = printable(item.message).split("\n")
    subject = f"{item.address}: " if item.address and not _names(item.message, item.address) else ""
    lines = [f"{place}{head} {subject}{message}", *(f"    {line}" for line in detail)]
    if item.position and item.source_line is not None:
        lines += _source(item.source_line, item.position.line, item.position.column, paint)
    if item.hint:
        first, *more = printable(item.hint).split("\n")
        lines.append(f"  {paint('cyan', 'hint:')} {first}")
        lines += [f"        {line}" for line in more]
    return "".join(f"{line}\n" for line in lines)


def _names(message: str, address: str) -> bool:
    """Whether the message says this address, or begins with a part of it; one that only contains it is another."""
    text = re.escape(address)
    return re.search(rf"^{text}(?![\w-])|(?<![\w.-]){text}(?![\w[-]|\.\w)", message) is not None


def _source(text: str, number: int, column: int, paint: Paint) -> list[str]:
    """The line, cut around the column when it is long, with a caret under the column."""
    start = max(0, column - 60) if len(text) > 100 else 0
    shown = text.rstrip("\r\n")[start : start + 100]
    cut = "…" if start else ""
    # Tabs keep their width under the caret when the caret's line has them too.
    lead = "".join("\t" if char == "\t" else " " for char in shown[: max(0, column - 1 - start)])
    gutter = f"{number:>5} | "
    caret = " " * (len(gutter) - 2) + "| " + " " * len(cut) + lead + paint("green", "^")
    more = "…" if len(text.rstrip("\r\n")) > start + 100 else ""
    return [paint("dim", gutter) + cut + printable(shown) + more, caret]
