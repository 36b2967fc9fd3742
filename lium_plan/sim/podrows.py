"""Pods' rows as they go over the wire, kept from one list to the next.

A row is made anew when something it is made of has changed: the pod, its template, key or volume, each a frozen row of
its own, or what moves of its node: the price, announced or not, and the free ports. What moves with time alone is added
to each list. Refuses to know what the fields mean: that is `render`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from lium_plan.sim import market
from lium_plan.sim.lifecycle import is_under_way
from lium_plan.sim.render import progress, settled_row
from lium_plan.sim.rows import Json, Pod
from lium_plan.sim.world import World

_SPARE = 64
"""How many rows of pods that are gone may lie around before somebody tidies up."""


class PodRows:
    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[object, ...], bytes]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def listing(self, world: World, pods: Iterable[Pod]) -> bytes:
        """The JSON array of the pods' rows."""
        nodes, templates, keys, volumes = (
            world.nodes.by_id,
            world.templates.by_id,
            world.keys.by_id,
            world.volumes.by_id,
        )
        ports = market.used_ports(world)
        parts = [b"["]
        for pod in pods:  # thousands a second: no calls here that can be helped
            node = nodes[pod.node_id]
            volume = None if pod.volume_id is None else volumes.get(pod.volume_id)
            made_of = (
                pod,
                *(node.price_per_gpu, node.pending_price, node.pending_price_at, node.ports),
                ports.get(node.id, 0),
                *(templates[pod.template_id], keys[pod.key_id], volume),
            )
            kept = self._kept.get(pod.id)
            if kept is None or kept[0] != made_of:
                kept = self._kept[pod.id] = (made_of, _dumped(settled_row(world, pod))[:-1])
            parts.append(kept[1])
            parts.append(b"," + _dumped(progress(world, pod))[1:] + b"," if is_under_way(pod) else _STILL)
        parts[-1] = parts[-1].removesuffix(b",")
        parts.append(b"]")
        self._tidy(world)
        return b"".join(parts)

    def _tidy(self, world: World) -> None:
        if len(self._kept) > 2 * len(world.pods.where("alive", True)) + _SPARE:
            for pod_id in [pod_id for pod_id in self._kept if _is_gone(world, pod_id)]:
                del self._kept[pod_id]


def _is_gone(world: World, pod_id: str) -> bool:
    pod = world.pods.get(pod_id)
    return pod is None or pod.deleted_at is not None


def _dumped(row: dict[str, Json]) -> bytes:
    return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


_STILL = b"," + _dumped({"estimated_ready_seconds": None, "eta_basis": None, "phase": None})[1:] + b","
