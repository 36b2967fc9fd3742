"""Renting by specification: the server picks the cheapest node that fits (contract §2.5)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from lium_plan.sim import market, renting
from lium_plan.sim.accounts import Caller
from lium_plan.sim.bodies import SpecBody
from lium_plan.sim.refusal import Refusal
from lium_plan.sim.rows import Json, Node
from lium_plan.sim.seeding import KIB_PER_GIB
from lium_plan.sim.twist import Twist
from lium_plan.sim.world import World


@dataclass(frozen=True, slots=True)
class Pick:
    node: Node
    pod_id: str | None
    """None for a dry run."""
    template_id: str
    price_per_hour: Decimal
    candidates: int
    attempts: int
    others: tuple[Node, ...]


_NOISE = re.compile(
    r"\b(nvidia|geforce|tesla|quadro|generation|blackwell|server edition|pcie|sxm\d?|hbm\d\w*|ac|\d+ ?gb)\b",
    re.IGNORECASE,
)


def gpu_key(name: str) -> str:
    """`NVIDIA H100 80GB HBM3`, `H100 80GB HBM3` and `h100` are one (contract §5.3)."""
    plain = "".join(_NOISE.sub(" ", name.replace("-", " ")).split()).lower()
    return re.sub(r"^rtxa(\d)", r"a\1", plain)


def _constraints(world: World, body: SpecBody) -> tuple[tuple[str, object, Callable[[Node], bool]], ...]:
    share: Callable[[Node], float] = lambda node: body.gpu_count / node.gpu_count  # noqa: E731
    cap = body.max_price_per_gpu_hour
    return (
        ("gpu_type", body.gpu_type, lambda node: gpu_key(node.machine_name) == gpu_key(body.gpu_type)),
        (
            "gpu_count",
            body.gpu_count,
            lambda node: node.min_rentable <= body.gpu_count <= market.available(world, node),
        ),
        ("min_vram_gb", body.min_vram_gb, lambda node: node.gpu_memory_mib / 1024 >= (body.min_vram_gb or 0)),
        ("min_cpus", body.min_cpus, lambda node: int(node.cpu_count * share(node)) >= (body.min_cpus or 0)),
        (
            "min_ram_gb",
            body.min_ram_gb,
            lambda node: node.ram_kib / KIB_PER_GIB * share(node) >= (body.min_ram_gb or 0),
        ),
        (
            "min_disk_gb",
            body.min_disk_gb,
            lambda node: node.disk_free_kib / KIB_PER_GIB * share(node) / 3 >= (body.min_disk_gb or 0),
        ),
        (
            "min_download_mbps",
            body.min_download_mbps,
            lambda node: node.download_mbps >= (body.min_download_mbps or 0),
        ),
        ("min_ports", body.min_ports, lambda node: market.free_ports(world, node) >= (body.min_ports or 0)),
        (
            "country",
            body.country,
            lambda node: (node.place.country_code or "").lower() == (body.country or "").lower(),
        ),
        ("docker_in_docker", body.docker_in_docker or None, lambda node: node.sysbox),
        (
            "max_price_per_gpu_hour",
            cap,
            lambda node: cap is None or node.price_per_gpu <= Decimal(str(cap)),
        ),
    )


def candidates(world: World, body: SpecBody) -> list[Node]:
    """Cheapest first. Raises Refusal 409 `no_executor_matches_spec` naming the constraint that left nothing."""
    nodes = market.listed(world)
    for name, wanted, fits in _constraints(world, body):
        if wanted is None:
            continue
        left = [node for node in nodes if fits(node)]
        if not left:
            raise Refusal(
                409,
                "no_executor_matches_spec",
                f"No node matches: {name} leaves none of {len(nodes)}",
                data={"constraint": name, "candidates_before": len(nodes)},
                flat=True,
            )
        nodes = left
    return sorted(nodes, key=lambda node: (node.price_per_gpu, -node.download_mbps, -(node.reliability or 0), node.id))


def cheapest_price(world: World, body: SpecBody) -> Decimal:
    return market.price_for(candidates(world, body)[0], body.gpu_count)


def recommended_template(world: World) -> str:
    for template in world.templates:
        if template.user_id is None and template.category == "PYTORCH":
            return template.id
    raise Refusal(404, "template_not_found", "Template not found")


def rent(world: World, caller: Caller, body: SpecBody, twist: Twist) -> Pick:
    """Rent the first candidate that can be had; a dry run only picks."""
    found = candidates(world, body)
    if body.template_id is None and body.dockerfile_content is None:
        body = body.model_copy(update={"template_id": recommended_template(world)})
    renting.check_options(world, caller, body)
    refusal: Refusal | None = None
    for attempt, node in enumerate(found, 1):
        pod_id: str | None = None
        template_id = str(body.template_id)
        if not body.dry_run:
            try:
                pod = renting.rent(world, caller, node, body, gpu_count=body.gpu_count, twist=twist)
            except Refusal as problem:
                if problem.status == 404 or problem.status == 422:
                    raise
                refusal = problem
                continue
            pod_id, template_id = pod.id, pod.template_id
        others = tuple(other for other in found if other.id != node.id)[:5]
        price = market.price_for(node, body.gpu_count)
        return Pick(node, pod_id, template_id, price, len(found), 0 if body.dry_run else attempt, others)
    assert refusal is not None
    raise refusal


def alternative_row(world: World, node: Node, gpu_count: int) -> dict[str, Json]:
    return {
        "id": node.id,
        "machine_name": node.machine_name,
        "gpu_count": node.gpu_count,
        "available_gpu_count": market.available(world, node),
        "price_per_gpu": float(node.price_per_gpu),
        "price_per_hour": float(market.price_for(node, gpu_count)),
        "download_mbps": node.download_mbps,
        "country_code": node.place.country_code,
    }
