"""Order: dependencies first, stable, cycles named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lium_plan.planning.order import Cycle, Graph, toposort


def test_free_nodes_keep_the_order_given() -> None:
    assert toposort("cab", {}) == ("c", "a", "b")


def test_dependencies_come_first_and_the_rest_stays_put() -> None:
    assert toposort("abcd", {"a": "c", "b": ""}) == ("b", "c", "a", "d")


def test_unknown_dependencies_are_ignored() -> None:
    assert toposort("ab", {"a": "z"}) == ("a", "b")


def test_a_cycle_is_named_in_the_direction_of_waiting() -> None:
    with pytest.raises(Cycle) as caught:
        toposort("abcd", {"a": "b", "b": "c", "c": "a"})
    nodes = caught.value.nodes
    start = nodes.index("a")
    assert nodes[start:] + nodes[:start] == ("a", "b", "c")
    assert " waits for " in str(caught.value)


def test_a_node_that_waits_for_itself() -> None:
    with pytest.raises(Cycle) as caught:
        toposort("a", {"a": "a"})
    assert caught.value.nodes == ("a",)


def test_graph_answers_both_ways() -> None:
    graph = Graph("abcd", {"b": "a", "c": "b", "d": "a"})
    assert graph.before("c") == ("b",)
    assert graph.after("a") == ("b", "d")
    assert graph.all_before("c") == ("a", "b")
    assert graph.all_after("a") == ("b", "c", "d")


@given(st.data())
def test_every_edge_is_respected(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 20))
    edges = {node: data.draw(st.lists(st.integers(0, node - 1), max_size=4)) if node else [] for node in range(count)}
    given_order = data.draw(st.permutations(range(count)))
    result = toposort(given_order, edges)
    assert sorted(result) == list(range(count))
    place = {node: index for index, node in enumerate(result)}
    assert all(place[before] < place[node] for node, befores in edges.items() for before in befores)
    assert result == toposort(given_order, edges)


def test_a_long_chain_is_no_recursion() -> None:
    count = 20_000
    assert toposort(range(count), {node: (node + 1,) for node in range(count)})[0] == count - 1


def test_many_ways_to_one_node_are_one() -> None:
    """Rungs of two that both wait for both below: 2^60 ways from one end to the other."""
    rungs = range(60)
    edges = {(rung, side): [(rung - 1, 0), (rung - 1, 1)] for rung in rungs[1:] for side in (0, 1)}
    graph = Graph([(rung, side) for rung in rungs for side in (0, 1)], edges)
    assert len(graph.all_after([(0, 0)])) == 2 * len(rungs) - 2
    assert len(graph.all_before([(59, 0)])) == 2 * len(rungs) - 2
