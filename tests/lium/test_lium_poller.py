"""One list for everybody, never an older one than what the waiter just did. In virtual time."""

from __future__ import annotations

import asyncio
from uuid import NAMESPACE_URL, uuid5

import pytest

from lium_plan.lium.errors import AuthError, ScopeError
from lium_plan.lium.poller import Listing, PodPoller, adaptive_interval_s
from tests.lium.server import App, Reply, Seen, client, refusal, reply
from tests.support.virtual import run_virtual


def rows(*names: str) -> Reply:
    return reply([{"id": str(uuid5(NAMESPACE_URL, name)), "pod_name": name} for name in names])


def names(listing: Listing) -> set[str]:
    return {pod.name for pod in listing.pods.values()}


def slow_rows(delay_s: float) -> App:
    """A list whose one pod is named after the moment it was asked for."""

    async def respond(seen: Seen) -> Reply:
        await asyncio.sleep(delay_s)
        return rows(f"at {seen.at:g}")

    return App(respond=respond)


def test_fifty_waiters_cost_one_list() -> None:
    app = App(rows("a"))

    async def main() -> None:
        async with client(app) as lium, PodPoller(lium) as poller:
            listings = await asyncio.gather(*(poller.next_listing() for _ in range(50)))
            assert {listing.number for listing in listings} == {1}
            assert names(listings[0]) == {"a"}

    run_virtual(main())
    assert len(app.seen) == 1


def test_nothing_is_listed_while_nobody_waits() -> None:
    app = App(rows("a"))

    async def main() -> None:
        async with client(app) as lium, PodPoller(lium) as poller:
            await asyncio.sleep(100)
            assert app.seen == []
            await poller.next_listing()
            await asyncio.sleep(100)
            assert len(app.seen) == 1

    run_virtual(main())


def test_a_list_that_was_under_way_is_not_shown_to_a_later_waiter() -> None:
    async def main() -> None:
        async with client(slow_rows(3.0)) as lium, PodPoller(lium) as poller:
            first = asyncio.create_task(poller.next_listing())
            await asyncio.sleep(1)
            later = asyncio.create_task(poller.next_listing())
            subscribed = asyncio.create_task(anext(poller.subscribe()))
            assert names(await first) == {"at 0"}
            assert (await later).requested_at == (await subscribed).requested_at == 3
            assert names(later.result()) == {"at 3"}

    run_virtual(main())


def test_a_list_asked_for_at_the_very_moment_is_too_old() -> None:
    """At one moment of the clock nobody knows whether the rent or the list came first."""

    async def main() -> None:
        async with client(slow_rows(0.0)) as lium, PodPoller(lium) as poller:
            first = await poller.next_listing()
            again = await poller.next_listing(after=first.requested_at)
            assert again.requested_at > first.requested_at

    run_virtual(main())


def test_a_list_under_way_since_the_very_moment_is_too_old() -> None:
    async def main() -> None:
        async with client(slow_rows(3.0)) as lium, PodPoller(lium) as poller:
            first = asyncio.create_task(poller.next_listing())
            for _ in range(20):
                await asyncio.sleep(0)
            assert asyncio.get_running_loop().time() == 0
            assert (await poller.next_listing(after=0.0)).requested_at == 3
            assert (await first).requested_at == 0

    run_virtual(main())


def test_a_list_under_way_serves_who_names_an_earlier_moment() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with client(slow_rows(3.0)) as lium, PodPoller(lium) as poller:
            await asyncio.sleep(10)
            first = asyncio.create_task(poller.next_listing())
            await asyncio.sleep(1)
            listing = await poller.next_listing(after=9.0)
            assert (listing.requested_at, loop.time()) == (10, 13)
            assert await poller.next_listing(after=9.5) is listing, "at once"
            assert loop.time() == 13
            await first

    run_virtual(main())


def test_a_moment_to_come_is_waited_for() -> None:
    app = slow_rows(0.0)

    async def main() -> None:
        async with client(app) as lium, PodPoller(lium) as poller:
            listing = await poller.next_listing(after=50.0)
            assert listing.requested_at == 50

    run_virtual(main())
    assert len(app.seen) == 1


def test_the_pace_slows_with_the_wait() -> None:
    app = App(rows())

    async def main() -> None:
        async with client(app) as lium, PodPoller(lium) as poller:
            async for listing in poller.subscribe():
                if listing.at >= 150:
                    return

    run_virtual(main())
    moments = [seen.at for seen in app.seen]
    assert sum(moment < 40 for moment in moments) == 40
    assert sum(40 <= moment < 90 for moment in moments) == pytest.approx(25, abs=1)
    assert sum(90 <= moment < 150 for moment in moments) == pytest.approx(13, abs=1)


def test_a_newcomer_quickens_the_pace_and_its_leaving_slows_it() -> None:
    app = App(rows())

    async def main() -> None:
        async with client(app) as lium, PodPoller(lium) as poller:

            async def watch(until: float) -> None:
                async for listing in poller.subscribe():
                    if listing.at >= until:
                        return

            old = asyncio.create_task(watch(400.0))
            await asyncio.sleep(205)
            await watch(215.0)
            await old

    run_virtual(main())
    assert sum(205 <= seen.at < 215 for seen in app.seen) >= 9
    assert sum(230 <= seen.at < 330 for seen in app.seen) <= 11


def test_since_tells_how_long_a_loop_of_single_waits_has_lasted() -> None:
    app = App(rows())

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with client(app) as lium, PodPoller(lium) as poller:
            await asyncio.sleep(1000)
            while loop.time() < 1100:
                await poller.next_listing(since=0.0)

    run_virtual(main())
    assert len(app.seen) == pytest.approx(11, abs=1)


def test_never_more_than_sixty_a_minute() -> None:
    app = App(rows())

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with client(app) as lium, PodPoller(lium, interval_s=0.01) as poller:
            while loop.time() < 120:
                await poller.next_listing()

    run_virtual(main())
    assert len(app.seen) <= 121


def test_e6_a_failed_list_is_skipped_and_counted() -> None:
    bad = [refusal(500, None), reply({"pod": None}), reply([{"no": "id"}]), Reply(200, b"<html>")]
    app = App(*bad, rows("a"))

    async def main() -> Listing:
        async with client(app) as lium, PodPoller(lium) as poller:
            listing = await poller.next_listing()
            assert (poller.failures, poller.failed_lists) == (0, 4)
            assert poller.last_error is not None
            return listing

    assert names(run_virtual(main())) == {"a"}
    gaps = [after.at - before.at for before, after in zip(app.seen, app.seen[1:], strict=False)]
    assert gaps == [2, 4, 8, 16]


def test_a12_a_429_on_the_list_delays_it_as_the_server_asked() -> None:
    app = App(refusal(429, None, Retry_After="33"), rows("a"))

    async def main() -> Listing:
        async with client(app) as lium, PodPoller(lium) as poller:
            return await poller.next_listing()

    listing = run_virtual(main())
    assert names(listing) == {"a"}
    assert app.seen[1].at == pytest.approx(33, abs=0.5)


def test_an_endless_failure_backs_off_to_a_minute() -> None:
    app = App(refusal(500, None))

    async def main() -> None:
        async with client(app) as lium, PodPoller(lium) as poller:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3600):
                    await poller.next_listing()

    run_virtual(main())
    assert app.seen[-1].at - app.seen[-2].at == 60


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal(401, None), AuthError),
        (refusal(403, None, "API key 'ci' does not have the 'read' scope"), ScopeError),
    ],
)
def test_e6_a_key_that_may_not_list_ends_the_waits(answer: Reply, kind: type[Exception]) -> None:
    app = App(answer)

    async def main() -> None:
        async with client(app) as lium, PodPoller(lium) as poller:
            found = await asyncio.gather(poller.next_listing(), poller.next_listing(), return_exceptions=True)
            assert [type(error) for error in found] == [kind, kind]

    run_virtual(main())
    assert len(app.seen) == 3


def test_giving_up_a_wait_is_instant_and_stops_the_lists() -> None:
    app = App(rows("a"))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with client(app) as lium, PodPoller(lium) as poller:
            waiter = asyncio.create_task(poller.next_listing(after=1e6))
            await asyncio.sleep(5)
            waiter.cancel()
            await asyncio.gather(waiter, return_exceptions=True)
            assert loop.time() == 5
            await asyncio.sleep(100)
            assert app.seen == []

    run_virtual(main())


def test_closing_ends_the_waits() -> None:
    async def main() -> None:
        async with client(App(rows("a"))) as lium:
            poller = PodPoller(lium)
            waiter = asyncio.create_task(poller.next_listing(after=1e6))
            await asyncio.sleep(1)
            await poller.aclose()
            with pytest.raises(RuntimeError, match="closed"):
                await waiter
            with pytest.raises(RuntimeError, match="closed"):
                await poller.next_listing()

    run_virtual(main())


def test_a_slow_reader_gets_the_newest() -> None:
    app = slow_rows(0.0)

    async def main() -> None:
        async with client(app) as lium, PodPoller(lium) as poller:
            slow = poller.subscribe()
            quick = poller.subscribe()
            await anext(slow)
            for _ in range(5):
                await anext(quick)
            listing = await anext(slow)
            assert listing is poller.latest
            assert listing.number == 5

    run_virtual(main())


def test_a_bug_in_the_client_reaches_the_waiters() -> None:
    class Broken:
        async def pods(self, *, attempts: int = 3) -> tuple[()]:
            raise ZeroDivisionError

        def server_time(self) -> object:
            raise AssertionError

    async def main() -> None:
        async with PodPoller(Broken()) as poller:  # type: ignore[arg-type]
            with pytest.raises(ZeroDivisionError):
                await poller.next_listing()

    run_virtual(main())


@pytest.mark.parametrize(
    ("waited_s", "interval_s"), [(0, 1), (39.9, 1), (40, 2), (89, 2), (90, 3.6), (200, 8), (250, 10), (9999, 10)]
)
def test_the_schedule_of_the_contract(waited_s: float, interval_s: float) -> None:
    assert adaptive_interval_s(waited_s) == interval_s


def test_who_waits_for_news_sleeps_until_there_is_some() -> None:
    woken: list[tuple[float, float]] = []

    async def main() -> None:
        async with client(slow_rows(0.0)) as lium, PodPoller(lium) as poller:
            loop = asyncio.get_running_loop()

            async def wait_until(moment: float) -> None:
                found = await poller.next_listing(news=lambda listing: listing.requested_at >= moment)
                woken.append((found.requested_at, loop.time()))
                again = await poller.next_listing(after=0.0, news=lambda listing: listing.requested_at >= moment)
                assert again is found, "the list that is there already is news, too"

            await asyncio.gather(wait_until(7.0), wait_until(3.0))

    run_virtual(main())
    assert woken == [(3.0, 3.0), (7.0, 7.0)]


def test_a_younger_waiter_quickens_a_slow_pace() -> None:
    app = App(rows("a"))

    async def main() -> None:
        async with client(app) as lium, PodPoller(lium) as poller:
            old = asyncio.create_task(poller.next_listing(since=-1000.0, news=lambda listing: listing.number > 2))
            await asyncio.sleep(1)  # by its own pace the next list comes ten seconds after the first
            await poller.next_listing()
            await old

    run_virtual(main())
    assert [seen.at for seen in app.seen] == [0, 1, 11]
