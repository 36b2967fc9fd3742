"""Which exception, and what a refused rent means (contract §1.4, §2.4.4, §9.1, §14)."""

from __future__ import annotations

import json

import pytest

from lium_plan.lium.envelope import read_envelope
from lium_plan.lium.errors import (
    AuthError,
    BudgetError,
    ConflictError,
    InsufficientBalanceError,
    LiumError,
    MalformedAnswerError,
    NotFoundError,
    PermissionError_,
    RateLimitedError,
    RedirectError,
    Refusal,
    ScopeError,
    ServerError,
    TransportError,
    ValidationError,
    classify_refusal,
    error_from,
)

POD = "0b6f2a7e-4c1d-4e0f-9a3b-2d5e6f708192"


def refused(
    status: int,
    code: str | None = None,
    message: str = "no",
    *,
    replayed: bool = False,
    body: bytes | None = None,
) -> LiumError:
    error = {"code": code, "message": message, "hint": None, "request_id": "req-1"}
    full = {"success": False, "error": error, "message": message, "status_code": status}
    headers = {"idempotent-replayed": "true"} if replayed else {}
    envelope = read_envelope(status, headers, json.dumps(full).encode() if body is None else body)
    return error_from(envelope, operation="POST /executors/n/rent")


CLASSES = [
    (400, None, "x", LiumError),
    (401, None, "x", AuthError),
    (402, "API_KEY_BUDGET_EXCEEDED", "x", BudgetError),
    (403, "account_not_verified", "x", PermissionError_),
    (403, None, "API key 'ci' does not have the 'read' scope", ScopeError),
    (403, "missing_scope", "x", ScopeError),
    (403, "insufficient_balance", "x", InsufficientBalanceError),
    (403, None, "Insufficient balance", InsufficientBalanceError),
    (403, "other_code", "insufficient balance", PermissionError_),
    (404, None, "x", NotFoundError),
    (410, None, "x", NotFoundError),
    (409, None, "x", ConflictError),
    (422, None, "x", ValidationError),
    (429, None, "x", RateLimitedError),
    (500, None, "x", ServerError),
    (503, None, "x", ServerError),
    (304, None, "x", RedirectError),
    (408, None, "x", LiumError),
    (451, None, "x", LiumError),
]


@pytest.mark.parametrize(("status", "code", "message", "kind"), CLASSES)
def test_each_status_has_its_exception(status: int, code: str | None, message: str, kind: type[LiumError]) -> None:
    assert type(refused(status, code, message)) is kind


def test_the_missing_scope_is_named() -> None:
    error = refused(403, None, "API key 'ci' does not have the 'rent' scope")
    assert isinstance(error, ScopeError)
    assert error.scope == "rent"


def test_the_text_says_where_what_and_which_request() -> None:
    text = str(refused(404, "node_not_found", "Node not found"))
    assert text == "POST /executors/n/rent: 404 Not Found: Node not found (code node_not_found, request req-1)"
    assert str(refused(599, None, "odd")).startswith("POST /executors/n/rent: 599: odd")


def test_a_reason_begins_with_the_servers_words() -> None:
    told = refused(404, "node_not_found", "Node not found").reason
    assert told == "Node not found (404 Not Found, code node_not_found, request req-1, POST /executors/n/rent)"


CAPACITY = (
    (404, "node_not_found"),
    (400, "node_unavailable"),
    (400, "node_rent_in_progress"),
    (409, "node_rent_in_progress"),
    (409, "node_paused_by_provider"),
    (409, "provider_banned"),
    (400, "node_not_verified"),
    (400, "gpu_count_invalid"),
    (400, "gpu_split_not_allowed"),
    (400, "node_below_bandwidth_floor"),
    (409, "no_executor_matches_spec"),
    (409, None),
    (409, "some_new_code"),
)
MEANINGS = [
    *((status, code, "no", Refusal.CAPACITY) for status, code in CAPACITY),
    (400, None, "Provider doesn't allow GPU splitting.", Refusal.CAPACITY),
    (404, None, "Executor not found", Refusal.CAPACITY),
    (400, None, f"This node still has a broken pod ({POD}) that must be removed", Refusal.BROKEN_POD),
    (409, "node_has_broken_pod", "cannot rent", Refusal.BROKEN_POD),
    (409, None, "Volume is already attached to another pod", Refusal.VOLUME_BUSY),
    (400, "volume_in_use", "no", Refusal.VOLUME_BUSY),
    (404, "volume_not_found", "Volume not found", Refusal.CONFIG),
    (400, None, "Volume encryption is not supported by this template", Refusal.CONFIG),
    (404, "template_not_found", "no", Refusal.TEMPLATE_NOT_FOUND),
    (404, None, "Template not found", Refusal.TEMPLATE_NOT_FOUND),
    (404, None, "Not Found", Refusal.CONFIG),
    (400, "template_invalid", "no", Refusal.CONFIG),
    (400, "ttl_invalid", "no", Refusal.CONFIG),
    (400, None, "something else", Refusal.CONFIG),
    (422, "validation_error", "no", Refusal.CONFIG),
    (422, None, "no", Refusal.CONFIG),
    (413, None, "too large", Refusal.CONFIG),
    (401, None, "no", Refusal.FATAL_PERMISSION),
    (402, "API_KEY_BUDGET_EXCEEDED", "no", Refusal.FATAL_BUDGET),
    (402, None, "no", Refusal.FATAL_BUDGET),
    (403, "insufficient_balance", "no", Refusal.FATAL_BALANCE),
    (403, None, "Insufficient balance", Refusal.FATAL_BALANCE),
    (403, None, "API key 'ci' does not have the 'rent' scope", Refusal.FATAL_PERMISSION),
    (403, "account_not_verified", "no", Refusal.FATAL_PERMISSION),
    (403, None, "Request blocked", Refusal.FATAL_PERMISSION),
    (429, None, "no", Refusal.RATE_LIMITED),
    (429, "node_unavailable", "no", Refusal.RATE_LIMITED),
    (409, "idempotency_in_progress", "no", Refusal.IDEMPOTENCY_PENDING),
    (409, "idempotency_outcome_unknown", "no", Refusal.IDEMPOTENCY_UNKNOWN),
    (422, "idempotency_key_reused", "no", Refusal.IDEMPOTENCY_REUSED),
    (408, "node_unavailable", "no", Refusal.UNKNOWN),
    (500, "node_unavailable", "no", Refusal.UNKNOWN),
    (503, None, "no", Refusal.UNKNOWN),
    (302, None, "no", Refusal.UNKNOWN),
]


@pytest.mark.parametrize(("status", "code", "message", "meaning"), MEANINGS)
def test_each_refusal_has_its_meaning(status: int, code: str | None, message: str, meaning: Refusal) -> None:
    assert classify_refusal(refused(status, code, message)) is meaning


def test_without_an_answer_nobody_knows() -> None:
    assert classify_refusal(TransportError("cut", sent=True)) is Refusal.UNKNOWN
    assert classify_refusal(TransportError("refused", sent=False)) is Refusal.NOT_SENT
    assert classify_refusal(MalformedAnswerError(200, message="empty")) is Refusal.UNKNOWN


def test_every_meaning_is_reached_by_the_table() -> None:
    assert {meaning for *_, meaning in MEANINGS} == set(Refusal) - {Refusal.NOT_SENT}, "which is no answer"


def test_the_broken_pod_is_named() -> None:
    error = refused(400, None, f"This node still has a broken pod ({POD.upper()}) that must be removed.")
    assert error.broken_pod_id == POD
    assert refused(400, None, "broken pod (../etc)").broken_pod_id is None


DECIDED = [
    (400, "node_unavailable", False, True),
    (404, "node_not_found", False, True),
    (409, None, False, True),
    (422, "validation_error", False, True),
    (404, None, False, False),
    (401, None, False, False),
    (402, None, False, False),
    (403, "insufficient_balance", False, False),
    (408, None, False, False),
    (429, None, False, False),
    (500, None, False, False),
    (409, "idempotency_in_progress", False, False),
    (409, "idempotency_outcome_unknown", False, False),
    (422, "idempotency_key_reused", False, False),
    (400, "node_unavailable", True, True),
    (404, None, True, True),
    (403, "insufficient_balance", True, True),
    (409, "idempotency_outcome_unknown", True, False),
    (500, None, True, False),
    (429, None, True, False),
    (408, None, True, False),
]


@pytest.mark.parametrize(("status", "code", "replayed", "decided"), DECIDED)
def test_which_refusals_prove_that_a_rent_made_nothing(
    status: int, code: str | None, replayed: bool, decided: bool
) -> None:
    error = refused(status, code, replayed=replayed)
    assert error.replayed is replayed
    assert error.decided_after_lookup is decided


@pytest.mark.parametrize("status", [400, 404, 409, 422])
def test_a_proxys_page_proves_nothing(status: int) -> None:
    assert not refused(status, body=b"<html><title>Blocked</title></html>").decided_after_lookup
    assert not refused(status, body=b"").decided_after_lookup
