"""The functions of the language. Each is computed as soon as its arguments are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lium_plan.expressions.nodes import Call, ExpressionError, Literal, Node, is_list, list_valued, render, written

if TYPE_CHECKING:
    from lium_plan.kinds.protocol import Json

FUNCTIONS: Mapping[str, tuple[int, int]] = {
    "default": (2, 8),
    "join": (2, 2),
    "file": (1, 1),
    "length": (1, 1),
    "lower": (1, 1),
    "replace": (3, 3),
}
"""The least and the most arguments of each."""


def call(node: Call) -> Node:
    """The call's value when its arguments allow one, else the call itself. Raises `ExpressionError`."""
    arguments = node.arguments
    check_types(node)
    if node.function == "default":
        for position, argument in enumerate(arguments):
            if not isinstance(argument, Literal):
                rest = arguments[position:]
                return argument if len(rest) == 1 else Call("default", rest, node.offset)
            if argument.value is not None:
                return argument
        return Literal(None)
    if node.function == "file" or not all(isinstance(argument, Literal) for argument in arguments):
        return node
    literals = [argument for argument in arguments if isinstance(argument, Literal)]
    value = _compute(node.function, [argument.value for argument in literals], node.offset)
    return Literal(value, any(argument.sensitive for argument in literals), written(node))


def check_types(node: Call) -> None:
    lists = [list_valued(argument) for argument in node.arguments]
    if node.function in ("lower", "replace", "file") and True in lists:
        raise ExpressionError(f"{node.function}() takes strings, not a list: use join() first", node.offset)
    if node.function == "join" and (None not in lists) and lists.count(True) != 1:
        raise ExpressionError("join() takes a separator and a list: join(', ', fleet.x[*].host)", node.offset)


def _compute(function: str, values: Sequence[Json], offset: int) -> Json:
    if function == "join":
        first, second = values
        separator, items = (second, first) if is_list(first) else (first, second)
        if not isinstance(separator, str) or isinstance(items, str) or not isinstance(items, Sequence):
            raise ExpressionError("join() takes a separator and a list: join(', ', fleet.x[*].host)", offset)
        return separator.join(render(item) for item in items)
    subject = values[0]
    if function == "length":
        if not isinstance(subject, str | Sequence | Mapping):
            raise ExpressionError("length() takes a list, a map or a string", offset)
        return len(subject)
    if isinstance(subject, Mapping):
        raise ExpressionError(f"{function}() takes strings, not a map", offset)
    if function == "lower":
        return render(subject).lower()
    return render(subject).replace(render(values[1]), render(values[2]))
