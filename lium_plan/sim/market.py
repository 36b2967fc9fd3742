"""What can be rented now, and for how much (contract §2.2, §2.3, §5)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from math import asin, cos, radians, sin, sqrt

from lium_plan.sim.refusal import Refusal, invalid
from lium_plan.sim.rows import Json, Node, NodeState, PodStatus
from lium_plan.sim.seeding import KIB_PER_GIB
from lium_plan.sim.stamps import zulu
from lium_plan.sim.world import World

CENT_FRACTION = Decimal("0.00001")
"""Prices are quoted to 5 decimals."""


def held(world: World, node: Node) -> int:
    """GPUs that pods of the simulated accounts hold, whatever the pods' status."""
    return sum(pod.gpu_count for pod in world.pods.where("node", node.id) if holds(pod.status))


def holds(status: PodStatus) -> bool:
    return status is not PodStatus.CREATION_FAILED


def available(world: World, node: Node) -> int:
    return max(0, node.gpu_count - node.others - held(world, node))


def free_ports(world: World, node: Node) -> int:
    used = sum(len(pod.ports) or 2 for pod in world.pods.where("node", node.id))
    return max(0, node.ports - used)


def used_ports(world: World) -> dict[str, int]:
    """Of every node that has pods, as `free_ports` counts them."""
    used: dict[str, int] = {}
    for pod in world.pods.where("alive", True):
        used[pod.node_id] = used.get(pod.node_id, 0) + (len(pod.ports) or 2)
    return used


def is_listed(world: World, node: Node) -> bool:
    free = available(world, node)
    return node.state is NodeState.OK and free >= 1 and free >= node.min_rentable and not broken_pods(world, node)


def broken_pods(world: World, node: Node) -> tuple[str, ...]:
    return tuple(pod.id for pod in world.pods.where("node", node.id) if pod.status is PodStatus.BROKEN)


def listed(world: World) -> list[Node]:
    return [node for node in world.nodes if is_listed(world, node)]


def price_for(node: Node, gpu_count: int) -> Decimal:
    return (node.price_per_gpu * gpu_count).quantize(CENT_FRACTION)


# -- the public feed ----------------------------------------------------------------------------------------------


def feed(world: World) -> bytes:
    """The snapshot, at most `feed_refresh_seconds` old (contract §2.2)."""
    age = timedelta.max if world.feed_built_at is None else world.now - world.feed_built_at
    if not world.feed_body or age >= world.took(world.settings.feed_refresh_seconds):
        rows = [feed_row(world, node) for node in listed(world)]
        document = {"generated_at": zulu(world.now), "count": len(rows), "nodes": rows}
        world.feed_built_at = world.now
        world.feed_body = json.dumps(document, ensure_ascii=False).encode()
    return world.feed_body


def feed_row(world: World, node: Node) -> dict[str, Json]:
    row: dict[str, Json] = {
        "id": node.id,
        "gpu_model": node.gpu_model,
        "gpu_count": node.gpu_count,
        "available_gpu_count": available(world, node),
        "min_rentable_gpu_count": node.min_rentable,
        "price_per_gpu_hour": float(node.price_per_gpu),
        "price_per_node_hour": float(price_for(node, node.gpu_count)),
        "gpu_memory_gb": math.floor(node.gpu_memory_mib / 1024 + 0.5),
        "cpu_count": node.cpu_count,
        "ram_gb": _gib(node.ram_kib),
        "disk_gb": _gib(node.disk_kib),
        "disk_free_gb": _gib(node.disk_free_kib),
        "network_download_mbps": node.download_mbps,
        "tier": node.tier,
        "country": node.place.country,
        "country_code": node.place.country_code,
        "region": node.place.region,
        "city": node.place.city,
        "rent_url": f"https://lium.io/browse-pods/{node.id}",
    }
    for name in node.feed_nulls:
        if name.startswith("-"):
            row.pop(name[1:], None)
        else:
            row[name] = None
    return row


def _gib(kib: int) -> int:
    """Rounded to the nearest, as the feed does."""
    return math.floor(kib / KIB_PER_GIB + 0.5)


# -- the catalogue ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filter:
    """Query parameters of `GET /executors` (contract §2.3.1); None: not asked for."""

    machine_names: tuple[str, ...] | None = None
    gpu_count_gte: int | None = None
    gpu_count_lte: int | None = None
    price_per_hour_gte: float | None = None
    price_per_hour_lte: float | None = None
    lat: float | None = None
    lon: float | None = None
    max_distance_mile: float | None = None
    nvlink: bool | None = None
    min_download_mbps: float | None = None
    reliable_only: bool = False


def select(world: World, wanted: Filter) -> list[Node]:
    """Nodes on offer that pass. Raises Refusal 422 for half a coordinate."""
    if (wanted.lat is None) != (wanted.lon is None):
        raise invalid("lat", "lat and lon must be given together")
    return [node for node in listed(world) if _passes(node, wanted)]


def _passes(node: Node, wanted: Filter) -> bool:
    price = float(price_for(node, node.gpu_count))
    return (
        (wanted.machine_names is None or node.machine_name in wanted.machine_names)
        and (wanted.gpu_count_gte is None or node.gpu_count >= wanted.gpu_count_gte)
        and (wanted.gpu_count_lte is None or node.gpu_count <= wanted.gpu_count_lte)
        and (wanted.price_per_hour_gte is None or price >= wanted.price_per_hour_gte)
        and (wanted.price_per_hour_lte is None or price <= wanted.price_per_hour_lte)
        and (not wanted.nvlink or node.nvlink)
        and (wanted.min_download_mbps is None or node.download_mbps >= wanted.min_download_mbps)
        and not (wanted.reliable_only and node.frequent_rent_failures)
        and _near(node, wanted)
    )


def _near(node: Node, wanted: Filter) -> bool:
    if wanted.lat is None or wanted.lon is None or wanted.max_distance_mile is None:
        return True
    if node.place.lat is None or node.place.lon is None:
        return False
    lat_a, lon_a, lat_b, lon_b = map(radians, (wanted.lat, wanted.lon, node.place.lat, node.place.lon))
    half = sin((lat_b - lat_a) / 2) ** 2 + cos(lat_a) * cos(lat_b) * sin((lon_b - lon_a) / 2) ** 2
    return 2 * 3958.8 * asin(sqrt(min(1.0, half))) <= wanted.max_distance_mile


# -- may it be rented ---------------------------------------------------------------------------------------------


def check_node(world: World, node: Node, gpu_count: int) -> None:
    """Raises Refusal when `gpu_count` GPUs of the node can't be rented now (contract §2.4.4, §9.2.5)."""
    broken = broken_pods(world, node)
    if broken:
        raise Refusal(
            400,
            None,
            f"This node still has a broken pod ({broken[0]}) that must be removed before you can rent it again.",
        )
    refusals = {
        NodeState.OFFLINE: (400, "node_unavailable", "Node is not available"),
        NodeState.PAUSED: (409, "node_paused_by_provider", "The provider has paused rentals of this node"),
        NodeState.BANNED: (409, "provider_banned", "This provider is banned"),
        NodeState.UNVERIFIED: (400, "node_not_verified", "Node is not verified"),
        NodeState.SLOW: (400, "node_below_bandwidth_floor", "Node is below the bandwidth floor"),
    }
    if node.state in refusals:
        raise Refusal(*refusals[node.state])
    free = available(world, node)
    if free == 0:
        raise Refusal(400, "node_unavailable", "Node is not available")
    if node.rent_locked_until is not None and node.rent_locked_until > world.now:
        raise Refusal(400, "node_rent_in_progress", "Another rent is in progress on this node")
    if gpu_count < node.min_rentable and node.min_rentable == node.gpu_count:
        raise Refusal(400, "gpu_split_not_allowed", "Provider doesn't allow GPU splitting.")
    if not node.min_rentable <= gpu_count <= free:
        raise Refusal(
            400,
            "gpu_count_invalid",
            f"GPU count must be between {node.min_rentable} and {free}, got {gpu_count}",
        )
