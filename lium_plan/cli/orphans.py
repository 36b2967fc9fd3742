"""`orphans`: what the account bills that no state of ours knows, over all stacks of the state directory."""

from __future__ import annotations

from typing import Any

import click

from lium_plan.cli.session import Session, ending
from lium_plan.cli.shared import DURATION, usage
from lium_plan.cli.verb import json_option, verb
from lium_plan.diagnostics import ExitCode


def _failed(session: Session) -> dict[str, Any]:
    from lium_plan.views.orphans_view import no_orphans_json

    return no_orphans_json()


@verb("orphans", help="List what the account bills that no state here knows; delete what was lost.", failed=_failed)
@click.option("--delete", is_flag=True, help="Delete what is lost but volumes; with --id exactly those.")
@click.option("--id", "ids", multiple=True, metavar="ID", help="What --delete takes: lost, or of another lineage.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit 2 when something is lost.")
@click.option("--lock-timeout", type=DURATION, default=0.0, metavar="D", help="With --delete: wait for locks (0s).")
@click.option("--wait-timeout", type=DURATION, default=900.0, metavar="D", help="Wait for things to go (15m).")
@json_option
def command(
    session: Session,
    delete: bool,
    ids: tuple[str, ...],
    detailed_exitcode: bool,
    lock_timeout: float,
    wait_timeout: float,
    as_json: bool,
) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views.orphans_view import cures_text, orphans_json, orphans_text

    if ids and not delete:
        raise usage("--id says what --delete takes: give both")
    settings = session.server_settings()
    if delete:
        found = session.run(
            lambda interrupt: operations.delete_orphans(
                settings, ids, wait_timeout_s=wait_timeout, lock_timeout_s=lock_timeout
            )
        )
    else:
        found = session.run(lambda interrupt: operations.list_orphans(settings))
    session.changed = delete
    if as_json:
        session.printer.json(orphans_json(found))
    else:
        session.printer.out(orphans_text(found, session.printer.out_paint))
        session.show(found.diagnostics)
        if found.lost and not delete:
            session.printer.talk(session.typed(cures_text(found)))
    # With ids, what was not named was not asked for.
    if any(not item.gone for item in found.deleted) or (delete and not ids and found.lost):
        return ExitCode.PARTIAL
    code = ending(ExitCode.OK, found.diagnostics)
    return ExitCode.CHANGES if code is ExitCode.OK and detailed_exitcode and found.lost else code
