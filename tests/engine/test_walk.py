"""Walking a graph: who starts when, what a failure skips, and how it ends when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from lium_plan.engine.walk import Ending, Walk, remaining_s, walk
from lium_plan.planning.order import Graph
from tests.support.virtual import run_virtual

Perform = Callable[[str], Awaitable[None]]


class Work:
    """Each node takes as many seconds as `takes` says, one if it says nothing; those in `fails` fail then."""

    def __init__(self, takes: Mapping[str, float] | None = None, fails: str = "") -> None:
        self.takes = takes or {}
        self.fails = fails
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.told: list[str] = []
        self.at_once = self.most_at_once = 0

    async def perform(self, node: str) -> None:
        self.started.append(node)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.takes.get(node, 1.0))
            if node in self.fails:
                raise ValueError(node)
        except asyncio.CancelledError:
            self.cancelled.append(node)
            raise
        finally:
            self.at_once -= 1

    def ended(self, node: str, ending: Ending) -> None:
        self.told.append(node)


def walked(
    work: Work,
    graph: Graph[str],
    *,
    parallelism: int = 0,
    urgency: Mapping[str, float] | None = None,
    stop_after_s: float | None = None,
) -> tuple[Mapping[str, Ending], float]:
    """The endings, and how long it took."""

    async def main() -> tuple[Mapping[str, Ending], float]:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        if stop_after_s is not None:
            loop.call_later(stop_after_s, stop.set)
        endings = await walk(graph, work.perform, parallelism=parallelism, stop=stop, urgency=urgency, ended=work.ended)
        took_s = loop.time()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.sleep(0)
        assert all(task.done() for task in left), "it leaves nothing running"
        return endings, took_s

    return run_virtual(main())


def test_each_starts_as_soon_as_what_it_waits_for_is_done() -> None:
    work = Work({"a": 1, "b": 5, "c": 1, "d": 1})
    endings, took_s = walked(work, Graph("abcd", {"c": "a", "d": "bc"}))
    assert all(ending.done for ending in endings.values())
    assert work.started == ["a", "b", "c", "d"]
    assert work.told == ["a", "c", "b", "d"]
    assert took_s == 6


def test_nothing_to_do() -> None:
    assert walked(Work(), Graph("", {})) == ({}, 0)


@pytest.mark.parametrize(("parallelism", "seconds"), [(0, 1), (1, 5), (2, 3), (9, 1)])
def test_no_more_at_once_than_allowed(parallelism: int, seconds: float) -> None:
    work = Work()
    _, took_s = walked(work, Graph("abcde", {}), parallelism=parallelism)
    assert work.most_at_once == (parallelism if 0 < parallelism < 5 else 5)
    assert took_s == seconds


def test_the_most_urgent_goes_first_and_the_graphs_order_decides_among_equals() -> None:
    work = Work()
    walked(work, Graph("cabd", {"d": "c"}), parallelism=1, urgency={"b": 2.0, "d": 1.0})
    assert work.started == ["b", "c", "d", "a"]


def test_urgency_is_the_longest_way_to_the_end() -> None:
    left = remaining_s(Graph("abcd", {"b": "a", "c": "b", "d": "a"}), {"a": 1.0, "b": 2.0, "c": 4.0, "d": 20.0})
    assert left["c"] == 4.0
    assert left["b"] == 6.0
    assert left["d"] == 20.0
    assert left["a"] > 21.0, "of several that are alike the slowest takes longer"


def test_what_waits_for_a_failure_is_skipped_with_its_cause_and_the_rest_goes_on() -> None:
    work = Work({"x": 3}, fails="a")
    endings, _ = walked(work, Graph("abcxy", {"b": "a", "c": "bx", "y": "x"}))
    assert str(endings["a"].failure) == "a"
    assert [endings[node].skipped_because for node in "bc"] == ["a", "a"]
    assert endings["x"].done
    assert endings["y"].done
    assert not endings["b"].done
    assert not endings["a"].done
    assert work.started == ["a", "x", "y"]
    assert work.told == ["a", "b", "c", "x", "y"], "skipped at once, in the graph's order"


def test_of_two_causes_the_first_counts_and_each_is_told_once() -> None:
    work = Work({"a": 2, "b": 1}, fails="ab")
    endings, _ = walked(work, Graph("abc", {"c": "ab"}))
    assert endings["c"].skipped_because == "b"
    assert sorted(work.told) == ["a", "b", "c"]


def test_what_ends_at_the_same_moment_is_told_in_the_graphs_order() -> None:
    work = Work()
    walked(work, Graph("cab", {}), urgency={"a": 3.0, "b": 2.0})
    assert work.started == ["a", "b", "c"]
    assert work.told == ["c", "a", "b"]


def test_when_it_is_told_to_stop_nothing_starts_and_what_runs_is_cancelled() -> None:
    work = Work({"a": 1, "b": 100, "c": 100})
    endings, took_s = walked(work, Graph("abcd", {"c": "a", "d": "c"}), stop_after_s=10)
    assert took_s == 10
    assert endings["a"].done
    assert work.cancelled == ["b", "c"]
    assert all(endings[node].interrupted and not endings[node].done for node in "bcd")
    assert work.started == ["a", "b", "c"]
    assert work.told == ["a", "b", "c", "d"]


def test_stopped_before_it_began() -> None:
    work = Work()

    async def main() -> Mapping[str, Ending]:
        stop = asyncio.Event()
        stop.set()
        return await walk(Graph("ab", {"b": "a"}), work.perform, parallelism=0, stop=stop)

    endings = run_virtual(main())
    assert work.started == []
    assert all(ending.interrupted for ending in endings.values())


def test_what_was_done_when_it_was_told_to_stop_counts_as_done() -> None:
    work = Work({"a": 10, "b": 20})
    endings, _ = walked(work, Graph("abc", {"c": "a"}), stop_after_s=10)
    assert endings["a"].done
    assert endings["b"].interrupted
    assert endings["c"].interrupted
    assert "c" not in work.started


def test_what_answers_a_cancellation_in_its_own_time_is_waited_for() -> None:
    async def main() -> tuple[Mapping[str, Ending], float]:
        async def perform(node: str) -> None:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                await asyncio.sleep(7)  # its answer is recorded meanwhile

        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(1, stop.set)
        endings = await walk(Graph("ab", {"b": "a"}), perform, parallelism=0, stop=stop)
        return endings, asyncio.get_running_loop().time()

    endings, took_s = run_virtual(main())
    assert took_s == 8
    assert endings["a"].done
    assert endings["b"].interrupted


def test_when_the_walk_itself_is_cancelled_what_runs_is_too_and_is_waited_for() -> None:
    work = Work({"a": 100})

    async def main() -> float:
        walking = asyncio.ensure_future(
            walk(Graph("ab", {"b": "a"}), work.perform, parallelism=0, stop=asyncio.Event(), ended=work.ended)
        )
        await asyncio.sleep(3)
        walking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await walking
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "it leaves nothing running"
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 3
    assert work.cancelled == ["a"]
    assert work.told == ["a"]


def test_told_to_stop_at_the_moment_when_the_last_one_ends() -> None:
    work = Work({"a": 10})
    endings, took_s = walked(work, Graph("ab", {"b": "a"}), stop_after_s=10)
    assert endings["a"].done
    assert endings["b"].interrupted
    assert (work.told, took_s) == (["a", "b"], 10)


def test_cancelled_at_the_moment_when_one_ends_it_is_told_of_all_the_same() -> None:
    work = Work({"a": 3, "b": 100})

    async def main() -> None:
        walking = asyncio.ensure_future(
            walk(Graph("ab", {}), work.perform, parallelism=0, stop=asyncio.Event(), ended=work.ended)
        )
        asyncio.get_running_loop().call_later(3, walking.cancel)
        with pytest.raises(asyncio.CancelledError):
            await walking

    run_virtual(main())
    assert work.told == ["a", "b"]


def test_told_to_stop_by_what_just_ended_nothing_more_starts() -> None:
    work = Work({"a": 1, "b": 1, "c": 100})

    async def main() -> Mapping[str, Ending]:
        stop = asyncio.Event()
        return await walk(
            Graph("abc", {"b": "a"}),
            work.perform,
            parallelism=0,
            stop=stop,
            ended=lambda node, ending: stop.set(),
        )

    endings = run_virtual(main())
    assert endings["a"].done
    assert endings["b"].interrupted
    assert endings["c"].interrupted
    assert work.started == ["a", "c"]
    assert work.cancelled == ["c"]


def test_cancelled_at_the_moment_when_the_only_one_ends_it_is_told_of_too() -> None:
    work = Work({"a": 3})

    async def main() -> None:
        walking = asyncio.ensure_future(
            walk(Graph("a", {}), work.perform, parallelism=0, stop=asyncio.Event(), ended=work.ended)
        )
        asyncio.get_running_loop().call_later(3, walking.cancel)
        with pytest.raises(asyncio.CancelledError):
            await walking

    run_virtual(main())
    assert work.told == ["a"]


# --- rests -----------------------------------------------------------------------------------------------------------


def test_who_rests_leaves_its_place_to_others_and_goes_on_when_there_is_one_again() -> None:
    """`a` waits for `c`, which could not begin beside it and `b`; it goes on before `d`, which is less urgent."""
    order: list[str] = []

    async def perform(node: str) -> None:
        order.append(f"{node} begins")
        if node == "a":
            await walk.rest("a")
        await asyncio.sleep(1)
        if node == "c":
            walk.call("a")
            walk.call("a")
            walk.call("nobody")
        order.append(f"{node} ends")

    walk = Walk(Graph("abcd", {"c": "b"}), perform, parallelism=1, urgency={"a": 9, "b": 8, "c": 8})
    endings = run_virtual(walk.run(asyncio.Event()))
    assert all(ending.done for ending in endings.values())
    assert order == [
        f"{node} {what}"
        for node, what in zip("abbccadd", ["begins", *["begins", "ends"] * 2, "ends", "begins", "ends"], strict=True)
    ]


def test_a_stop_ends_a_rest() -> None:
    async def perform(node: str) -> None:
        await walk.rest(node)

    walk = Walk(Graph("ab", {"b": "a"}), perform, parallelism=1)

    async def main() -> Mapping[str, Ending]:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(5, stop.set)
        return await walk.run(stop)

    assert {node for node, ending in run_virtual(main()).items() if ending.interrupted} == {"a", "b"}


def test_who_gives_up_resting_when_it_is_called_is_not_begun_twice() -> None:
    begun: list[str] = []

    async def perform(node: str) -> None:
        begun.append(node)
        if node == "b":
            await asyncio.sleep(1)
            walk.call("a")
            await asyncio.sleep(1)
            return
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await walk.rest("a")
        await asyncio.sleep(5)

    walk = Walk(Graph("ab", {}), perform, parallelism=1)
    assert all(ending.done for ending in run_virtual(walk.run(asyncio.Event())).values())
    assert begun == ["a", "b"]


def test_who_is_called_while_nothing_else_happens_goes_on_at_once() -> None:
    ended: list[float] = []

    async def perform(node: str) -> None:
        await walk.rest(node)
        ended.append(asyncio.get_running_loop().time())

    walk = Walk(Graph("a", {}), perform, parallelism=1)

    async def main() -> Mapping[str, Ending]:
        asyncio.get_running_loop().call_later(3, walk.call, "a")
        asyncio.get_running_loop().call_later(50, int)  # the clock goes on
        return await walk.run(asyncio.Event())

    assert run_virtual(main())["a"].done
    assert ended == [3]


def test_who_has_given_up_resting_takes_a_place_again() -> None:
    began: dict[str, float] = {}

    async def perform(node: str) -> None:
        began[node] = asyncio.get_running_loop().time()
        if node == "a":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await walk.rest("a")
            await asyncio.sleep(5)
        await asyncio.sleep(2)

    walk = Walk(Graph("abc", {}), perform, parallelism=1)
    run_virtual(walk.run(asyncio.Event()))
    assert began == {"a": 0, "b": 0, "c": 8}
