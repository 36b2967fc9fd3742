"""The wire's accidents, over real sockets: nothing of httpx gets out, the key goes nowhere else."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import traceback
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable

import pytest

from lium_plan.lium import transport as transport_module
from lium_plan.lium.client import LiumClient
from lium_plan.lium.errors import (
    BudgetError,
    LiumConfigError,
    LiumError,
    MalformedAnswerError,
    RedirectError,
    ServerError,
    TransportError,
)
from lium_plan.lium.models import Deletion
from lium_plan.lium.transport import checked_base_url, is_loopback, proxy_for
from tests.lium.calls import CALLS, DELETES, POD, READS
from tests.lium.server import KEY, RawServer, raw


async def one(lium: LiumClient, name: str) -> object:
    """A call with a read's repeats left out: they wait in real time here."""
    return await (lium.pods(attempts=1) if name == "pods" else CALLS[name](lium))


def against(server: RawServer, work: Callable[[LiumClient], Awaitable[object]], *, timeout_s: float = 5.0) -> object:
    async def main() -> object:
        async with server.running(), LiumClient(server.base, KEY, environ={}, timeout_s=timeout_s) as lium:
            return await work(lium)

    return asyncio.run(main())


def assert_ours(error: BaseException) -> None:
    """Neither the exception nor what hangs on it is of the HTTP library, and it shows no key."""
    link: BaseException | None = error
    while link is not None:
        assert not type(link).__module__.startswith(("httpx", "httpcore", "h11")), repr(link)
        link = link.__cause__ or link.__context__
    assert "CANARY" not in "".join(traceback.format_exception(error))


DYING = {
    "closes at once": RawServer,
    "resets": lambda: RawServer(ending="reset"),
    "half a status line": lambda: RawServer(b"HTTP/1.1 2"),
    "not HTTP": lambda: RawServer(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "absurd status": lambda: RawServer(b"HTTP/1.1 20 X\r\n\r\n"),
    "huge header": lambda: RawServer(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000 + b"\r\n\r\n"),
}
NO_REPEATS = sorted((set(CALLS) - READS) | {"pods"})


def test_every_method_survives_a_dying_server() -> None:
    async def fails(lium: LiumClient, way: str, name: str) -> None:
        (error,) = await asyncio.gather(one(lium, name), return_exceptions=True)
        assert isinstance(error, TransportError), (way, name, error)
        assert error.sent, (way, name)
        assert_ours(error)

    async def dies(way: str) -> None:
        server = DYING[way]()
        async with server.running(), LiumClient(server.base, KEY, environ={}) as lium:
            await asyncio.gather(*(fails(lium, way, name) for name in CALLS))

    async def main() -> None:
        # The reads repeat twice, 3 s in all, so everything happens side by side.
        await asyncio.gather(*map(dies, DYING))

    asyncio.run(main())


def test_a_refused_connection_is_known_not_to_have_sent() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

        async def main() -> None:
            async with LiumClient(f"http://127.0.0.1:{port}/api", KEY, environ={}) as lium:
                for name in NO_REPEATS:
                    with pytest.raises(TransportError, match="can't connect") as raised:
                        await one(lium, name)
                    assert raised.value.sent is False
                    assert_ours(raised.value)

        asyncio.run(main())


def test_a_silent_server_ends_at_the_deadline() -> None:
    with pytest.raises(TransportError, match=r"within 0\.2 s") as raised:
        against(RawServer(ending="silence"), lambda lium: lium.delete_pod("p"), timeout_s=0.2)
    assert raised.value.sent
    assert_ours(raised.value)


BROKEN_BODIES = {
    "broken off": RawServer(raw(200, b'[{"id": "a"}', length=500)),
    "too slow": RawServer(raw(200, b'[{"id": "a"}', length=500), ending="silence"),
}


@pytest.mark.parametrize("way", BROKEN_BODIES)
def test_half_a_list_is_no_list(way: str) -> None:
    with pytest.raises(TransportError, match="incomplete"):
        against(BROKEN_BODIES[way], lambda lium: lium.pods(attempts=1), timeout_s=0.3)


@pytest.mark.parametrize("name", sorted(DELETES))
def test_a_status_counts_even_if_its_body_breaks_off(name: str) -> None:
    assert against(RawServer(raw(200, b"{", length=500)), CALLS[name]) is Deletion.ACCEPTED


def test_a_taken_rent_whose_body_breaks_off_is_an_answer_without_a_pod() -> None:
    answer = against(RawServer(raw(200, b'{"pod_id": "p', length=500)), CALLS["rent"])
    assert answer.pod_id is None  # type: ignore[attr-defined]


def test_a_created_template_whose_body_breaks_off_may_exist() -> None:
    with pytest.raises(MalformedAnswerError, match="incomplete"):
        against(RawServer(raw(201, b'{"id": "t', length=500)), CALLS["create_template"])


@pytest.mark.parametrize("ending", ["close", "silence"])
def test_f4_a_refusal_whose_body_breaks_off_shows_its_status(ending: str) -> None:
    server = RawServer(raw(402, b'{"error": {"code": "API_KEY', length=500), ending=ending)
    with pytest.raises(BudgetError, match="402"):
        against(server, CALLS["rent"], timeout_s=0.3)


def test_f4_a_proxys_page_shows_its_title() -> None:
    page = b"<html><head><title>502 Bad Gateway</title></head></html>"
    with pytest.raises(ServerError, match="502 Bad Gateway"):
        against(RawServer(raw(502, page, content_type="text/html")), CALLS["rent"])


def test_a_compressed_body_that_is_none_is_no_list() -> None:
    answer = raw(200, b"not gzip").replace(b"Content-Type", b"Content-Encoding: gzip\r\nContent-Type")
    with pytest.raises(TransportError, match="incomplete"):
        against(RawServer(answer), lambda lium: lium.pods(attempts=1))


@pytest.mark.parametrize("coding", ["gzip, gzip", "gzip\r\nContent-Encoding: gzip", "br", "zstd", "deflate,gzip"])
def test_what_is_compressed_twice_or_in_another_way_is_not_even_read(coding: str) -> None:
    """Sixteen nested megabytes are some fifty bytes, and a few hundred would fill the memory."""
    body = gzip.compress(gzip.compress(bytes(16 << 20)))
    answer = raw(200, body).replace(b"Content-Type", f"Content-Encoding: {coding}\r\nContent-Type".encode())
    tracemalloc.start()
    try:
        with pytest.raises(MalformedAnswerError, match="its Content-Encoding is not read"):
            against(RawServer(answer), lambda lium: lium.pods(attempts=1))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("DEFLATE", zlib.compress)])
def test_what_is_compressed_once_is_read(coding: str, compress: Callable[[bytes], bytes]) -> None:
    answer = raw(200, compress(b"[]")).replace(b"Content-Type", f"Content-Encoding: {coding}\r\nContent-Type".encode())
    assert against(RawServer(answer), lambda lium: lium.pods(attempts=1)) == ()


def test_an_endless_body_is_cut() -> None:
    size = transport_module.MAX_BODY + 1
    with pytest.raises(MalformedAnswerError, match="longer"):
        against(RawServer(raw(200, b" " * size)), lambda lium: lium.pods(attempts=1), timeout_s=20)


def redirect(status: int, location: str | None) -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n"
    return (head + (f"Location: {location}\r\n" if location is not None else "") + "\r\n").encode()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("name", ["pods", "rent"])
def test_the_key_never_goes_to_another_origin(status: int, name: str) -> None:
    async def main() -> None:
        elsewhere = RawServer(raw(200, b"[]"))
        async with elsewhere.running():
            for location in (
                f"http://127.0.0.1:{elsewhere.port}/api/pods",
                f"//127.0.0.1:{elsewhere.port}/",
                f"http://localhost:{elsewhere.port}/",
                "https://evil.example/api",
                "ftp://evil.example/",
                "http://user:CANARY@evil.example/",
                None,
            ):
                server = RawServer(redirect(status, location))
                async with server.running(), LiumClient(server.base, KEY, environ={}) as lium:
                    with pytest.raises(RedirectError) as raised:
                        await one(lium, name)
                    assert "CANARY" not in str(raised.value)
                assert len(server.requests) == 1
        assert elsewhere.requests == []

    asyncio.run(main())


@pytest.mark.parametrize("location", ["http://[::1", "http://x:port/", "\\\\evil"])
def test_a_redirect_to_nowhere_is_an_error_of_ours(location: str) -> None:
    with pytest.raises(LiumError) as raised:
        against(RawServer(redirect(307, location), redirect(307, location)), CALLS["rent"])
    assert_ours(raised.value)


def test_a_redirect_at_home_is_followed() -> None:
    server = RawServer(redirect(307, "/api/other?x=1"), raw(200, b"[]"))
    assert against(server, lambda lium: lium.pods(attempts=1)) == ()
    assert server.requests[1].startswith(b"GET /api/other?x=1 ")


def test_a_redirected_write_stays_what_it_was() -> None:
    server = RawServer(redirect(308, "/api/there"), raw(200, b'{"pod_id": "%s"}' % POD.encode()))
    answer = against(server, CALLS["rent"])
    assert answer.pod_id == POD  # type: ignore[attr-defined]
    assert server.requests[1].startswith(b"POST /api/there ")
    assert b"idempotency-key: key" in server.requests[1].lower()


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_write_is_not_turned_into_a_read(status: int) -> None:
    server = RawServer(redirect(status, "/api/there"), raw(200, b"{}"))
    with pytest.raises(RedirectError, match="turn a write into a read"):
        against(server, CALLS["delete_pod"])
    assert len(server.requests) == 1


def test_a_circle_of_redirects_ends() -> None:
    server = RawServer(redirect(307, "/api/pods"))
    with pytest.raises(RedirectError, match="5 hops"):
        against(server, lambda lium: lium.pods(attempts=1))
    assert len(server.requests) == 6


def test_a_hundred_at_once_get_their_answers() -> None:
    async def many(lium: LiumClient) -> list[object]:
        return list(await asyncio.gather(*(lium.delete_pod(f"p{number}") for number in range(100))))

    assert against(RawServer(raw(200, b"{}")), many) == [Deletion.ACCEPTED] * 100


def test_a_certificate_that_nobody_vouches_for_is_refused() -> None:
    # A server that doesn't speak TLS at all stands for every failed handshake: nothing has left by then.
    async def main() -> None:
        server = RawServer(b"HTTP/1.1 200 OK\r\n\r\n")
        async with server.running():
            base = server.base.replace("http://", "https://")
            async with LiumClient(base, KEY, environ={}, timeout_s=2.0) as lium:
                with pytest.raises(TransportError) as raised:
                    await lium.delete_pod("p")
                assert raised.value.sent is False
                assert_ours(raised.value)

    asyncio.run(main())


BAD_BASES = {
    "http://lium.io/api": "plain http to lium.io",
    "http://10.0.0.1/api": "plain http to 10.0.0.1",
    "http://localhost.evil.example/api": "plain http",
    "http://127.0.0.1.evil.example/api": "plain http",
    "ftp://lium.io/api": "https://",
    "lium.io/api": "https://",
    "": "https://",
    "https://": "https://",
    "https://user:CANARY@lium.io/api": "user name",
    "https://lium.io/api?key=CANARY": "must not contain",
    "https://lium.io/api#x": "must not contain",
    "https://lium.io:port/api": "not a valid address",
    "https://[::1/api": "not a valid address",
}


@pytest.mark.parametrize("base", BAD_BASES)
def test_an_address_that_would_be_unsafe_is_refused(base: str) -> None:
    with pytest.raises(LiumConfigError, match=BAD_BASES[base]) as raised:
        LiumClient(base, KEY, environ={})
    assert "CANARY" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "base",
    [
        "https://lium.io/api",
        "https://lium.io:8443/api/",
        "http://localhost:8000/api",
        "http://[::1]:8000/api",
    ],
)
def test_a_usable_address(base: str) -> None:
    assert checked_base_url(base).geturl() == base.rstrip("/")


@pytest.mark.parametrize("key", ["sk_a\nX-Evil: 1", "sk_ä", "sk a", "sk_a\x00"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(LiumConfigError, match="characters that no key has") as raised:
        LiumClient("https://lium.io/api", key, environ={})
    assert key not in str(raised.value)


def test_loopback_is_judged_by_the_name_alone() -> None:
    assert is_loopback("127.8.9.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("lium.io")


PROXIES: list[tuple[str, dict[str, str], str | None]] = [
    ("https://lium.io/api", {}, None),
    ("https://lium.io/api", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
    ("https://lium.io/api", {"https_proxy": "http://p:1"}, "http://p:1"),
    ("https://lium.io/api", {"ALL_PROXY": "http://p:2"}, "http://p:2"),
    ("https://lium.io/api", {"HTTP_PROXY": "http://p:3"}, None),
    (
        "http://127.0.0.1:8000/api",
        {"HTTP_PROXY": "http://p:3", "HTTPS_PROXY": "http://p:1", "ALL_PROXY": "x"},
        None,
    ),
    ("https://lium.io/api", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other.example, .lium.io"}, None),
    ("https://eu.lium.io/api", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "lium.io"}, None),
    ("https://evillium.io/api", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "lium.io"}, "http://p:1"),
    ("https://lium.io/api", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, None),
    ("https://lium.io:8443/api", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "lium.io:8443"}, None),
    ("https://lium.io:8443/api", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "lium.io:443"}, "http://p:1"),
]


@pytest.mark.parametrize(("base", "environ", "proxy"), PROXIES)
def test_proxies_see_tunnels_and_never_the_key(base: str, environ: dict[str, str], proxy: str | None) -> None:
    assert proxy_for(checked_base_url(base), environ) == proxy


def test_through_a_proxy_only_a_tunnel_is_asked_for() -> None:
    async def main() -> None:
        proxy = RawServer(b"HTTP/1.1 502 no\r\nContent-Length: 0\r\n\r\n")
        async with proxy.running():
            environ = {"HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}"}
            async with LiumClient("https://lium.invalid/api", KEY, environ=environ) as lium:
                with pytest.raises(TransportError) as raised:
                    await lium.delete_pod("p")
                assert_ours(raised.value)
        assert proxy.requests[0].startswith(b"CONNECT lium.invalid:443 ")
        assert b"CANARY" not in proxy.requests[0]

    asyncio.run(main())


def test_a_proxy_that_cannot_be_used_is_a_setting_to_mend() -> None:
    async def main() -> None:
        environ = {"HTTPS_PROXY": "gopher://user:CANARY@p:1"}
        async with LiumClient("https://lium.invalid/api", KEY, environ=environ) as lium:
            with pytest.raises(LiumConfigError, match="HTTPS_PROXY") as raised:
                await lium.delete_pod("p")
        assert "CANARY" not in "".join(traceback.format_exception(raised.value))

    asyncio.run(main())


def test_the_trust_of_plain_http_is_empty() -> None:
    lium = LiumClient("http://127.0.0.1:1/api", KEY, environ={})
    client = lium._transport._new_client()
    assert isinstance(lium._transport._tls, ssl.SSLContext)
    assert lium._transport._tls.cert_store_stats()["x509"] == 0
    asyncio.run(client.aclose())


def test_errors_have_one_base() -> None:
    assert issubclass(TransportError, LiumError)
    assert issubclass(LiumConfigError, ValueError)
