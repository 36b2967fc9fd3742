"""The `${{ … }}` language: parsing, and texts whose parts become known at different times.

Owns the grammar, `Reference` (what one resource may ask of another) and `Text` (a string with deferred parts and a
sensitivity of its own). Refuses everything that is not `${{ … }}`: `$VAR`, `${VAR}` and `$(…)` belong to the shell.
A literal `${{` is written `$${{`. Looks nothing up itself: values come from whoever calls `resolve` (variables,
environment, files; at load) and `fill` (other resources; during plan and apply).

    expression := literal | call | name
    literal    := 'text' | "text" | 12 | 1.5 | true | false | null
    call       := FUNCTION ( expression, … )          default join file length lower replace
    name       := var.NAME[.KEY…] | env.NAME | member.name | member.index | project | stack | volume.NAME.id
                | fleet.NAME[MEMBER].FIELD | fleet.NAME[*].FIELD | fleet.NAME.first.FIELD
    FIELD      := host | ip | ssh_port | pod_id | price | ports.N
"""

from __future__ import annotations

from lium_plan.expressions.nodes import EVERY, FIRST, ExpressionError, MissingValue, PlainFloat, Reference
from lium_plan.expressions.parsing import has_expression, parse
from lium_plan.expressions.text import Lookup, Names, Text

__all__ = [
    "EVERY",
    "FIRST",
    "ExpressionError",
    "Lookup",
    "MissingValue",
    "Names",
    "PlainFloat",
    "Reference",
    "Text",
    "has_expression",
    "parse",
]
