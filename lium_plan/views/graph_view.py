"""What waits for what, as Graphviz's dot, as Mermaid and as a picture. An arrow leads from what comes first."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from xml.sax.saxutils import escape

from lium_plan.answers import GraphAnswer
from lium_plan.views.paint import one_line

_TITLE_WIDTH = 48
_CHARACTER, _PADDING = 7.0, 10
"""Width of a letter in a font of fixed width and 11.5 px, and the space around the words; pixels, as below."""
_BOX, _ROW, _BETWEEN, _EDGE = 38, 52, 70, 12
"""A box's height, that of a row, and the space between two columns and at the border."""


def graph_dot(graph: GraphAnswer) -> str:
    lines = ["digraph lium_plan {", "  rankdir = LR;", "  node [shape = box];"]
    lines += [f"  {_quoted(address)} [label = {_quoted(_label(address, title))}];" for address, title in graph.nodes]
    lines += [f"  {_quoted(before)} -> {_quoted(after)};" for before, after in graph.edges]
    return "".join(f"{line}\n" for line in [*lines, "}"])


def graph_mermaid(graph: GraphAnswer) -> str:
    names = {address: f"n{number}" for number, (address, _) in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    lines += [f'  {names[address]}["{_entities(_label(address, title))}"]' for address, title in graph.nodes]
    lines += [f"  {names[before]} --> {names[after]}" for before, after in graph.edges]
    return "".join(f"{line}\n" for line in lines)


def graph_svg(graph: GraphAnswer) -> str:
    """In columns from left to right: whatever waits stands right of all that it waits for."""
    columns = _columns(graph)
    texts = {address: (address, one_line(title, _TITLE_WIDTH)) for address, title in graph.nodes}
    places: dict[str, tuple[float, float, float]] = {}
    left = float(_EDGE)
    for column in columns:
        width = max(len(text) for address in column for text in texts[address]) * _CHARACTER + 2 * _PADDING
        places.update({address: (left, _EDGE + row * _ROW, width) for row, address in enumerate(column)})
        left += width + _BETWEEN
    width, height = left - _BETWEEN + _EDGE, max(map(len, columns), default=0) * _ROW + _EDGE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="monospace" font-size="11.5">',
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
        *(_line(places[before], places[after]) for before, after in graph.edges),
        *(_box(places[address], *texts[address]) for address, _ in graph.nodes),
        "</svg>",
    ]
    return "".join(f"{line}\n" for line in lines)


FORMATS: Mapping[str, Callable[[GraphAnswer], str]] = {"dot": graph_dot, "mermaid": graph_mermaid, "svg": graph_svg}


def _columns(graph: GraphAnswer) -> list[list[str]]:
    """Each as far left as what it waits for lets it be. A manifest's graph has no circle."""
    before: dict[str, list[str]] = {address: [] for address, _ in graph.nodes}
    for first, second in graph.edges:
        before[second].append(first)
    depth: dict[str, int] = {}
    waiting = list(before)
    while waiting:
        ready = [address for address in waiting if all(first in depth for first in before[address])]
        depth.update({address: max((depth[first] + 1 for first in before[address]), default=0) for address in ready})
        waiting = [address for address in waiting if address not in depth]
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for address in before:
        columns[depth[address]].append(address)
    return columns


def _box(place: tuple[float, float, float], address: str, title: str) -> str:
    x, y, width = place
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{_BOX}" rx="4" fill="#f4f4f4" stroke="#888"/>'
        f'<text x="{x + _PADDING:g}" y="{y + 16:g}" font-weight="bold">{escape(address)}</text>'
        f'<text x="{x + _PADDING:g}" y="{y + 31:g}" fill="#555">{escape(title)}</text>'
    )


def _line(before: tuple[float, float, float], after: tuple[float, float, float]) -> str:
    x1, y1, x2, y2 = before[0] + before[2], before[1] + _BOX / 2, after[0], after[1] + _BOX / 2
    bend = (x2 - x1) / 2
    path = f"M {x1:g} {y1:g} C {x1 + bend:g} {y1:g}, {x2 - bend:g} {y2:g}, {x2:g} {y2:g}"
    return f'<path d="{path}" fill="none" stroke="#888"/>'


def _label(address: str, title: str) -> str:
    return f"{address}\n{one_line(title, _TITLE_WIDTH)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _entities(text: str) -> str:
    """Mermaid reads quotes and markup in labels; `#` begins its entities."""
    return escape(text.replace("#", "#35;"), {'"': "#quot;", "\n": "<br>"})
