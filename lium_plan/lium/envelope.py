"""Reading a refusal: any status, any headers, any bytes -> code, words, hint, request id, data (contract §1.3).

Total: whatever comes in, an `Envelope` comes out. Owns striking secrets out of the server's words, and their bound in
size. Refuses to decide what a refusal means: that is `errors.py`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote

MAX_ERROR_BODY = 1 << 20
MAX_TEXT = 600
MAX_SHORT = 120
MAX_RETRY_AFTER_S = 60.0
_MAX_ITEMS = 20
_MAX_DEPTH = 4
_DEFAULT_MESSAGE = "Request failed"


@dataclass(frozen=True, slots=True)
class Envelope:
    """One refusal, read. Strings are bounded, printable and free of the secrets that were named."""

    status: int
    code: str | None = None
    message: str = _DEFAULT_MESSAGE
    hint: str | None = None
    request_id: str | None = None
    data: Mapping[str, object] = field(default_factory=dict)
    retry_after_s: float | None = None
    """What `Retry-After` asks for, 0 to 60; None without a usable one."""
    replayed: bool = False
    """`Idempotent-Replayed: true`: a stored answer (contract §1.7)."""
    structured: bool = False
    """The body was a JSON object."""


def read_envelope(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    secrets: Iterable[str] = (),
    now: datetime | None = None,
) -> Envelope:
    """Read any answer that isn't 2xx. `headers` have lower-case names; `now` serves dates in `Retry-After`."""
    scrub = Scrubber(secrets)
    text = body[:MAX_ERROR_BODY].decode("utf-8", errors="replace")
    parsed = _parse(text)
    request_header = scrub.short(headers.get("x-request-id"))
    retry_after_s = read_retry_after(headers.get("retry-after"), date=headers.get("date"), now=now)
    replayed = is_replayed(headers)
    if not isinstance(parsed, dict):
        words = parsed if isinstance(parsed, str) else _plain(text, headers.get("content-type", ""))
        return Envelope(
            status=status,
            message=scrub.text(words) or _DEFAULT_MESSAGE,
            request_id=request_header,
            retry_after_s=retry_after_s,
            replayed=replayed,
        )
    inner = _mapping(parsed.get("error"))
    return Envelope(
        status=status,
        code=scrub.short(_string(inner.get("code")) or _string(parsed.get("code"))),
        message=scrub.text(_message(parsed)) or _DEFAULT_MESSAGE,
        hint=scrub.text(_string(inner.get("hint")) or _string(parsed.get("hint"))) or None,
        request_id=scrub.short(_string(inner.get("request_id"))) or request_header,
        data=_data(parsed, inner, scrub),
        retry_after_s=retry_after_s,
        replayed=replayed,
        structured=True,
    )


def is_replayed(headers: Mapping[str, str]) -> bool:
    """Whether an answer is a stored one."""
    return headers.get("idempotent-replayed", "").strip().lower() == "true"


def read_retry_after(value: str | None, *, date: str | None = None, now: datetime | None = None) -> float | None:
    """Seconds to wait, 0 to 60. Seconds or an HTTP date (relative to the answer's `Date`, else to `now`)."""
    text = (value or "").strip()[:64]
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        moment, base = _http_date(text), _http_date(date or "") or now
        if moment is None or base is None:
            return None
        seconds = (moment - base).total_seconds()
    if seconds != seconds:
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


def _http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def read_date(headers: Mapping[str, str]) -> datetime | None:
    """The moment in the `Date` header, aware; None without a usable one."""
    moment = _http_date(headers.get("date", "")[:64])
    return moment if moment is not None and 2000 <= moment.year < 2200 else None


class Scrubber:
    """Makes the server's words fit to be shown: no secret, no control character, no novel."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if secret for form in _forms(secret)}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._secrets = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, value: str | None, limit: int = MAX_TEXT) -> str:
        """One bounded line. Secrets go first: cutting first could leave the half of one."""
        if not value:
            return ""
        clean = self._secrets.sub("***", value) if self._secrets else value
        clean = _USERINFO.sub(r"\1***@", clean[: limit * 20])
        clean = " ".join(_CONTROL.sub(" ", clean).split())
        return clean if len(clean) <= limit else clean[: limit - 1] + "…"

    def short(self, value: str | None) -> str | None:
        """A slug or an id, or None."""
        return self.text(value, MAX_SHORT) or None

    def value(self, value: object, depth: int = 0) -> object:
        """Any JSON value, bounded in depth and width."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            if depth >= _MAX_DEPTH:
                return {}
            items = list(value.items())[:_MAX_ITEMS]
            return {self.text(str(key), MAX_SHORT): self.value(item, depth + 1) for key, item in items}
        if isinstance(value, list):
            return [self.value(item, depth + 1) for item in value[:_MAX_ITEMS]] if depth < _MAX_DEPTH else []
        return value


def _forms(secret: str) -> Iterable[str]:
    """A secret as it may be echoed: plain, JSON-escaped, percent-encoded, base64."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield quote(secret, safe="", errors="surrogatepass")
    yield base64.b64encode(secret.encode("utf-8", errors="surrogatepass")).decode()


def _parse(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _plain(text: str, content_type: str) -> str:
    """The words of a body that isn't JSON: a page's title, else its text."""
    head = text[:16384]
    if "html" not in content_type.lower() and not head.lstrip()[:15].lower().startswith(("<!doctype", "<html")):
        return head
    title = _TITLE.search(head)
    if title and title.group(1).strip():
        return title.group(1)
    return _TAG.sub(" ", _SCRIPT.sub(" ", head))


def _message(body: Mapping[str, object]) -> str:
    """The words by contract §1.3 rule 3, a to d."""
    top, detail = body.get("message"), body.get("detail")
    problems = body.get("validation_errors")
    if isinstance(problems, list) and problems:
        listed = "; ".join(filter(None, map(_problem, problems[:_MAX_ITEMS])))
        return f"{top}: {listed}" if isinstance(top, str) and top else listed
    if isinstance(detail, list) and detail:
        return _problem(detail[0])
    for value in (detail, top):
        words = _mapping(value)
        if words:
            text = _string(words.get("message")) or _string(words.get("msg")) or _dump(words)
            operation = _string(words.get("active_operation_id"))
            return f"{text} (active operation: {operation})" if operation else text
    inner = body.get("error")
    return (
        _string(detail) or _string(top) or _string(_mapping(inner).get("message")) or _string(inner) or _DEFAULT_MESSAGE
    )


def _problem(item: object) -> str:
    """One entry of a validation report: `field: message`."""
    if isinstance(item, str):
        return item
    entry = _mapping(item)
    words = _string(entry.get("message")) or _string(entry.get("msg")) or ""
    place = entry.get("field")
    if place is None and isinstance(entry.get("loc"), list):
        place = ".".join(str(part) for part in entry["loc"] if part not in ("body", "query", "path"))  # type: ignore[attr-defined]
    return f"{place}: {words}" if place else words


def _data(body: Mapping[str, object], inner: Mapping[str, object], scrub: Scrubber) -> Mapping[str, object]:
    """Structured facts by contract §1.3 rule 2."""
    for value in (inner.get("data"), body.get("message"), body.get("detail")):
        if isinstance(value, dict) and value:
            clean = scrub.value(value)
            return clean if isinstance(clean, dict) else {}
    return {}


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _dump(value: Mapping[str, object]) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[: MAX_TEXT * 4]


_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}://)[^\s/]{1,512}@")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,500})<", re.IGNORECASE)
_SCRIPT = re.compile(r"<(script|style)\b.*?</\1\s*>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]{0,300}>")
