"""Any bytes on any status become words that may be shown (contract §1.3)."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lium_plan.lium.envelope import MAX_TEXT, Scrubber, read_envelope, read_retry_after

# Other processes share the machine: how long an example takes says nothing.
steady = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
NOW = datetime(2026, 11, 6, 8, 49, 37, tzinfo=UTC)


def read(body: object, status: int = 400, **headers: str):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return read_envelope(status, named, raw, now=NOW)


def test_the_current_envelope_gives_code_words_hint_and_request_id() -> None:
    error = {"code": "node_unavailable", "message": "inner", "hint": "try again", "request_id": "req-1"}
    found = read({"success": False, "error": error, "message": "Node is not available", "status_code": 400})
    assert (found.code, found.message, found.hint, found.request_id) == (
        "node_unavailable",
        "Node is not available",
        "try again",
        "req-1",
    )
    assert found.structured


MESSAGES = {
    "validation errors": (
        {"message": "Validation error", "validation_errors": [{"field": "a", "message": "bad"}, "plain"]},
        "Validation error: a: bad; plain",
    ),
    "validation errors without a top message": (
        {"validation_errors": [{"field": "a", "msg": "bad"}]},
        "a: bad",
    ),
    "FastAPI": (
        {"detail": [{"loc": ["body", "pod_name"], "msg": "Field required"}]},
        "pod_name: Field required",
    ),
    "object in detail": ({"detail": {"message": "in detail"}}, "in detail"),
    "object in message": (
        {"message": {"message": "daily budget reached", "window": "daily"}},
        "daily budget reached",
    ),
    "active operation": (
        {"detail": {"message": "busy", "active_operation_id": "op-1"}},
        "busy (active operation: op-1)",
    ),
    "plain detail": ({"detail": "Not Found"}, "Not Found"),
    "detail before message": ({"detail": "detail", "message": "message"}, "detail"),
    "only the inner message": ({"error": {"message": "inner"}}, "inner"),
    "error is a string": ({"error": "just words"}, "just words"),
    "nothing": ({}, "Request failed"),
    "wrong types": ({"error": 5, "message": None, "detail": 7}, "Request failed"),
    "plain text": (b"upstream timed out", "upstream timed out"),
    "empty": (b"", "Request failed"),
    "white space": (b"  \n ", "Request failed"),
    "a JSON string": (b'"Too Many Requests"', "Too Many Requests"),
    "HTML with a title": (
        b"<html><head><title>502 Bad Gateway</title></head><body>x</body></html>",
        "502 Bad Gateway",
    ),
    "HTML without a title": (
        b"<!DOCTYPE html><body><style>p{}</style><p>Request <b>blocked</b></p>",
        "Request blocked",
    ),
    "truncated JSON": (
        b'{"success": false, "error": {"code": "no',
        '{"success": false, "error": {"code": "no',
    ),
    "not UTF-8": (b"\xff\xfe oops", "�� oops"),
    "control characters": (b'{"message": "a\\u001b[31mred\\nline\\u202e"}', "a [31mred line"),
}


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("status", [300, 400, 401, 404, 418, 429, 500, 503, 599])
def test_f4_every_shape_on_every_status_gives_its_words(name: str, status: int) -> None:
    body, expected = MESSAGES[name]
    assert read(body, status).message == expected


def test_a_flat_code_is_found_and_its_data_is_not_invented() -> None:
    found = read({"success": False, "code": "no_executor_matches_spec", "message": "none"}, 409)
    assert found.code == "no_executor_matches_spec"
    assert found.data == {}


def test_data_comes_from_error_data_then_message_then_detail() -> None:
    budget = {"message": "daily budget reached", "window": "daily", "budget_usd": 20.0}
    assert read({"error": {"data": {"a": 1}}, "message": budget}).data == {"a": 1}
    assert read({"error": {}, "message": budget, "detail": {"b": 2}}).data == budget
    assert read({"detail": {"b": 2}}).data == {"b": 2}


def test_the_request_id_falls_back_to_the_header() -> None:
    assert read({"detail": "x"}, x_request_id="req-9").request_id == "req-9"
    assert read(b"<html>", x_request_id="req-9").request_id == "req-9"


RETRY_AFTER = {
    "5": 5.0,
    "0": 0.0,
    " 2.5 ": 2.5,
    "-3": 0.0,
    "86400": 60.0,
    "1e400": 60.0,
    "nan": None,
    "soon": None,
    "": None,
    None: None,
    "Fri, 06 Nov 2026 08:49:57 GMT": 20.0,
    "Fri, 06 Nov 2026 08:00:00 GMT": 0.0,
    "Fri, 06 Nov 2099 08:00:00 GMT": 60.0,
    "Fri, 99 Nov 2026 08:00:00 GMT": None,
}


@pytest.mark.parametrize("value", RETRY_AFTER)
def test_retry_after_in_all_its_forms(value: str | None) -> None:
    assert read_retry_after(value, now=NOW) == RETRY_AFTER[value]


def test_a_date_in_retry_after_is_relative_to_the_answers_own_date() -> None:
    assert read_retry_after("Fri, 06 Nov 2026 10:00:07 GMT", date="Fri, 06 Nov 2026 10:00:00 GMT", now=NOW) == 7.0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
envelopes = st.dictionaries(
    st.sampled_from(["error", "message", "detail", "code", "validation_errors", "hint", "success"]),
    json_values,
)


@steady
@given(
    body=st.binary(max_size=300) | envelopes.map(lambda value: json.dumps(value).encode()),
    status=st.integers(0, 999),
)
def test_reading_never_raises_and_is_bounded(body: bytes, status: int) -> None:
    found = read_envelope(status, {"retry-after": body[:40].decode("latin-1")}, body)
    assert found.message
    assert len(found.message) <= MAX_TEXT
    assert "\n" not in found.message


@steady
@given(
    secret=st.text(min_size=6, max_size=30).filter(lambda text: len(set(text)) > 4 and "*" not in text),
    place=st.sampled_from(["message", "detail", "hint", "code", "list", "data", "text", "html"]),
)
def test_no_secret_that_was_sent_comes_back(secret: str, place: str) -> None:
    bodies: dict[str, object] = {
        "message": {"message": f"no {secret} here"},
        "detail": {"detail": {"message": "x", "input": {"password": secret}}},
        "hint": {"error": {"hint": secret}},
        "code": {"error": {"code": secret, "request_id": secret}},
        "list": {"validation_errors": [{"field": "p", "message": f"{secret}!"}]},
        "data": {"error": {"data": {secret: [secret]}}},
    }
    text = json.dumps({"cut": secret}) if place == "text" else f"<html><title>{secret}</title>"
    body = json.dumps(bodies[place]).encode() if place in bodies else text[:-1].encode("utf-8", "surrogatepass")
    found = read_envelope(400, {}, body, secrets=(secret,))
    shown = " ".join(map(str, (found.message, found.code, found.hint, found.request_id, found.data)))
    clean = " ".join(secret.split())
    assert len(clean) < 5 or clean not in shown


def test_a_secret_may_hold_half_a_character() -> None:
    secret = "pass\ud800word"
    assert Scrubber([secret]).text(f"login with {secret} or {json.dumps(secret)[1:-1]}") == "login with *** or ***"


def test_the_userinfo_of_an_address_is_struck_out() -> None:
    text = Scrubber().text("cannot pull https://bob:p@ss@registry.example/x")
    assert text == "cannot pull https://***@registry.example/x"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b"<" * 500_000,
        b"<html>" + b"<script" * 100_000,
        b"9" * 400_000,
        b'{"message": "' + b"x" * 3_000_000 + b'"}',
        b'{"detail": [' + b'{"msg": "m"},' * 50_000 + b'{"msg": "m"}]}',
        b'{"message": "' + b"a://" * 100_000 + b'"}',
    ],
    ids=["nested lists", "nested objects", "angles", "scripts", "digits", "long", "many", "schemes"],
)
def test_hostile_sizes_are_read_in_bounded_time(body: bytes) -> None:
    started = time.process_time()
    found = read_envelope(500, {}, body)
    assert len(found.message) <= MAX_TEXT
    assert time.process_time() - started < 2.0
