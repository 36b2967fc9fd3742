"""`output [NAME]`: values of `outputs`, as state knows them. Offline."""

from __future__ import annotations

import click

from lium_plan.cli.session import Session
from lium_plan.cli.verb import json_option, verb
from lium_plan.diagnostics import ExitCode, Failure, error


@verb(
    "output",
    help="Print the values of outputs; with a name the bare value of that one.",
    failed=lambda session: {"outputs": {}},
)
@click.argument("name", required=False)
@json_option
def command(session: Session, name: str | None, as_json: bool) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views.diagnostics_json import document
    from lium_plan.views.events_text import outputs_text
    from lium_plan.views.plan_json import outputs_json
    from lium_plan.views.values import full_value_words

    outputs = operations.outputs(session.settings())
    if name is not None and name not in outputs:
        known = f"known: {', '.join(outputs)}" if outputs else "there are none"
        raise Failure(ExitCode.ERROR, (error("no-such-output", f"there is no output '{name}'; {known}"),))
    if as_json:
        chosen = outputs if name is None else {name: outputs[name]}
        session.printer.json(document({"outputs": outputs_json(chosen)}, ()))
    elif name is None:
        session.printer.out(outputs_text(outputs_json(outputs)))
    else:
        value = outputs[name]
        if value.unknown:
            raise Failure(
                ExitCode.ERROR,
                (error("output-unknown", f"'{name}' is known only after an apply", hint="run: lium-plan apply"),),
            )
        session.printer.out(full_value_words(value.value) + "\n")
    return ExitCode.OK
