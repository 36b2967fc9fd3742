"""The walk of a graph: who starts when, who goes first, and what becomes of the rest after a failure or a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from lium_plan.engine.walk import DONE, INTERRUPTED, Ending, remaining_s, walk
from lium_plan.planning.order import Graph
from tests.support.virtual import run_virtual

FORK = Graph("abcdxyz", {"x": "a", "y": "xb", "z": "c"})
"""a before x before y, b before y, c before z; d is alone."""


class Scene:
    """A walk in virtual time, with a note of when each node started and ended."""

    def __init__(self, graph: Graph[str], seconds: Mapping[str, float], fails: str = "") -> None:
        self.graph = graph
        self.seconds = seconds
        self.fails = fails
        self.started: dict[str, float] = {}
        self.ended: list[tuple[str, Ending]] = []

    async def perform(self, node: str) -> None:
        self.started[node] = asyncio.get_running_loop().time()
        await asyncio.sleep(self.seconds.get(node, 1.0))
        if node in self.fails:
            raise ValueError(node)

    def run(
        self, parallelism: int = 0, *, urgency: Mapping[str, float] | None = None, stop_at: float | None = None
    ) -> Mapping[str, Ending]:
        async def main() -> Mapping[str, Ending]:
            stop = asyncio.Event()
            if stop_at is not None:
                asyncio.get_running_loop().call_later(stop_at, stop.set)
            return await walk(
                self.graph,
                self.perform,
                parallelism=parallelism,
                stop=stop,
                urgency=urgency,
                ended=lambda node, ending: self.ended.append((node, ending)),
            )

        return run_virtual(main())


def test_whatever_is_free_starts_at_once() -> None:
    scene = Scene(FORK, {"a": 2.0, "b": 5.0})
    endings = scene.run()
    assert set(endings.values()) == {DONE}
    assert scene.started == {"a": 0, "b": 0, "c": 0, "d": 0, "x": 2, "y": 5, "z": 1}


def test_one_at_a_time_goes_in_the_graphs_order() -> None:
    scene = Scene(FORK, {})
    scene.run(1)
    assert "".join(scene.started) == "abcdxyz"


def test_the_urgent_go_first() -> None:
    scene = Scene(FORK, {})
    scene.run(1, urgency={"d": 1.0, "c": 3.0, "z": 2.0})
    assert "".join(scene.started) == "czdabxy"


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
    plain, urgent = Scene(graph, seconds), Scene(graph, seconds)
    plain.run(2)
    urgent.run(2, urgency=remaining_s(graph, seconds))
    assert plain.started["c"] + 4.0 == 18.0
    assert urgent.started["c"] + 4.0 == 12.0


def test_what_waits_for_a_failure_is_skipped_and_the_rest_goes_on() -> None:
    scene = Scene(FORK, {"b": 9.0}, fails="a")
    endings = scene.run()
    assert isinstance(endings["a"].failure, ValueError)
    assert {endings[node] for node in "xy"} == {Ending(skipped_because="a")}
    assert {endings[node] for node in "bcdz"} == {DONE}
    assert "".join(node for node, _ in scene.ended) == "axycdzb"


@pytest.mark.parametrize("parallelism", [0, 2])
def test_a_stop_cancels_what_runs_and_starts_nothing_more(parallelism: int) -> None:
    scene = Scene(FORK, {"a": 9.0, "b": 1.0})
    endings = scene.run(parallelism, stop_at=1.5)
    assert endings["a"] == endings["x"] == endings["y"] == INTERRUPTED
    assert endings["b"] == DONE
    assert max(scene.started.values()) <= 1.5


def test_thousands_that_end_one_by_one_end_once_each() -> None:
    nodes = [f"n{number}" for number in range(3000)]
    scene = Scene(Graph(nodes, {}), {node: 1.0 + number / 1000 for number, node in enumerate(nodes)})
    scene.run()
    assert [node for node, _ in scene.ended] == nodes
