"""Building calls: paths, parameters, bodies, and which family and policy a request has. Pure."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Mapping
from urllib.parse import quote

from lium_plan.lium.calls import ATTEMPTS, Call, Repeat
from lium_plan.lium.fields import as_mapping
from lium_plan.lium.limits import Priority
from lium_plan.lium.transport import Outgoing

_SECRET_LENGTH = 6
"""Shorter values of an environment are ordinary words; striking them out would make an error unreadable."""


def read(
    path: str,
    *,
    family: str | None = None,
    params: tuple[tuple[str, str], ...] = (),
    with_key: bool = True,
    dated: bool = True,
    attempts: int = ATTEMPTS,
) -> Call:
    """A GET. It changes nothing, so it may be repeated."""
    outgoing = Outgoing("GET", path, params, with_key=with_key)
    family = family or f"GET /{path}"
    return Call(outgoing, family, Repeat.READ, Priority.FREE, attempts=attempts, dated=dated)


def write(
    method: str,
    path: str,
    *,
    family: str | None = None,
    json: Mapping[str, object] | None = None,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    repeat: Repeat = Repeat.AFTER_429,
    priority: Priority = Priority.START,
    urgency: float = 0.0,
    secrets: tuple[str, ...] = (),
    before_send: Callable[[], object] | None = None,
    on_wait: Callable[[float], object] | None = None,
) -> Call:
    """Anything that changes something; its body is `json`, the exact bytes of `content`, or none."""
    body = content if json is None else json_module.dumps(json, separators=(",", ":")).encode()
    kind = {} if body is None else {"Content-Type": "application/json"}
    outgoing = Outgoing(method, path, headers={**kind, **(headers or {})}, content=body)
    family = family or f"{method} /{path}"
    return Call(outgoing, family, repeat, priority, urgency, secrets=secrets, before_send=before_send, on_wait=on_wait)


def item(
    method: str,
    collection: str,
    item_id: str,
    tail: str = "",
    *,
    json: Mapping[str, object] | None = None,
    repeat: Repeat = Repeat.AFTER_429,
    priority: Priority | None = None,
    secrets: tuple[str, ...] = (),
) -> Call:
    """A call on one thing. All ids of a collection are one family; what ends something goes first unless told else."""
    end = f"/{tail}" if tail else ""
    path, family = f"{collection}/{segment(item_id)}{end}", f"{method} /{collection}/{{id}}{end}"
    if method == "GET":
        return read(path, family=family)
    if priority is None:
        priority = Priority.FREE if method == "DELETE" else Priority.START
    return write(method, path, family=family, json=json, repeat=repeat, priority=priority, secrets=secrets)


def segment(item_id: str) -> str:
    """One percent-encoded path segment. An empty or dotted id would address a whole collection: ValueError."""
    if item_id in ("", ".", ".."):
        raise ValueError(f"{item_id!r} is no id")
    return quote(item_id, safe="")


def parameter(value: str | int | float | bool) -> str:
    """A query parameter's text; booleans in the server's spelling."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def environment_values(body: Mapping[str, object]) -> tuple[str, ...]:
    """A template's environment may hold secrets."""
    return tuple(
        str(value) for value in as_mapping(body.get("environment")).values() if len(str(value)) >= _SECRET_LENGTH
    )
