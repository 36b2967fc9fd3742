"""Who waits for room under the limit, for what, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from lium_plan.addresses import parse
from lium_plan.engine.room import Room
from lium_plan.engine.walk import Ending, Walk
from lium_plan.planning.order import Graph
from tests.support.virtual import run_virtual


class Refused(Exception):
    pass


class Scene:
    """Rents of one dollar each, and deletions that take five seconds, under a limit."""

    def __init__(
        self,
        nodes: Sequence[str],
        edges: Mapping[str, Sequence[str]] | None = None,
        *,
        leaving: Sequence[str],
        limit: int,
        fails: Sequence[str] = (),
        parallelism: int = 0,
    ) -> None:
        self.limit, self.fails, self.billed = limit, fails, len(leaving)
        self.leaving = {f"id of {node}": node for node in leaving}
        self.room = Room()
        self.said: list[str] = []
        self.most = 0
        self.walk = Walk(Graph(nodes, edges or {}), self.perform, parallelism=parallelism, ended=self.ended)

    async def perform(self, node: str) -> None:
        if node in self.leaving.values():
            await asyncio.sleep(5)
            if node in self.fails:
                raise ValueError(node)
            self.billed -= 1
            return
        if not await self.room.wait(parse(node), lambda: self.billed < self.limit, "the limit"):
            raise Refused(node)
        self.billed += 1
        self.most = max(self.most, self.billed)

    def ended(self, node: str, ending: Ending) -> None:
        self.room.gone(f"id of {node}")

    def told(self) -> tuple[set[str], float]:
        """What was done, and how long it took."""

        async def main() -> tuple[set[str], float]:
            with self.room.during(self.walk, self.leaving, lambda address, phase: self.said.append(phase)):
                endings = await self.walk.run(asyncio.Event())
            assert self.most <= self.limit
            return {node for node, ending in endings.items() if ending.done}, asyncio.get_running_loop().time()

        return run_virtual(main())


OLD, OTHER, NEW, NEWER = "fleet.a[0]", "fleet.a[1]", "fleet.b[0]", "fleet.b[1]"


@pytest.mark.parametrize("parallelism", [0, 1])
def test_each_waits_until_there_is_room_for_it(parallelism: int) -> None:
    scene = Scene((NEW, NEWER, OLD, OTHER), leaving=(OLD, OTHER), limit=2, parallelism=parallelism)
    done, took_s = scene.told()
    assert done == {OLD, OTHER, NEW, NEWER}
    assert took_s == 5 * (parallelism + 1)
    assert scene.said[0] == "waiting for room under the limit: 2 pods to be deleted"


def test_what_waits_for_it_is_not_waited_for() -> None:
    scene = Scene((NEW, OLD), {OLD: (NEW,)}, leaving=(OLD,), limit=1)
    assert scene.told() == (set(), 0)
    assert not scene.said


def test_nor_what_waits_for_another_that_waits_for_room() -> None:
    scene = Scene((NEW, NEWER, OLD, OTHER), {OLD: (NEW,), OTHER: (NEWER,)}, leaving=(OLD, OTHER), limit=2)
    assert scene.told() == (set(), 0)


def test_when_nothing_is_left_the_limit_refuses() -> None:
    """One of two has failed, so there is room for one."""
    scene = Scene((NEW, NEWER, OLD, OTHER), leaving=(OLD, OTHER), limit=2, fails=(OTHER,))
    done, took_s = scene.told()
    assert done == {OLD, NEW}
    assert took_s == 5


def test_who_has_room_already_and_what_it_frees_is_waited_for() -> None:
    """The old half of the first goes once the first is there, and makes room for the second."""
    scene = Scene((NEW, NEWER, OLD), {OLD: (NEW,)}, leaving=(OLD,), limit=2)
    assert scene.told() == ({NEW, NEWER, OLD}, 5)


def test_outside_of_a_walk_nobody_waits() -> None:
    assert not run_virtual(Room().wait(parse(NEW), lambda: False, "the limit"))
