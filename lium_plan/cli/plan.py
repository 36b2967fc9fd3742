"""`plan`: what would change, what it costs, how long the rate limits take. Sends only GETs, writes no state."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lium_plan.cli.session import Session, ending
from lium_plan.cli.shared import (
    guard_options,
    manifest_options,
    plan_request,
    report_options,
    run_options,
    selection_options,
    write_file,
)
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode, Failure, worst

if TYPE_CHECKING:
    from lium_plan.planning.plan import Plan


def _failed(session: Session) -> dict[str, Any]:
    from lium_plan import operations
    from lium_plan.views.plan_json import failed_plan
    from lium_plan.views.times import stamp

    stack, now = session.options.stack or "default", stamp(datetime.now(UTC))
    values = click.get_current_context().params
    try:
        settings = session.settings()
        known = operations.known_beforehand(settings, plan_request(values, destroying=values["destroying"]))
    except Failure:
        return failed_plan(stack, (), now)  # without settings nothing can be read
    return failed_plan(settings.stack, (), now, project=known.project, lineage=known.lineage, serial=known.serial)


@verb("plan", help="Show what would change, what it costs, and how long the rate limits take.", failed=_failed)
@manifest_options
@selection_options
@guard_options
@run_options
@click.option("--destroy", "destroying", is_flag=True, help="Plan the destruction of everything.")
@click.option("--out", metavar="FILE", help="Save the plan; `apply FILE` carries out exactly it.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit 2 when there are changes.")
@report_options
def command(session: Session, **values: Any) -> ExitCode:
    from lium_plan import operations

    request = plan_request(values, destroying=values["destroying"])
    settings = session.server_settings()
    try:
        plan = session.run(lambda interrupt: operations.make_plan(settings, request))
    except Failure as failure:
        if values["json_into"]:
            from lium_plan.views.diagnostics_json import document

            write_file(
                values["json_into"], json.dumps(document(_failed(session), failure.diagnostics), indent=2) + "\n"
            )
        raise
    if values["out"]:
        operations.save_plan(plan, Path(values["out"]))
    print_plan(session, plan, values)
    if values["out"] and not values["as_json"]:
        apply = session.typed(f"lium-plan apply {shlex.quote(values['out'])}")
        session.printer.talk(f"Saved. To carry out exactly this plan: {apply}\n")
    return plan_exit_code(plan, detailed=values["detailed_exitcode"])


def plan_exit_code(plan: Plan, *, detailed: bool = False) -> ExitCode:
    """8 when a human must look, 6 when refused, 1 when it could not be made, 2 when asked for and there are changes."""
    from lium_plan.planning.plan import needs_a_human

    if plan.refusal is not None or needs_a_human(plan):
        return worst((plan.refusal or ExitCode.OK, ExitCode.UNKNOWN_OUTCOME if needs_a_human(plan) else ExitCode.OK))
    if plan.errored or ending(ExitCode.OK, plan.diagnostics) is ExitCode.ERROR:
        return ExitCode.ERROR
    return ExitCode.CHANGES if detailed and plan.has_changes else ExitCode.OK


def print_plan(session: Session, plan: Plan, values: dict[str, Any]) -> None:
    """The plan in the form that was asked for, and its findings."""
    if values.get("json_into"):
        from lium_plan.views.plan_json import plan_to_json

        write_file(values["json_into"], json.dumps(plan_to_json(plan), indent=2, ensure_ascii=False) + "\n")
    if values.get("as_json"):
        from lium_plan.views.plan_json import plan_to_json

        session.printer.json(plan_to_json(plan))
        return
    plan = replace(plan, diagnostics=tuple(map(session.advised, plan.diagnostics)))
    if values.get("as_markdown"):
        from lium_plan.views.plan_markdown import plan_markdown

        session.printer.out(plan_markdown(plan))
    else:
        from lium_plan.views.plan_text import plan_text

        printer = session.printer
        printer.out(plan_text(plan, printer.out_paint, width=printer.out_width, verbose=session.options.verbose > 0))
    session.show(plan.diagnostics)
