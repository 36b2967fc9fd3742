"""`ssh-config`: the pods as hosts of OpenSSH's configuration. Offline."""

from __future__ import annotations

from lium_plan.cli.session import Session
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode


@verb("ssh-config", help="Print the pods as hosts for ~/.ssh/config (write it to a file and `Include` that).")
def command(session: Session) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views.places_view import ssh_config

    session.printer.out(ssh_config(operations.places(session.settings())))
    return ExitCode.OK
