"""A template's row as a manifest would have it, and what somebody has edited in it by hand.

Only a row that says that it was edited (`UPDATED`, contract §2.9.4) is compared, and only in what it shows: a server
that fills in, drops or spells something otherwise has not been edited, and templates of ours never are by us.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lium_plan.kinds.differ import sensitive
from lium_plan.kinds.protocol import Json
from lium_plan.kinds.redaction import normalise_image
from lium_plan.kinds.template.spec import DEFAULT_LOCAL_VOLUME, DROPPED_ENVIRONMENT, SSH_PORT
from lium_plan.marks import keyed_hash

if TYPE_CHECKING:
    from lium_plan.lium.models import Template

EDITED = "UPDATED"


def image_of(row: Template) -> str:
    """One reference of what the server keeps in three fields."""
    reference = row.docker_image
    if row.docker_image_tag:
        reference += f":{row.docker_image_tag}"
    if row.docker_image_digest:
        reference += f"@{row.docker_image_digest}"
    return normalise_image(reference)


def ports_of(row: Template) -> list[int]:
    ssh = [SSH_PORT] if SSH_PORT in row.internal_ports else []
    return [*ssh, *sorted(set(row.internal_ports) - {SSH_PORT})]


def local_volume_of(row: Template) -> str:
    """None given is the platform's default (contract §2.9.3)."""
    return row.volumes[0] if row.volumes else DEFAULT_LOCAL_VOLUME


def edits(row: Template, applied: Mapping[str, Json], salt: bytes) -> Mapping[str, Json]:
    """The inputs that somebody has changed, as the row shows them now; empty when nothing of ours was.

    `applied`: what was sent. Values of the environment are hashes, for what somebody else wrote may be secret.
    """
    if row.status != EDITED:
        return {}
    shown: dict[str, Json] = {
        "image": image_of(row) if row.docker_image else None,
        "ports": ports_of(row) if "internal_ports" in row.told else None,
        "env": _environment(row, applied.get("env"), salt) if "environment" in row.told else None,
        "entrypoint": row.entrypoint.strip() if "entrypoint" in row.told else None,
        "command": row.startup_commands if "startup_commands" in row.told else None,
        "local_volume": local_volume_of(row) if "volumes" in row.told else None,
    }
    return {name: now for name, now in shown.items() if now is not None and not _same(now, applied.get(name))}


def _same(now: Json, before: Json) -> bool:
    if isinstance(now, str) and isinstance(before, str):
        return now.split() == before.split()
    if isinstance(now, list) and isinstance(before, list | tuple):
        return now == list(before)
    return now == before


def _environment(row: Template, applied: Json, salt: bytes) -> Mapping[str, Json]:
    before = applied if isinstance(applied, Mapping) else {}
    left_out = {name: value for name, value in before.items() if name in DROPPED_ENVIRONMENT or value == ""}
    shown = {name: _as_applied(value, before.get(name), salt) for name, value in row.environment.items()}
    return {**left_out, **shown}


def _as_applied(value: str, before: Json, salt: bytes) -> Json:
    hashed = sensitive(keyed_hash(salt, value))
    return before if before in (value, hashed) else hashed


def facts_of(name: str, credential_id: Json) -> dict[str, Json]:
    """What a record says beyond what was asked for. `credential_id`: what it pulls with, whatever is declared."""
    return {"remote_name": name, "credential_id": credential_id}
