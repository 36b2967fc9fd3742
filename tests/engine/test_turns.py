"""Turns: who is ready at the same moment goes on a few at a time, in order, and the loop lives in between."""

from __future__ import annotations

import asyncio

from lium_plan.turns import Turns
from tests.support.virtual import run_virtual


def test_what_is_ready_at_once_is_spread_over_the_loops_turns_in_order() -> None:
    async def main() -> None:
        turns, beats, went = Turns(3), [0], []

        def beat() -> None:
            beats[0] += 1
            asyncio.get_running_loop().call_soon(beat)

        async def one(number: int) -> None:
            await turns.take()
            went.append((number, beats[0]))

        await asyncio.gather(*(one(number) for number in range(11)))  # the beat is not there yet
        asyncio.get_running_loop().call_soon(beat)
        went.clear()
        await asyncio.gather(*(one(number) for number in range(11)))
        assert [number for number, _ in went] == list(range(11))
        per_turn = [sum(at == turn for _, at in went) for turn in sorted({at for _, at in went})]
        assert max(per_turn) == 3
        assert len(per_turn) == 4

    run_virtual(main())


def test_who_is_cancelled_keeps_nobody_waiting() -> None:
    async def main() -> None:
        turns, went = Turns(1), []

        async def one(number: int) -> None:
            await turns.take()
            went.append(number)

        tasks = [asyncio.ensure_future(one(number)) for number in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert went == [0, 1, 3, 4]
        await turns.take()  # and it is as free as in the beginning

    run_virtual(main())
