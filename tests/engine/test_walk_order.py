"""Who goes first: the longest expected path, and that it pays."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from lium_plan.engine.walk import remaining_s, walk
from lium_plan.planning.order import Graph
from tests.support.virtual import run_virtual

FORK = Graph("abcdxyz", {"x": "a", "y": "xb", "z": "c"})
"""a before x before y, b before y, c before z; d is alone."""


def ends_of(
    graph: Graph[str], seconds: Mapping[str, float], *, parallelism: int = 0, urgency: Mapping[str, float] | None = None
) -> dict[str, float]:
    """When each node ended, in the order in which the walk told it."""
    ends: dict[str, float] = {}

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await walk(
            graph,
            lambda node: asyncio.sleep(seconds[node]),
            parallelism=parallelism,
            stop=asyncio.Event(),
            urgency=urgency,
            ended=lambda node, _: ends.update({node: loop.time()}),
        )

    run_virtual(main())
    return ends


def test_the_longest_path_counts_from_the_start_of_each() -> None:
    seconds = {"a": 2.0, "b": 5.0, "c": 1.0, "d": 3.0, "x": 10.0, "y": 1.0, "z": 4.0}
    assert remaining_s(FORK, seconds) == {"a": 13.0, "b": 6.0, "c": 5.0, "d": 3.0, "x": 11.0, "y": 1.0, "z": 4.0}


def test_the_slowest_of_many_is_expected_to_take_longer() -> None:
    many = Graph("axyz", {"x": "a", "y": "a", "z": "a"})
    one = Graph("ax", {"x": "a"})
    seconds = dict.fromkeys("axyz", 10.0)
    assert remaining_s(many, seconds)["a"] > remaining_s(one, {"a": 10.0, "x": 10.0})["a"] == 20.0


def test_by_the_longest_path_all_is_done_sooner() -> None:
    """Two at a time: a long chain that starts last makes everybody wait for it."""
    graph = Graph("pqrsabc", {"b": "a", "c": "b"})
    seconds = {**dict.fromkeys("pqrs", 3.0), **dict.fromkeys("abc", 4.0)}
    assert ends_of(graph, seconds, parallelism=2)["c"] == 18.0
    assert ends_of(graph, seconds, parallelism=2, urgency=remaining_s(graph, seconds))["c"] == 12.0


def test_thousands_that_end_one_by_one_end_once_each() -> None:
    nodes = [f"n{number}" for number in range(3000)]
    seconds = {node: 1.0 + number / 1000 for number, node in enumerate(nodes)}
    assert list(ends_of(Graph(nodes, {}), seconds)) == nodes
