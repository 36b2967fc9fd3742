"""Refreshing: the state brought up to what the account shows (`--refresh-only`), and nothing else.

Owns what a record becomes by being looked at, and which differences count as drift. What is gone is the matter of
`decisions`; what runs on a pod has an outcome only once an apply has seen it through. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC

from lium_plan.addresses import Address
from lium_plan.kinds.differ import field_changes
from lium_plan.kinds.protocol import FieldChange, Json, Observation, Presence, Record
from lium_plan.kinds.registry import kind
from lium_plan.planning.observed import Found, Observed
from lium_plan.planning.rents import moment, status_seen

MEASURED = ("size_gb",)
"""Attributes that the server counts and nobody changes: taken along, but no drift by themselves."""
REASON = "taken into the state as the account shows it"


def refreshed(record: Record, seen: Observation | None) -> Record | None:
    """The record as its thing was seen just now; None when that is what it says, or when nobody saw it."""
    if seen is None or seen.presence is not Presence.PRESENT or record.deposed or kind(record.kind).hosted:
        return None
    applied = {name: value for name, value in seen.attributes.items() if name in record.inputs}
    fresh = replace(
        record,
        status=status_seen(record, seen),
        inputs={**record.inputs, **applied},
        attributes={**record.attributes, **seen.attributes},
    )
    return fresh if differences(record, fresh) else None


def differences(record: Record, fresh: Record) -> tuple[FieldChange, ...]:
    """What the record says, and what it would say."""
    names = [name for name in fresh.attributes if name not in MEASURED]
    return field_changes(_said(record, names), _said(fresh, names))


def is_known(record: Record, seen: Observation | None) -> bool:
    """Whether the state says already what was seen: a difference from the manifest, and no drift any more."""
    looked_at = seen is not None and bool(seen.attributes) and not kind(record.kind).hosted
    return looked_at and refreshed(record, seen) is None


def takeovers(records: Iterable[Record], observed: Observed) -> Mapping[Address, Found]:
    """The records that a refresh puts into the state, as things found there."""
    found: dict[Address, Found] = {}
    for record in records:
        seen = observed.of(record)
        fresh = refreshed(record, seen)
        if fresh is not None and seen is not None:
            found[record.address] = Found(fresh, seen)
    return found


def _said(record: Record, names: Collection[str]) -> Mapping[str, Json]:
    told = {**record.attributes, **{name: value for name, value in record.inputs.items() if name in names}}
    return {**told_times({name: told.get(name) for name in names}), "status": record.status}


def told_times(attributes: Mapping[str, Json]) -> Mapping[str, Json]:
    """Moments (`…_at`) to the second, as the server has them, and as people and scripts read them."""
    return {
        name: f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        if name.endswith("_at") and (at := moment(value)) is not None
        else value
        for name, value in attributes.items()
    }
