"""`extend ADDRESS DURATION`: more time to live for a pod, or for all pods of a fleet, within the policy."""

from __future__ import annotations

from typing import Any

import click

from lium_plan.cli.session import Session
from lium_plan.cli.shared import DURATION, manifest_options, sources, usage
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode

SHORTEST_S = 60


@verb("extend", help="Give a pod, or all pods of a fleet, more time to live: extend fleet.trainers[0] 2h.")
@click.argument("address", metavar="ADDRESS")
@click.argument("duration", metavar="DURATION", type=DURATION)
@manifest_options
@click.option("--lock-timeout", type=DURATION, default=0.0, metavar="D", help="Wait for the lock (0s).")
def command(session: Session, address: str, duration: float, lock_timeout: float, **values: Any) -> ExitCode:
    from lium_plan import operations
    from lium_plan.money import amount
    from lium_plan.views.times import stamp

    if duration < SHORTEST_S:
        raise usage("extend by a minute at least")
    settings = session.server_settings()
    given = sources(values)
    done = session.run(
        lambda interrupt: operations.extend(settings, given, address, duration, lock_timeout_s=lock_timeout)
    )
    session.changed = True
    for item in done:
        before, until = stamp(item.before.replace(microsecond=0)), stamp(item.until)
        session.printer.out(f"{item.address}: {before} -> {until}, at most {amount(item.more_usd)} more\n")
        session.show(item.diagnostics)
    return ExitCode.OK
