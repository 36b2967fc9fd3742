"""The virtual clock itself."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.virtual import Deadlock, TooLate, run_virtual


def test_hours_pass_in_no_time_and_in_order() -> None:
    order: list[tuple[str, float]] = []

    async def sleeper(name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        order.append((name, asyncio.get_running_loop().time()))

    async def main() -> str:
        await asyncio.gather(sleeper("b", 7200), sleeper("a", 0.1), sleeper("c", 86400 * 3))
        return "done"

    started = time.perf_counter()
    assert run_virtual(main()) == "done"
    assert order == [("a", 0.1), ("b", 7200), ("c", 86400 * 3)]
    assert time.perf_counter() - started < 5


def test_a_large_clock_does_not_get_stuck_on_rounding() -> None:
    async def main() -> None:
        for _ in range(50):
            await asyncio.sleep(0.001)

    run_virtual(main(), start_s=1e9, limit_s=None)


def test_a_deadlock_is_named() -> None:
    async def stuck_forever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="stuck_forever"):
        run_virtual(stuck_forever())


def test_a_cancelled_timer_is_no_way_out_of_a_deadlock() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(5, print).cancel()
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(main())


def test_what_runs_for_ever_is_ended() -> None:
    async def main() -> None:
        loop, forever = asyncio.get_running_loop(), asyncio.Event()

        def tick() -> None:
            loop.call_later(60, tick)

        tick()
        await forever.wait()

    with pytest.raises(TooLate):
        run_virtual(main(), limit_s=3600)


def test_what_is_left_behind_is_cancelled() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1)
            ended.append("tidied")

    async def main() -> None:
        task = asyncio.create_task(background())
        await asyncio.sleep(1)
        assert not task.done()

    run_virtual(main())
    assert ended == ["tidied"]


def test_an_error_comes_out() -> None:
    async def main() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_virtual(main())


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(RuntimeError, match="no threads"):
        run_virtual(main())
