"""`status`: each pod of the stack as it is now."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from lium_plan.cli.session import Session, ending
from lium_plan.cli.shared import DURATION, usage
from lium_plan.cli.verb import json_option, verb
from lium_plan.diagnostics import ExitCode

if TYPE_CHECKING:
    from lium_plan.answers import StatusAnswer
    from lium_plan.interrupts import Interrupt

USUAL_INTERVAL_S = 10.0
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


@verb(
    "status",
    help="Show each pod: phase, age, price, spent so far, time left, drift.",
    failed=lambda session: {"pods": [], "tasks": [], "total_per_hour_usd": 0, "total_spent_usd": 0},
)
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option("--interval", type=DURATION, metavar="D", help="Between two looks with --watch (10s).")
@click.option("--gpu", is_flag=True, help="Ask each pod how busy its GPUs are (over SSH).")
@json_option
def command(session: Session, watch: bool, interval: float | None, gpu: bool, as_json: bool) -> ExitCode:
    from lium_plan import operations

    if interval is not None and not watch:
        raise usage("--interval is for --watch: give both")
    if interval is not None and interval < 2:
        raise usage("--interval is at least 2s: the server's rate limit is for everybody on the account")
    settings = session.server_settings()
    if not watch:
        answer = session.run(lambda interrupt: operations.status(settings, gpu=gpu), for_reader=True)
        _show(session, answer, as_json=as_json)
        return ending(ExitCode.OK, answer.diagnostics)

    async def again(interrupt: Interrupt) -> None:
        while True:
            answer = await operations.status(settings, gpu=gpu)
            if sys.stdout.isatty() and not as_json:
                session.printer.out(_CLEAR)
            _show(session, answer, as_json=as_json, line=True)
            await asyncio.sleep(USUAL_INTERVAL_S if interval is None else interval)

    try:
        session.run(again, for_reader=True)
    except KeyboardInterrupt:
        return ExitCode.OK
    return ExitCode.OK


def _show(session: Session, answer: StatusAnswer, *, as_json: bool, line: bool = False) -> None:
    from lium_plan.views.status_view import status_json, status_text

    if as_json:
        session.printer.json(status_json(answer), indent=None if line else 2)
        return
    session.printer.out(status_text(answer, session.printer.out_paint))
    session.show(answer.diagnostics)
