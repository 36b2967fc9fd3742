"""What providers and the platform do to pods that nobody asked for (contract §4.1, §8)."""

from __future__ import annotations

from dataclasses import replace

from lium_plan.sim import containers, lifecycle, money
from lium_plan.sim.events import record_pod
from lium_plan.sim.records import Timer, TimerKind
from lium_plan.sim.rows import ContainerState, Pod, PodStatus
from lium_plan.sim.world import World


def break_pod(world: World, pod: Pod) -> None:
    """The provider force-closes it: billing ends and is credited, only DELETE works from here on (contract §4.1).

    Nothing happens to a pod that isn't in use any more; the same goes for `reclaim`.
    """
    if not lifecycle.is_in_use(pod):
        return
    containers.stop_container(world, pod)
    money.close(world, pod.id, credit=True)
    before = pod.status
    pod = world.pods.change(
        pod.id,
        status=PodStatus.BROKEN,
        updated_at=world.now,
        container=ContainerState.NONE,
        close_reason="provider_force_close",
    )
    record_pod(
        world,
        pod,
        "pod-lifecycle.status",
        from_status=before,
        to_status=PodStatus.BROKEN.value,
        reason="provider_force_close",
        error="The provider closed this pod",
    )


def reclaim(world: World, pod: Pod, *, notice_s: float = 0.0) -> None:
    """The provider of a spot node takes it back, after `notice_s` of the server's seconds."""
    if not lifecycle.is_in_use(pod):
        return
    if notice_s > 0:
        at = world.now + world.took(notice_s)
        world.pods.change(pod.id, notice_at=at, updated_at=world.now)
        world.schedule(at, TimerKind.POD_RECLAIMED, pod.id)
        return
    node = world.nodes[pod.node_id]
    lifecycle.request_removal(world, pod, reason="spot_reclaimed")
    world.nodes.put(replace(node, others=min(node.gpu_count, node.others + pod.gpu_count)))


def on_reclaimed(world: World, timer: Timer) -> None:
    reclaim(world, world.pods[timer.ref])


def vanish(world: World, pod: Pod) -> None:
    """The row goes at once, with no removal before it."""
    lifecycle.remove_row(world, pod)


def fail_next_reboot(world: World, pod: Pod) -> None:
    """The reboot under way, or else the pod as it stands, ends in REBOOT_FAILED."""
    if pod.status is PodStatus.RUNNING:
        pod = world.pods.change(pod.id, status=PodStatus.REBOOT_PENDING)
    if pod.status is PodStatus.REBOOT_PENDING:
        lifecycle.fail(world, pod, "Container did not come up again (failure_step: running_check)")


def unstick(world: World, pod: Pod) -> None:
    """A stuck removal goes on."""
    world.pods.change(pod.id, stuck_delete=False)
    if pod.status is PodStatus.DELETING and pod.deleted_at is None:
        world.schedule(world.now, TimerKind.POD_GONE, pod.id)
