"""A plan, and the end of a run, as Markdown for a pull request's comment."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lium_plan.diagnostics import NEW_RENTS_ONLY, Diagnostic
from lium_plan.engine.events import RunReport
from lium_plan.money import rate
from lium_plan.planning.plan import Plan, needs_a_human
from lium_plan.views.diagnostics_text import diagnostics_text
from lium_plan.views.events_text import report_text
from lium_plan.views.plan_text import plan_text, without_offer

LIMIT = 60_000
"""Characters; GitHub refuses comments longer than 65 536."""


def plan_markdown(plan: Plan) -> str:
    """A headline with counts and cost, the plan's text folded below it, then what was found."""
    counts = plan.summary
    where = f"`{plan.project}` (stack `{plan.stack}`)"
    if plan.refusal is not None:
        head = f"### ⛔ {where}: refused"
    elif plan.errored:
        head = f"### ❌ {where}: no plan could be made"
    elif needs_a_human(plan):
        head = f"### ⚠️ {where}: something can't be told to be there or gone"
    elif plan.refresh_only:
        head = f"### {where}: {len(plan.drift)} drifted" if plan.drift else f"### ✅ {where}: no drift"
    elif not plan.needs_consent and plan.destroying and not plan.complete:
        head = f"### ⚠️ {where}: all was left out"
    elif not plan.needs_consent:
        head = f"### ✅ {where}: no changes"
    else:
        head = f"### {where}: {counts.total} changes" if counts.total != 1 else f"### {where}: 1 change"
    cells = (counts.create, counts.update, counts.reboot, counts.replace, counts.destroy, counts.run)
    cost = f"{rate(plan.cost.before_per_hour_usd)} → {rate(plan.cost.after_per_hour_usd)}{without_offer(plan)}"
    lines = [
        head,
        "",
        "| create | change | reboot | replace | destroy | run | cost |",
        "|---:|---:|---:|---:|---:|---:|---|",
        f"| {' | '.join(str(cell) for cell in cells)} | {cost} |",
        "",
    ]
    return (
        "\n".join(lines)
        + _details("Plan", plan_text(plan))
        + _findings(item for item in plan.diagnostics if item.code != NEW_RENTS_ONLY)
    )


def report_markdown(report: RunReport) -> str:
    """The closing table of a run; exit codes other than 0 in the headline."""
    head = "### ✅ Applied" if report.exit_code == 0 else f"### ⚠️ Ended with exit code {report.exit_code}"
    shown = {item.cause for item in report.results}
    rest = [item for item in report.diagnostics if item not in shown]
    return f"{head}\n\n{_fence(report_text(report))}" + _findings(rest)


def _details(title: str, text: str) -> str:
    return f"<details open><summary>{title}</summary>\n\n{_fence(text)}\n</details>\n"


def _findings(diagnostics: Iterable[Diagnostic]) -> str:
    text = diagnostics_text(diagnostics)
    return f"\n{_fence(text)}" if text else ""


def _fence(text: str) -> str:
    """A code block whose fence is longer than any run of backticks in it; cut where a comment would be refused."""
    if len(text) > LIMIT:
        text = text[:LIMIT].rsplit("\n", 1)[0] + "\n… cut here: the whole of it is in the log\n"
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}{fence}\n"
