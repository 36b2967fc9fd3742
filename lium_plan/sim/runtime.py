"""What the world needs of the machines behind its pods.

The world (`sim/world*.py`) decides *when* a pod's container starts and stops; a runtime makes it real: an SSH
server on loopback whose commands run inside the pod. The world owns ids, money and status; the runtime owns
processes, sockets and directories, and knows nothing of accounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Container:
    """One container to run for a pod. A reboot or a template switch is a new one with `generation` + 1."""

    pod_id: str
    generation: int
    """1 for the first container; each later one has a fresh file system and a fresh SSH host key."""
    image: str
    """The whole reference, `repo/name:tag` or `repo/name@sha256:…`."""
    entrypoint: str
    command: str
    environment: Mapping[str, str]
    public_keys: tuple[str, ...]
    """OpenSSH public key lines, authorised for root."""
    internal_ports: tuple[int, ...]
    """Container TCP ports to publish; 22 is always among them."""
    extra_ports: int
    """How many further container ports (20000, 20001, …) to publish."""
    local_volume: str
    """Mount path of the pod's local volume, `/root` unless the template says otherwise. It outlives a reboot."""
    volume_id: str | None
    """The S3 volume to mount at `/mnt`; its content is kept with the volume, after the pod too."""
    volume_mount_fails: bool
    """The platform only warns when a volume can't be mounted: the pod runs without `/mnt`."""
    gpu_name: str
    """Full name as `nvidia-smi` prints it, e.g. `NVIDIA H200`."""
    gpu_count: int
    gpu_memory_mib: int
    ssh_delay_s: float
    """Real seconds from start until the banner is sent; until then connections are accepted and closed."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a started container is reached from outside."""

    host: str
    user: str
    ports: Mapping[int, int] = field(default_factory=dict)
    """Container port -> external port; `ports[22]` is SSH."""


@dataclass(frozen=True, slots=True)
class SshFault:
    """How one pod's SSH misbehaves until told otherwise.

    `mode` is one of `none`, `refuse` (nothing listens), `reset` (accepted, then reset), `close` (accepted, then
    closed), `banner_only` (a banner, then silence), `silent` (accepted, no byte ever), `auth` (every key refused),
    `drop` (open sessions are cut without a word), `hang` (open sessions stall without a reset).
    """

    mode: str
    seconds: float | None = None
    """Real seconds after which it heals by itself; None: until the next fault."""


class Runtime(Protocol):
    """A place where containers run. Every method is safe to call for an unknown pod."""

    mode: str
    """`namespaces`, `confined` or `none`."""

    async def start(self, container: Container) -> Endpoint:
        """Run the container and listen for SSH. Replaces an older generation of the same pod."""
        ...

    async def stop(self, pod_id: str) -> None:
        """End PID 1 and everything in it, close its ports, delete its file system (not the S3 volume's content)."""
        ...

    async def output(self, pod_id: str, tail: int) -> tuple[str, ...]:
        """The last `tail` lines that the container's PID 1 printed."""
        ...

    async def working(self) -> bool:
        """Whether anything that came in over SSH still runs in some container: a session, or what one left behind."""
        ...

    async def set_fault(self, pod_id: str, fault: SshFault) -> None: ...

    async def change_host_key(self, pod_id: str) -> None:
        """As a platform restart does: same pod, same port, another key; open sessions end."""
        ...

    async def forget_volume(self, volume_id: str) -> None:
        """Delete a volume's content."""
        ...

    async def close(self) -> None:
        """Stop every container. Volume content stays."""
        ...
