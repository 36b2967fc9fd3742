"""The audit log: who sent which change, and what was answered (contract §2.8.3)."""

from __future__ import annotations

import json

from starlette.types import Scope

from lium_plan.sim.exchange import Exchange
from lium_plan.sim.records import AuditItem
from lium_plan.sim.world import World

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}
_SUBJECTS = {
    "executors": "pod",
    "pods": "pod",
    "clusters": "pod",
    "templates": "template",
    "volumes": "volume",
    "docker-credentials": "docker_credential",
    "ssh-keys": "ssh_key",
    "keys": "api_key",
}


def record_audit(world: World, scope: Scope, exchange: Exchange, *, path: str, status: int, body: bytes) -> None:
    """Keep an authenticated change; reads are not audited."""
    parts = path.strip("/").split("/")
    verb, subject = _VERBS.get(scope["method"]), _SUBJECTS.get(parts[0])
    if verb is None or subject is None or exchange.caller_ids is None:
        return
    account_id, key_id = exchange.caller_ids
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    client = scope.get("client")
    world.audit.put(
        AuditItem(
            id=f"a{world.next_serial()}",
            serial=world.serial,
            account_id=account_id,
            key_id=key_id,
            created_at=world.now,
            action=f"{subject}.{_action(verb, parts)}",
            source=headers.get(b"x-source"),
            ip=client[0] if client else "127.0.0.1",
            user_agent=headers.get(b"user-agent"),
            request_id=exchange.request_id,
            method=scope["method"],
            route=path,
            status_code=status,
            resource_type=subject,
            resource_id=_resource(parts, body) if status < 400 else None,
            summary=f"{scope['method']} {path} -> {status}",
        )
    )


def _action(verb: str, parts: list[str]) -> str:
    """`create` for a rent or a plain POST, else the route's own last word."""
    if len(parts) < 3 or parts[-1] == "rent":
        return verb
    word = parts[-1].replace("-", "_")
    return f"{word}_cancel" if verb == "delete" else word


def _resource(parts: list[str], body: bytes) -> str | None:
    if len(parts) > 1 and parts[0] != "executors" and parts[1]:
        return parts[1]
    try:
        answer = json.loads(body)
    except ValueError:
        return None
    found = answer.get("pod_id") or answer.get("id") if isinstance(answer, dict) else None
    return found if isinstance(found, str) else None
