"""`init [DIR]`: a manifest to start from, with the schema that editors complete from. Overwrites nothing."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from lium_plan.cli.session import Session
from lium_plan.cli.verb import verb
from lium_plan.diagnostics import ExitCode, Failure, error

DEFAULT_EXAMPLE = "quickstart"
_NEEDED = {"serve": ("api_token",)}
"""The variables of an example that have no value of their own."""
SCHEMA_PLACE = Path(".lium-plan") / "manifest.schema.json"
"""Named in the first line of every example."""


def example_names() -> tuple[str, ...]:
    return tuple(sorted(item.name for item in _examples().iterdir() if item.is_dir() and item.name[0].isalpha()))


def _examples() -> Traversable:
    return files("lium_plan.cli") / "examples"


@verb("init", help="Write a manifest to start from into DIR (.), and the schema that editors complete from.")
@click.argument("directory", metavar="[DIR]", default=".")
@click.option(
    "--example", default=DEFAULT_EXAMPLE, metavar="NAME", help="Which one: quickstart (default), serve, training."
)
def command(session: Session, directory: str, example: str) -> ExitCode:
    names = example_names()
    if example not in names:
        message = f"there is no example '{example}'; known: {', '.join(names)}"
        raise Failure(ExitCode.USAGE, (error("no-such-example", message),))
    from lium_plan.cli.schema import schema_text

    target = Path(directory)
    contents = {Path(item.name): item.read_bytes() for item in (_examples() / example).iterdir() if item.is_file()}
    _refuse_overwriting(target, contents)
    if not os.path.lexists(target / ".gitignore"):
        # The state says what lies where; it belongs on shared storage, not into a repository.
        contents[Path(".gitignore")] = b"state/\n"
    contents[SCHEMA_PLACE] = schema_text("manifest").encode()
    try:
        for name, content in contents.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            # `x`: what came meanwhile is not overwritten either, nor what a dangling link leads to.
            with (target / name).open("xb") as file:
                file.write(content)
    except OSError as fault:
        raise Failure(
            ExitCode.ERROR, (error("cannot-write", f"cannot write {fault.filename}: {fault.strerror}"),)
        ) from None
    written = ", ".join(str(target / name) for name in sorted(contents))
    place = os.path.normpath(os.path.join(session.options.chdir or ".", directory))
    there = replace(session.options, chdir=None if place == "." else place, sim=False).repeated()
    given = "".join(f" --var {name}=VALUE" for name in _NEEDED.get(example, ()))
    session.printer.talk(f"Wrote {written}.\nNext: {shlex.join(('lium-plan', *there))} plan --sim{given}\n")
    return ExitCode.OK


def _refuse_overwriting(target: Path, contents: dict[Path, bytes]) -> None:
    there = [str(target / name) for name in contents if os.path.lexists(target / name)]
    if there:
        raise Failure(
            ExitCode.ERROR,
            (
                error(
                    "exists", f"{', '.join(there)}: already there, and init overwrites nothing", hint="give another DIR"
                ),
            ),
        )
