"""`graph`: what the manifest declares and what waits for what, for Graphviz, Mermaid or a browser."""

from __future__ import annotations

from typing import Any

import click

from lium_plan.cli.session import Session, ending
from lium_plan.cli.shared import manifest_options, sources
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode


@verb("graph", help="Draw what waits for what: offline, without a key. An arrow leads from what comes first.")
@manifest_options
@click.option("--format", "form", type=click.Choice(("dot", "mermaid", "svg")), default="dot", help="dot by default.")
def command(session: Session, form: str, **values: Any) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views.graph_view import FORMATS

    found = operations.graph(session.settings(), sources(values))
    session.show(found.diagnostics)
    session.printer.out(FORMATS[form](found))
    return ending(ExitCode.OK, found.diagnostics)
