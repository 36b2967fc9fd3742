"""`hostfile`: a fleet as mpirun and DeepSpeed read it. Offline."""

from __future__ import annotations

import click

from lium_plan.cli.session import Session
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode


@verb("hostfile", help="Print `HOST slots=GPUS` for each pod at ADDRESS; the hosts are those of ssh-config.")
@click.argument("address")
def command(session: Session, address: str) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views.places_view import aliases, hostfile

    settings = session.settings()
    names = aliases(operations.places(settings))
    session.printer.out(hostfile(operations.places(settings, address), names))
    return ExitCode.OK
