"""Filling a new world: nodes from the catalogue or from a saved public feed, and the platform's templates.

A seeded node has true facts (KiB, MiB); feed and catalogue round them, so that both always agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Annotated, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from lium_plan.sim.catalogue import (
    CPUS,
    DRIVERS,
    MACHINES_IN_FEED,
    MODELS,
    OFFICIAL_TEMPLATES,
    PLACES,
    GpuModel,
)
from lium_plan.sim.rows import Node, Place, Template
from lium_plan.sim.world import World

KIB_PER_GIB = 1024 * 1024
DEFAULT_NODES = 84

_NULLABLE = (
    "region",
    "city",
    "cpu_count",
    "gpu_memory_gb",
    "tier",
    "country_code",
    "-min_rentable_gpu_count",
)


def seed_templates(world: World) -> None:
    for official in OFFICIAL_TEMPLATES:
        world.templates.put(
            Template(
                id=world.new_id(),
                user_id=None,
                serial=world.next_serial(),
                name=official.name,
                description=f"{official.name}, kept by the platform",
                docker_image=official.image,
                docker_image_tag=official.tag,
                docker_image_digest="",
                docker_image_size=9_000_000_000,
                category=official.category,
                volumes=("/root",),
                environment={},
                entrypoint="",
                internal_ports=official.ports,
                is_private=False,
                one_time_template=False,
                is_temporary=False,
                container_start_immediately=True,
                startup_commands=official.command,
                readme="",
                docker_credential_id=None,
                status="VERIFY_SUCCESS",
                supports_volume_encryption=True,
                supports_docker=official.docker_in_docker,
                created_at=world.now - timedelta(days=90),
                updated_at=world.now - timedelta(days=30),
            )
        )


def seed_nodes(world: World, count: int) -> None:
    """`count` nodes; the first few hold the common models, so that small worlds are useful too."""
    order = _by_turns(count)
    seen: dict[str, int] = {}
    for index, model in enumerate(order):
        nth = seen.get(model.feed_name, 0)
        seen[model.feed_name] = nth + 1
        world.nodes.put(_node(world, model, nth, index))


def _by_turns(count: int) -> list[GpuModel]:
    """Models in the order in which they should appear: always the one furthest behind its weight."""
    given = dict.fromkeys((model.feed_name for model in MODELS), 0)
    order = []
    for _ in range(count):
        model = min(MODELS, key=lambda item: (given[item.feed_name] / item.weight, -item.weight))
        given[model.feed_name] += 1
        order.append(model)
    return order


def _node(world: World, model: GpuModel, nth: int, index: int) -> Node:
    throw = world.dice.throw()
    size = model.sizes[nth % len(model.sizes)]
    splits = size == 1 or nth % 3 != 1
    price = Decimal(str(round(throw.uniform(model.usd_low, model.usd_high), 2)))
    taken = throw.choice((0, 0, 0, 1, 2, size // 2)) if splits and size > 2 else 0
    ram_kib = int(size * model.ram_gib_per_gpu * throw.uniform(0.97, 1.03) * KIB_PER_GIB)
    disk_kib = int(size * throw.uniform(220, 900) * KIB_PER_GIB)
    driver, cuda = throw.choice(DRIVERS)
    node = Node(
        id=world.new_id(),
        machine_name=model.machine_name,
        gpu_model=model.feed_name,
        gpu_count=size,
        gpu_memory_mib=model.memory_mib,
        price_per_gpu=price,
        min_rentable=1 if splits else size,
        tier="spot" if throw.random() < 0.18 else "secure",
        place=PLACES[(index * 5 + throw.randrange(3)) % len(PLACES)],
        cpu_count=size * model.cpus_per_gpu,
        cpu_model=throw.choice(CPUS),
        ram_kib=ram_kib,
        disk_kib=disk_kib,
        disk_free_kib=int(disk_kib * throw.uniform(0.55, 0.9)),
        ports=throw.choice((24, 60, 100, 200)),
        download_mbps=round(throw.uniform(400, 9000), 1),
        upload_mbps=round(throw.uniform(200, 6000), 1),
        ip=_address(index),
        driver=driver,
        cuda=cuda,
        reliability=None if throw.random() < 0.05 else round(100 - throw.expovariate(0.35), 2),
        nvlink=model.nvlink and size > 1,
        sysbox=throw.random() < 0.7,
        uptime_minutes=throw.randrange(2_000, 400_000),
        others=min(taken, size),
        verified_at=world.now - timedelta(minutes=throw.randrange(1, 50)),
        fabric=f"hot:infiniband:0x3:0x7fff:{model.machine_name}:8"
        if model.nvlink and size == 8 and not splits
        else None,
    )
    if node.others >= size or size - node.others < node.min_rentable:
        node = replace(node, others=0)
    if index >= 20 and index % 12 == 8:
        node = replace(node, feed_nulls=(_NULLABLE[(index // 12) % len(_NULLABLE)],))
    return node


def _address(index: int) -> str:
    """Documentation addresses (RFC 5737), so that nobody is called by accident."""
    block = ("192.0.2", "198.51.100", "203.0.113")[index % 3]
    return f"{block}.{1 + (index // 3) % 254}"


def _number(value: object) -> object:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError("Input should be a number or null")
    return value


_MOST = 1e9
_Int = Annotated[Annotated[int, Field(ge=0, le=_MOST)] | None, BeforeValidator(_number)]
_Float = Annotated[Annotated[float, Field(ge=0, le=_MOST)] | None, BeforeValidator(_number)]


class FeedRow(BaseModel):
    """A row of a saved public feed (contract §2.2). Anything but the id may be missing or null."""

    model_config = ConfigDict(extra="ignore")

    id: UUID
    gpu_model: str | None = None
    gpu_count: Annotated[Annotated[int, Field(ge=1, le=1024)] | None, BeforeValidator(_number)] = None
    available_gpu_count: _Int = None
    min_rentable_gpu_count: _Int = None
    price_per_gpu_hour: _Float = None
    gpu_memory_gb: _Float = None
    cpu_count: _Int = None
    ram_gb: _Float = None
    disk_gb: _Float = None
    disk_free_gb: _Float = None
    network_download_mbps: _Float = None
    tier: Literal["secure", "spot"] | None = None
    country: str | None = None
    country_code: str | None = None
    region: str | None = None
    city: str | None = None


class FeedFile(BaseModel):
    """A saved answer of `GET /public/v1/nodes`."""

    nodes: list[FeedRow]

    @field_validator("nodes")
    @classmethod
    def _distinct(cls, rows: list[FeedRow]) -> list[FeedRow]:
        for row_id, count in Counter(row.id for row in rows).items():
            if count > 1:
                raise ValueError(f"{count} rows have the id {row_id}")
        return rows


def seed_from_feed(world: World, rows: Iterable[FeedRow], raw: Iterable[Mapping[str, object]]) -> None:
    """One node per row, with true facts that round to what the row says; what it leaves out stays left out."""
    for index, (row, given) in enumerate(zip(rows, raw, strict=True)):
        world.nodes.put(_node_of_row(world, row, given, index))


def _node_of_row(world: World, row: FeedRow, given: Mapping[str, object], index: int) -> Node:
    throw = world.dice.throw()
    model = MACHINES_IN_FEED.get(row.gpu_model or "", MODELS[0])
    size = row.gpu_count or 1
    free = size if row.available_gpu_count is None else min(size, row.available_gpu_count)
    driver, cuda = throw.choice(DRIVERS)
    nulls = tuple(
        name if name in given else f"-{name}"
        for name in FeedRow.model_fields
        if name != "id" and getattr(row, name) is None
    )
    disk = _given(row.disk_gb, _given(row.disk_free_gb, 500.0))
    return Node(
        id=str(row.id),
        machine_name=model.machine_name if row.gpu_model in MACHINES_IN_FEED else _long_name(row.gpu_model),
        gpu_model=row.gpu_model or model.feed_name,
        gpu_count=size,
        gpu_memory_mib=model.memory_mib if row.gpu_model in MACHINES_IN_FEED else int((row.gpu_memory_gb or 80) * 1024),
        price_per_gpu=Decimal(str(_given(row.price_per_gpu_hour, 1.0))),
        min_rentable=max(1, min(free or size, row.min_rentable_gpu_count or size)),
        tier=row.tier or "secure",
        place=_place_of_row(row),
        cpu_count=_given(row.cpu_count, size * model.cpus_per_gpu),
        cpu_model=throw.choice(CPUS),
        ram_kib=_unrounded_kib(_given(row.ram_gb, size * model.ram_gib_per_gpu), throw),
        disk_kib=_unrounded_kib(disk, throw),
        disk_free_kib=_unrounded_kib(_given(row.disk_free_gb, disk * 0.8), throw),
        ports=throw.choice((24, 60, 100, 200)),
        download_mbps=_given(row.network_download_mbps, round(throw.uniform(400, 9000), 1)),
        upload_mbps=round(throw.uniform(200, 6000), 1),
        ip=_address(index),
        driver=driver,
        cuda=cuda,
        reliability=round(100 - throw.expovariate(0.35), 2),
        nvlink=model.nvlink and size > 1,
        sysbox=throw.random() < 0.7,
        uptime_minutes=throw.randrange(2_000, 400_000),
        others=size - free,
        verified_at=world.now - timedelta(minutes=throw.randrange(1, 50)),
        feed_nulls=nulls,
    )


N = TypeVar("N", int, float)


def _given(value: N | None, otherwise: N) -> N:
    """Zero is an answer, null is none."""
    return otherwise if value is None else value


def _long_name(feed_name: str | None) -> str:
    short = feed_name or "H100 80GB HBM3"
    geforce = short.startswith(("RTX 2", "RTX 3", "RTX 4", "RTX 5", "GTX")) and "Ada" not in short
    return f"NVIDIA {'GeForce ' if geforce else ''}{short}"


def _unrounded_kib(gib: float, throw: Random) -> int:
    """Some amount that rounds to `gib`."""
    return max(1, int((gib + throw.uniform(-0.49, 0.49)) * KIB_PER_GIB))


def _place_of_row(row: FeedRow) -> Place:
    for known in PLACES:
        if known.country_code == row.country_code and known.city == row.city:
            return replace(known, country=row.country, region=row.region)
    return Place(country=row.country, country_code=row.country_code, region=row.region, city=row.city)
