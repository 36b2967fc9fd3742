"""Verb: a command that takes the global options after its name too, and turns failures into exit codes.

Owns the options that many commands share, so that each is spelled once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from lium_plan.cli.printer import COLOUR_CHOICES
from lium_plan.cli.session import Session
from lium_plan.diagnostics import ExitCode, Failure

F = TypeVar("F", bound=Callable[..., Any])
_GLOBAL = "global_"


class GlobalOption(click.Option):
    """An option of every command; shown in a section of its own."""


def global_options() -> list[click.Parameter]:
    """Fresh instances: click parameters belong to one command each."""
    return [
        GlobalOption(["--chdir", f"{_GLOBAL}chdir"], metavar="DIR", help="Work in this directory."),
        GlobalOption(["--stack", f"{_GLOBAL}stack"], metavar="NAME", help="Which stack of the project (default)."),
        GlobalOption(["--state", f"{_GLOBAL}state"], metavar="URL", help="Where the state lies (file:./state)."),
        GlobalOption(["--sim", f"{_GLOBAL}sim"], is_flag=True, help="Use a local Lium: no account, no money."),
        GlobalOption(["-v", "--verbose", f"{_GLOBAL}verbose"], count=True, help="Say more; twice: even more."),
        GlobalOption(["-q", "--quiet", f"{_GLOBAL}quiet"], is_flag=True, help="Say only what went wrong."),
        GlobalOption(
            ["--color", f"{_GLOBAL}color"],
            type=click.Choice(COLOUR_CHOICES),
            default=None,
            help="Colours; auto, the default: on a terminal only.",
        ),
    ]


def take_global_options(context: click.Context) -> Session:
    """Move the global options from the context's parameters to the session."""
    session = context.ensure_object(Session)
    names = [name for name in context.params if name.startswith(_GLOBAL)]
    session.options.take({name.removeprefix(_GLOBAL): context.params.pop(name) for name in names})
    return session


class TellsHelp(click.Command):
    """Help is data like any other: what can't be written of it is told at the end."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _print_help
        return option


def _print_help(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.ensure_object(Session).printer.out(ctx.get_help() + "\n")
        ctx.exit()


class Verb(TellsHelp):
    """`failed` makes the body of the JSON document of a run that failed; `stream`: its JSON is a line per event."""

    def __init__(
        self,
        *args: Any,
        failed: Callable[[Session], dict[str, Any]] | None = None,
        stream: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(global_options())
        self._failed = failed or (lambda session: {})
        self._stream = stream

    def invoke(self, ctx: click.Context) -> Any:
        session = take_global_options(ctx)
        as_json = session.as_json = bool(ctx.params.get("as_json"))
        try:
            session.start()
            session.parallelism = ctx.params.get("parallelism")
            return super().invoke(ctx)
        except Failure as failure:
            return self._end(session, failure, as_json)

    def _end(self, session: Session, failure: Failure, as_json: bool) -> ExitCode:
        if as_json and self._stream:
            from lium_plan.views.events_json import EventStream

            for line in EventStream().closing(datetime.now(UTC), failure.exit_code, failure.diagnostics):
                session.printer.json(line, indent=None)
        elif as_json:
            from lium_plan.views.diagnostics_json import document

            session.printer.json(document(self._failed(session), failure.diagnostics))
        else:
            session.show(failure.diagnostics)
        return failure.exit_code

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        format_options(self, ctx, formatter)


class Verbs(TellsHelp, click.Group):
    """A group of verbs; takes the global options too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(global_options())

    def invoke(self, ctx: click.Context) -> Any:
        take_global_options(ctx)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def format_options(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    """The command's own options first, the global ones apart."""
    own: list[tuple[str, str]] = []
    shared: list[tuple[str, str]] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            (shared if isinstance(parameter, GlobalOption) else own).append(record)
    for title, records in (("Options", own), ("Global options", shared)):
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def verb(name: str, **kwargs: Any) -> Callable[[Callable[..., Any]], Verb]:
    """Decorator: a `Verb` called `name`, whose function gets the session first and returns an exit code."""

    def make(function: Callable[..., Any]) -> Verb:
        made: Verb = click.command(name, cls=Verb, **kwargs)(click.pass_obj(function))
        return made

    return make


def options(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several option decorators as one, in the order in which help shows them."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, errors included.")
