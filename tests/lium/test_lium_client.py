"""What each method sends, what it makes of answers, and what it repeats. In virtual time, over an app in process."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import httpx
import pytest

from lium_plan.lium.client import LiumClient
from lium_plan.lium.errors import (
    AuthError,
    ConflictError,
    LiumError,
    MalformedAnswerError,
    NotFoundError,
    RateLimitedError,
    ServerError,
    TransportError,
)
from lium_plan.lium.models import Deletion
from tests.lium.calls import CALLS, DELETES, LISTS, ONCE, POD, READS, WHEN
from tests.lium.server import BASE, KEY, App, Reply, Seen, client, refusal, reply
from tests.support.virtual import run_virtual

SENT = {
    "version": ("GET", "/api/version", "", None),
    "me": ("GET", "/api/users/me", "", None),
    "public_nodes": ("GET", "/api/public/v1/nodes", "", None),
    "executors": ("GET", "/api/executors", "view=summary", None),
    "rent": ("POST", "/api/executors/node/rent", "", {"pod_name": "x"}),
    "pods": ("GET", "/api/pods", "", None),
    "pod": ("GET", f"/api/pods/{POD}", "", None),
    "delete_pod": ("DELETE", f"/api/pods/{POD}", "", None),
    "schedule_removal": (
        "POST",
        f"/api/pods/{POD}/schedule-removal",
        "",
        {"removal_scheduled_at": "2026-10-20T15:30:00Z"},
    ),
    "cancel_removal": ("DELETE", f"/api/pods/{POD}/schedule-removal", "", None),
    "switch_template": ("PUT", f"/api/pods/{POD}/switch-template", "", {"template_id": "t1"}),
    "reboot": ("POST", f"/api/pods/{POD}/reboot", "", {}),
    "pod_events": ("GET", f"/api/pods/{POD}/events", "", None),
    "events": ("GET", "/api/users/me/events", "since=2026-10-20T15%3A30%3A00Z&limit=5", None),
    "statement": ("GET", f"/api/pods/{POD}/statement", "", None),
    "statements": ("GET", "/api/billing/statement", "start_day=2026-10-20", None),
    "templates": ("GET", "/api/templates", "", None),
    "create_template": ("POST", "/api/templates", "", {"name": "t", "docker_image": "x"}),
    "delete_template": ("DELETE", "/api/templates/t1", "", None),
    "volumes": ("GET", "/api/volumes", "", None),
    "create_volume": ("POST", "/api/volumes", "", {"name": "v", "description": ""}),
    "update_volume": ("PUT", "/api/volumes/v1", "", {"name": "w"}),
    "delete_volume": ("DELETE", "/api/volumes/v1", "", None),
    "credentials": ("GET", "/api/docker-credentials/", "", None),
    "create_credential": (
        "POST",
        "/api/docker-credentials/",
        "",
        {"docker_username": "user", "docker_password": "PASSWORD_CANARY"},
    ),
    "update_credential": (
        "PUT",
        "/api/docker-credentials/c1",
        "",
        {"docker_username": "user", "docker_password": "PASSWORD_CANARY"},
    ),
    "delete_credential": ("DELETE", "/api/docker-credentials/c1", "", None),
    "ssh_keys": ("GET", "/api/ssh-keys", "", None),
}


def good_answer(name: str) -> Reply:
    if name in LISTS:
        return reply([])
    return reply({"id": POD, "pod_id": POD, "nodes": [], "pods": [], "features": []})


def call(name: str, app: App) -> object:
    async def main() -> object:
        async with client(app) as lium:
            return await CALLS[name](lium)

    return run_virtual(main())


def test_every_endpoint_method_is_in_the_tables() -> None:
    own = {name for name in vars(LiumClient) if not name.startswith("_")}
    assert own - {"aclose", "changes_sent", "hide", "server_time", "server_time_known"} == set(CALLS) == set(SENT)


@pytest.mark.parametrize("name", CALLS)
def test_each_method_sends_exactly_one_request_as_the_contract_has_it(name: str) -> None:
    app = App(good_answer(name))
    call(name, app)
    (seen,) = app.seen
    method, path, query, body = SENT[name]
    assert (seen.method, seen.path, seen.query) == (method, path, query)
    assert (json.loads(seen.body) if seen.body else None) == body
    assert seen.headers.get("x-api-key") == (None if name == "public_nodes" else KEY)
    assert seen.headers["x-source"] == "cli"
    assert ("idempotency-key" in seen.headers) == (name == "rent")
    assert ("content-type" in seen.headers) == (body is not None)


def test_a_rents_body_leaves_byte_for_byte() -> None:
    app = App(reply({"success": True, "pod_id": POD}))
    body = b'{"pod_name":  "x","gpu_count":1 }\n'

    async def main() -> None:
        async with client(app) as lium:
            assert (await lium.rent("n", body, "key-1")).pod_id == POD

    run_virtual(main())
    assert app.seen[0].body == body
    assert app.seen[0].headers["idempotency-key"] == "key-1"


RENT_ANSWERS = [
    (reply({"success": True, "pod_id": POD}), POD, False),
    (reply({"success": True, "pod_id": POD}, Idempotent_Replayed="true"), POD, True),
    (reply({"id": POD, "status": "PENDING"}, 201), POD, False),
    (reply({"success": True}), None, False),
    (reply({"success": False, "pod_id": POD}), None, False),
    (reply({"success": True, "pod_id": "../../users/me"}), None, False),
    (reply({"success": True, "pod_id": 5}), None, False),
    (reply([]), None, False),
    (Reply(204, b""), None, False),
    (Reply(200, b"<html>ok</html>"), None, False),
]


@pytest.mark.parametrize(("answer", "pod_id", "replayed"), RENT_ANSWERS)
def test_a_rent_that_was_taken_is_never_an_error(answer: Reply, pod_id: str | None, replayed: bool) -> None:
    found = call("rent", App(answer))
    assert (found.pod_id, found.replayed) == (pod_id, replayed)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(LISTS))
@pytest.mark.parametrize(
    "answer",
    [
        reply({}),
        reply({"pod": None}),
        reply(None),
        reply("x"),
        Reply(200, b""),
        Reply(204, b""),
        Reply(200, b"<html>"),
    ],
)
def test_e6_a_list_that_is_no_list_is_never_an_empty_one(name: str, answer: Reply) -> None:
    with pytest.raises(MalformedAnswerError):
        call(name, App(answer))


def test_a_list_with_one_unusable_row_is_no_shorter_list() -> None:
    with pytest.raises(MalformedAnswerError, match="without a usable `id`"):
        call("pods", App(reply([{"id": POD}, {"status": "RUNNING"}])))


@pytest.mark.parametrize("answer", [reply({}), reply([]), reply({"pod": None}), Reply(200, b"{")])
def test_e8_a_pod_that_is_none_is_neither_gone_nor_there(answer: Reply) -> None:
    with pytest.raises(MalformedAnswerError):
        call("pod", App(answer))


@pytest.mark.parametrize("status", [404, 410])
def test_e8_gone_is_not_found(status: int) -> None:
    with pytest.raises(NotFoundError):
        call("pod", App(refusal(status, None)))


@pytest.mark.parametrize("name", sorted(DELETES))
def test_e4_e8_any_2xx_is_accepted_and_not_found_is_gone(name: str) -> None:
    for answer in (
        reply({"success": True}),
        Reply(204, b""),
        Reply(202, b"<html>"),
        reply([]),
        reply({"pod": None}),
    ):
        assert call(name, App(answer)) is Deletion.ACCEPTED
    for answer in (refusal(404, None), Reply(404, b"Not Found"), refusal(410, None)):
        assert call(name, App(answer)) is Deletion.GONE
    with pytest.raises(ConflictError):
        call(name, App(refusal(409, "pod_state_conflict")))


def test_another_pods_statement_is_no_proof() -> None:
    with pytest.raises(MalformedAnswerError, match="another pod"):
        call("statement", App(reply({"pod_id": "other", "removed": True})))


def test_the_feed_keeps_rows_as_they_are() -> None:
    body = {"generated_at": "2026-09-10T12:00:00Z", "nodes": [{"id": "n", "price_per_gpu_hour": 3.99}, None]}
    feed = call("public_nodes", App(reply(body)))
    assert feed.nodes == ({"id": "n", "price_per_gpu_hour": 3.99},)  # type: ignore[attr-defined]
    assert feed.generated_at == datetime(2026, 9, 10, 12, tzinfo=UTC)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(READS))
def test_a_read_is_sent_three_times_at_most(name: str) -> None:
    app = App(refusal(503, None))
    with pytest.raises(ServerError):
        call(name, app)
    gaps = [after.at - before.at for before, after in zip(app.seen, app.seen[1:], strict=False)]
    assert gaps == [1.25, 2.25]


@pytest.mark.parametrize("name", sorted(READS))
def test_a_read_gets_over_a_failure(name: str) -> None:
    app = App(refusal(500, None), refusal(429, None), good_answer(name))
    call(name, app)
    assert len(app.seen) == 3


@pytest.mark.parametrize("retry_after", [{}, {"Retry_After": "1"}])
def test_a_limit_is_no_failure_of_a_read(retry_after: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """Refused for a minute, and beside it as many real failures as a read may have."""
    limited = [refusal(429, None, **retry_after)] * 6
    app = App(refusal(500, None), *limited, refusal(503, None), *limited, reply([]))
    with caplog.at_level("INFO", "lium_plan.notices"):
        call("templates", app)
    assert len(app.seen) == 15
    assert "the server limits GET /templates, waiting" in caplog.messages


def test_a_read_that_is_refused_for_ever_ends() -> None:
    app = App(refusal(429, None))
    with pytest.raises(RateLimitedError):
        call("templates", app)
    assert 900 <= app.seen[-1].at <= 1000


ENDS = {"schedule_removal", "cancel_removal"}
"""Whatever sets a pod's end may be done twice."""


@pytest.mark.parametrize("name", sorted(ENDS))
@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_sets_a_pods_end_gets_over_a_failure(name: str, status: int) -> None:
    app = App(refusal(status, None), good_answer(name))
    call(name, app)
    assert len({(seen.method, seen.path, seen.body) for seen in app.seen}) == 1
    assert len(app.seen) == 2


@pytest.mark.parametrize("name", sorted(set(CALLS) - READS - ENDS))
@pytest.mark.parametrize("status", [408, 500, 503])
def test_a_write_that_may_have_been_done_is_not_repeated(name: str, status: int) -> None:
    app = App(refusal(status, None), good_answer(name))
    with pytest.raises(LiumError) as raised:
        call(name, app)
    assert raised.value.status == status
    assert len(app.seen) == 1


@pytest.mark.parametrize("name", sorted(set(CALLS) - READS - ONCE))
def test_a_write_is_repeated_after_429_until_it_is_taken(name: str) -> None:
    app = App(*[refusal(429, None)] * 6, good_answer(name))
    call(name, app)
    assert len(app.seen) == 7
    assert len({(seen.path, seen.body) for seen in app.seen}) == 1


def test_a_write_that_is_refused_for_ever_ends() -> None:
    app = App(refusal(429, None))
    with pytest.raises(RateLimitedError):
        call("delete_volume", app)
    assert 900 <= app.seen[-1].at <= 1000


@pytest.mark.parametrize("name", sorted(ONCE))
def test_what_creates_something_is_sent_once_whatever_happens(name: str) -> None:
    app = App(refusal(429, None, Retry_After="7"))
    with pytest.raises(RateLimitedError) as raised:
        call(name, app)
    assert raised.value.retry_after_s == 7.0
    assert len(app.seen) == 1


def test_a_rent_after_a_429_waits_and_looks_at_the_price_last() -> None:
    app = App(refusal(429, None, Retry_After="20"), reply({"pod_id": "p"}))
    looks: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with client(app) as lium:
            with pytest.raises(RateLimitedError):
                await lium.rent("n", b"{}", "k")
            await lium.rent("n", b"{}", "k", before_send=lambda: looks.append(loop.time()))

    run_virtual(main())
    assert looks == [app.seen[1].at] == [20.25]


def test_what_the_last_look_raises_calls_the_rent_off() -> None:
    app = App(reply({"pod_id": "p"}))

    class TooDear(Exception):
        pass

    def look() -> None:
        raise TooDear

    async def main() -> None:
        async with client(app) as lium:
            with pytest.raises(TooDear):
                await lium.rent("n", b"{}", "k", before_send=look)
            await lium.rent("n", b"{}", "k2")

    run_virtual(main())
    assert [seen.headers["idempotency-key"] for seen in app.seen] == ["k2"]


@pytest.mark.parametrize(
    ("value", "wait_s"), [("7", 7.0), ("0", 1.0), ("-5", 1.0), ("9999", 60.0), (None, 5.0), ("x", 5.0)]
)
def test_retry_after_is_honoured_within_reason(value: str | None, wait_s: float) -> None:
    named = {} if value is None else {"Retry_After": value}
    app = App(refusal(429, None, **named), reply([]))
    call("pods", app)
    assert app.seen[1].at == pytest.approx(wait_s + 0.25)


def test_a_503_says_when_to_come_back() -> None:
    app = App(refusal(503, None, Retry_After="30"), reply([]))
    call("pods", app)
    assert app.seen[1].at == 30.0


def test_waiting_for_a_repeat_ends_at_once_when_cancelled() -> None:
    app = App(refusal(429, None, Retry_After="60"))

    async def main() -> float:
        async with client(app) as lium:
            task = asyncio.create_task(lium.delete_template("t"))
            await asyncio.sleep(3)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 3.0


def test_an_answer_that_never_comes_ends_the_call() -> None:
    async def silent(seen: Seen) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    app = App(respond=silent)

    async def main() -> float:
        async with client(app) as lium:
            with pytest.raises(TransportError, match="within 30 s") as raised:
                await lium.delete_pod("p")
            assert raised.value.sent
            return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 30.0


def test_the_servers_clock_is_known_from_its_answers() -> None:
    truth = datetime(2031, 1, 1, 12, 0, 0, 400_000, tzinfo=UTC)
    local = datetime(2026, 1, 1, tzinfo=UTC)

    def dated(seen: Seen) -> Reply:
        now = truth + timedelta(seconds=seen.at)
        return reply([], Date=now.strftime("%a, %d %b %Y %H:%M:%S GMT"))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        lium = LiumClient(BASE, KEY, transport=httpx.ASGITransport(App(respond=dated)), wall=lambda: local, environ={})
        async with lium:
            assert not lium.server_time_known
            assert lium.server_time() == local
            previous = None
            for _ in range(12):
                await lium.pods()
                await asyncio.sleep(1.3)
                error = lium.server_time() - (truth + timedelta(seconds=loop.time()))
                assert abs(error) <= timedelta(seconds=0.51)
                assert previous is None or lium.server_time() > previous
                previous = lium.server_time()
            assert abs(error) < timedelta(seconds=0.11), "the bounds should narrow with every answer"

    run_virtual(main(), start_s=5.0)


def test_a_servers_clock_that_was_set_is_followed() -> None:
    dates = iter(["Fri, 06 Nov 2026 08:00:00 GMT", "Fri, 06 Nov 2026 10:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT"])

    async def main() -> None:
        async with client(App(respond=lambda seen: reply([], Date=next(dates)))) as lium:
            await lium.pods()
            await lium.pods()
            await lium.pods()
            assert lium.server_time() == datetime(2026, 11, 6, 10, 0, 0, 500_000, tzinfo=UTC)

    run_virtual(main())


def test_the_feeds_cache_does_not_tell_the_time() -> None:
    body = {"nodes": []}

    async def main() -> None:
        async with client(App(reply(body, Date="Fri, 06 Nov 2026 08:00:00 GMT"))) as lium:
            await lium.public_nodes()
            assert not lium.server_time_known

    run_virtual(main())


def test_filters_become_parameters() -> None:
    app = App(reply([{"id": "n"}, 5]))

    async def main() -> None:
        async with client(app) as lium:
            assert await lium.executors(machine_names="NVIDIA H200", nvlink=True, size=5) == ({"id": "n"},)

    run_virtual(main())
    assert app.seen[0].query == "view=summary&machine_names=NVIDIA+H200&nvlink=true&size=5"


@pytest.mark.parametrize("item_id", ["", ".", ".."])
def test_an_id_that_would_address_the_whole_collection_is_refused(item_id: str) -> None:
    app = App(reply({}))

    async def main() -> None:
        async with client(app) as lium:
            with pytest.raises(ValueError, match="is no id"):
                await lium.delete_pod(item_id)

    run_virtual(main())
    assert app.seen == []


def test_an_odd_id_stays_one_segment() -> None:
    app = App(reply({}))

    async def main() -> None:
        async with client(app) as lium:
            await lium.delete_pod("a/../b?c#d")

    run_virtual(main())
    assert app.seen[0].path == "/api/pods/a%2F..%2Fb%3Fc%23d"


def test_a_removal_needs_a_zone() -> None:
    async def main() -> None:
        async with client(App(reply({}))) as lium:
            with pytest.raises(ValueError, match="aware"):
                await lium.schedule_removal("p", WHEN.replace(tzinfo=None))

    run_virtual(main())


def test_o6_no_secret_comes_back_in_an_error() -> None:
    def echo(seen: Seen) -> Reply:
        text = f"{seen.headers.get('x-api-key')} sent {seen.body.decode()}"
        return reply({"detail": text, "error": {"hint": text, "data": {"input": text}}}, 422)

    for name in CALLS:
        with pytest.raises(LiumError) as raised:
            call(name, App(respond=echo))
        error = raised.value
        shown = f"{error!r} {error} {error.hint} {dict(error.data)} {error.__cause__!r} {error.__context__!r}"
        assert "CANARY" not in shown, name


@pytest.mark.parametrize("known_by", ["create_credential", "update_credential", "credentials", "hide"])
def test_o6_no_secret_that_the_server_knows_comes_back_from_another_call(known_by: str) -> None:
    login = base64.b64encode(b"user:PASSWORD_CANARY").decode()

    def answer(seen: Seen) -> Reply:
        if "docker-credentials" in seen.path:
            row = {"id": "c1", "docker_username": "user", "docker_password": "PASSWORD_CANARY"}
            return reply([row] if seen.method == "GET" else row)
        return reply({"detail": f"can't pull as user:PASSWORD_CANARY (PASSWORD_CANARY), Basic {login}"}, 422)

    async def main() -> str:
        async with client(App(respond=answer)) as lium:
            if known_by == "hide":
                lium.hide(["PASSWORD_CANARY", "user:PASSWORD_CANARY"])
            else:
                await CALLS[known_by](lium)
            with pytest.raises(LiumError) as raised:
                await lium.create_template({"name": "t", "docker_image": "x"})
            return f"{raised.value!r} {raised.value}"

    shown = run_virtual(main())
    assert "CANARY" not in shown
    assert login not in shown


def test_o6_no_secret_is_in_a_repr() -> None:
    async def main() -> str:
        async with client(App(reply({}))) as lium:
            return f"{lium!r} {lium._transport!r} {lium._transport._auth!r} {lium._caller!r}"

    assert "CANARY" not in run_virtual(main())


def test_a_wrong_key_is_told_apart() -> None:
    with pytest.raises(AuthError):
        call("me", App(refusal(401, None, "Invalid API key")))


def test_money_is_exact() -> None:
    (pod,) = call("pods", App(Reply(200, json.dumps([{"id": POD, "price": 0.1}]).encode())))  # type: ignore[misc]
    assert pod.price_per_hour_usd * 3 == Decimal("0.3")
