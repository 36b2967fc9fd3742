"""`apply`: plan, ask, do. With a saved plan: exactly that, without asking."""

from __future__ import annotations

from typing import Any

import click

from lium_plan.cli.perform import perform
from lium_plan.cli.session import Session
from lium_plan.cli.shared import (
    apply_options,
    guard_options,
    manifest_options,
    plan_request,
    report_options,
    run_options,
    selection_options,
    usage,
)
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode

_OF_THE_PLAN = {
    "targets": "--target",
    "excludes": "--exclude",
    "replace": "--replace",
    "refresh_only": "--refresh-only",
    "no_refresh": "--no-refresh",
    "fill": "--fill",
}


@verb("apply", help="Plan, ask, do. `apply PLANFILE` carries out a saved plan without asking.", stream=True)
@click.argument("plan_file", required=False, metavar="[PLANFILE]")
@manifest_options
@selection_options
@guard_options
@apply_options
@run_options
@report_options
def command(session: Session, **values: Any) -> ExitCode:
    if values["plan_file"]:
        decided = [flag for name, flag in _OF_THE_PLAN.items() if values[name]]
        if decided:
            raise usage(f"a saved plan has its own {', '.join(decided)}: give them to `plan --out`")
    request = plan_request(values)
    return perform(session, request, values)
