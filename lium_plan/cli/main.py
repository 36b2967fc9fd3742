"""`lium-plan`: the list of commands, and how the process ends.

Owns the lazy group: a command's module is imported when the command is run, so that `--help` costs what click costs.
Exit codes are those of `ExitCode`; nothing else calls `sys.exit`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from lium_plan.cli.session import ReaderLeft, Session
from lium_plan.cli.streams import open_missing_streams
from lium_plan.cli.verb import TellsHelp, format_options, global_options, take_global_options
from lium_plan.diagnostics import ExitCode, Failure

NAME = "lium-plan"
COMPLETION_VARIABLE = "_LIUM_PLAN_COMPLETE"
"""Set by the script that `completion` prints when the shell wants to know what can follow."""

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("lium_plan.cli.init", "Write a manifest to start from."),
    "validate": ("lium_plan.cli.validate", "Check the manifest: offline, without a key."),
    "graph": ("lium_plan.cli.graph", "Draw what waits for what."),
    "plan": ("lium_plan.cli.plan", "Show what would change, and what it costs."),
    "apply": ("lium_plan.cli.apply", "Plan, ask, do."),
    "destroy": ("lium_plan.cli.destroy", "Plan the destruction, ask, do, prove."),
    "show": ("lium_plan.cli.show", "Show the state, or a saved plan."),
    "output": ("lium_plan.cli.output", "Print the values of outputs."),
    "offers": ("lium_plan.cli.offers", "List what can be rented now; no key needed."),
    "status": ("lium_plan.cli.status", "Show each pod: phase, age, price, time left."),
    "extend": ("lium_plan.cli.extend", "Give pods more time to live."),
    "ssh": ("lium_plan.cli.ssh", "Log in to a pod, or run a command on it."),
    "logs": ("lium_plan.cli.logs", "Print or follow the log of a bootstrap or a task."),
    "orphans": ("lium_plan.cli.orphans", "List what the account bills that no state knows."),
    "state": ("lium_plan.cli.state", "Look into the state, and change it by hand."),
    "import": ("lium_plan.cli.import_", "Take something that exists under management."),
    "ssh-config": ("lium_plan.cli.ssh_config", "Print the pods for ~/.ssh/config."),
    "inventory": ("lium_plan.cli.inventory", "Print the pods as Ansible's inventory."),
    "hostfile": ("lium_plan.cli.hostfile", "Print a fleet for mpirun and DeepSpeed."),
    "events": ("lium_plan.cli.events", "Show the audit log: what was done, when, at what price."),
    "schema": ("lium_plan.cli.schema", "Print the JSON Schemas."),
    "doctor": ("lium_plan.cli.doctor", "Check key, SSH key, clock and server, with cures."),
    "sim": ("lium_plan.cli.sim", "Run a local Lium for any client."),
    "completion": ("lium_plan.cli.completion", "Print a shell's completion script."),
    "version": ("lium_plan.cli.version", "Print the version."),
}
"""Name -> module (its `command` is the command) and the line that help shows."""


class LazyGroup(TellsHelp, click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = importlib.import_module(entry[0]).command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(name, COMMANDS, 1)
            raise click.UsageError(
                f"No such command '{name}'." + (f" Did you mean '{close[0]}'?" if close else ""), ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        take_global_options(ctx)
        return super().invoke(ctx)


def _print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        from lium_plan import __version__

        ctx.ensure_object(Session).printer.out(f"lium-plan {__version__}\n")
        ctx.exit()


cli = LazyGroup(
    name=NAME,
    help="Terraform for the Lium GPU market: fleets, tasks, templates and volumes declared in YAML.",
    params=[
        *global_options(),
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_print_version,
            help="Print the version and exit.",
        ),
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "auto_envvar_prefix": None},
    epilog="Exit codes: 0 done, 1 error, 2 changes, 3 partly done, 4 stale plan, 5 locked, 6 unsafe, 7 interrupted, "
    "8 look at it, 64 usage, 70 our bug.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    open_missing_streams()
    session = Session()
    given = tuple(sys.argv[1:] if arguments is None else arguments)
    return session.end(_run(session, given))


def _run(session: Session, arguments: Sequence[str]) -> int:
    try:
        if completion := os.environ.get(COMPLETION_VARIABLE):
            from click.shell_completion import shell_complete

            return shell_complete(cli, {}, NAME, COMPLETION_VARIABLE, completion)
        # Not `cli.main`: it writes to stderr by itself when it is interrupted, also to one that is gone.
        with cli.make_context(NAME, list(arguments), obj=session) as context:
            result = cli.invoke(context)
        return int(result) if isinstance(result, int) else int(ExitCode.OK)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as fault:
        if isinstance(fault, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            session.printer.err(f"{fault.format_message()}\n")
            return int(ExitCode.USAGE)
        session.printer.err(_usage_text(fault))
        return int(ExitCode.USAGE)
    except click.ClickException as fault:
        session.printer.err(f"error: {fault.format_message()}\n")
        return int(ExitCode.ERROR)
    except Failure as failure:
        session.show(failure.diagnostics)
        return int(failure.exit_code)
    except ReaderLeft:
        return int(ExitCode.OK)
    except (KeyboardInterrupt, click.Abort):
        from lium_plan.interrupts import ignore_signals

        ignore_signals()
        session.printer.err("\nInterrupted. Nothing was changed.\n")
        return int(ExitCode.INTERRUPTED)
    except Exception as fault:
        from lium_plan.cli.crash import report_crash

        session.printer.err(report_crash(fault, arguments))
        return int(ExitCode.BUG)


def _usage_text(fault: click.UsageError) -> str:
    usage = f"{fault.ctx.get_usage()}\n" if fault.ctx is not None else ""
    tail = f"Try '{fault.ctx.command_path} --help'.\n" if fault.ctx is not None else ""
    return f"{usage}error: {fault.format_message()}\n{tail}"
