"""`schema [manifest|state|plan|show|events]`: the JSON Schemas, made from the models."""

from __future__ import annotations

import click

from lium_plan.cli.session import Session
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode

NAMES = ("manifest", "state", "plan", "show", "events")


@verb("schema", help="Print a JSON Schema: of the manifest (default), the state's file, or what these verbs print.")
@click.argument("name", type=click.Choice(NAMES), default="manifest")
def command(session: Session, name: str) -> ExitCode:
    session.printer.out(schema_text(name))
    return ExitCode.OK


def schema_text(name: str) -> str:
    """The text of `schemas/NAME.schema.json`."""
    if name == "manifest":
        from lium_plan.manifest.schema import text as manifest_text

        return manifest_text()
    if name == "state":
        from lium_plan.state.schema import render_state_schema

        return render_state_schema()
    from lium_plan.views.document_schemas import document_schema_text

    return document_schema_text(name)
