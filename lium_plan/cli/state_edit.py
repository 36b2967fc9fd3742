"""`state mv|rm|push|recover|repair`: what rewrites a state. Each keeps what was there, and can be tried before."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from lium_plan.cli.session import Session
from lium_plan.cli.shared import DURATION, manifest_options, sources
from lium_plan.cli.verb import options, verb
from lium_plan.diagnostics import ExitCode, Failure, Severity, counted, error

edit_options = options(
    click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing."),
    click.option("--lock-timeout", type=DURATION, default=0.0, metavar="D", help="Wait for the lock (0s)."),
)


@verb("mv", help="Give a resource, or a whole fleet or task, another address: mv fleet.old fleet.new.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@edit_options
def move_command(session: Session, source: str, target: str, dry_run: bool, lock_timeout: float) -> ExitCode:
    from lium_plan import operations

    settings = session.settings()
    edit = session.run(
        lambda interrupt: operations.move_in_state(
            settings, source, target, dry_run=dry_run, lock_timeout_s=lock_timeout
        )
    )
    session.changed = not dry_run
    session.printer.out("".join(f"{line}\n" for line in edit.lines))
    _say_done(session, dry_run, "Call it so in the manifest, too.")
    return ExitCode.OK


@verb("rm", help="Give resources up: they stay on the account, listed as released with what they cost.")
@click.argument("addresses", metavar="ADDR…", nargs=-1, required=True)
@edit_options
def release_command(session: Session, addresses: tuple[str, ...], dry_run: bool, lock_timeout: float) -> ExitCode:
    from lium_plan import operations

    settings = session.settings()
    edit = session.run(
        lambda interrupt: operations.release_from_state(
            settings, addresses, dry_run=dry_run, lock_timeout_s=lock_timeout
        )
    )
    session.changed = not dry_run
    session.printer.out("".join(f"{line}\n" for line in edit.lines))
    session.show(edit.notes)
    _say_done(session, dry_run, "`lium-plan import ADDRESS ID` takes something back.")
    return ExitCode.OK


@verb("push", help="Put a snapshot in place of the state, when it follows from it. FILE is one from pull; - is stdin.")
@click.argument("file", metavar="FILE")
@click.option("--force", is_flag=True, help="Also another lineage, an older serial, or one that knows less.")
@edit_options
def push_command(session: Session, file: str, force: bool, dry_run: bool, lock_timeout: float) -> ExitCode:
    from lium_plan import operations

    settings = session.settings()
    data, name = _read(file)
    pushed = session.run(
        lambda interrupt: operations.push_state(
            settings, data, name=name, force=force, dry_run=dry_run, lock_timeout_s=lock_timeout
        )
    )
    session.show(pushed.notes)
    if not pushed.changed:
        session.printer.talk("It is there already.\n")
        return ExitCode.OK
    _say_done(session, dry_run, f"The state is {name}, serial {pushed.serial}.{_kept(pushed.kept)}")
    return ExitCode.OK


def _read(file: str) -> tuple[bytes, str]:
    try:
        return (sys.stdin.buffer.read(), "stdin") if file == "-" else (Path(file).read_bytes(), file)
    except OSError as fault:
        raise Failure(ExitCode.ERROR, (error("cannot-read", f"cannot read {file}: {fault.strerror}"),)) from None


@verb("repair", help="Save what can be saved of a state that can't be read. The files are kept as they are.")
@edit_options
def repair_command(session: Session, dry_run: bool, lock_timeout: float) -> ExitCode:
    from lium_plan import operations

    settings = session.settings()
    done = session.run(
        lambda interrupt: operations.repair_state(settings, dry_run=dry_run, lock_timeout_s=lock_timeout)
    )
    if not done.findings:
        session.printer.talk("The state is sound.\n")
        return ExitCode.OK
    session.show(done.findings)
    released = f", {done.released} released" if done.released else ""
    _say_done(
        session, dry_run, f"{counted(done.records, 'resource')}{released}, serial {done.serial}.{_kept(done.kept)}"
    )
    lost = any(item.severity is Severity.ERROR for item in done.findings)
    return ExitCode.PARTIAL if lost else ExitCode.OK


@verb("recover", help="Build a lost state anew from the marks on the account and the manifest.")
@manifest_options
@click.option("--lineage", metavar="HEX", help="Whose things, when several states made some.")
@edit_options
def recover_command(
    session: Session, lineage: str | None, dry_run: bool, lock_timeout: float, **values: Any
) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views.recovery_view import recovered_text

    settings = session.server_settings()
    given = sources(values)
    found = session.run(
        lambda interrupt: operations.recover_state(
            settings, given, lineage=lineage, dry_run=dry_run, lock_timeout_s=lock_timeout
        )
    )
    session.changed = not dry_run
    session.printer.out(recovered_text(found, session.printer.out_paint))
    session.show(found.diagnostics)
    _say_done(session, dry_run, f"Now see what is missing: lium-plan plan.{_kept(found.kept)}")
    return ExitCode.PARTIAL if found.left else ExitCode.OK


def _kept(names: tuple[str, ...]) -> str:
    return f" What was there is kept as {', '.join(names)}." if names else ""


def _say_done(session: Session, dry_run: bool, words: str) -> None:
    session.printer.talk("Dry run: nothing was written.\n" if dry_run else f"Done. {session.typed(words)}\n")
