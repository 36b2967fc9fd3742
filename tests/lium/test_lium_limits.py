"""No amount of parallelism turns a limit into a failure, and waiting can be ended at once. In virtual time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lium_plan.lium.errors import RateLimitedError
from lium_plan.lium.limits import Limits, Priority
from lium_plan.lium.windows import KNOWN_WINDOWS, Family, Window, estimate_s
from tests.lium.calls import until_taken
from tests.lium.server import App, Reply, Seen, client, refusal, reply
from tests.support.virtual import run_virtual


class Sliding:
    """A server's limiter: sliding windows over what it accepted, 429 for the rest."""

    def __init__(self, *windows: tuple[int, float]) -> None:
        self._windows = windows
        self._taken: list[float] = []
        self.refusals = 0

    def allows(self, now: float) -> bool:
        for count, period_s in self._windows:
            if sum(1 for moment in self._taken if now - moment < period_s) >= count:
                self.refusals += 1
                return False
        self._taken.append(now)
        return True

    def count(self, now: float) -> None:
        self._taken.append(now)


TEMPLATES = ((1, 5.0), (5, 60.0), (20, 3600.0))


def created(seen: Seen) -> Reply:
    return reply({"id": f"t{seen.at}"}, 201)


def latency() -> Callable[[], float]:
    """Answers take between 0 and 2 s, in a fixed pattern."""
    pattern = deque([0.0, 0.3, 2.0, 0.05, 1.1])

    def following() -> float:
        pattern.rotate(-1)
        return pattern[0]

    return following


def test_f1_twenty_five_templates_at_once_without_a_refusal() -> None:
    server, slow = Sliding(*TEMPLATES), latency()

    async def respond(seen: Seen) -> Reply:
        if seen.path != "/api/templates":
            return reply([])
        if not server.allows(seen.at):
            return refusal(429, None)
        await asyncio.sleep(slow())
        return created(seen)

    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        async with client(App(respond=respond)) as lium:
            said_s = lium.limits.estimate_s(Family.TEMPLATE_CREATE, 25, loop.time())
            tasks = [asyncio.create_task(lium.create_template({"name": f"t{number}"})) for number in range(25)]
            await asyncio.sleep(1)
            await lium.volumes()
            assert loop.time() == 1, "what needs no template waits for none"
            await asyncio.gather(*tasks)
            return said_s, loop.time()

    said_s, took_s = run_virtual(main())
    assert server.refusals == 0
    assert said_s == pytest.approx(estimate_s(Family.TEMPLATE_CREATE, 25))
    assert took_s == pytest.approx(said_s, rel=0.02)


def test_a_stricter_server_is_learned() -> None:
    server = Sliding((1, 12.0))

    def respond(seen: Seen) -> Reply:
        return created(seen) if server.allows(seen.at) else refusal(429, None)

    async def main() -> float:
        async with client(App(respond=respond)) as lium:
            await asyncio.gather(*(until_taken(lium.create_volume, f"v{number}") for number in range(12)))
            return asyncio.get_running_loop().time()

    took_s = run_virtual(main())
    assert took_s < 12 * 12 * 2.5
    assert server.refusals < 12 + 30


def test_thirty_rents_under_five_a_minute_all_get_through() -> None:
    server = Sliding((5, 60.0))

    def respond(seen: Seen) -> Reply:
        return reply({"pod_id": seen.path}) if server.allows(seen.at) else refusal(429, None)

    async def main() -> float:
        async with client(App(respond=respond)) as lium:

            async def rent(number: int) -> None:
                while True:
                    try:
                        await lium.rent(f"n{number}", b"{}", f"k{number}")
                        return
                    except RateLimitedError:
                        continue

            await asyncio.gather(*map(rent, range(30)))
            return asyncio.get_running_loop().time()

    took_s = run_virtual(main())
    assert took_s < 30 / 5 * 60 * 2, "the ideal is 5 minutes"
    assert server.refusals < 30 + 60


@pytest.mark.parametrize("mode", ["off", "count", "refuse"])
def test_the_shared_counter_is_survived_in_each_of_its_forms(mode: str) -> None:
    """Contract §15.2: rents may not count, count, or be refused by the templates' limits."""
    server = Sliding(*TEMPLATES)

    def respond(seen: Seen) -> Reply:
        if seen.path == "/api/templates":
            return created(seen) if server.allows(seen.at) else refusal(429, None)
        if mode == "refuse" and not server.allows(seen.at):
            return refusal(429, None)
        if mode == "count":
            server.count(seen.at)
        return reply({"pod_id": "p"})

    async def main() -> None:
        async with client(App(respond=respond)) as lium:

            async def make(number: int) -> None:
                await until_taken(lium.create_template, {"name": f"t{number}"})
                while True:
                    try:
                        await lium.rent("n", b"{}", f"k{number}")
                        return
                    except RateLimitedError:
                        continue

            await asyncio.gather(*map(make, range(8)))

    run_virtual(main(), limit_s=4 * 3600)
    assert server.refusals < 40


def test_rents_that_count_as_templates_are_counted_from_the_first_refusal_on() -> None:
    server = Sliding(*TEMPLATES)

    def respond(seen: Seen) -> Reply:
        if seen.path == "/api/templates":
            return created(seen) if server.allows(seen.at) else refusal(429, None)
        server.count(seen.at)
        return reply({"pod_id": "p"})

    async def main() -> None:
        async with client(App(respond=respond)) as lium:
            for number in range(4):
                await lium.rent("n", b"{}", f"k{number}")
                await until_taken(lium.create_template, {"name": f"t{number}"})

    run_virtual(main())
    assert server.refusals == 1


@pytest.mark.parametrize("first", ["template", "rent"])
def test_after_a_refusal_rents_and_templates_keep_apart(first: str) -> None:
    """They may be counted together (contract §1.6), so one that was refused makes the other wait too."""
    app = App(refusal(429, None), reply({"id": "x", "pod_id": "p"}))

    async def main() -> None:
        async with client(app) as lium:
            if first == "template":
                task = asyncio.create_task(until_taken(lium.create_template, {"name": "t"}))
                await asyncio.sleep(1)
                await lium.rent("n", b"{}", "k")
                await task
            else:
                with pytest.raises(RateLimitedError):
                    await lium.rent("n", b"{}", "k")
                await until_taken(lium.create_template, {"name": "t"})

    run_virtual(main())
    assert min(seen.at for seen in app.seen[1:]) >= 5


def enter_and_leave(limits: Limits, order: list[str], name: str, priority: Priority) -> Coroutine[Any, Any, None]:
    async def work() -> None:
        turn = limits.turn("POST /x", priority)
        await limits.enter(turn)
        order.append(name)
        limits.leave(turn)

    return work()


@pytest.mark.parametrize("bound", ["window", "in flight"])
def test_what_frees_goes_before_what_starts(bound: str) -> None:
    order: list[str] = []

    async def main() -> None:
        by_window = bound == "window"
        limits = Limits({"POST /x": (Window(1, 5.0),)} if by_window else {}, max_in_flight=64 if by_window else 1)
        first = limits.turn("POST /x" if by_window else "POST /y", Priority.START)
        await limits.enter(first)
        work = [("start 1", Priority.START), ("free 1", Priority.FREE), ("start 2", Priority.START)]
        work.append(("free 2", Priority.FREE))
        tasks = [asyncio.create_task(enter_and_leave(limits, order, *item)) for item in work]
        await asyncio.sleep(1)
        assert order == []
        limits.leave(first)
        await asyncio.gather(*tasks)

    run_virtual(main())
    assert order == ["free 1", "free 2", "start 1", "start 2"]


@pytest.mark.parametrize("bound", ["window", "in flight"])
def test_who_gives_up_waiting_leaves_no_hole_and_no_ghost(bound: str) -> None:
    order: list[str] = []

    async def main() -> float:
        windows = {"POST /x": (Window(1, 5.0),)} if bound == "window" else {}
        limits = Limits(windows, max_in_flight=64 if bound == "window" else 1)
        first = limits.turn("POST /x", Priority.START)
        await limits.enter(first)
        tasks = {name: asyncio.create_task(enter_and_leave(limits, order, name, Priority.START)) for name in "abc"}
        await asyncio.sleep(0.5)
        tasks["a"].cancel()
        await asyncio.sleep(0)
        assert tasks["a"].cancelled(), "at once"
        limits.leave(first)
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        return asyncio.get_running_loop().time()

    took_s = run_virtual(main())
    assert order == ["b", "c"]
    if bound == "window":
        assert took_s == pytest.approx(10.6, abs=0.1), "the one that gave up took no place in a window"


def test_a_place_granted_at_the_moment_of_giving_up_is_passed_on() -> None:
    order: list[str] = []

    async def main() -> None:
        limits = Limits({}, max_in_flight=1)
        first = limits.turn("POST /x", Priority.START)
        await limits.enter(first)
        loser = asyncio.create_task(enter_and_leave(limits, order, "loser", Priority.START))
        next_one = asyncio.create_task(enter_and_leave(limits, order, "next", Priority.START))
        await asyncio.sleep(0)
        limits.leave(first)
        loser.cancel()
        await asyncio.gather(loser, next_one, return_exceptions=True)

    run_virtual(main())
    assert order == ["next"]


def test_a_burst_of_refusals_is_one_refusal() -> None:
    async def respond(seen: Seen) -> Reply:
        await asyncio.sleep(0.5)
        return refusal(429, None) if seen.at < 1 else reply({})

    async def main() -> float:
        async with client(App(respond=respond)) as lium:
            await asyncio.gather(*(lium.delete_volume(f"v{number}") for number in range(20)))
            return asyncio.get_running_loop().time()

    assert run_virtual(main()) < 20


def test_a_server_that_says_at_once_is_not_spun_upon() -> None:
    app = App(refusal(429, None, Retry_After="0"))

    async def main() -> None:
        async with client(app) as lium:
            with pytest.raises(RateLimitedError):
                await lium.delete_volume("v")

    run_virtual(main())
    assert len(app.seen) < 60


def test_waits_are_announced() -> None:
    waits: list[float] = []

    async def main() -> None:
        async with client(App(reply({"id": "t"}))) as lium:
            await asyncio.gather(
                *(lium.create_template({"name": f"t{number}"}, on_wait=waits.append) for number in range(3))
            )

    run_virtual(main())
    assert list(map(round, waits)) == [5, 10]


def test_what_was_sent_earlier_counts_once() -> None:
    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        async with client(App(reply({"id": "t"}))) as lium:
            lium.limits.count_earlier(Family.TEMPLATE_CREATE, [-30.0, 7200.0, *(300.0 + 10 * n for n in range(20))])
            said_s = lium.limits.estimate_s(Family.TEMPLATE_CREATE, 1, loop.time())
            await lium.create_template({"name": "t"})
            known = lium.limits.ages_s(Family.TEMPLATE_CREATE)
            lium.limits.count_earlier(Family.TEMPLATE_CREATE, [0.0])
            assert lium.limits.ages_s(Family.TEMPLATE_CREATE) == known
            return said_s, loop.time()

    said_s, took_s = run_virtual(main())
    assert 3600 - 490 <= took_s <= 3600 - 480
    assert said_s == pytest.approx(took_s, abs=0.1)


def test_the_estimate_knows_what_was_sent_and_what_was_refused() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with client(App(reply({"id": "t"}), refusal(429, None, Retry_After="30"), reply({"id": "t"}))) as lium:
            await until_taken(lium.create_template, {"name": "a"})
            await asyncio.sleep(2)
            assert lium.limits.estimate_s(Family.TEMPLATE_CREATE, 1, loop.time()) == pytest.approx(3, abs=0.1)
            assert lium.limits.estimate_s("GET /volumes", 9, loop.time()) == 0
            task = asyncio.create_task(until_taken(lium.create_template, {"name": "b"}))
            await asyncio.sleep(4)
            assert lium.limits.estimate_s(Family.TEMPLATE_CREATE, 1, loop.time()) > 25
            await task

    run_virtual(main())


def test_patience_outlasts_the_longest_window() -> None:
    limits = Limits()
    assert limits.patience_s(Family.TEMPLATE_CREATE) > max(w.period_s for w in KNOWN_WINDOWS[Family.TEMPLATE_CREATE])
    assert limits.patience_s("DELETE /volumes/{id}") == 900


def test_lists_of_pods_stay_under_sixty_a_minute_whoever_asks() -> None:
    server = Sliding((60, 60.0))

    def respond(seen: Seen) -> Reply:
        return reply([]) if server.allows(seen.at) else refusal(429, None)

    async def main() -> None:
        async with client(App(respond=respond)) as lium:
            await asyncio.gather(*(lium.pods(attempts=1) for _ in range(200)))

    run_virtual(main())
    assert server.refusals == 0


def test_the_most_urgent_of_those_who_wait_goes_first() -> None:
    async def main() -> list[str]:
        limits, sent = Limits(random=lambda: 0.0), list[str]()

        async def ask(name: str, urgency: float) -> None:
            turn = limits.turn(Family.TEMPLATE_CREATE, Priority.START, urgency)
            await limits.enter(turn)
            sent.append(name)
            limits.leave(turn)

        async with asyncio.TaskGroup() as group:
            for name, urgency in (("first", 0.0), ("plain", 0.0), ("long", 90.0), ("short", 5.0), ("other", 0.0)):
                group.create_task(ask(name, urgency))
        return sent

    assert run_virtual(main()) == ["first", "long", "short", "plain", "other"]
