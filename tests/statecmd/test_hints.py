"""What messages tell people to type exists: every verb and every option that a text of ours names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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


def texts() -> Iterator[tuple[str, str]]:
    """Where and what: the strings of the code, the fixed parts of f-strings, without docstrings."""
    for root in ROOTS:
        for path in sorted((PACKAGE / root).rglob("*.py")):
            if path.stem.endswith("schema"):
                continue  # titles
            tree = ast.parse(path.read_text(encoding="utf-8"))
            skipped = {
                id(node.value)
                for node in ast.walk(tree)
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            }
            skipped |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
            for node in ast.walk(tree):
                where = f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
                if isinstance(node, ast.JoinedStr):
                    parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
                    yield where, "".join(str(part) for part in parts)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
                    yield where, node.value


TEXTS = tuple(texts())
COMMAND = re.compile(
    r"(?<!this )(?<!newer )lium-plan (?:--stack \S+ )?(?P<words>[a-z][a-z-]*(?: [a-z]+)?)(?P<rest>[^`;,.)]*)"
)
STATE = re.compile(r"`state (?P<verb>[a-z]+)")


def named() -> Iterator[tuple[str, str, str]]:
    for where, text in TEXTS:
        for match in COMMAND.finditer(text):
            yield where, match["words"], match["rest"]
        for match in STATE.finditer(text):
            yield where, f"state {match['verb']}", ""


NAMED = tuple(named())


def test_there_are_hints_to_look_at() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize(("where", "words", "rest"), NAMED)
def test_what_a_hint_tells_to_type_exists(where: str, words: str, rest: str) -> None:
    known = commands()
    first = words.split()[0]
    name = words if words in known else first
    if name not in known and first in NOT_OURS:
        return
    assert name in known, f"{where}: there is no `lium-plan {words}`"
    command = known[name]
    if isinstance(command, click.Group):
        assert words == name, f"{where}: {name} has no `{words}`"
        return
    options = {option for parameter in command.params for option in parameter.opts}
    for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", rest):
        assert option in options, f"{where}: `lium-plan {name}` has no {option}"


def test_flags_that_stand_alone_exist_somewhere() -> None:
    options = {option for command in commands().values() for parameter in command.params for option in parameter.opts}
    for where, text in TEXTS:
        ours = where.startswith(("planning", "operations", "engine", "state", "kinds"))
        if ours and not text.startswith("nvidia-smi"):
            for option in re.findall(r"(?<![\w/-])--[a-z][a-z-]+(?![\w-])", text):
                assert option in options, f"{where}: {option}"
