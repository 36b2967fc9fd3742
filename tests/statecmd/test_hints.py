"""What messages tell people to type exists: every verb and every option that a text of ours names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from lium_plan.cli.main import COMMANDS, cli

PACKAGE = Path(__file__).parents[2] / "lium_plan"
ROOTS = ("cli", "operations", "planning", "state", "engine", "kinds", "views", "manifest", "lium", "ssh")
NOT_OURS = ("manifest", "will", "command")
"""`lium-plan will …`, and titles."""


def commands() -> dict[str, click.Command]:
    context = click.Context(cli)
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found.update({f"{name} {inner}": each for inner, each in command.commands.items()})
    return found


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Where and what: the strings of the code, the fixed parts of f-strings, without docstrings."""
    return tuple(found for root in ROOTS for path in sorted((PACKAGE / root).rglob("*.py")) for found in texts_of(path))


def texts_of(path: Path) -> Iterator[tuple[str, str]]:
    if path.stem.endswith("schema"):
        return  # titles
    name = path.relative_to(PACKAGE)
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):  # parents come before what is in them
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield f"{name}:{node.lineno}", "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield f"{name}:{node.lineno}", node.value


COMMAND = re.compile(
    r"(?<!this )(?<!newer )lium-plan (?:--stack \S+ )?(?P<words>[a-z][a-z-]*(?: [a-z]+)?)(?P<rest>[^`;,.)]*)"
)
STATE = re.compile(r"`state (?P<verb>[a-z]+)")


def named() -> Iterator[tuple[str, str, str]]:
    for where, text in texts():
        for match in COMMAND.finditer(text):
            yield where, match["words"], match["rest"]
        for match in STATE.finditer(text):
            yield where, f"state {match['verb']}", ""


def wrong_with(known: dict[str, click.Command], words: str, rest: str) -> str | None:
    first = words.split()[0]
    name = words if words in known else first
    if name not in known:
        return None if first in NOT_OURS else f"there is no `lium-plan {words}`"
    command = known[name]
    if isinstance(command, click.Group):
        return None if words == name else f"{name} has no `{words}`"
    options = {option for parameter in command.params for option in parameter.opts}
    missing = [option for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", rest) if option not in options]
    return f"`lium-plan {name}` has no {missing[0]}" if missing else None


def test_what_hints_tell_to_type_exists() -> None:
    found, known = list(named()), commands()
    wrong = [
        f"{where}: {fault}" for where, words, rest in found if (fault := wrong_with(known, words, rest)) is not None
    ]
    assert not wrong, "\n".join(wrong)
    assert len(found) > 40


@pytest.mark.parametrize(
    ("words", "rest", "fault"),
    [
        ("plan", " --no-refresh", None),
        ("state rm", "", None),
        ("manifest", "", None),
        ("aply", "", "there is no `lium-plan aply`"),
        ("state eat", "", "state has no `state eat`"),
        ("plan", " --no-refrsh now", "`lium-plan plan` has no --no-refrsh"),
    ],
)
def test_a_wrong_hint_is_seen(words: str, rest: str, fault: str | None) -> None:
    assert wrong_with(commands(), words, rest) == fault


def test_flags_that_stand_alone_exist_somewhere() -> None:
    options = {option for command in commands().values() for parameter in command.params for option in parameter.opts}
    for where, text in texts():
        ours = where.startswith(("planning", "operations", "engine", "state", "kinds"))
        if ours and not text.startswith("nvidia-smi"):
            for option in re.findall(r"(?<![\w/-])--[a-z][a-z-]+(?![\w-])", text):
                assert option in options, f"{where}: {option}"
