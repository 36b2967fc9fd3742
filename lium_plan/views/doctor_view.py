"""The set-up's checks, for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lium_plan.answers import Check
from lium_plan.views.diagnostics_json import document
from lium_plan.views.documents import Document
from lium_plan.views.paint import PLAIN, Paint, one_line

_MARKS = {True: ("green", "ok  "), False: ("bold red", "FAIL"), None: ("yellow", "?   ")}


def doctor_text(checks: Sequence[Check], settings: Mapping[str, str], paint: Paint = PLAIN) -> str:
    """A line a check, the cure below it; then each setting with where it came from."""
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        style, mark = _MARKS[check.ok]
        lines.append(f"{paint(style, mark)} {check.name:<{width}}  {one_line(check.detail)}\n")
        if check.cure and check.ok is not True:
            lines.append(f"     {'':<{width}}  {paint('cyan', 'cure:')} {one_line(check.cure)}\n")
    longest = max((len(name) for name in settings), default=0)
    sources = [f"  {name:<{longest}}  {one_line(value)}\n" for name, value in settings.items()]
    return "".join(lines) + ("\nSettings:\n" + "".join(sources) if sources else "")


def doctor_json(checks: Sequence[Check]) -> Document:
    rows = [{"name": check.name, "ok": check.ok, "detail": check.detail, "cure": check.cure} for check in checks]
    return document({"checks": rows}, ())
