"""The runtime itself: which containers exist, in which mode they run, and what a killed simulator left behind."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from lium_plan.sim.pods import container as namespaces
from lium_plan.sim.pods import filesystem, linux, tracking
from lium_plan.sim.pods.confined import ConfinedMachine
from lium_plan.sim.pods.container import NamespaceMachine
from lium_plan.sim.pods.layout import Layout, Record, delete_tree
from lium_plan.sim.pods.machine import Machine
from lium_plan.sim.pods.pod import Pod
from lium_plan.sim.pods.processes import LaunchError, Processes
from lium_plan.sim.runtime import Container, Endpoint, SshFault

NAMESPACES = "namespaces"
CONFINED = "confined"
_NO_FENCE = (
    "This system can't fence in the commands of pods (no Landlock): a command that names an absolute path can write "
    "wherever you can."
)


class LocalRuntime:
    """Implements `sim.runtime.Runtime` on this machine. Use `lium_plan.sim.pods.open_runtime`."""

    def __init__(self, root: Path, *, confined: bool, say: Callable[[str], None]) -> None:
        self._layout = Layout(root)
        self._say = say
        self._pods: dict[str, Pod] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._mark = hashlib.sha256(os.fsencode(self._layout.root)).hexdigest()[:16]
        _allow_many_descriptors()
        self._end_leftovers()
        self._processes = Processes()
        self.mode = CONFINED if confined else self._try_namespaces()
        self._fenced = self.mode == CONFINED and linux.landlock_version() > 0
        if self.mode == CONFINED:
            self._processes.track(f"{self._mark}/")
            if not self._fenced:
                say(_NO_FENCE)

    def _try_namespaces(self) -> str:
        directory = self._layout.root / "shared" / "trial"
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            if not linux.supported():
                raise LaunchError("not Linux on a known processor")
            if not filesystem.host_has_room_for_programs():
                raise LaunchError("no /usr/local/sbin to show nvidia-smi in")
            self._processes.try_out(namespaces.trial(directory), (nothing, nothing, nothing))
        except LaunchError as error:
            self._say(
                f"Pods run in confined mode, each in a directory of its own, because Linux namespaces are not "
                f"allowed here ({error})."
            )
            return CONFINED
        finally:
            os.close(nothing)
            shutil.rmtree(directory, ignore_errors=True)
        return NAMESPACES

    def _end_leftovers(self) -> None:
        """End the PID 1s of a simulator that was killed; normally the kernel has done so already."""
        for pod_id in self._layout.known_pods():
            record = self._layout.load_record(pod_id)
            if record is not None and record.pid and tracking.start_time(record.pid) == record.started_ticks:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(record.pid, signal.SIGKILL)
        tracking.end_marked(f"{self._mark}/")

    async def start(self, container: Container) -> Endpoint:
        """See `Runtime.start`. Raises OSError when there is no room for it on this machine."""
        async with self._lock(container.pod_id):
            await self._end(container.pod_id)
            layout, pod_id = self._layout, container.pod_id
            directory = layout.generation(pod_id, container.generation)
            directory.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(layout.drop_other_generations, pod_id, container.generation)
            record = layout.load_record(pod_id)
            pod = Pod(
                container=container,
                machine=self._machine(container),
                key_path=directory / "host_key",
                wanted=record.ports if record is not None else {},
            )
            self._pods[pod_id] = pod
            layout.save_record(pod_id, Record(generation=container.generation, ports=pod.ports))
            try:
                await pod.open()
            except BaseException:
                await self._end(pod_id)
                raise
            return pod.endpoint

    def _machine(self, container: Container) -> Machine:
        def on_pid(pid: int, started_ticks: int) -> None:
            pod = self._pods[container.pod_id]
            record = Record(container.generation, ports=pod.ports, pid=pid, started_ticks=started_ticks)
            try:
                self._layout.save_record(container.pod_id, record)
            except OSError as error:
                # Only the next simulator needs it, and only should the kernel not end this PID 1 with us.
                self._say(f"PID 1 of pod {container.pod_id} could not be recorded: {error}")

        if self.mode == NAMESPACES:
            return NamespaceMachine(processes=self._processes, layout=self._layout, container=container, on_pid=on_pid)
        return ConfinedMachine(
            processes=self._processes,
            layout=self._layout,
            container=container,
            mark=f"{self._mark}/{container.pod_id}/",
            fenced=self._fenced,
            on_pid=on_pid,
        )

    async def stop(self, pod_id: str) -> None:
        async with self._lock(pod_id):
            await self._end(pod_id)
            try:
                directory = self._layout.pod(pod_id)
            except ValueError:
                return
            try:
                await asyncio.to_thread(delete_tree, directory)
            except OSError as error:
                self._say(f"Files of pod {pod_id} could not be deleted: {error}")
        self._locks.pop(pod_id, None)

    async def output(self, pod_id: str, tail: int) -> tuple[str, ...]:
        pod = self._pods.get(pod_id)
        return () if pod is None else pod.machine.output.tail(tail)

    async def working(self) -> bool:
        """See `Runtime.working`. What a confined pod's command left behind under a wiped environment goes unseen, and
        where there is no /proc so does everything but an open connection."""
        if any(pod.is_entered for pod in self._pods.values()):
            return True
        firsts = {pod.machine.first_pid for pod in self._pods.values()} - {None}
        return await asyncio.to_thread(tracking.others_run, frozenset(pid for pid in firsts if pid), f"{self._mark}/")

    async def set_fault(self, pod_id: str, fault: SshFault) -> None:
        """Raises ValueError for an unknown mode."""
        pod = self._pods.get(pod_id)
        if pod is not None:
            pod.set_fault(fault)

    async def change_host_key(self, pod_id: str) -> None:
        pod = self._pods.get(pod_id)
        if pod is not None:
            pod.change_host_key()

    async def forget_volume(self, volume_id: str) -> None:
        try:
            directory = self._layout.volume(volume_id)
        except ValueError:
            return
        await asyncio.to_thread(delete_tree, directory)

    async def close(self) -> None:
        """Stop every container. Their files stay: the same generation can be started again."""
        await asyncio.gather(*(self._end_in_turn(pod_id) for pod_id in tuple(self._pods)))
        self._processes.close()
        self._layout.close()

    async def _end_in_turn(self, pod_id: str) -> None:
        async with self._lock(pod_id):
            await self._end(pod_id)

    async def _end(self, pod_id: str) -> None:
        pod = self._pods.get(pod_id)
        if pod is not None:
            await pod.close()
            self._pods.pop(pod_id, None)

    def _lock(self, pod_id: str) -> asyncio.Lock:
        return self._locks.setdefault(pod_id, asyncio.Lock())


def _allow_many_descriptors() -> None:
    """Raise the soft limit: a pod needs about ten descriptors, and there may be hundreds of pods."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # macOS reports a limit that it then refuses; fewer pods at once are the only harm.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
