"""The state as a document, and the status that each resource is shown with."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from lium_plan.addresses import Address
from lium_plan.kinds.protocol import Json, OpenEffect, Record
from lium_plan.planning.plan import OutputValue
from lium_plan.state.model import State
from lium_plan.views.diagnostics_json import document
from lium_plan.views.documents import Document, ResourceRow, Value
from lium_plan.views.events_json import plain
from lium_plan.views.money import number
from lium_plan.views.plan_json import outputs_json
from lium_plan.views.times import stamp

READY, PENDING, FAILED, BOOTSTRAP_FAILED, DEPOSED = "ready", "pending", "failed", "bootstrap-failed", "deposed"
BOOTSTRAP = "bootstrap"


def shown_status(record: Record, state: State) -> str:
    """The record's status; of a pod that is ready for the one that counts: is what it was set up for there?"""
    if record.deposed:
        return DEPOSED
    if record.kind != "pod" or record.status != READY:
        return record.status
    address = record.address
    bootstrap = state.record(Address.of(address.head, address.name, address.member, BOOTSTRAP))
    if bootstrap is None:
        return PENDING if record.inputs.get("bootstrapped") else READY
    if bootstrap.status == FAILED:
        return BOOTSTRAP_FAILED
    return READY if bootstrap.status == READY else PENDING


def resource_json(record: Record, state: State) -> ResourceRow:
    return {
        "address": str(record.address),
        "kind": record.kind,
        "id": record.id,
        "status": shown_status(record, state),
        "attributes": _attributes(record.attributes),
        "depends_on": [str(address) for address in record.depends_on],
    }


def _attributes(facts: Mapping[str, Json]) -> dict[str, Value]:
    return {key: _attribute(key, value) for key, value in facts.items()}


_NUMBERS = ("cuda", "download_mbps", "reliability")


def _attribute(key: str, value: Json) -> Value:
    """Money and measures are kept exactly, as text; a document has them as numbers. Times are in UTC, and end in `Z`
    there."""
    if (key.endswith("_usd") or key in _NUMBERS) and isinstance(value, str):
        try:
            return number(Decimal(value))
        except InvalidOperation:
            return value
    if key.endswith("_at") and isinstance(value, str):
        return value.replace("+00:00", "Z")
    return plain(value)


def in_order(state: State) -> tuple[Record, ...]:
    """Records by address, members as numbers; a deposed one follows the one that replaced it."""
    return tuple(sorted(state.records.values(), key=lambda record: (record.address, record.deposed, record.id or "")))


def state_json(state: State, outputs: Mapping[str, OutputValue]) -> Document:
    return document(
        {
            "project": state.project,
            "stack": state.stack,
            "lineage": state.lineage,
            "serial": state.serial,
            "account_id": state.account_id,
            "resources": [resource_json(record, state) for record in in_order(state)],
            "open": [_open_json(effect) for effect in state.open.values()],
            "released": [
                {
                    "kind": item.kind,
                    "id": item.id,
                    "name": item.name,
                    "since": stamp(item.since),
                    "price_per_hour_usd": _attribute("price_per_hour_usd", item.price_per_hour_usd),
                }
                for item in state.released
            ],
            "outputs": outputs_json(outputs),
        },
        (),
    )


def no_state_json(stack: str) -> Document:
    """The body of `show` when nothing could be read: every field there, nothing in it."""
    return {
        "project": None,
        "stack": stack,
        "lineage": None,
        "serial": 0,
        "account_id": None,
        "resources": [],
        "open": [],
        "released": [],
        "outputs": {},
    }


def _begun(data: Mapping[str, Json]) -> dict[str, Value]:
    offer = data.get("offer")
    return {**_attributes(data), **({"offer": _attributes(offer)} if isinstance(offer, Mapping) else {})}


def _open_json(effect: OpenEffect) -> Document:
    return {
        "address": str(effect.address),
        "since": stamp(effect.at),
        "entry": {"number": effect.number, "op": effect.op, "run": effect.run, "data": _begun(effect.data)},
    }
