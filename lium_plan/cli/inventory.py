"""`inventory`: the pods as Ansible's inventory. Offline."""

from __future__ import annotations

import click

from lium_plan.cli.session import Session
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode


@verb("inventory", help="Print the pods as an inventory for Ansible, grouped by fleet (YAML).")
@click.option("--json", "--list", "as_json", is_flag=True, help="JSON, as Ansible takes it from a script.")
def command(session: Session, as_json: bool) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views.places_view import inventory_json, inventory_yaml

    places = operations.places(session.settings())
    if as_json:
        session.printer.json(inventory_json(places))
    else:
        session.printer.out(inventory_yaml(places))
    return ExitCode.OK
