"""One attempt to rent a pod: as it is sent, as it stands in the journal, and as it is read from there again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.diagnostics import error
from lium_plan.kinds.failures import begun_depends_on, begun_inputs
from lium_plan.kinds.pod.facts import offer_facts, offer_of
from lium_plan.kinds.pod.spec import PodSpec
from lium_plan.kinds.protocol import ActionFailed, Claim, Json, Ledger, OpenEffect, Record, Resource, Step


@dataclass(frozen=True, slots=True)
class Order:
    """One attempt on one node, exactly as it is sent."""

    node_id: str
    pod_name: str
    key: str
    body: str
    urgency: float = 0.0
    """Not sent: who goes first through a limit."""

    def sent(self) -> bytes:
        return self.body.encode()


def body_of(resource: Resource, pod_name: str, gpu_count: int, ledger: Ledger, *, public_key: str) -> str:
    """The request of contract §2.4.1 as text, so that a repeat is equal byte for byte.

    Raises `ActionFailed` when its template or volume is not there.
    """
    spec: PodSpec = resource.spec
    body: dict[str, Json] = {
        "pod_name": pod_name,
        "template_id": _id_of(resource.address, spec.template, spec.template_id, ledger),
        "volume_id": _id_of(resource.address, spec.volume, spec.volume_id, ledger, optional=True),
        "user_public_key": [public_key],
        "gpu_count": gpu_count,
        "enable_backups": spec.backups,
        "enable_volume_encryption": False,
    }
    if spec.ttl_s is not None:
        body["termination_hours"] = spec.ttl_s // 3600
    return json.dumps(body, sort_keys=True)


def _id_of(
    owner: Address, address: Address | None, foreign_id: str | None, ledger: Ledger, *, optional: bool = False
) -> str | None:
    if foreign_id is not None:
        return foreign_id
    if address is None and optional:
        return None
    record = ledger.record(address) if address is not None else None
    if record is None or record.id is None:
        raise ActionFailed(error("missing-dependency", f"{address} does not exist", address=str(owner)))
    return record.id


def begin_data(order: Order, step: Step, claim: Claim) -> dict[str, Json]:
    """What a begin of a rent holds: all that is needed to find out what became of it, and to send it again."""
    resource = step.wanted()
    spec: PodSpec = resource.spec
    return {
        "pod_name": order.pod_name,
        "node_id": order.node_id,
        "key": order.key,
        "body": order.body,
        "offer": offer_facts(claim.offer),
        "ceiling_per_hour_usd": str(claim.ceiling_per_hour_usd),
        "inputs": dict(step.inputs),
        "depends_on": [str(address) for address in resource.depends_on],
        "protected": resource.lifecycle.prevent_destroy,
        "ttl_s": spec.ttl_s,
        "replaces": None if step.record is None else step.record.id,
    }


def begun_order(effect: OpenEffect) -> Order:
    """The order of a begin."""
    data = effect.data
    return Order(str(data["node_id"]), str(data["pod_name"]), str(data["key"]), str(data["body"]))


def begun_claim(effect: OpenEffect, resource: Resource | None) -> Claim:
    """What a begin was allowed to rent, by the lower ceiling of then and now."""
    data = effect.data
    bounds = (
        Decimal(str(data["ceiling_per_hour_usd"])),
        None if resource is None else resource.spec.requirement.max_price_usd,
    )
    offer = offer_of(data["offer"])
    assert offer is not None, "every begin of a rent holds one"
    return Claim(effect.address, offer, min(bound for bound in bounds if bound is not None))


def rented(effect: OpenEffect, pod_id: str, at: datetime, *, price_usd: Decimal | None = None) -> Record:
    """The record of a pod that was just rented, from what the begin holds; `price_usd` where a listing showed one."""
    data = effect.data
    facts = data.get("offer")
    attributes: dict[str, Json] = {
        **(facts if isinstance(facts, Mapping) else {}),
        "pod_name": data.get("pod_name"),
        "ceiling_per_hour_usd": data.get("ceiling_per_hour_usd"),
        "rented_at": at.isoformat(),
    }
    if price_usd is not None:
        attributes["price_per_hour_usd"] = str(price_usd)
    return Record(
        address=effect.address,
        id=pod_id,
        status="pending",
        inputs=begun_inputs(effect),
        attributes=attributes,
        depends_on=begun_depends_on(effect),
        protected=bool(data.get("protected")),
    )
