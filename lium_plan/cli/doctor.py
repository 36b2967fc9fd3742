"""`doctor`: key, scopes, balance, SSH key, clock, server features: a line each, with the cure."""

from __future__ import annotations

from dataclasses import replace

from lium_plan.cli.session import Session
from lium_plan.cli.verb import json_option, verb
from lium_plan.diagnostics import ExitCode


@verb(
    "doctor",
    help="Check key, scopes, balance, SSH key, clock and server features; exit 1 when one of them fails.",
    failed=lambda session: {"checks": []},
)
@json_option
def command(session: Session, as_json: bool) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views.doctor_view import doctor_json, doctor_text

    settings = session.server_settings()
    checks = session.run(lambda interrupt: operations.doctor(settings))
    if as_json:
        session.printer.json(doctor_json(checks))
    else:
        checks = tuple(replace(check, cure=check.cure and session.typed(check.cure)) for check in checks)
        session.printer.out(doctor_text(checks, settings.described(), session.printer.out_paint))
    return ExitCode.ERROR if any(check.ok is False for check in checks) else ExitCode.OK
