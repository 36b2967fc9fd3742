"""Resetting GPUs of a running pod (contract §2.7.10)."""

from __future__ import annotations

from collections.abc import Sequence

from lium_plan.sim import lifecycle, throttle
from lium_plan.sim.refusal import Refusal, conflict, not_found
from lium_plan.sim.rows import Json, Pod, PodStatus
from lium_plan.sim.world import World

RESET_S = 12.0


def begin_reset(world: World, pod: Pod, indices: Sequence[int] | None) -> str:
    """The request's id. Raises Refusal 400, 409 or 429."""
    lifecycle.check_changeable(pod)
    if pod.status is not PodStatus.RUNNING:
        raise conflict(f"Pod is {pod.status.value}, it must be RUNNING")
    if indices is not None and any(index not in range(pod.gpu_count) for index in indices):
        raise Refusal(400, "invalid_gpu_index", f"GPU index must be between 0 and {pod.gpu_count - 1}")
    throttle.take_per_minute(world, pod.id, "reset-gpu", 1)
    request_id = world.new_id()
    done_at = world.now + world.took(RESET_S)
    chosen = range(pod.gpu_count) if indices is None else indices
    world.pods.change(pod.id, gpu_reset_id=f"{request_id} {' '.join(map(str, chosen))}", gpu_reset_until=done_at)
    return request_id


def reset_row(world: World, pod: Pod, request_id: str) -> dict[str, Json]:
    """Raises Refusal 404 for a request that isn't the pod's last one."""
    known, _, chosen = (pod.gpu_reset_id or "").partition(" ")
    if known != request_id or pod.gpu_reset_until is None:
        raise not_found("GPU reset")
    done = pod.gpu_reset_until <= world.now
    gpus: list[Json] = [
        {"index": int(index), "uuid": f"GPU-{pod.node_id[:8]}-{index}", "result": "reset", "detail": None}
        for index in chosen.split()
    ]
    return {
        "request_id": request_id,
        "status": "done" if done else "running",
        "gpus": gpus if done else [],
        "container_restarted": False,
        "ok": True if done else None,
    }
