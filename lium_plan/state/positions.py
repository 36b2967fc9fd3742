"""Where in a JSON text a value stands: for messages about texts that parse and are wrong all the same.

Runs only when something is wrong, so it is simple rather than fast. Refuses to judge: syntax is `json`'s business.
"""

from __future__ import annotations

import json
import re

_SPACE = re.compile(r"[ \t\n\r]*")
_decoder = json.JSONDecoder(strict=False)


def _skip(text: str, index: int) -> int:
    match = _SPACE.match(text, index)
    return index if match is None else match.end()


def line_at(text: str, index: int) -> int:
    """The line of a character, counted from 1."""
    return text.count("\n", 0, index) + 1


def line_of(text: str, path: tuple[str | int, ...]) -> int:
    """The line of the value at `path` (of its key, in an object), or of the nearest ancestor that is there."""
    index = _skip(text, 0)
    place = index
    for step in path:
        found = _enter(text, index, step)
        if found is None:
            break
        place, index = found
    return line_at(text, place)


def _enter(text: str, index: int, step: str | int) -> tuple[int, int] | None:
    """Where the member or item starts (its key, for a member) and where its value does."""
    opening = text[index : index + 1]
    if opening not in ("{", "["):
        return None
    index, count = _skip(text, index + 1), 0
    while text[index : index + 1] not in ("}", "]", ""):
        place, key = index, None
        if opening == "{":
            key, index = _decoder.raw_decode(text, index)
            index = _skip(text, _skip(text, index) + 1)
        if step == (key if opening == "{" else count):
            return place, index
        _, index = _decoder.raw_decode(text, index)
        index = _skip(text, index)
        if text[index : index + 1] == ",":
            index = _skip(text, index + 1)
        count += 1
    return None


def duplicate_line(text: str) -> tuple[str, int] | None:
    """The first key that an object holds twice, and the line of its second appearance."""
    stack: list[set[str] | None] = []
    index = 0
    expecting_key = False
    while index < len(text):
        char = text[index]
        if char == '"':
            value, end = _decoder.raw_decode(text, index)
            keys = stack[-1] if stack else None
            if expecting_key and keys is not None:
                if value in keys:
                    return value, line_at(text, index)
                keys.add(value)
                expecting_key = False
            index = end
            continue
        if char in "{[":
            stack.append(set() if char == "{" else None)
            expecting_key = char == "{"
        elif char in "}]":
            if stack:
                stack.pop()
            expecting_key = False
        elif char == ",":
            expecting_key = bool(stack) and stack[-1] is not None
        index += 1
    return None
