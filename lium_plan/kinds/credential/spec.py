"""Registry credentials, implied by `registry_auth`. They have no name on the server (contract §2.11). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from lium_plan.addresses import Address
from lium_plan.expressions import Text
from lium_plan.kinds.differ import field_changes
from lium_plan.kinds.lifecycles import without_ignored
from lium_plan.kinds.protocol import (
    NOTHING,
    Change,
    Comparison,
    Json,
    Observation,
    OpenEffect,
    Record,
    Resource,
    Verb,
)
from lium_plan.kinds.redaction import redact

if TYPE_CHECKING:
    from lium_plan.kinds.pod.offers import Requirement


@dataclass(frozen=True, slots=True)
class CredentialSpec:
    username: Text
    password: Text


def address_for(template: str) -> Address:
    return Address.of("credential", template)


class Credentials:
    name = "credential"
    hosted = False
    create_first = True
    incidental = True
    links: tuple[tuple[str, ...], ...] = ()

    def inputs(self, spec: CredentialSpec, comparison: Comparison) -> Mapping[str, Json]:
        # A password is a secret wherever it was written.
        password = Text.of(spec.password.reveal(), sensitive=True) if spec.password.known else spec.password
        return {"username": redact(spec.username, comparison), "password": redact(password, comparison)}

    def compare(
        self, resource: Resource, record: Record, observation: Observation | None, comparison: Comparison
    ) -> Change:
        changes = without_ignored(
            resource.lifecycle, field_changes(record.inputs, self.inputs(resource.spec, comparison))
        )
        if not changes:
            return NOTHING
        if any(change.path.startswith("username") for change in changes):
            return Change(Verb.REPLACE, "another user name is another credential", changes)
        return Change(Verb.UPDATE, fields=changes)

    def title(self, resource: Resource | None, record: Record | None) -> str:
        return "registry login"

    def will(self, effect: OpenEffect, *, destroying: bool) -> str:
        match effect.op:
            case "create":
                return "compare the account's credentials with those before the request"
            case "delete":
                return "look whether it is gone"
            case _:
                return "send the new password again"

    def takes_s(self, spec: CredentialSpec) -> float:
        return 1.0

    def requirement(self, spec: CredentialSpec) -> Requirement | None:
        return None

    def price_per_hour_usd(self, record: Record) -> Decimal:
        return Decimal(0)

    def exported(self, record: Record, path: Sequence[str]) -> Json | None:
        raise KeyError(".".join(path))
