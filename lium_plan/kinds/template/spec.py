"""Templates: image, ports, environment and start-up of a container. Never edited in place: a PUT would reboot every
pod that uses one, so a change is a new template (contract §2.9). Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from lium_plan.addresses import Address
from lium_plan.expressions import Text
from lium_plan.kinds.credential.spec import CredentialSpec, address_for
from lium_plan.kinds.differ import field_changes, sensitive
from lium_plan.kinds.lifecycles import ignored_below, lifecycle_of, without_ignored
from lium_plan.kinds.protocol import (
    NOTHING,
    Change,
    Comparison,
    FieldChange,
    Json,
    Observation,
    OpenEffect,
    Record,
    Resource,
    Scope,
    Verb,
)
from lium_plan.kinds.redaction import normalise_image, redact, redact_all
from lium_plan.marks import keyed_hash

if TYPE_CHECKING:
    from lium_plan.kinds.pod.offers import Requirement
    from lium_plan.kinds.template.block import TemplateBlock

KEEP_ALIVE = ("/bin/sh", "-c 'exec sleep infinity'")
"""Entrypoint and command of a template that gives neither: most images end at once without (contract §14)."""
SSH_PORT = 22
DEFAULT_LOCAL_VOLUME = "/root"
DROPPED_ENVIRONMENT = frozenset({"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "NODE_PATH", "PYTHONHOME"})
"""Keys that the server drops from a template's environment without a word; empty values too (contract §2.9.3)."""


@dataclass(frozen=True, slots=True)
class TemplateSpec:
    image: str
    """Normalised reference with tag or digest."""
    ports: tuple[int, ...]
    """Container TCP ports to publish, 22 first."""
    env: Mapping[str, Text]
    entrypoint: str
    command: str
    local_volume: str
    credential: Address | None = None
    username: Text | None = None


def expand(name: str, block: TemplateBlock, scope: Scope) -> Iterable[Resource]:
    if block.id is not None or block.image is None:
        return  # somebody else's: used, never managed
    credential = None
    if block.registry_auth is not None:
        credential = address_for(name)
        yield Resource(
            credential,
            CredentialSpec(block.registry_auth.username, block.registry_auth.password),
            lifecycle=ignored_below(lifecycle_of(block.lifecycle), "registry_auth", ("username", "password")),
            position=scope.position("templates", name, "registry_auth"),
        )
    default = block.entrypoint is None and block.command is None
    yield Resource(
        Address.of("template", name),
        TemplateSpec(
            image=normalise_image(block.image),
            ports=with_ssh(block.ports),
            env=dict(block.env),
            entrypoint=KEEP_ALIVE[0] if default else block.entrypoint or "",
            command=KEEP_ALIVE[1] if default else block.command or "",
            local_volume=block.local_volume or DEFAULT_LOCAL_VOLUME,
            credential=credential,
            username=block.registry_auth.username if block.registry_auth is not None else None,
        ),
        depends_on=(credential,) if credential else (),
        lifecycle=lifecycle_of(block.lifecycle),
        position=scope.position("templates", name),
    )


def implied_by_image(image: str, scope: Scope) -> Resource:
    """The template behind a fleet's one-line `image:`; fleets with the same image share it."""
    reference = normalise_image(image)
    return Resource(
        Address.of("template", implied_name(reference)),
        TemplateSpec(reference, (SSH_PORT,), {}, *KEEP_ALIVE, DEFAULT_LOCAL_VOLUME),
    )


def implied_name(reference: str) -> str:
    """`image-pytorch-2-4-0-1f3a`: readable, and never two images under one name."""
    tail = re.sub(r"[^a-z0-9]+", "-", reference.rpartition("/")[2].lower()).strip("-")
    return f"image-{tail[:20].strip('-')}-{hashlib.sha256(reference.encode()).hexdigest()[:4]}"


def with_ssh(ports: Iterable[int]) -> tuple[int, ...]:
    return (SSH_PORT, *sorted(set(ports) - {SSH_PORT}))


class Templates:
    name = "template"
    hosted = False
    create_first = True
    incidental = True
    links: tuple[tuple[str, ...], ...] = (("registry_auth", "credential"),)

    def inputs(self, spec: TemplateSpec, comparison: Comparison) -> Mapping[str, Json]:
        return {
            "image": spec.image,
            "ports": list(spec.ports),
            "env": redact_all(spec.env, comparison),
            "entrypoint": spec.entrypoint,
            "command": spec.command,
            "local_volume": spec.local_volume,
            "registry_auth": (
                {"credential": str(spec.credential), "username": redact(spec.username, comparison)}
                if spec.credential is not None and spec.username is not None
                else None
            ),
        }

    def compare(
        self, resource: Resource, record: Record, observation: Observation | None, comparison: Comparison
    ) -> Change:
        shown = observation.attributes if observation is not None else {}
        applied = dict(record.inputs)
        wanted = self.inputs(resource.spec, comparison)
        edited = {**applied, **{name: value for name, value in shown.items() if name in applied}}
        edited["env"] = _as_declared(edited.get("env"), wanted["env"], comparison.salt)
        anew = field_changes(edited, wanted)
        changes = without_ignored(resource.lifecycle, anew)
        other_login = without_ignored(resource.lifecycle, _other_login(resource.spec, shown, comparison))
        by_hand = other_login or without_ignored(resource.lifecycle, field_changes(applied, edited))
        renamed = shown.get("remote_name", record.attributes.get("remote_name")) != record.attributes.get("remote_name")
        drift = "changed" if by_hand or renamed else None
        credential = resource.spec.credential
        if credential is not None and comparison.verbs.get(credential) in (Verb.CREATE, Verb.REPLACE) and not changes:
            return Change(Verb.REPLACE, f"{credential} is new", anew, drift)
        if changes or other_login:
            # What is ignored makes no new one; but a new one is made as declared, and that is shown.
            why = "it was edited by hand, and " if by_hand else ""
            return Change(Verb.REPLACE, f"{why}a template is never edited in place", (*anew, *other_login), drift)
        if drift is not None:
            reason = "edited by hand to what is declared now" if by_hand else "it was given another name by hand"
            return Change(Verb.ADOPT, f"{reason}: written down", drift=drift, counted=False)
        return NOTHING

    def title(self, resource: Resource | None, record: Record | None) -> str:
        if resource is not None:
            return str(resource.spec.image)
        return str(record.inputs.get("image", "")) if record is not None else ""

    def will(self, effect: OpenEffect, *, destroying: bool) -> str:
        match effect.op:
            case "create":
                return "look for the template by its name and adopt it, or make it anew"
            case _:
                return "look whether it is gone"

    def takes_s(self, spec: TemplateSpec) -> float:
        return 1.0

    def requirement(self, spec: TemplateSpec) -> Requirement | None:
        return None

    def price_per_hour_usd(self, record: Record) -> Decimal:
        return Decimal(0)

    def exported(self, record: Record, path: Sequence[str]) -> Json | None:
        raise KeyError(".".join(path))


def _as_declared(shown: Json, wanted: Json, salt: bytes) -> Json:
    """An environment with values as they are declared where their hashes say that they are those."""
    if not isinstance(shown, Mapping) or not isinstance(wanted, Mapping):
        return shown
    return {
        name: text
        if isinstance(text := wanted.get(name), str) and value == sensitive(keyed_hash(salt, text))
        else value
        for name, value in shown.items()
    }


def _other_login(spec: TemplateSpec, shown: Mapping[str, Json], comparison: Comparison) -> tuple[FieldChange, ...]:
    """Whether it pulls with another login by now than with its own."""
    record = comparison.records.get(str(spec.credential))
    own = record.id if record is not None else None
    if "credential_id" not in shown or own is None or shown["credential_id"] == own:
        return ()
    return (FieldChange("registry_auth", f"login {shown['credential_id']}", str(spec.credential)),)
