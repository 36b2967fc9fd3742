"""`ssh`: into a pod, with the system's own client and the pod's pinned host key."""

from __future__ import annotations

import os
import shutil
import sys

import click

from lium_plan.cli.session import Session
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode, Failure, error


@verb("ssh", help="Log in to a pod, or run COMMAND on it. The pod of a bootstrap or a task will do as ADDRESS.")
@click.argument("address")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(session: Session, address: str, command: tuple[str, ...]) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views.places_view import ssh_command, ssh_command_text

    settings = session.server_settings()
    place, diagnostics = session.run(lambda interrupt: operations.place_now(settings, address))
    session.show(diagnostics)
    program = shutil.which("ssh")
    if program is None:
        raise Failure(
            ExitCode.ERROR,
            (
                error(
                    "no-ssh",
                    "there is no `ssh` in PATH: this command hands over to OpenSSH's client",
                    address=place.address,
                    hint=f"install it (Debian: openssh-client), or use another client for: "
                    f"{ssh_command_text(place, command)}",
                ),
            ),
        )
    sys.stdout.flush()
    sys.stderr.flush()
    # In our place, so that the terminal, signals and the exit code are ssh's own.
    os.execv(program, ssh_command(place, command))
