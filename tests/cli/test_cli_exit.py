"""Exit codes of a plan: the first of 8, 6, 1, 2 that applies."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from lium_plan.addresses import parse
from lium_plan.cli.plan import plan_exit_code
from lium_plan.diagnostics import Diagnostic, ExitCode, error, warning
from lium_plan.kinds.protocol import Verb
from lium_plan.planning.plan import UNREACHABLE, Action, Cost, Drift, Plan, Summary
from lium_plan.views.plan_markdown import plan_markdown
from lium_plan.views.plan_text import plan_text

NOTHING = Plan(
    "lab", "default", None, 0, datetime(2026, 9, 10, tzinfo=UTC), False, (), (), (), Summary(),
    Cost(Decimal(0), Decimal(0)), 0.0, None, {},
)  # fmt: skip
UNKNOWN = error(UNREACHABLE, "it can't be told whether p-1 is there or gone", address="fleet.a[0]")
CHANGED = (Action(parse("fleet.a[1]"), Verb.CREATE, "1×H100"),)


@pytest.mark.parametrize(
    ("found", "refusal", "actions", "plain", "detailed"),
    [
        ((), None, (), 0, 0),
        ((), None, CHANGED, 0, 2),
        ((warning("w", "m"),), None, CHANGED, 0, 2),
        ((error("e", "m"),), None, CHANGED, 1, 1),
        ((UNKNOWN,), None, (), 8, 8),
        ((UNKNOWN,), None, CHANGED, 8, 8),
        ((error("e", "m"),), ExitCode.UNSAFE, CHANGED, 6, 6),
        ((UNKNOWN, error("e", "m")), ExitCode.UNSAFE, CHANGED, 8, 8),
    ],
)
def test_the_worst_that_applies(
    found: tuple[Diagnostic, ...], refusal: ExitCode | None, actions: tuple[Action, ...], plain: int, detailed: int
) -> None:
    plan = replace(NOTHING, diagnostics=found, refusal=refusal, actions=actions)
    assert plan_exit_code(plan) == plain
    assert plan_exit_code(plan, detailed=True) == detailed


def test_what_a_human_must_look_at_is_marked() -> None:
    plan = replace(NOTHING, drift=(Drift(parse("fleet.a[0]"), UNREACHABLE), Drift(parse("fleet.b[0]"), "gone")))
    shown = plan_text(plan).splitlines()
    assert "  ! fleet.a[0]                         unreachable" in shown
    assert "    fleet.b[0]                         gone" in shown
    assert "⚠" in plan_markdown(replace(plan, diagnostics=(UNKNOWN,))).splitlines()[0]
