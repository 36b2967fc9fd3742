"""What comes before what. A small generic graph, used to order a plan's actions and to walk them.

Owns topological order and its stability: the same nodes in the same order give the same result, to the byte. Knows
nothing of resources.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)


class Cycle(ValueError):
    """Nodes that wait for each other; `nodes` is one round of them, each waiting for the next."""

    def __init__(self, nodes: Sequence[Hashable]) -> None:
        self.nodes = tuple(nodes)
        super().__init__(" waits for ".join(str(node) for node in (*self.nodes, self.nodes[0])))


def toposort(nodes: Iterable[Node], edges: Mapping[Node, Iterable[Node]]) -> tuple[Node, ...]:
    """The nodes so that each comes after its `edges`; among those free to go, in the order given.

    `edges[node]` are the nodes that come before it; those that are no nodes are ignored. Raises `Cycle`.
    """
    order = tuple(dict.fromkeys(nodes))
    place = {node: index for index, node in enumerate(order)}
    if all(place.get(before, -1) < index for index, node in enumerate(order) for before in edges.get(node, ())):
        return order  # each comes after what it waits for already
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for index, node in enumerate(order):
        sorter.add(index, *(place[before] for before in edges.get(node, ()) if before in place))
    try:
        sorter.prepare()
    except CycleError as found:
        # graphlib lists each node before the one that waits for it, and repeats the first at the end.
        raise Cycle([order[index] for index in reversed(found.args[1][1:])]) from None
    result: list[Node] = []
    free = list(sorter.get_ready())
    heapq.heapify(free)
    while free:
        index = heapq.heappop(free)
        result.append(order[index])
        sorter.done(index)
        for ready in sorter.get_ready():
            heapq.heappush(free, ready)
    return tuple(result)


class Graph(Generic[Node]):
    """Nodes and what each waits for, with the question asked the other way round as well. Immutable."""

    def __init__(self, nodes: Iterable[Node], edges: Mapping[Node, Iterable[Node]]) -> None:
        """Raises `Cycle`."""
        self.order = toposort(nodes, edges)
        known = set(self.order)
        self._before = {
            node: tuple(dict.fromkeys(item for item in edges.get(node, ()) if item in known)) for node in self.order
        }
        after: dict[Node, list[Node]] = {node: [] for node in self.order}
        for node in self.order:
            for before in self._before[node]:
                after[before].append(node)
        self._after = {node: tuple(found) for node, found in after.items()}

    def before(self, node: Node) -> tuple[Node, ...]:
        """What `node` itself waits for."""
        return self._before[node]

    def after(self, node: Node) -> tuple[Node, ...]:
        """What waits for `node` itself."""
        return self._after[node]

    def all_after(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Everything that waits for one of `nodes`, directly or not, without them; in order."""
        return self._closure(nodes, self._after)

    def all_before(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Everything that one of `nodes` waits for, directly or not, without them; in order."""
        return self._closure(nodes, self._before)

    def _closure(self, nodes: Iterable[Node], step: Mapping[Node, tuple[Node, ...]]) -> tuple[Node, ...]:
        start = set(nodes)
        seen = set(start)
        pending = list(start)
        while pending:
            for node in step[pending.pop()]:
                if node not in seen:
                    seen.add(node)
                    pending.append(node)
        return tuple(node for node in self.order if node in seen and node not in start)
