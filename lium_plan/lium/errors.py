"""What can go wrong when talking to Lium, as exceptions that callers may tell apart.

    LiumError                    every answer that isn't 2xx; also the common base
    ├── AuthError                401
    ├── BudgetError              402
    ├── PermissionError_         403
    │   ├── ScopeError           403, the key lacks a scope
    │   └── InsufficientBalanceError   403, the account's money doesn't suffice
    ├── NotFoundError            404, 410
    ├── ConflictError            409
    ├── ValidationError          422
    ├── RateLimitedError         429
    ├── ServerError              5xx
    ├── RedirectError            3xx that may not be followed
    ├── TransportError           no answer at all (status 0)
    └── MalformedAnswerError     2xx, but the body can't be used
    LiumConfigError              our own settings are wrong (a ValueError, nothing was sent)

Owns the tree, the choice of class and what a refused rent means (`classify_refusal`). Refuses to know httpx: none
of its exceptions gets past `transport.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from http import HTTPStatus

from lium_plan.lium.envelope import Envelope
from lium_plan.lium.fields import as_decimal

NO_STATUS = 0
"""The `status` of an error for which there was no answer."""


class LiumConfigError(ValueError):
    """A setting that can't be used (address, key, proxy). Its text never contains the value of a secret."""


class LiumError(Exception):
    """A request that didn't succeed.

    `operation` is method and path (`POST /templates`), `code` the server's slug or None, `message` the server's words
    with every secret of the request struck out, `hint` its advice, `request_id` what support asks for, `data` further
    fields of the refusal (contract §1.3), `replayed` whether it is a stored answer to an earlier request with the same
    idempotency key (contract §1.7).
    """

    def __init__(
        self,
        status: int,
        code: str | None = None,
        message: str = "Request failed",
        hint: str | None = None,
        request_id: str | None = None,
        data: Mapping[str, object] | None = None,
        *,
        operation: str = "",
        replayed: bool = False,
        structured: bool = False,
    ) -> None:
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.request_id = request_id
        self.data: Mapping[str, object] = data or {}
        self.operation = operation
        self.replayed = replayed
        self.structured = structured
        """The body was a JSON object, as the server's own refusals are and a proxy's page is not."""
        self.retry_after_s: float | None = None
        """What the answer's `Retry-After` asks for, 0 to 60; None without a usable one."""
        super().__init__(self._text())

    def _text(self) -> str:
        where = f"{self.operation}: " if self.operation else ""
        tail = [f"code {self.code}"] if self.code else []
        if self.request_id:
            tail.append(f"request {self.request_id}")
        return f"{where}{_status_words(self.status)}{self.message}" + (f" ({', '.join(tail)})" if tail else "")

    @property
    def reason(self) -> str:
        """As `str` has it, with the server's words first: what is cut off then is the request, not the reason."""
        status = _status_words(self.status).removesuffix(": ")
        tail = (
            *([status] if status else []),
            *([f"code {self.code}"] if self.code else []),
            *([f"request {self.request_id}"] if self.request_id else []),
            *([self.operation] if self.operation else []),
        )
        return self.message + (f" ({', '.join(tail)})" if tail else "")

    @property
    def broken_pod_id(self) -> str | None:
        """The broken pod that blocks the node, when the refusal names one (contract §2.4.4)."""
        found = _BROKEN_POD.search(self.message)
        return found.group(1).lower() if found else None

    @property
    def decided_after_lookup(self) -> bool:
        """True when the server looked the idempotency key up, found nothing running under it and then said no.

        Only such a refusal of a repeated rent proves that the first one made nothing. 401, 402, 403, 408, 429, 5xx and
        `idempotency_*` are answered before or instead of that (contract §1.7), and so is a page of something between
        us and the server. A stored refusal (`replayed`) was decided when it was stored.
        """
        if self.status not in _DEFINITE_STATUSES or (self.code or "").startswith("idempotency_"):
            return self.replayed and self.status in _REPLAYABLE_STATUSES and not _is_idempotency(self.code)
        if self.replayed:
            return True
        return self.structured and (self.status != HTTPStatus.NOT_FOUND or self.code is not None)


class AuthError(LiumError):
    """401: the key is missing, unknown, expired or revoked."""


class BudgetError(LiumError):
    """402: the key's spending limit is reached."""

    @property
    def window(self) -> str | None:
        """`daily`, `monthly` or `max`."""
        found = self.data.get("window")
        return found if isinstance(found, str) else None

    @property
    def budget_usd(self) -> Decimal | None:
        return as_decimal(self.data.get("budget_usd"))

    @property
    def spent_usd(self) -> Decimal | None:
        return as_decimal(self.data.get("spent_usd"))


class PermissionError_(LiumError):
    """403 for any other reason: not the owner, account not verified, blocked by the edge."""


class ScopeError(PermissionError_):
    """403: the key lacks a scope. `scope` is its name where the server says it."""

    @property
    def scope(self) -> str | None:
        found = _SCOPE.search(self.message)
        return found.group(1) if found else None


class InsufficientBalanceError(PermissionError_):
    """403: the account's balance doesn't cover 15 minutes of what runs and this rent (contract §2.4.3)."""

    @property
    def required_usd(self) -> Decimal | None:
        """What the account must hold, where the server says it."""
        return _amount(_REQUIRED, self.message)

    @property
    def available_usd(self) -> Decimal | None:
        """What it holds."""
        return _amount(_AVAILABLE, self.message)


class NotFoundError(LiumError):
    """404 or 410: there is no such thing (any more)."""


class ConflictError(LiumError):
    """409: not in this state."""


class ValidationError(LiumError):
    """422: the request's shape is wrong."""


class RateLimitedError(LiumError):
    """429: not executed, may be repeated after `retry_after_s`, or after a while of our own choice."""


class ServerError(LiumError):
    """5xx: for a write nobody knows whether it was carried out."""


class RedirectError(LiumError):
    """3xx that leads elsewhere, in circles, or would change a write into something else. It wasn't followed."""


class TransportError(LiumError):
    """No answer. `sent` is False only when it is certain that nothing of the request left this machine."""

    def __init__(self, message: str, *, sent: bool, operation: str = "") -> None:
        self.sent = sent
        super().__init__(NO_STATUS, message=message, operation=operation)


class MalformedAnswerError(LiumError):
    """2xx with a body that can't be used. What was asked for may have been done."""


def error_from(envelope: Envelope, *, operation: str) -> LiumError:
    """The exception for an answer that isn't 2xx. Never raises."""
    error = _class_for(envelope)(
        envelope.status,
        envelope.code,
        envelope.message,
        envelope.hint,
        envelope.request_id,
        envelope.data,
        operation=operation,
        replayed=envelope.replayed,
        structured=envelope.structured,
    )
    error.retry_after_s = envelope.retry_after_s
    return error


def _class_for(envelope: Envelope) -> type[LiumError]:
    status, code = envelope.status, (envelope.code or "").lower()
    if status == HTTPStatus.FORBIDDEN:
        text = envelope.message.lower()
        if code in _SCOPE_CODES or _SCOPE.search(envelope.message):
            return ScopeError
        if code == "insufficient_balance" or (not code and "insufficient balance" in text):
            return InsufficientBalanceError
        return PermissionError_
    if 500 <= status < 600:
        return ServerError
    if 300 <= status < 400:
        return RedirectError
    return _CLASSES.get(status, LiumError)


class Refusal(StrEnum):
    """What a failed rent means for the one who asked."""

    CAPACITY = "capacity"
    """The node can't or won't: take the next offer with a new key."""
    BROKEN_POD = "broken_pod"
    """As capacity; the account's broken pod (`LiumError.broken_pod_id`) must be deleted before the node is free."""
    VOLUME_BUSY = "volume_busy"
    """The volume is still attached elsewhere: wait, no other node helps."""
    CONFIG = "config"
    """The request itself is wrong and will be everywhere."""
    TEMPLATE_NOT_FOUND = "template_not_found"
    FATAL_BALANCE = "fatal_balance"
    FATAL_BUDGET = "fatal_budget"
    FATAL_PERMISSION = "fatal_permission"
    RATE_LIMITED = "rate_limited"
    """Not executed: the same key and body again, later."""
    IDEMPOTENCY_PENDING = "idempotency_pending"
    """The first request with this key is still running."""
    IDEMPOTENCY_UNKNOWN = "idempotency_unknown"
    """The server lost track of the first request with this key."""
    IDEMPOTENCY_REUSED = "idempotency_reused"
    """The key was used with another body: a bug of ours."""
    NOT_SENT = "not_sent"
    """It certainly never left this machine: nothing came of it."""
    UNKNOWN = "unknown"
    """5xx, 408, redirect, unusable or no answer: nobody knows whether there is a pod."""


def classify_refusal(error: LiumError) -> Refusal:
    """What a failed rent means (contract §2.4.4, §9.1, §14). Total; anything without a clear meaning is UNKNOWN."""
    status, code = error.status, (error.code or "").lower()
    if isinstance(error, TransportError) and not error.sent:
        return Refusal.NOT_SENT
    if status < 400 or status >= 500 or status == HTTPStatus.REQUEST_TIMEOUT:
        return Refusal.UNKNOWN
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return Refusal.RATE_LIMITED
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status == HTTPStatus.FORBIDDEN:
        poor = isinstance(error, InsufficientBalanceError) or code == "insufficient_balance"
        return Refusal.FATAL_BALANCE if poor else Refusal.FATAL_PERMISSION
    return _by_words(status, code, error.message.lower())


def _by_words(status: int, code: str, message: str) -> Refusal:
    """The refusals of a rent for which no code is known: what the text says decides."""
    words = f"{code.replace('_', ' ')} {message}"
    if "broken pod" in words:
        return Refusal.BROKEN_POD
    if "volume" in words and "encrypt" not in words:
        if any(word in words for word in _BUSY_WORDS):
            return Refusal.VOLUME_BUSY
        return Refusal.CONFIG
    if "gpu splitting" in words:
        return Refusal.CAPACITY
    if status == HTTPStatus.NOT_FOUND and "template" in words:
        return Refusal.TEMPLATE_NOT_FOUND
    if status == HTTPStatus.NOT_FOUND and re.search(r"\b(node|executor)\b", words):
        return Refusal.CAPACITY
    if status == HTTPStatus.CONFLICT:
        return Refusal.CAPACITY
    return Refusal.CONFIG


def _amount(pattern: re.Pattern[str], text: str) -> Decimal | None:
    found = pattern.search(text)
    return as_decimal(found.group(1).replace(",", "").rstrip(".")) if found else None


def _is_idempotency(code: str | None) -> bool:
    return (code or "").startswith("idempotency_")


def _status_words(status: int) -> str:
    if status == NO_STATUS:
        return ""
    try:
        return f"{status} {HTTPStatus(status).phrase}: "
    except ValueError:
        return f"{status}: "


_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_BROKEN_POD = re.compile(rf"broken pod \(?({_UUID})\)?", re.IGNORECASE)
_SCOPE = re.compile(r"does not have the '([^']{1,40})' scope")
_REQUIRED = re.compile(r"requires at least \$([0-9][0-9.,]{0,20})")
_AVAILABLE = re.compile(r"balance is \$([0-9][0-9.,]{0,20})")
_SCOPE_CODES = frozenset({"api_key_scope", "missing_scope", "insufficient_scope", "scope_required"})
_DEFINITE_STATUSES = frozenset({400, 404, 409, 422})
_REPLAYABLE_STATUSES = frozenset({400, 401, 402, 403, 404, 409, 422})
_BUSY_WORDS = ("in use", "attached", "busy", "another pod", "used by", "already")
_CLASSES: Mapping[int, type[LiumError]] = {
    401: AuthError,
    402: BudgetError,
    404: NotFoundError,
    410: NotFoundError,
    409: ConflictError,
    422: ValidationError,
    429: RateLimitedError,
}
_BY_STATUS: Mapping[int, Refusal] = {
    401: Refusal.FATAL_PERMISSION,
    402: Refusal.FATAL_BUDGET,
}
_BY_CODE: Mapping[str, Refusal] = {
    **dict.fromkeys(
        (
            "node_not_found",
            "node_rent_in_progress",
            "node_not_verified",
            "node_unavailable",
            "node_paused_by_provider",
            "provider_banned",
            "node_below_bandwidth_floor",
            "gpu_count_invalid",
            "gpu_split_not_allowed",
            "no_executor_matches_spec",
        ),
        Refusal.CAPACITY,
    ),
    **dict.fromkeys(("template_invalid", "ttl_invalid", "validation_error"), Refusal.CONFIG),
    "template_not_found": Refusal.TEMPLATE_NOT_FOUND,
    "insufficient_balance": Refusal.FATAL_BALANCE,
    "api_key_budget_exceeded": Refusal.FATAL_BUDGET,
    "account_not_verified": Refusal.FATAL_PERMISSION,
    "idempotency_in_progress": Refusal.IDEMPOTENCY_PENDING,
    "idempotency_outcome_unknown": Refusal.IDEMPOTENCY_UNKNOWN,
    "idempotency_key_reused": Refusal.IDEMPOTENCY_REUSED,
}
