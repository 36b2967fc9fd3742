"""`events`: the audit log of the stack. Offline, without a lock."""

from __future__ import annotations

import click

from lium_plan.cli.session import Session
from lium_plan.cli.verb import json_option, verb
from lium_plan.diagnostics import ExitCode


@verb(
    "events",
    help="Show the audit log: what was done, when, by which run, at what price; oldest first.",
    failed=lambda session: {"events": []},
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the last N.")
@json_option
def command(session: Session, limit: int | None, as_json: bool) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views.audit_view import audit_json, audit_text

    found = operations.events(session.settings())
    shown = found[-limit:] if limit else found
    if as_json:
        session.printer.json(audit_json(shown))
    else:
        session.printer.out(audit_text(shown, session.printer.out_paint))
    return ExitCode.OK
