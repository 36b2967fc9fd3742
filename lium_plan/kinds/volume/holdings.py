"""The volumes of an account, whoever made them (contract §2.10)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lium_plan.addresses import Address
from lium_plan.kinds.holdings import Held, Stanza
from lium_plan.kinds.protocol import Comparison, Json, Observation, Presence, Record, Resource
from lium_plan.lium.client import LiumClient
from lium_plan.lium.models import Volume
from lium_plan.marks import parse_volume_name, volume_base

WRITABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_. ,()!?/-]{0,79}")
"""The names that a manifest can hold."""


def open_holdings(client: LiumClient, account_id: str) -> VolumeHoldings:
    return VolumeHoldings(client)


class VolumeHoldings:
    def __init__(self, client: LiumClient) -> None:
        self._client = client

    async def everything(self) -> tuple[Held, ...]:
        return tuple(_held(volume) for volume in await self._client.volumes())

    def record(self, held: Held, resource: Resource, comparison: Comparison) -> Record:
        volume: Volume = held.row
        inputs: dict[str, Json] = {"name": volume_base(volume.name), "description": volume.description}
        facts = {**held.observation.attributes, "remote_name": volume.name}
        return Record(resource.address, held.id, "ready", inputs, facts, (), resource.lifecycle.prevent_destroy)

    def stanza(self, held: Held, address: Address, records: Mapping[str, Record]) -> Stanza:
        volume: Volume = held.row
        block: dict[str, Json] = {}
        name = volume_base(volume.name)
        if WRITABLE.fullmatch(name) is None:
            block["lifecycle"] = {"ignore_changes": ["name"]}
        elif name != address.name:
            block["name"] = name
        if volume.description:
            block["description"] = volume.description
        return {"volumes": {address.name: block}}

    async def delete(self, id: str) -> None:
        await self._client.delete_volume(id)


def _held(volume: Volume) -> Held:
    marks = parse_volume_name(volume.name)
    facts: dict[str, Json] = {
        "name": volume_base(volume.name),
        "description": volume.description,
        "size_gb": None if volume.size_bytes is None else round(volume.size_bytes / 2**30, 3),
    }
    return Held(
        "volume",
        volume.id,
        volume.name,
        marks.scope if marks else None,
        marks.lineage if marks else None,
        Observation(Presence.PRESENT, attributes=facts),
        volume,
        tail=volume_base(volume.name) if marks else None,
        since=volume.created_at,
    )
