"""What pods cost, as the server proves it (contract §2.7.9, §2.14)."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

from lium_plan.sim import money
from lium_plan.sim.images import whole_reference
from lium_plan.sim.render import short_gpu_name
from lium_plan.sim.rows import Charge, Json, Pod
from lium_plan.sim.stamps import naive
from lium_plan.sim.world import World


def _usd(amount: Decimal) -> float:
    return float(round(amount, 6))


def _seconds(world: World, charge: Charge) -> float:
    return 0.0 if charge.credited else ((charge.until or world.now) - charge.since).total_seconds()


def pod_statement(world: World, pod: Pod) -> dict[str, Json]:
    charges = world.charges.where("object", pod.id)
    return {
        "pod_id": pod.id,
        "pod_name": pod.name,
        "removed": pod.deleted_at is not None,
        "created_at": naive(pod.created_at, pod.serial),
        "removed_at": naive(pod.deleted_at, pod.serial),
        "close_reason": pod.close_reason,
        "total": _usd(sum((money.amount(world, charge) for charge in charges), Decimal(0))),
        "billed_seconds": round(sum(_seconds(world, charge) for charge in charges), 6),
        "price_segments": _segments(world, charges),
    }


def _segments(world: World, charges: tuple[Charge, ...]) -> list[Json]:
    return [
        {
            "price_per_hour": float(charge.price_per_hour),
            "billed_seconds": round(_seconds(world, charge), 6),
            "amount": _usd(money.amount(world, charge)),
        }
        for charge in charges
    ]


def pod_record(world: World, pod: Pod) -> dict[str, Json]:
    node, template = world.nodes[pod.node_id], world.templates[pod.template_id]
    return {
        **pod_statement(world, pod),
        "gpu_name": short_gpu_name(node),
        "gpu_count": pod.gpu_count,
        "image": whole_reference(template.docker_image, template.docker_image_tag, template.docker_image_digest),
        "executor_id": pod.node_id,
        "launch_snapshot": {
            "gpu_driver": node.driver,
            "cuda_driver": str(node.cuda),
            "gpu_interconnect": "nvlink" if node.nvlink else "pcie",
        },
    }


def billing_statement(world: World, account_id: str, *, start: date, end: date, key_id: str | None) -> dict[str, Json]:
    """Every pod with a charge between the two days, both included."""
    since = datetime.combine(start, time(), UTC)
    until = datetime.combine(min(end, world.now.date()), time(), UTC) + timedelta(days=1)
    rows: list[Json] = []
    total = Decimal(0)
    for pod in world.pods:
        if pod.account_id != account_id or (key_id is not None and pod.key_id != key_id):
            continue
        charges = world.charges.where("object", pod.id)
        if not any(charge.since < until and (charge.until or world.now) >= since for charge in charges):
            continue
        row = _billed_pod(world, pod, charges, since, until)
        total += Decimal(str(row["total"]))
        rows.append(dict(row))
    return {"start_day": start.isoformat(), "end_day": end.isoformat(), "total": float(total), "pods": rows}


def _billed_pod(
    world: World, pod: Pod, charges: tuple[Charge, ...], since: datetime, until: datetime
) -> dict[str, Json]:
    days: list[Json] = []
    first = datetime.combine(charges[0].since.date(), time(), UTC)
    day, sum_of_days = max(since, first), Decimal(0)
    while day < until:
        amount, seconds = _on_day(world, charges, day)
        if seconds:
            sum_of_days += amount
            days.append(
                {
                    "billing_day": day.date().isoformat(),
                    "amount": _usd(amount),
                    "billed_seconds": seconds,
                    "price_per_hour": float(pod.price_per_hour),
                    "billed_until": naive(min(world.now, day + timedelta(days=1)), 0),
                }
            )
        day += timedelta(days=1)
    return {
        "pod_id": pod.id,
        "pod_name": pod.name,
        "gpu_name": short_gpu_name(world.nodes[pod.node_id]),
        "gpu_count": pod.gpu_count,
        "executor_id": pod.node_id,
        "created_at": naive(pod.created_at, pod.serial),
        "removed_at": naive(pod.deleted_at, pod.serial),
        "close_reason": pod.close_reason,
        "removed": pod.deleted_at is not None,
        "billed_seconds": round(sum(_seconds(world, charge) for charge in charges), 6),
        "billed_until": naive(charges[-1].until or world.now, pod.serial),
        "total": _usd(sum_of_days),
        "api_key_id": pod.key_id,
        "api_key_name": world.keys[pod.key_id].name,
        "price_segments": _segments(world, charges),
        "days": days,
    }


def _on_day(world: World, charges: tuple[Charge, ...], day: datetime) -> tuple[Decimal, float]:
    amount, seconds = Decimal(0), 0.0
    for charge in charges:
        start = max(charge.since, day)
        end = min(charge.until or world.now, day + timedelta(days=1))
        if end > start and not charge.credited:
            amount += charge.price_per_hour * money.hours(start, end)
            seconds += (end - start).total_seconds()
    return amount, seconds
