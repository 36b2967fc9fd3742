"""`validate`: everything that can be known without the API and without a key."""

from __future__ import annotations

from typing import Any

from lium_plan.cli.session import Session, ending
from lium_plan.cli.shared import manifest_options, sources
from lium_plan.cli.verb import json_option, verb
from lium_plan.diagnostics import ExitCode


@verb(
    "validate",
    help="Check the manifest: offline, without a key. Every fault is reported at once, with its place.",
    failed=lambda session: {"valid": False, "project": None},
)
@manifest_options
@json_option
def command(session: Session, as_json: bool, **values: Any) -> ExitCode:
    from lium_plan import operations

    found = operations.validate(session.settings(), sources(values))
    code = ending(ExitCode.OK, found.diagnostics)
    if as_json:
        from lium_plan.views.diagnostics_json import document

        session.printer.json(document({"valid": code is ExitCode.OK, "project": found.project}, found.diagnostics))
        return code
    session.show(found.diagnostics)
    if code is ExitCode.OK:
        session.printer.talk(f"The manifest of {found.project} is valid.\n")
    return code
