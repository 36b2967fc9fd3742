"""Every method of the client with arguments, for the tests that walk them all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import ParamSpec, TypeVar

from lium_plan.lium.client import LiumClient
from lium_plan.lium.errors import RateLimitedError

P = ParamSpec("P")
T = TypeVar("T")

WHEN = datetime(2026, 10, 20, 15, 30, tzinfo=UTC)
POD = "0b6f2a7e-4c1d-4e0f-9a3b-2d5e6f708192"

CALLS: dict[str, Callable[[LiumClient], Awaitable[object]]] = {
    "version": lambda lium: lium.version(),
    "me": lambda lium: lium.me(),
    "public_nodes": lambda lium: lium.public_nodes(),
    "executors": lambda lium: lium.executors(),
    "rent": lambda lium: lium.rent("node", b'{"pod_name": "x"}', "key"),
    "pods": lambda lium: lium.pods(),
    "pod": lambda lium: lium.pod(POD),
    "delete_pod": lambda lium: lium.delete_pod(POD),
    "schedule_removal": lambda lium: lium.schedule_removal(POD, WHEN),
    "cancel_removal": lambda lium: lium.cancel_removal(POD),
    "switch_template": lambda lium: lium.switch_template(POD, "t1"),
    "reboot": lambda lium: lium.reboot(POD),
    "pod_events": lambda lium: lium.pod_events(POD),
    "events": lambda lium: lium.events(since=WHEN, limit=5),
    "statement": lambda lium: lium.statement(POD),
    "statements": lambda lium: lium.statements(WHEN.date()),
    "templates": lambda lium: lium.templates(),
    "create_template": lambda lium: lium.create_template({"name": "t", "docker_image": "x"}),
    "delete_template": lambda lium: lium.delete_template("t1"),
    "volumes": lambda lium: lium.volumes(),
    "create_volume": lambda lium: lium.create_volume("v"),
    "update_volume": lambda lium: lium.update_volume("v1", name="w"),
    "delete_volume": lambda lium: lium.delete_volume("v1"),
    "credentials": lambda lium: lium.credentials(),
    "create_credential": lambda lium: lium.create_credential("user", "PASSWORD_CANARY"),
    "update_credential": lambda lium: lium.update_credential("c1", username="user", password="PASSWORD_CANARY"),
    "delete_credential": lambda lium: lium.delete_credential("c1"),
    "ssh_keys": lambda lium: lium.ssh_keys(),
}
READS = {
    name
    for name in CALLS
    if name
    in {"version", "me", "public_nodes", "executors", "pods", "pod", "pod_events", "events", "statement", "statements"}
    or name in {"templates", "volumes", "credentials", "ssh_keys"}
}
LISTS = {"executors", "pods", "pod_events", "events", "templates", "volumes", "credentials", "ssh_keys"}
DELETES = {"delete_pod", "cancel_removal", "delete_template", "delete_volume", "delete_credential"}
ONCE = {"rent", "create_template", "create_volume", "create_credential"}
"""What creates something, and is never sent again inside."""


async def until_taken(send: Callable[P, Awaitable[T]], *arguments: P.args, **options: P.kwargs) -> T:
    """What creates something, sent again after each 429 as its callers do."""
    while True:
        try:
            return await send(*arguments, **options)
        except RateLimitedError:
            continue
