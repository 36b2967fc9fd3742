"""The grammar, by recursive descent."""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from typing import NoReturn

from lium_plan.addresses import MEMBER, NAME
from lium_plan.expressions.functions import FUNCTIONS, check_types
from lium_plan.expressions.nodes import (
    EVERY,
    FIRST,
    Call,
    Deferred,
    ExpressionError,
    Literal,
    Name,
    Node,
    PlainFloat,
    Reference,
)
from lium_plan.expressions.text import Text

FLEET_FIELDS = ("host", "ip", "ssh_port", "ports", "pod_id", "price")
ROOTS = ("var", "env", "fleet", "volume", "member", "project", "stack")
MAX_DEPTH = 20
_TOKEN = re.compile(
    r"""\s*(?:(?P<end>\}\})|(?P<string>'[^'\n]*'|"(?:[^"\\\n]|\\.)*")|(?P<number>-?[0-9]+(?:\.[0-9]+)?(?![A-Za-z_]))"""
    r"""|(?P<word>[A-Za-z_][A-Za-z0-9_-]*)|(?P<mark>[.\[\](),*])|(?P<other>\S))"""
)


def has_expression(text: str) -> bool:
    return "${{" in text


def parse(text: str) -> Text:
    """A text with its `${{ … }}` understood. Raises `ExpressionError` with the offset of the fault."""
    if "${{" not in text:
        return Text((Literal(text),))
    nodes: list[Node] = []
    plain: list[str] = []
    at = 0
    while (start := text.find("${{", at)) >= 0:
        if start > at and text[start - 1] == "$":
            plain.append(text[at : start - 1] + "${{")
            at = start + 3
            continue
        plain.append(text[at:start])
        if any(plain):
            nodes.append(Literal("".join(plain)))
        plain = []
        parser = _Parser(text, start + 3)
        nodes.append(parser.whole())
        at = parser.at
    plain.append(text[at:])
    if any(plain):
        nodes.append(Literal("".join(plain)))
    return Text(tuple(nodes))


class _Parser:
    """Recursive descent over one `${{ … }}`; `at` ends up behind its `}}`."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.start = at - 3
        self.at = at
        self.kind = ""
        self.token = ""
        self.offset = at
        self.advance()

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.at)
        if match is None or match.lastgroup is None:
            raise ExpressionError("'${{' without its '}}'", self.start)
        self.kind, self.token = match.lastgroup, match[match.lastgroup]
        self.offset = match.start(match.lastgroup)
        self.at = match.end()

    def fail(self, message: str) -> NoReturn:
        raise ExpressionError(message, self.offset)

    def take(self, mark: str, context: str) -> None:
        if self.token != mark or self.kind != "mark":
            self.fail(f"expected '{mark}' {context}, found '{self.token}'")
        self.advance()

    def whole(self) -> Node:
        if self.kind == "end":
            self.fail("'${{ }}' is empty")
        node = self.expression(0)
        # The end mark is the current token: `at` already stands behind it.
        if self.kind != "end":
            self.fail(f"expected '}}}}' after the expression, found '{self.token}'")
        return node

    def expression(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self.fail("expression nested too deeply")
        token, offset = self.token, self.offset
        if self.kind == "string":
            value = token[1:-1]
            if token[0] == '"':
                try:
                    value = str(json.loads(token, strict=False))
                except ValueError:
                    self.fail("a bad escape in the string: only JSON's (\\n, \\\", \\\\, \\u00e9)")
            self.advance()
            return Literal(value)
        if self.kind == "number":
            if re.match("-?0[0-9]", token):
                self.fail(f"{token} is no number here: write '{token}' for the text, or leave out the zeros")
            self.advance()
            return Literal(PlainFloat(token) if "." in token else int(token))
        if self.kind != "word":
            self.fail(f"expected a name, a function or a literal, found '{token}'")
        self.advance()
        if self.kind == "mark" and self.token == "(":
            return self.call(token, offset, depth)
        if token in ("true", "false", "null"):
            return Literal({"true": True, "false": False, "null": None}[token])
        return self.name(token, offset)

    def call(self, function: str, offset: int, depth: int) -> Node:
        if function not in FUNCTIONS:
            raise ExpressionError(f"unknown function '{function}'{nearest(function, tuple(FUNCTIONS))}", offset)
        self.advance()
        arguments: list[Node] = []
        while not (self.kind == "mark" and self.token == ")"):
            if arguments:
                self.take(",", f"between the arguments of {function}()")
            arguments.append(self.expression(depth + 1))
        self.advance()
        least, most = FUNCTIONS[function]
        if not least <= len(arguments) <= most:
            wanted = str(least) if least == most else f"{least} or more"
            plural = "" if most == 1 else "s"
            raise ExpressionError(f"{function}() takes {wanted} argument{plural}, not {len(arguments)}", offset)
        node = Call(function, tuple(arguments), offset)
        check_types(node)
        return node

    def name(self, root: str, offset: int) -> Node:
        if root not in ROOTS:
            hint = nearest(root, ROOTS) or f"; known: {', '.join(ROOTS)}"
            raise ExpressionError(f"unknown name '{root}'{hint}", offset)
        if root in ("project", "stack"):
            return Name(root, offset=offset)
        key = self.step(f"after {root}")
        if root == "fleet":
            return self.fleet(key, offset)
        if root == "volume":
            return self.volume(key, offset)
        if root == "member":
            if key not in ("name", "index"):
                raise ExpressionError(f"unknown name 'member.{key}'; known: member.name, member.index", offset)
            return Name(root, key, offset=offset)
        pattern = r"[a-z_][a-z0-9_]*" if root == "var" else r"[A-Za-z_][A-Za-z0-9_]*"
        if not re.fullmatch(pattern, key):
            raise ExpressionError(f"'{root}.{key}' is no name: expected {pattern}", offset)
        path: list[str] = []
        while root == "var" and self.kind == "mark" and self.token in ".[":
            path.append(self.bracket() if self.token == "[" else self.step(f"after var.{key}"))
        return Name(root, key, tuple(path), offset)

    def step(self, context: str) -> str:
        self.take(".", context)
        if self.kind not in ("word", "number"):
            self.fail(f"expected a name {context}, found '{self.token}'")
        token = self.token
        self.advance()
        return token

    def bracket(self) -> str:
        self.take("[", "")
        token = self.token[1:-1] if self.kind == "string" else self.token
        if self.kind not in ("word", "number", "string") and token != EVERY:
            self.fail(f"expected a member's name, a number or * in [ ], found '{self.token}'")
        self.advance()
        self.take("]", f"after '{token}'")
        return token

    def fleet(self, name: str, offset: int) -> Node:
        if not re.fullmatch(NAME, name):
            raise ExpressionError(f"'{name}' is no fleet's name: expected {NAME}", offset)
        if self.kind == "mark" and self.token == "[":
            member = self.bracket()
            if member != EVERY and not re.fullmatch(MEMBER, member):
                raise ExpressionError(f"'{member}' is no member: a name, a number, or * for all", offset)
        else:
            member = self.step(f"or a member in [ ] after fleet.{name}")
            if member != FIRST:
                raise ExpressionError(
                    f"fleet.{name}.{member}: say of which member: fleet.{name}[0].{member}, "
                    f"fleet.{name}.first.{member} or fleet.{name}[*].{member}",
                    offset,
                )
        path: tuple[str, ...] = (self.step(f"after fleet.{name}[{member}]"),)
        if path[0] not in FLEET_FIELDS:
            hint = nearest(path[0], FLEET_FIELDS) or f"; known: {', '.join(FLEET_FIELDS)}"
            raise ExpressionError(f"a fleet's member has no '{path[0]}'{hint}", offset)
        if path == ("ports",):
            port = self.step("with a container port's number after ports")
            if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
                raise ExpressionError(f"'{port}' is no port: write ports.8000", offset)
            path = ("ports", port)
        return Deferred(Reference("fleet", name, member, path), offset)

    def volume(self, name: str, offset: int) -> Node:
        field_name = self.step(f"after volume.{name}")
        if field_name != "id":
            raise ExpressionError(f"a volume has no '{field_name}'; known: id", offset)
        if not re.fullmatch(NAME, name):
            raise ExpressionError(f"'{name}' is no volume's name: expected {NAME}", offset)
        return Deferred(Reference("volume", name, None, ("id",)), offset)


def nearest(word: str, known: tuple[str, ...]) -> str:
    found = get_close_matches(word, known, 1, 0.6)
    return f"; did you mean '{found[0]}'?" if found else ""
