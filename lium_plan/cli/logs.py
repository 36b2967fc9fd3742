"""`logs`: what a bootstrap or a task has written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from lium_plan.cli.session import Session
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode

if TYPE_CHECKING:
    from lium_plan.answers import LogEnd
    from lium_plan.interrupts import Interrupt


@verb("logs", help="Print the log of a bootstrap (fleet.x[0]) or a task (task.x[0]).")
@click.argument("address")
@click.option("-f", "--follow", is_flag=True, help="Go on until it ends. Ctrl-C ends the looking on, never the task.")
def command(session: Session, address: str, follow: bool) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views.taming import Tame

    settings = session.server_settings()
    tame = Tame() if sys.stdout.isatty() else None
    mid_line = False

    def write(chunk: bytes) -> None:
        nonlocal mid_line
        shown = chunk if tame is None else tame.feed(chunk)
        session.printer.out_bytes(shown)
        mid_line = not shown.endswith(b"\n") if shown else mid_line

    async def work(interrupt: Interrupt) -> LogEnd:
        return await operations.show_log(
            settings,
            address,
            follow=follow,
            out=write,
            say=lambda words: session.printer.talk(f"{session.typed(words)}\n"),
        )

    try:
        end = session.run(work, for_reader=True)
    except KeyboardInterrupt:
        if not follow:
            raise
        session.printer.talk("\nNo longer looking on; what runs there goes on.\n")
        return ExitCode.OK
    if tame is not None:
        session.printer.out_bytes(tame.flush())
        session.printer.talk("\n" if mid_line else "")
    code = "" if end.exit_code is None else f", exit code {end.exit_code}"
    session.printer.talk(f"{address}: {end.status}{code}\n")
    return ExitCode.OK
