"""One HTTP exchange: a request goes out, an `Answer` or a `TransportError` comes back. The only place that knows httpx.

Owns connections, proxies, deadlines, same-origin redirects, the bound on a body's size and the key's header. Refuses to
read bodies, to repeat anything, and to let an exception of httpx out, also as `__cause__` or `__context__`: those carry
the request with its headers.

Proxies: the environment's (`HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`) are used for https, where they see only a
tunnel, and never for plain http, where they would see the key. `SSL_CERT_FILE` and `SSL_CERT_DIR` are honoured;
`.netrc` is not.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit

import httpx

from lium_plan.lium.envelope import MAX_ERROR_BODY
from lium_plan.lium.errors import LiumConfigError, RedirectError, TransportError
from lium_plan.turns import Turns

AsyncTransport = httpx.AsyncBaseTransport
"""What may stand in for the network, e.g. `httpx.ASGITransport` of an application in process."""

MAX_BODY = 64 << 20
MAX_HOPS = 5
CONNECTIONS_PER_CLIENT = 10
# httpx spends more and more time per request beyond some 50 in flight on one client, so several small ones share.
MAX_CLIENTS = 8
# Shorter than any server's keep-alive we know: a reused connection that dies under a write costs an unknown outcome.
KEEPALIVE_S = 3.0
CONNECT_TIMEOUT_S = 10.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEEPS_METHOD = frozenset({307, 308})
_READS = frozenset({"GET", "HEAD"})
_CODINGS = frozenset({"", "identity", "gzip", "deflate"})
"""What a body may be compressed with, and once only: a chunk of 64 KiB then grows to 64 MiB at most."""
_NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)


class Cut(Enum):
    """Why there is less of a body than there should be. The status counts all the same."""

    TOO_LONG = "longer than any answer should be"
    BROKEN_OFF = "the connection ended in the middle of it"
    TOO_SLOW = "the rest didn't come in time"
    ENCODED = "its Content-Encoding is not read"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whatever its status. Header names are lower-case; times are the event loop's."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    cut: Cut | None
    """Why the body is incomplete, None when it is whole."""
    sent_at: float
    answered_at: float


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What to send. `path` is relative to the base address and already percent-encoded."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = field(default=None, repr=False)
    with_key: bool = True

    @property
    def operation(self) -> str:
        return f"{self.method} /{self.path}"


class _KeyHeader(httpx.Auth):
    """Adds the key at the last moment, so that no mapping of headers in our frames holds it."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __repr__(self) -> str:
        return "<key>"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["X-API-KEY"] = self._key
        yield request


def checked_base_url(base_url: str, *, networked: bool = True) -> SplitResult:
    """The parts of a usable base address; LiumConfigError for any other.

    Plain http is for this machine only, or for no network at all (`networked` False).
    """
    try:
        parts = urlsplit(base_url.strip().rstrip("/"))
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise LiumConfigError("LIUM_BASE_URL is not a valid address; it looks like https://lium.io/api") from None
    if parts.scheme not in ("https", "http") or not host:
        raise LiumConfigError("LIUM_BASE_URL must be an https:// address, like https://lium.io/api")
    if parts.username is not None or parts.password is not None:
        raise LiumConfigError("LIUM_BASE_URL must not contain a user name or password; the key goes in LIUM_API_KEY")
    if parts.query or parts.fragment:
        raise LiumConfigError("LIUM_BASE_URL must not contain `?` or `#`")
    if parts.scheme == "http" and networked and not is_loopback(host):
        raise LiumConfigError(
            f"LIUM_BASE_URL uses plain http to {host}, which would send the API key unencrypted;"
            " use https:// (plain http is for this machine only)"
        )
    return parts


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name alone, without a look-up that could be answered by others."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def proxy_for(parts: SplitResult, environ: Mapping[str, str]) -> str | None:
    """The environment's proxy for an address; None for plain http and where `NO_PROXY` says so."""
    if parts.scheme != "https":
        return None
    lower = {name.lower(): value for name, value in environ.items() if name.lower().endswith("_proxy") and value}
    proxies = {name.removesuffix("_proxy"): value for name, value in lower.items()}
    if _goes_direct(parts, proxies.get("no", "")):
        return None
    return proxies.get("https") or proxies.get("all")


def _goes_direct(parts: SplitResult, no_proxy: str) -> bool:
    """Whether `NO_PROXY` names the host, one of its parent domains, or everything."""
    host = (parts.hostname or "").lower()
    for entry in no_proxy.lower().split(","):
        name = entry.strip().removeprefix("*").removeprefix(".")
        if entry.strip() == "*" or (
            name and (host == name or host.endswith(f".{name}") or name == f"{host}:{parts.port or 443}")
        ):
            return True
    return False


class Transport:
    """Connections to one base address. An async context manager; not to be shared between event loops."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        headers: Mapping[str, str],
        transport: AsyncTransport | None = None,
        timeout_s: float = 30.0,
        environ: Mapping[str, str],
    ) -> None:
        self._parts = checked_base_url(base_url, networked=transport is None)
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
            raise LiumConfigError("the API key contains characters that no key has; copy it again")
        self.base_url = self._parts.geturl()
        self._auth = _KeyHeader(api_key) if api_key else None
        self._headers = {"Accept-Encoding": "gzip", **headers}
        self._timeout_s = timeout_s
        self._given = transport
        self._proxy = None if transport is not None else proxy_for(self._parts, environ)
        self._tls: ssl.SSLContext | None = None
        self._clients: list[httpx.AsyncClient] = []
        self._in_use: list[int] = []
        self._free: asyncio.Semaphore | None = None
        self._closed = False
        self._turns = Turns()
        self.changes_sent = 0
        """Requests that may have changed something on the server, whatever became of their answers."""

    def __repr__(self) -> str:
        return f"<Transport to {self.base_url}>"

    async def send(self, request: Outgoing) -> Answer:
        """Send once; follow redirects that stay at the same origin.

        Raises TransportError without an answer, RedirectError for a redirect that may not be followed.
        """
        method, content = request.method, request.content
        url = f"{self.base_url}/{request.path}" + (f"?{urlencode(request.params)}" if request.params else "")
        for _ in range(MAX_HOPS + 1):
            answer = await self._exchange(request, method, url, content)
            if answer.status not in _REDIRECTS:
                return answer
            url = self._next_url(request, answer, url)
            if answer.status not in _KEEPS_METHOD and method not in _READS:
                raise self._redirected(request, answer, "would turn a write into a read")
        raise self._redirected(request, answer, f"goes on after {MAX_HOPS} hops")

    def _next_url(self, request: Outgoing, answer: Answer, url: str) -> str:
        target = url
        try:
            target = urljoin(url, answer.headers.get("location", ""))
            parts = urlsplit(target)
            same = _origin(parts) == _origin(self._parts) and "location" in answer.headers
            where = f"{parts.scheme}://{parts.hostname or '?'}"
        except ValueError:
            same, where = False, "an invalid address"
        if not same:
            raise self._redirected(request, answer, f"leads to {where[:100]!r}, and the key must not go there")
        return target

    def _redirected(self, request: Outgoing, answer: Answer, why: str) -> RedirectError:
        return RedirectError(
            answer.status,
            message=f"the server's redirect was not followed: it {why}",
            hint="check LIUM_BASE_URL",
            operation=request.operation,
        )

    async def _exchange(self, request: Outgoing, method: str, url: str, content: bytes | None) -> Answer:
        # The error is raised outside of `except`, so that httpx's exception, which holds the request and its headers,
        # stays out of __context__.
        try:
            return await self._attempt(request, method, url, content)
        except TimeoutError:
            failure = TransportError(
                f"no complete answer within {self._timeout_s:g} s", sent=True, operation=request.operation
            )
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ssl.SSLError, OSError) as error:
            failure = self._failure(request, error)
        except Exception as error:
            if self._given is None:
                raise
            # An application in process reports a dropped connection by raising.
            failure = self._failure(request, error)
        raise failure

    def _failure(self, request: Outgoing, error: Exception) -> TransportError:
        sent = not isinstance(error, _NOT_SENT)
        words = _cause_words(error)
        if sent:
            message = f"the connection to {self._parts.hostname} failed before the answer was complete ({words})"
        else:
            message = f"can't connect to {self._parts.hostname} ({words})"
        return TransportError(message, sent=sent, operation=request.operation)

    async def _attempt(self, request: Outgoing, method: str, url: str, content: bytes | None) -> Answer:
        loop = asyncio.get_running_loop()
        async with self._client() as client:
            deadline = loop.time() + self._timeout_s
            outgoing = client.build_request(
                method,
                url,
                content=content,
                headers={**self._headers, **request.headers},
                timeout=httpx.Timeout(self._timeout_s, connect=min(CONNECT_TIMEOUT_S, self._timeout_s / 2)),
            )
            sent_at = loop.time()
            self.changes_sent += method != "GET"
            auth = self._auth if request.with_key else None
            async with asyncio.timeout_at(deadline):
                response = await client.send(outgoing, stream=True, auth=auth)
            answered_at = loop.time()
            try:
                await self._turns.take()
                body, cut = await _read(response, deadline)
            finally:
                await response.aclose()
            client.cookies.clear()
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status_code, headers, body, cut, sent_at, answered_at)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        """The least busy client, a new one while all are full; waits when there are no connections left."""
        if self._closed:
            raise RuntimeError("the client is closed")
        if self._free is None:
            self._free = asyncio.Semaphore(MAX_CLIENTS * CONNECTIONS_PER_CLIENT)
        async with self._free:
            index = min(range(len(self._clients)), key=self._in_use.__getitem__, default=-1)
            if index < 0 or (self._in_use[index] >= CONNECTIONS_PER_CLIENT and self._given is None):
                self._clients.append(self._new_client())
                self._in_use.append(0)
                index = len(self._clients) - 1
            self._in_use[index] += 1
            try:
                yield self._clients[index]
            finally:
                self._in_use[index] -= 1

    def _new_client(self) -> httpx.AsyncClient:
        if self._given is not None:
            return httpx.AsyncClient(transport=self._given, trust_env=False, follow_redirects=False)
        if self._tls is None:
            https = self._parts.scheme == "https"
            # Plain http gets a context that trusts nobody: loading the certificates costs more than a request.
            self._tls = httpx.create_ssl_context() if https else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        limits = httpx.Limits(
            max_connections=CONNECTIONS_PER_CLIENT,
            max_keepalive_connections=CONNECTIONS_PER_CLIENT,
            keepalive_expiry=KEEPALIVE_S,
        )
        try:
            return httpx.AsyncClient(
                proxy=self._proxy,
                verify=self._tls,
                trust_env=False,
                follow_redirects=False,
                limits=limits,
            )
        except (ImportError, ValueError, httpx.InvalidURL):
            failure = LiumConfigError(
                "HTTPS_PROXY (or ALL_PROXY) names a proxy that can't be used; use an http:// proxy"
            )
        raise failure

    async def aclose(self) -> None:
        """Close every connection. Requests in flight fail."""
        self._closed = True
        clients, self._clients, self._in_use = self._clients, [], []
        for client in clients:
            await client.aclose()


async def _read(response: httpx.Response, deadline: float) -> tuple[bytes, Cut | None]:
    """The body as far as it came: once there is a status, no accident on the way may hide it."""
    if response.headers.get("content-encoding", "").strip().lower() not in _CODINGS:
        return b"", Cut.ENCODED
    chunks: list[bytes] = []
    size, cut = 0, None
    most = MAX_BODY if response.is_success else MAX_ERROR_BODY
    try:
        async with asyncio.timeout_at(deadline):
            async for chunk in response.aiter_bytes():
                chunks.append(chunk)
                size += len(chunk)
                if size > most:
                    cut = Cut.TOO_LONG
                    break
    except (TimeoutError, httpx.TimeoutException):
        cut = Cut.TOO_SLOW
    except (httpx.HTTPError, httpx.StreamError, OSError):
        cut = Cut.BROKEN_OFF
    return b"".join(chunks)[:most], cut


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or (443 if scheme == "https" else 80)


def _cause_words(error: Exception) -> str:
    """The kind of failure and the system's words; never a library's text that could quote a header."""
    for link in _chain(error):
        if isinstance(link, ssl.SSLCertVerificationError):
            return f"certificate not accepted: {link.verify_message}"
        if isinstance(link, OSError) and link.strerror:
            return link.strerror
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()


def _chain(error: BaseException | None) -> list[BaseException]:
    links: list[BaseException] = []
    while error is not None and len(links) < 10:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links
