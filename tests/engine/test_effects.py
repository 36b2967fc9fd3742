"""Effects of a run: written down before they are sent, let finish when interrupted; and what is open is settled."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from lium_plan.addresses import parse
from lium_plan.diagnostics import error
from lium_plan.engine.emitter import Emitter
from lium_plan.engine.events import Event
from lium_plan.engine.recover import recover
from lium_plan.engine.run import LET_FINISH_S, EngineRun
from lium_plan.kinds.failures import pause
from lium_plan.kinds.protocol import ActionFailed, Begin, Cancelled, Market, OpenEffect, Outcome, Run, Settlement
from lium_plan.state.journal import JournaledLedger
from tests.state.state_samples import local, now, record, writing
from tests.support.virtual import run_virtual

POD = parse("fleet.a[0]")


@dataclass(slots=True)
class Opened:
    """A run over a real ledger."""

    run: EngineRun
    ledger: JournaledLedger
    stop: asyncio.Event
    stop_now: asyncio.Event
    events: list[Event] = field(default_factory=list)

    @property
    def open(self) -> list[str]:
        return [effect.op for effect in self.ledger.state.open.values()]


@contextmanager
def opened(folder: Path) -> Iterator[Opened]:
    with writing(local(folder)) as ledger:
        stop, stop_now = asyncio.Event(), asyncio.Event()
        events: list[Event] = []
        run = EngineRun(
            id="run-1",
            ledger=ledger,
            market=cast(Market, None),  # nothing is rented here
            drivers={},
            desired=None,
            destroying=False,
            wait_timeout_s=60,
            force_replace=False,
            emitter=Emitter(events.append, now),
            now=now,
            stop=stop,
            stop_now=stop_now,
        )
        yield Opened(run, ledger, stop, stop_now, events)


def sending(
    opened: Opened, takes_s: float, fails: bool = False, waits_s: float = 0
) -> Callable[[Begin], Awaitable[str]]:
    async def send(begin: Begin) -> str:
        if waits_s:
            await asyncio.sleep(waits_s)
        assert opened.open == [], "what only waits is not written down"
        assert begin.effect is None
        effect = begin()
        assert opened.open == ["rent"], "written down before it is sent"
        assert begin() is begin.effect is effect
        await asyncio.sleep(takes_s)
        if fails:
            raise ValueError("the answer makes no sense")
        opened.ledger.done(effect, record("fleet.a[0]", "pod-0"))
        return "pod-0"

    return send


def interrupted_after(
    opened: Opened, seconds: float, takes_s: float, *, second_s: float | None = None, **options: Any
) -> float:
    """Interrupt an effect as a run does: stop is set, its task cancelled. How long it took to end."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        problems: list[object] = []
        loop.set_exception_handler(lambda _, context: problems.append(context))
        send = sending(opened, takes_s, bool(options.pop("fails", False)), options.pop("waits_s", 0))
        task = asyncio.ensure_future(opened.run.effect(POD, "rent", {}, send, **options))
        await asyncio.sleep(seconds)
        opened.stop.set()
        task.cancel()
        if second_s is not None:
            loop.call_later(second_s, opened.stop_now.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        took_s = loop.time()
        del task
        await asyncio.sleep(0)
        gc.collect()
        assert not problems
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left running"
        return took_s

    return run_virtual(main())


def test_an_effect_is_written_down_sent_and_ended(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        assert run_virtual(it.run.effect(POD, "rent", {"key": "k"}, sending(it, 2))) == "pod-0"
        assert it.open == []
        assert it.ledger.record(POD) == record("fleet.a[0]", "pod-0")


def test_nothing_begins_once_it_is_interrupted(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        it.stop.set()
        with pytest.raises(Cancelled):
            run_virtual(it.run.effect(POD, "rent", {}, sending(it, 2)))
        assert it.open == []
        assert it.ledger.state.sequence == 0


def test_an_answer_on_its_way_is_waited_for_and_recorded(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        assert interrupted_after(it, 1, takes_s=4) == 4
        assert it.open == []
        assert it.ledger.record(POD) is not None


def test_one_that_does_not_come_stays_open(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        assert interrupted_after(it, 1, takes_s=1000) == 1 + LET_FINISH_S
        assert it.open == ["rent"]


def test_a_second_interrupt_is_not_kept_waiting(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        assert interrupted_after(it, 1, takes_s=1000, second_s=2) == 3
        assert it.open == ["rent"]


def test_an_answer_that_is_an_error_is_nobodys_surprise(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        assert interrupted_after(it, 1, takes_s=3, fails=True) == 3
        assert it.open == ["rent"]


def test_what_only_waits_for_its_turn_is_called_off_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        assert interrupted_after(it, 1, takes_s=4, waits_s=100) == 1
        assert it.ledger.state.sequence == 0


def test_what_a_limit_refused_is_not_on_its_way(tmp_path: Path) -> None:
    with opened(tmp_path) as it:

        async def send(begin: Begin) -> None:
            assert not begin.under_way
            begin()
            assert begin.under_way
            begin.limited()
            assert not begin.under_way
            await asyncio.sleep(1000)

        async def main() -> float:
            task = asyncio.ensure_future(it.run.effect(POD, "rent", {}, send))
            await asyncio.sleep(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return asyncio.get_running_loop().time()

        assert run_virtual(main()) == 1


def test_its_turn_that_comes_after_the_interrupt_is_too_late(tmp_path: Path) -> None:
    with opened(tmp_path) as it:

        async def main() -> None:
            task = asyncio.ensure_future(it.run.effect(POD, "rent", {}, sending(it, 4, waits_s=2)))
            await asyncio.sleep(1)
            it.stop.set()
            with pytest.raises(Cancelled):
                await task

        run_virtual(main())
        assert it.ledger.state.sequence == 0


def test_work_that_may_be_abandoned_is(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        assert interrupted_after(it, 1, takes_s=4, abandon=True) == 1
        assert it.open == ["rent"]


def slow_to_end(opened: Opened, cancelled_takes_s: float) -> Callable[[Begin], Awaitable[None]]:
    async def send(begin: Begin) -> None:
        effect = begin()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(cancelled_takes_s)
            opened.ledger.failed(effect, "called off")

    return send


@pytest.mark.parametrize(("cancelled_takes_s", "ends_s", "left"), [(0.5, 7.5, []), (100.0, 8.0, ["rent"])])
def test_what_is_called_off_may_say_so_within_a_second(
    tmp_path: Path, cancelled_takes_s: float, ends_s: float, left: list[str]
) -> None:
    with opened(tmp_path) as it:

        async def main() -> float:
            task = asyncio.ensure_future(it.run.effect(POD, "rent", {}, slow_to_end(it, cancelled_takes_s)))
            await asyncio.sleep(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert it.open == left
            return asyncio.get_running_loop().time()

        assert run_virtual(main()) == ends_s


def test_cancelled_once_more_while_it_waits_it_leaves_nothing_running(tmp_path: Path) -> None:
    with opened(tmp_path) as it:

        async def main() -> float:
            task = asyncio.ensure_future(it.run.effect(POD, "rent", {}, sending(it, 1000)))
            for _ in range(2):
                await asyncio.sleep(1)
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return asyncio.get_running_loop().time()

        assert run_virtual(main()) == 2
        assert it.open == ["rent"]


@pytest.mark.parametrize(("interrupted_s", "ends_s"), [(0.0, 0.0), (2.0, 5.0)])
def test_a_pause_of_an_interrupted_run_does_not_go_on(tmp_path: Path, interrupted_s: float, ends_s: float) -> None:
    with opened(tmp_path) as it:

        async def main() -> float:
            loop = asyncio.get_running_loop()
            if interrupted_s:
                loop.call_later(interrupted_s, it.stop.set)
            else:
                it.stop.set()
            with pytest.raises(Cancelled):
                await pause(it.run, 5)
            return loop.time()

        assert run_virtual(main()) == ends_s


# --- settling --------------------------------------------------------------------------------------------------------


class Settles:
    """A driver that knows what became of each effect by its `op`."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def settle(self, effect: OpenEffect, run: Run) -> Settlement:
        self.asked.append(effect.number)
        await asyncio.sleep(10)
        match effect.op:
            case "made":
                run.ledger.done(effect, record(str(effect.address), "id-1"))
                return Settlement(Outcome.DONE, "found id-1")
            case "unmade":
                run.ledger.failed(effect, "not there")
                return Settlement(Outcome.NOT_DONE, "not there")
            case "stuck":
                raise ActionFailed(error("still-there", "it does not go"))
            case "interrupted":
                raise Cancelled
            case "unanswered":
                raise Unanswered("GET /volumes: 500")
        return Settlement(Outcome.UNKNOWN, "nobody knows")


class Unanswered(Exception):
    """The API can't be asked."""


def settled(it: Opened, *ops: str) -> tuple[Any, list[int], float]:
    driver = Settles()
    for number, op in enumerate(ops):
        it.ledger.begin(parse(f"volume.v{number}"), op, {})

    async def main() -> tuple[Any, float]:
        found = await recover(it.ledger.state.open, {"volume": cast(Any, driver)}, it.run, unanswered=Unanswered)
        return found, asyncio.get_running_loop().time()

    found, took_s = run_virtual(main())
    return found, driver.asked, took_s


def test_everything_open_is_settled_side_by_side_in_its_order(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        found, asked, took_s = settled(it, "made", "unmade", "made")
        assert (found.settled, found.unknown) == (3, ())
        assert asked == sorted(asked)
        assert took_s == 10
        assert it.open == []
        said = [(str(event.address), event.phase) for event in it.events]
        assert said[:3] == [
            ("volume.v0", "settling an open made"),
            ("volume.v1", "settling an open unmade"),
            ("volume.v2", "settling an open made"),
        ]
        assert ("volume.v0", "settled: found id-1") in said
        assert ("volume.v1", "settled: not there") in said


def test_what_stays_open_is_said_with_its_time_and_does_not_keep_the_others(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        found, _, _ = settled(it, "odd", "made", "stuck", "unanswered")
        assert found.settled == 1
        assert it.open == ["odd", "stuck", "unanswered"]
        assert [(item.code, item.address, item.message) for item in found.unknown] == [
            ("unknown-outcome", "volume.v0", "odd of 2026-10-05 12:00Z: nobody knows"),
            ("unknown-outcome", "volume.v2", "stuck of 2026-10-05 12:00Z: it does not go"),
            (
                "unknown-outcome",
                "volume.v3",
                "unanswered of 2026-10-05 12:00Z: what it did to volume.v3 can't be looked for: GET /volumes: 500",
            ),
        ]
        assert all("stays open in the journal" in str(item.hint) for item in found.unknown)


def test_an_interrupt_that_a_driver_notices_ends_the_settling(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        with pytest.raises(asyncio.CancelledError):
            settled(it, "interrupted")
        assert it.open == ["interrupted"]
