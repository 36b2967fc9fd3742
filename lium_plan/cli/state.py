"""`state list|show`: a look into the state. Offline, without a lock."""

from __future__ import annotations

import click

from lium_plan.cli.session import Session
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


command = Verbs(
    name="state",
    help="Look into the state.",
    commands={"list": list_command, "show": show_command},
)
