"""What an account holds of a kind, whoever made it: the ability behind `import`, `orphans` and `state recover`.

A kind that has it owns a module `holdings` with `open_holdings(client, account_id)`. Hosted kinds have none: what runs
on a pod is not to be found on the account. Records made here hold what the server shows, never what is hoped for, so
that the next plan compares truthfully.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from lium_plan.addresses import Address
from lium_plan.kinds.protocol import Comparison, Json, Observation, Record, Resource

if TYPE_CHECKING:
    from lium_plan.lium.client import LiumClient

HELD = ("pod", "template", "volume", "credential")
"""The kinds that have it, in the order in which they can be deleted: a template goes after the pods that use it."""

Stanza = Mapping[str, Mapping[str, Mapping[str, Json]]]
"""Part of a manifest: section -> name -> block."""


@dataclass(frozen=True, slots=True)
class Held:
    """One remote object. Marks are None where its name carries none of ours."""

    kind: str
    id: str
    name: str
    scope_mark: str | None
    lineage_mark: str | None
    observation: Observation
    row: Any
    """The client's model of it: for the kind's own module."""
    tail: str | None = None
    """The readable part of a marked name."""
    price_per_hour_usd: Decimal | None = None
    since: datetime | None = None
    leaving: bool = False
    """On its way out, and no longer billed."""


class Holdings(Protocol):
    async def everything(self) -> tuple[Held, ...]:
        """All of this kind on the account, with a constant number of calls. Raises `LiumError`."""
        ...

    def record(self, held: Held, resource: Resource, comparison: Comparison) -> Record:
        """The state's row for it at the resource's address.

        Secrets become hashes; a value is that of the resource where the server shows the very same.
        """
        ...

    def stanza(self, held: Held, address: Address, records: Mapping[str, Record]) -> Stanza:
        """What to write so that a plan finds nothing to change. Never shows a secret."""
        ...

    async def delete(self, id: str) -> None:
        """Ask for its end, once. Raises `LiumError`."""
        ...


def load_holdings(name: str, client: LiumClient, account_id: str) -> Holdings:
    """The module is imported now, with all that it needs."""
    found: Holdings = import_module(f"lium_plan.kinds.{name}.holdings").open_holdings(client, account_id)
    return found
