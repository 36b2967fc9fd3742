"""`destroy`: plan the destruction, ask for the project's name, do it, and prove it. Needs no manifest."""

from __future__ import annotations

from typing import Any

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
)
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode


@verb("destroy", help="Plan the destruction, ask, do, prove. Works from the state; needs no manifest.", stream=True)
@manifest_options
@selection_options
@guard_options
@apply_options
@run_options
@report_options
def command(session: Session, **values: Any) -> ExitCode:
    request = plan_request(values, destroying=True)
    return perform(session, request, values)
