"""Writing values into POSIX shell source so that they come out as they went in. Pure."""

from __future__ import annotations

import re

from lium_plan.ssh.errors import BadScript

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def check_script(text: str, what: str) -> str:
    """`text`, unless it holds a NUL, which no shell can carry. Raises `BadScript` naming `what`, never the value."""
    if "\0" in text:
        raise BadScript(f"{what} holds a NUL byte, which no shell can carry")
    return text


def quote(text: str, what: str = "a value") -> str:
    """`text` as one shell word. Newlines, quotes, backslashes and `$` keep their meaning as characters."""
    return "'" + check_script(text, what).replace("'", "'\\''") + "'"


def quote_path(path: str) -> str:
    """A path as one shell word that no program takes for an option."""
    if not path:
        raise BadScript("a path is empty")
    return quote(f"./{path}" if path.startswith("-") else path, "a path")


def check_name(name: str) -> str:
    """`name`, if it can be a shell variable. Raises `BadScript`."""
    if not _NAME.fullmatch(name):
        raise BadScript(f"{name!r} is no name of an environment variable that a POSIX shell can carry")
    return name
