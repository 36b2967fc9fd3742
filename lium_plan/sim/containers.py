"""What the machines behind a pod are asked to run, and when they are asked (contract §6)."""

from __future__ import annotations

from lium_plan.sim.effects import ForgetVolume, StartContainer, StopContainer
from lium_plan.sim.images import RESERVED_ENVIRONMENT, whole_reference
from lium_plan.sim.rows import ContainerState, Pod, Template
from lium_plan.sim.runtime import Container, SshFault
from lium_plan.sim.world import World

DEFAULT_PORTS = (22, 20000, 20001, 20002, 20003)
"""What an empty `internal_ports` means (contract §2.9.3)."""


def container_of(world: World, pod: Pod) -> Container:
    """What the machines are asked to run for a pod."""
    template = world.templates[pod.template_id]
    node = world.nodes[pod.node_id]
    environment = {
        name: value
        for name, value in (template.environment or {}).items()
        if value and name not in RESERVED_ENVIRONMENT
    }
    ports = template.internal_ports or DEFAULT_PORTS
    return Container(
        pod_id=pod.id,
        generation=pod.generation,
        image=whole_reference(template.docker_image, template.docker_image_tag, template.docker_image_digest),
        entrypoint=(template.entrypoint or "").split(" ")[0],
        command=template.startup_commands or "",
        environment=environment,
        public_keys=pod.public_keys,
        internal_ports=ports if 22 in ports else (22, *ports),
        extra_ports=pod.extra_ports,
        local_volume=local_volume(template),
        volume_id=pod.volume_id,
        volume_mount_fails=pod.volume_mount_fails,
        gpu_name=node.machine_name,
        gpu_count=pod.gpu_count if pod.visible_gpus is None else pod.visible_gpus,
        gpu_memory_mib=node.gpu_memory_mib,
        ssh_delay_s=pod.ssh_delay_s / world.settings.speed,
    )


def local_volume(template: Template) -> str:
    """Where the pod's local volume is mounted (contract §2.9.3, U19)."""
    bad = {"bin", "dev", "etc", "proc", "sys"}
    for path in template.volumes or ():
        if path.startswith("/") and not bad & set(path.split("/")):
            return path
    return "/root"


def start_container(world: World, pod: Pod) -> None:
    world.pods.change(pod.id, container=ContainerState.STARTING)
    fault = SshFault(pod.ssh_mode) if pod.ssh_mode != "none" else None
    world.effects.append(StartContainer(container_of(world, pod), fault))


def stop_container(world: World, pod: Pod) -> None:
    if pod.container is not ContainerState.NONE:
        world.effects.append(StopContainer(pod.id))


def forget_volume(world: World, volume_id: str) -> None:
    world.effects.append(ForgetVolume(volume_id))


def restart_containers(world: World) -> None:
    """After a reload: ask for every container that should be up, once."""
    world.effects[:] = [effect for effect in world.effects if not isinstance(effect, StartContainer)]
    for pod in world.pods.where("alive", True):
        if pod.container is ContainerState.UP:
            pod = world.pods.change(pod.id, ssh_delay_s=0.0)
        if pod.container is not ContainerState.NONE:
            start_container(world, pod)
