"""`version`."""

from __future__ import annotations

from lium_plan import __version__
from lium_plan.cli.session import Session
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode


@verb("version", help="Print the version.")
def command(session: Session) -> ExitCode:
    session.printer.out(f"lium-plan {__version__}\n")
    return ExitCode.OK
