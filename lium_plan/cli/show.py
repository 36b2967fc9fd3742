"""`show`: the state, or a saved plan. Offline, without a lock."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from lium_plan.cli.plan import print_plan
from lium_plan.cli.session import Session
from lium_plan.cli.shared import check_report, usage
from lium_plan.cli.verb import json_option, verb
from lium_plan.diagnostics import ExitCode


def _failed(session: Session) -> dict[str, Any]:
    stack = session.options.stack or "default"
    if click.get_current_context().params["plan_file"]:
        from lium_plan.views.plan_json import failed_plan
        from lium_plan.views.times import stamp

        return failed_plan(stack, (), stamp(datetime.now(UTC)))
    from lium_plan.views.state_json import no_state_json

    return no_state_json(stack)


@verb("show", help="Show the state, or a saved plan.", failed=_failed)
@click.argument("plan_file", required=False, metavar="[PLANFILE]")
@click.option("--markdown", "as_markdown", is_flag=True, help="A plan as Markdown.")
@json_option
def command(session: Session, plan_file: str | None, as_markdown: bool, as_json: bool) -> ExitCode:
    from lium_plan import operations

    check_report({"as_json": as_json, "as_markdown": as_markdown})
    if as_markdown and not plan_file:
        raise usage("--markdown is for a saved plan: name its PLANFILE")
    if plan_file:
        plan = operations.load_plan(Path(plan_file))
        print_plan(session, plan, {"as_json": as_json, "as_markdown": as_markdown})
        return ExitCode.OK
    settings = session.settings()
    state = operations.load_state(settings)
    outputs = operations.outputs(settings)
    if as_json:
        from lium_plan.views.state_json import state_json

        session.printer.json(state_json(state, outputs))
    else:
        from lium_plan.views.state_text import state_text

        session.printer.out(state_text(state, outputs, session.printer.out_paint))
    return ExitCode.OK
