"""`state …`: a look into the state, and what people do to it by hand. Offline but for `recover`.

Reading takes no lock and works while an apply runs; what changes the state takes it, and keeps what was there.
"""

from __future__ import annotations

import click

from lium_plan.cli import state_edit
from lium_plan.cli.session import Session
from lium_plan.cli.shared import DURATION
from lium_plan.cli.verb import Verbs, json_option, verb
from lium_plan.diagnostics import ExitCode, Failure, error


@verb("list", help="Print the addresses of all resources in the state.", failed=lambda session: {"addresses": []})
@json_option
def list_command(session: Session, as_json: bool) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views.diagnostics_json import document
    from lium_plan.views.state_text import addresses, addresses_text

    state = operations.load_state(session.settings())
    if as_json:
        session.printer.json(document({"addresses": list(addresses(state))}, ()))
    else:
        session.printer.out(addresses_text(state))
    return ExitCode.OK


@verb("show", help="Print everything that is known of one resource.")
@click.argument("address")
@json_option
def show_command(session: Session, address: str, as_json: bool) -> ExitCode:
    from lium_plan import operations
    from lium_plan.addresses import AddressError, parse
    from lium_plan.cli.shared import usage
    from lium_plan.views.diagnostics_json import document
    from lium_plan.views.state_json import resource_json
    from lium_plan.views.state_text import addresses, resource_text

    try:
        wanted = parse(address)
    except AddressError as fault:
        raise usage(str(fault)) from None
    state = operations.load_state(session.settings())
    record = state.record(wanted)
    if record is None:
        from difflib import get_close_matches

        close = get_close_matches(address, addresses(state), 1)
        hint = f"did you mean {close[0]}?" if close else "see: lium-plan state list"
        raise Failure(ExitCode.ERROR, (error("not-in-state", f"{address} is not in the state", hint=hint),))
    if as_json:
        session.printer.json(document(resource_json(record, state), ()))
    else:
        session.printer.out(resource_text(record, state, session.printer.out_paint))
    return ExitCode.OK


@verb("pull", help="Print the state, with its journal, as one snapshot.")
def pull_command(session: Session) -> ExitCode:
    from lium_plan import operations

    pulled = operations.pull_state(session.settings())
    session.printer.out(pulled.snapshot.decode("ascii"))
    session.show(pulled.diagnostics)
    return ExitCode.OK


@verb("lock", help="Lock the state by hand: everything that would change it is refused until `state unlock`.")
@click.option("--reason", metavar="R", default="no reason given", help="Why; shown to whoever is refused.")
@click.option("--ttl", type=DURATION, metavar="D", help="Ends by itself after this long; else with `state unlock`.")
def lock_command(session: Session, reason: str, ttl: float | None) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views.times import stamp

    settings = session.settings()
    hold = session.run(lambda interrupt: operations.lock_state(settings, reason=reason, ttl_s=ttl))
    end = "`lium-plan state unlock`" if hold.until is None else stamp(hold.until.replace(microsecond=0))
    session.printer.talk(f"Stack {settings.stack} is locked until {session.typed(end)}: {hold.reason}\n")
    return ExitCode.OK


@verb("unlock", help="Lift a lock set by hand. A running command's lock can't be lifted: it frees itself.")
def unlock_command(session: Session) -> ExitCode:
    from lium_plan import operations

    settings = session.settings()
    lifted = session.run(lambda interrupt: operations.unlock_state(settings))
    words = "is unlocked" if lifted else "was not locked"
    session.printer.talk(f"Stack {settings.stack} {words}.\n")
    return ExitCode.OK


command = Verbs(
    name="state",
    help="Look into the state, and change it by hand.",
    commands={
        "list": list_command,
        "show": show_command,
        "mv": state_edit.move_command,
        "rm": state_edit.release_command,
        "pull": pull_command,
        "push": state_edit.push_command,
        "lock": lock_command,
        "unlock": unlock_command,
        "recover": state_edit.recover_command,
        "repair": state_edit.repair_command,
    },
)
