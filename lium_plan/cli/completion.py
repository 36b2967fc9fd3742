"""`completion bash|zsh|fish`: the script that a shell sources."""

from __future__ import annotations

import click

from lium_plan.cli.session import Session
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode


@verb("completion", help="Print a shell's completion script, e.g. `source <(lium-plan completion bash)`.")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(session: Session, shell: str) -> ExitCode:
    from click.shell_completion import get_completion_class

    from lium_plan.cli.main import COMPLETION_VARIABLE, NAME, cli

    made = get_completion_class(shell)
    assert made is not None
    script = made(cli, {}, NAME, COMPLETION_VARIABLE)
    # `source()` of bash runs bash to look at its version; the script itself needs no such look.
    session.printer.out((script.source_template % script.source_vars()).strip() + "\n")
    return ExitCode.OK
