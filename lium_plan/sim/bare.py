"""A runtime without machines: every container "starts" at once, at ports nobody listens on.

For simulations that need the API alone, in virtual time above all.
"""

from __future__ import annotations

from itertools import count

from lium_plan.sim.runtime import Container, Endpoint, SshFault


class BareRuntime:
    """Remembers what it was asked, so that a test can look (`running`, `faults`)."""

    mode = "none"

    def __init__(self, first_port: int = 30000) -> None:
        self.running: dict[str, Container] = {}
        self.faults: dict[str, SshFault] = {}
        self.host_keys: dict[str, int] = {}
        """How many host keys each pod has had."""
        self._ports = count(first_port)

    async def start(self, container: Container) -> Endpoint:
        self.running[container.pod_id] = container
        self.host_keys[container.pod_id] = self.host_keys.get(container.pod_id, 0) + 1
        inner = [*container.internal_ports, *(20000 + index for index in range(container.extra_ports))]
        return Endpoint("127.0.0.1", "root", {port: next(self._ports) for port in dict.fromkeys(inner)})

    async def stop(self, pod_id: str) -> None:
        self.running.pop(pod_id, None)
        self.faults.pop(pod_id, None)

    async def output(self, pod_id: str, tail: int) -> tuple[str, ...]:
        container = self.running.get(pod_id)
        return () if container is None else (f"container of {container.image} started",)[-tail:]

    async def working(self) -> bool:
        return False

    async def set_fault(self, pod_id: str, fault: SshFault) -> None:
        if pod_id in self.running:
            self.faults[pod_id] = fault

    async def change_host_key(self, pod_id: str) -> None:
        if pod_id in self.running:
            self.host_keys[pod_id] += 1

    async def forget_volume(self, volume_id: str) -> None:
        return None

    async def close(self) -> None:
        self.running.clear()
