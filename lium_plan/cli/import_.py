"""`import ADDRESS ID`: something that exists on the account comes under management; what to write is printed."""

from __future__ import annotations

from typing import Any

import click

from lium_plan.cli.session import Session
from lium_plan.cli.shared import DURATION, manifest_options, sources
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode, warning


@verb(
    "import", help="Take an existing pod, volume, template or login under management, and print what to write for it."
)
@click.argument("address", metavar="ADDRESS")
@click.argument("id", metavar="ID")
@manifest_options
@click.option("--allow-foreign-lineage", is_flag=True, help="Also what carries the mark of another state.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
@click.option("--lock-timeout", type=DURATION, default=0.0, metavar="D", help="Wait for the lock (0s).")
def command(
    session: Session,
    address: str,
    id: str,
    allow_foreign_lineage: bool,
    dry_run: bool,
    lock_timeout: float,
    **values: Any,
) -> ExitCode:
    from lium_plan import operations
    from lium_plan.money import rate
    from lium_plan.views.stanza_text import stanza_text

    settings = session.server_settings()
    given = sources(values)
    found = session.run(
        lambda interrupt: operations.import_one(
            settings,
            given,
            address,
            id,
            allow_foreign_lineage=allow_foreign_lineage,
            dry_run=dry_run,
            lock_timeout_s=lock_timeout,
        )
    )
    if found is None:
        session.printer.talk(f"{address} is {id} already: nothing to do.\n")
        return ExitCode.OK
    session.changed = not dry_run
    session.printer.out(stanza_text(found.stanza or {}))
    session.show(found.diagnostics)
    if found.change is not None:
        fields = ", ".join(change.path for change in found.change.fields) or found.change.reason
        message = f"it is not as the manifest declares it ({fields}): the next plan will {found.change.verb} it"
        session.show((warning("differs", message, address=address),))
    cost = "" if found.price_per_hour_usd is None else f", {rate(found.price_per_hour_usd)}"
    would = "would be" if dry_run else "is"
    session.printer.talk(f"{address} {would} {found.record.kind} {found.name} ({id}){cost}.\n")
    if found.stanza is not None:
        session.printer.talk("Write the lines above into the manifest; then a plan has nothing to do for it.\n")
    return ExitCode.OK
