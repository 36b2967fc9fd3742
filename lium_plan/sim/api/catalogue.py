"""Server version, public feed, node catalogue and the small routes around it (contract §2.1–§2.3)."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from lium_plan.sim import images, market, money, throttle
from lium_plan.sim.api.access import Anyone, Calling, Reader, TheWorld
from lium_plan.sim.api.schemas import catalogue as schemas
from lium_plan.sim.api.schemas.base import REFUSALS
from lium_plan.sim.bodies import MachineRequestBody
from lium_plan.sim.refusal import Refusal, not_found
from lium_plan.sim.render import executor_row
from lium_plan.sim.renting import find_node
from lium_plan.sim.rows import Json
from lium_plan.sim.seeding import KIB_PER_GIB
from lium_plan.sim.stamps import exact
from lium_plan.sim.templates import visible_template
from lium_plan.sim.world import World

router = APIRouter(responses=REFUSALS)

MOST = 1e9
"""A quote for more hours or gigabytes than this is nonsense."""
_ANY_ORIGIN = {"Access-Control-Allow-Origin": "*"}
FEATURES = ("rent_by_spec", "run_record", "build_context", "rent_idempotency")


@router.get("/version", response_model=schemas.Version, tags=["service"])
async def version(world: TheWorld) -> Response:
    without = {"rent_idempotency"} if world.settings.no_rent_idempotency else set()
    return JSONResponse(
        {
            "started_at": exact(world.started_at),
            "uptime_seconds": (world.now - world.started_at).total_seconds(),
            "features": [name for name in FEATURES if name not in without],
        }
    )


@router.get("/public/v1/nodes", response_model=schemas.FeedDocument, tags=["feed"])
async def public_nodes(request: Request, world: TheWorld) -> Response:
    """The public feed: no key, any origin."""
    address = request.client.host if request.client else "local"
    try:
        throttle.take_per_minute(world, address, "feed", world.settings.feed_limit_per_minute)
    except Refusal as refusal:
        refusal.headers.update(_ANY_ORIGIN)
        raise
    return Response(market.feed(world), media_type="application/json", headers=_ANY_ORIGIN)


@router.options("/public/v1/nodes", include_in_schema=False)
async def may_ask_for_public_nodes() -> Response:
    """A browser's question before a request with headers of its own."""
    return Response(headers={**_ANY_ORIGIN, "Access-Control-Allow-Methods": "GET", "Access-Control-Allow-Headers": "*"})


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


@router.get("/executors", response_model=list[schemas.Executor], tags=["catalogue"])
@router.get("/nodes", tags=["catalogue"], include_in_schema=False)
async def executors(
    world: TheWorld,
    caller: Anyone,
    view: str = "full",
    machine_names: str | None = None,
    gpu_count_gte: int | None = None,
    gpu_count_lte: int | None = None,
    price_per_hour_gte: float | None = None,
    price_per_hour_lte: float | None = None,
    lat: Annotated[float | None, Query(ge=-90, le=90)] = None,
    lon: Annotated[float | None, Query(ge=-180, le=180)] = None,
    max_distance_mile: float | None = None,
    nvlink: bool | None = None,
    min_download_mbps: float | None = None,
    reliable_only: bool = False,
    size: Annotated[int | None, Query(ge=1)] = None,
    page: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """Nodes that can be rented now; `size` and `page` count only together."""
    nodes = market.select(
        world,
        market.Filter(
            machine_names=_names(machine_names),
            gpu_count_gte=gpu_count_gte,
            gpu_count_lte=gpu_count_lte,
            price_per_hour_gte=price_per_hour_gte,
            price_per_hour_lte=price_per_hour_lte,
            lat=lat,
            lon=lon,
            max_distance_mile=max_distance_mile,
            nvlink=nvlink,
            min_download_mbps=min_download_mbps,
            reliable_only=reliable_only,
        ),
    )
    if size is not None and page is not None:
        nodes = nodes[(page - 1) * size : page * size]
    return JSONResponse([executor_row(world, node, summary=view == "summary") for node in nodes])


@router.get("/executors/count", response_model=schemas.Count, tags=["catalogue"])
async def executor_count(world: TheWorld) -> dict[str, int]:
    return {"count": len(market.listed(world))}


@router.get("/executors/total-count", response_model=schemas.TotalCount, tags=["catalogue"])
async def executor_total(world: TheWorld) -> dict[str, int]:
    return {"total_count": len(world.nodes)}


@router.get("/executors/default-docker-image", response_model=list[schemas.DefaultImage], tags=["catalogue"])
async def default_docker_image(
    world: TheWorld, caller: Reader, gpu_model: str | None = None, driver_version: str | None = None
) -> Response:
    """Images that suit a GPU and its driver, best first."""
    new_driver = (driver_version or "999").split(".")[0] >= "570"
    rows = [
        {"docker_image": row.docker_image, "docker_image_tag": row.docker_image_tag}
        for row in world.templates
        if row.user_id is None and row.category == "PYTORCH" and "cluster" not in row.docker_image
    ]
    return JSONResponse(list(reversed(rows)) if new_driver else rows)


@router.get("/executors/deployment-estimate", response_model=schemas.Estimate, tags=["catalogue"])
async def deployment_estimate(world: TheWorld, caller: Reader, executor_id: UUID, template_id: UUID) -> Response:
    node = find_node(world, str(executor_id))
    template = visible_template(world, caller, str(template_id))
    if template is None:
        raise Refusal(404, "template_not_found", "Template not found")
    slow = images.slowness(template.docker_image) > 1
    return JSONResponse(
        {
            "estimated_seconds": int(20 * images.slowness(template.docker_image)),
            "is_slow_machine": node.frequent_rent_failures,
            "warning_message": "This image takes long to pull" if slow else None,
            "is_cached_template": template.user_id is None,
            "docker_image_size": template.docker_image_size,
        }
    )


@router.get("/executors/infiniband-clusters", response_model=list[schemas.Fabric], tags=["clusters"])
async def infiniband_clusters(world: TheWorld, caller: Reader) -> Response:
    """Fabrics on which at least two whole nodes are free."""
    fabrics: dict[str, list[str]] = {}
    for node in world.nodes:
        if node.fabric is not None:
            fabrics.setdefault(node.fabric, []).append(node.id)
    rows: list[Json] = []
    for fabric, ids in fabrics.items():
        free = [
            node for node in market.listed(world) if node.id in ids and market.available(world, node) == node.gpu_count
        ]
        if len(free) >= 2:
            rows.append(
                {
                    "fabric_id": fabric,
                    "fabric_type": "infiniband",
                    "link_rate": "400 Gb/sec (4X NDR)",
                    "fabric_measured": True,
                    "node_count": len(ids),
                    "nodes": [executor_row(world, node) for node in free],
                }
            )
    return JSONResponse(rows)


@router.get("/executors/{executor_id}/quote", response_model=schemas.Quote, tags=["catalogue"])
async def quote(
    world: TheWorld,
    caller: Anyone,
    executor_id: UUID,
    hours: Annotated[float, Query(gt=0, le=MOST)],
    volume_gb: Annotated[float, Query(ge=0, le=MOST)] = 0,
    backup_gb: Annotated[float, Query(ge=0, le=MOST)] = 0,
    gpu_count: Annotated[int | None, Query(ge=1, le=1024)] = None,
) -> Response:
    node = find_node(world, str(executor_id))
    count = gpu_count or market.available(world, node)
    price = market.price_for(node, count)
    total = price * Decimal(str(hours))
    lines: list[Json] = [_line("compute", "gpu_hour", float(node.price_per_gpu), count * hours, float(total))]
    for item, gigabytes in (("volume", volume_gb), ("backup", backup_gb)):
        if gigabytes:
            lines.append(_line(item, "gb_hour", 0.00005, gigabytes * hours, round(0.00005 * gigabytes * hours, 5)))
    lines.append(_line("egress", "gb", None, 0.0, None, "billed at AWS cost"))
    share = count / node.gpu_count
    return JSONResponse(
        {
            "executor_id": node.id,
            "gpu_count": count,
            "hours": hours,
            "price_per_hour": float(price),
            "lines": lines,
            "total_usd": round(sum(line["amount_usd"] or 0 for line in lines), 5),  # type: ignore[call-overload, index, misc]
            "pod_balance_floor_usd": float(price * money.FLOOR_HOURS),
            "rent_balance_required_usd": None
            if caller is None
            else float(money.floor(world, caller.account.id, price)),
            "allocation": {
                "CPU": str(int(node.cpu_count * share)),
                "RAM": f"{int(node.ram_kib / KIB_PER_GIB * share)} GB",
                "disk": f"{int(node.disk_free_kib / KIB_PER_GIB * share / 3)} GB",
            },
        }
    )


def _line(
    item: str, unit: str, rate_usd: float | None, quantity: float, amount_usd: float | None, note: str = ""
) -> dict[str, Json]:
    return {
        "item": item,
        "unit": unit,
        "rate_usd": rate_usd,
        "quantity": quantity,
        "amount_usd": amount_usd,
        "note": note,
    }


@router.get("/machines", response_model=list[schemas.Machine], tags=["catalogue"])
async def machines(world: TheWorld) -> Response:
    """GPU models that the market has, with the cheapest price per GPU."""
    rows: dict[str, dict[str, Json]] = {}
    for node in world.nodes:
        price = float(node.price_per_gpu)
        row = rows.setdefault(
            node.machine_name,
            {"name": node.machine_name, "price": price, "rental_rate": price, "total_gpu_count": 0},
        )
        row["price"] = row["rental_rate"] = min(price, float(str(row["price"])))
        row["total_gpu_count"] = int(str(row["total_gpu_count"])) + node.gpu_count
    return JSONResponse([rows[name] for name in sorted(rows)])


@router.get("/machines/capacity", response_model=list[schemas.Capacity], tags=["catalogue"])
async def capacity(world: TheWorld) -> Response:
    """Per model and order size: the most there is, what is free, and the cheapest rate."""
    models = sorted({node.machine_name for node in world.nodes})
    return JSONResponse([{"base_model": name, "buckets": _buckets(world, name)} for name in models])


def _buckets(world: World, machine_name: str) -> dict[str, Json]:
    nodes = [node for node in world.nodes if node.machine_name == machine_name]
    buckets: dict[str, Json] = {}
    for size in (1, 2, 4, 8):
        fitting = [node for node in nodes if node.min_rentable <= size <= node.gpu_count]
        if fitting:
            buckets[str(size)] = {
                "max_cap": sum(node.gpu_count // size for node in fitting),
                "unrented_count": sum(market.available(world, node) // size for node in fitting),
                "hourly_rate": float(min(market.price_for(node, size) for node in fitting)),
            }
    return buckets


@router.post("/machine-requests", response_model=schemas.Notified, tags=["catalogue"])
async def machine_request(world: TheWorld, caller: Calling, body: MachineRequestBody) -> Response:
    owners = sum(node.machine_name == body.machine_name for node in world.nodes)
    if not owners:
        raise not_found("Machine")
    return JSONResponse({"provider_notified_count": owners, "confirmation": "Providers were notified"})
