"""A pod's life from PENDING to gone (contract §4), and the reports from the machines behind it."""

from __future__ import annotations

from datetime import datetime, timedelta

from lium_plan.sim import containers, money
from lium_plan.sim.events import record_pod
from lium_plan.sim.images import creation_fate, slowness
from lium_plan.sim.records import Timer, TimerKind
from lium_plan.sim.refusal import Refusal, conflict
from lium_plan.sim.rows import ContainerState, Pod, PodStatus
from lium_plan.sim.runtime import Endpoint
from lium_plan.sim.twist import Twist
from lium_plan.sim.world import World

PHASES = (
    (0.00, "queued"),
    (0.05, "preparing node"),
    (0.12, "connecting to node"),
    (0.20, "pulling image"),
    (0.65, "creating volume"),
    (0.72, "starting container"),
    (0.90, "configuring ssh"),
)

UNDER_WAY = frozenset({PodStatus.PENDING, PodStatus.REBOOT_PENDING})
IN_USE = frozenset({PodStatus.PENDING, PodStatus.RUNNING, PodStatus.REBOOT_PENDING, PodStatus.REBOOT_FAILED})


# -- creating -----------------------------------------------------------------------------------------------------


def begin_creation(world: World, pod: Pod, twist: Twist) -> Pod:
    """Start creating a PENDING pod that was just put; it ends in RUNNING or CREATION_FAILED."""
    template = world.templates[pod.template_id]
    settings = world.settings
    seconds = settings.create_seconds
    if seconds is None:
        seconds = world.dice.spread(20.0, sigma=0.34, low=12.0, high=55.0)
    seconds = twist.create_seconds if twist.create_seconds is not None else seconds * slowness(template.docker_image)
    return _begin(world, pod, seconds=seconds, fails=twist.fails)


def _begin(world: World, pod: Pod, *, seconds: float, fails: str | None) -> Pod:
    template = world.templates[pod.template_id]
    login = None
    if template.docker_credential_id is not None:
        credential = world.credentials.get(template.docker_credential_id)
        if credential is not None and credential.deleted_at is None:
            login = (credential.username, credential.password)
    fate = creation_fate(
        repository=template.docker_image,
        entrypoint=template.entrypoint or "",
        command=template.startup_commands or "",
        login=login,
    )
    error, step, at = (fails, "ssh_connect", 0.5) if fails else (None, None, 1.0)
    if fate is not None and error is None:
        error, step, at = fate.error, fate.step, fate.at
    ready_at = world.now + world.took(seconds)
    pod = world.pods.change(pod.id, starts_at=world.now, ready_at=ready_at, fails_with=error, fails_at_step=step)
    if error is None:
        world.schedule(ready_at, TimerKind.POD_READY, pod.id, note=str(pod.generation))
    else:
        fails_at = world.now + world.took(seconds * at)
        world.schedule(fails_at, TimerKind.POD_FAILS, pod.id, note=str(pod.generation))
    return pod


def is_under_way(pod: Pod) -> bool:
    """Being created or rebooted. A row that vanished keeps its last status."""
    return pod.deleted_at is None and pod.status in UNDER_WAY


def is_in_use(pod: Pod) -> bool:
    """It holds its GPUs and is billed for them."""
    return pod.deleted_at is None and pod.status in IN_USE


def on_ready(world: World, timer: Timer) -> None:
    pod = world.pods[timer.ref]
    if is_under_way(pod) and str(pod.generation) == timer.note:
        containers.start_container(world, pod)


def on_fails(world: World, timer: Timer) -> None:
    pod = world.pods[timer.ref]
    if is_under_way(pod) and str(pod.generation) == timer.note:
        fail(world, pod, f"{pod.fails_with} (failure_step: {pod.fails_at_step})")


def fail(world: World, pod: Pod, error: str) -> None:
    """The creation or the reboot under way comes to nothing."""
    containers.stop_container(world, pod)
    reboot = pod.status is PodStatus.REBOOT_PENDING
    status = PodStatus.REBOOT_FAILED if reboot else PodStatus.CREATION_FAILED
    failed = world.pods.change(pod.id, status=status, updated_at=world.now, container=ContainerState.NONE)
    record_pod(
        world,
        failed,
        "pod-lifecycle.status" if reboot else "pod-create.failed",
        from_status=pod.status,
        to_status=status.value,
        reason="reboot_failed" if reboot else "creation_failed",
        error=error,
    )
    if not reboot:
        world.pods.change(pod.id, close_reason="creation_failed")
        money.close(world, pod.id, credit=True)
        kept = world.took(world.settings.creation_failed_retention_seconds)
        world.schedule(world.now + kept, TimerKind.POD_FAILED_FORGOTTEN, pod.id)


def on_failed_forgotten(world: World, timer: Timer) -> None:
    pod = world.pods[timer.ref]
    if pod.deleted_at is None and pod.status is PodStatus.CREATION_FAILED:
        remove_row(world, pod)


def container_started(world: World, pod_id: str, generation: int, endpoint: Endpoint) -> None:
    """A report: the container runs and listens at `endpoint`."""
    pod = world.pods.get(pod_id)
    if pod is None or pod.generation != generation or pod.container is ContainerState.NONE:
        return
    before = pod.status
    pod = world.pods.change(
        pod_id,
        container=ContainerState.UP,
        host=endpoint.host,
        ssh_user=endpoint.user,
        ports=dict(endpoint.ports),
    )
    if before not in UNDER_WAY:
        return
    pod = world.pods.change(pod_id, status=PodStatus.RUNNING, updated_at=world.now)
    created = before is PodStatus.PENDING
    record_pod(
        world,
        pod,
        "pod-create.success" if created else "pod-lifecycle.status",
        from_status=before,
        to_status=PodStatus.RUNNING.value,
    )
    if created and pod.removal_follows_boot and pod.termination_hours:
        schedule_removal(world, pod, world.now + timedelta(hours=pod.termination_hours), follows_boot=True)
    if created and pod.enable_jupyter:
        install_jupyter(world, pod)


def container_failed(world: World, pod_id: str, generation: int, error: str) -> None:
    """A report: the machines could not run it."""
    pod = world.pods.get(pod_id)
    if pod is not None and pod.generation == generation and is_under_way(pod):
        fail(world, pod, f"Container creation failed due to {error} (failure_step: {'docker_run'})")


# -- removing -----------------------------------------------------------------------------------------------------


def request_removal(world: World, pod: Pod, *, reason: str, key_id: str | None = None) -> None:
    """Billing stops now; the row goes when the node is done (contract §2.7.3). A DELETING pod stays as it is."""
    if pod.status is PodStatus.DELETING:
        return
    containers.stop_container(world, pod)
    money.close(world, pod.id, credit=pod.status is PodStatus.PENDING)
    before = pod.status
    pod = world.pods.change(
        pod.id,
        status=PodStatus.DELETING,
        updated_at=world.now,
        container=ContainerState.NONE,
        close_reason=pod.close_reason or reason,
    )
    record_pod(
        world,
        pod,
        "pod-delete.requested",
        key_id=key_id,
        from_status=before,
        to_status=PodStatus.DELETING.value,
        reason=reason,
    )
    if pod.stuck_delete:
        return
    seconds = world.settings.delete_seconds
    if seconds is None:
        seconds = world.dice.spread(36.0, sigma=0.15, low=20.0, high=70.0)
    world.schedule(world.now + world.took(seconds), TimerKind.POD_GONE, pod.id)


def on_gone(world: World, timer: Timer) -> None:
    pod = world.pods[timer.ref]
    if pod.status is PodStatus.DELETING and pod.deleted_at is None and not pod.stuck_delete:
        remove_row(world, pod)


def remove_row(world: World, pod: Pod) -> None:
    containers.stop_container(world, pod)
    money.close(world, pod.id)
    before = pod.status
    pod = world.pods.change(
        pod.id,
        deleted_at=world.now,
        listed_until=world.now + timedelta(seconds=pod.linger_s) if pod.linger_s else None,
        updated_at=world.now,
        container=ContainerState.NONE,
        jupyter_url=None,
    )
    record_pod(world, pod, "pod-delete.success", from_status=before, to_status="DELETED", reason=pod.close_reason)
    template = world.templates[pod.template_id]
    if template.one_time_template and template.deleted_at is None:
        money.close(world, template.id)
        world.templates.change(template.id, deleted_at=world.now)


def schedule_removal(world: World, pod: Pod, at: datetime, *, follows_boot: bool = False) -> Pod:
    pod = world.pods.change(pod.id, removal_scheduled_at=at, removal_follows_boot=follows_boot, updated_at=world.now)
    world.schedule(at, TimerKind.POD_REMOVAL, pod.id)
    return pod


def cancel_removal(world: World, pod: Pod) -> Pod:
    return world.pods.change(pod.id, removal_scheduled_at=None, removal_follows_boot=False, updated_at=world.now)


def on_removal(world: World, timer: Timer) -> None:
    pod = world.pods[timer.ref]
    if pod.deleted_at is None and pod.removal_scheduled_at == timer.due:
        request_removal(world, pod, reason="scheduled_termination")


# -- rebooting ----------------------------------------------------------------------------------------------------


def reboot(world: World, pod: Pod, *, key_id: str | None, why: str, **changes: object) -> Pod:
    """Replace the container: fresh file system, fresh host key (contract §2.7.4). `changes` go into the pod's row."""
    containers.stop_container(world, pod)
    before = pod.status
    pod = world.pods.change(
        pod.id,
        status=PodStatus.REBOOT_PENDING,
        updated_at=world.now,
        generation=pod.generation + 1,
        container=ContainerState.NONE,
        host=None,
        ports={},
        **changes,
    )
    record_pod(
        world,
        pod,
        "pod-lifecycle.status",
        key_id=key_id,
        from_status=before,
        to_status=PodStatus.REBOOT_PENDING.value,
        reason="user_initiated",
        detail=why,
    )
    return _begin(world, pod, seconds=world.settings.reboot_seconds, fails=None)


def check_changeable(pod: Pod) -> None:
    """Raises Refusal for a change of a pod that is in no state for it (contract §4.1, §9.2.12)."""
    if pod.status is PodStatus.BROKEN:
        raise Refusal(400, None, "This pod is broken. The only thing left to do is to remove it.")
    if pod.status is PodStatus.DELETING:
        raise conflict("Pod is being deleted")


def check_rebootable(pod: Pod) -> None:
    check_changeable(pod)
    if pod.status not in (PodStatus.RUNNING, PodStatus.REBOOT_FAILED):
        raise conflict(f"Pod is {pod.status.value}, it must be RUNNING")


# -- smaller things -----------------------------------------------------------------------------------------------


def install_jupyter(world: World, pod: Pod) -> None:
    world.pods.change(pod.id, jupyter_status="PENDING", updated_at=world.now)
    world.schedule(world.now + world.took(10), TimerKind.JUPYTER_DONE, pod.id)


def on_jupyter_done(world: World, timer: Timer) -> None:
    pod = world.pods[timer.ref]
    if pod.deleted_at is None and pod.status is PodStatus.RUNNING and pod.host is not None:
        port = next((outer for inner, outer in pod.ports.items() if inner != 22), pod.ports.get(22))
        world.pods.change(
            pod.id,
            jupyter_status="SUCCESS",
            jupyter_url=f"http://{pod.host}:{port}/?token={pod.id[:8]}",
            updated_at=world.now,
        )


def phase(world: World, pod: Pod) -> str | None:
    """What a pod under way is doing just now."""
    if pod.status not in UNDER_WAY or pod.starts_at is None or pod.ready_at is None:
        return None
    whole = (pod.ready_at - pod.starts_at).total_seconds()
    share = 1.0 if whole <= 0 else (world.now - pod.starts_at).total_seconds() / whole
    return [name for start, name in PHASES if start <= max(0.0, share)][-1]
