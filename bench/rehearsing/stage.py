"""A stage: the local Lium in process, machines as data, a network between, and lium-plan as a library before them.

Everything is in virtual time and follows from the seed. How long a pod takes to boot, a command to run and a request to
travel is drawn from the seed and the name of the thing, so that a faster run meets the same world.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from bench.rehearsing.meter import Meter, metering
from lium_plan import operations
from lium_plan.engine.events import Event, EventType, RunReport
from lium_plan.interrupts import Interrupt
from lium_plan.lium.client import LiumClient
from lium_plan.marks import parse_pod_name
from lium_plan.operations.outside import Outside
from lium_plan.planning.plan import Plan
from lium_plan.requests import ApplyRequest, PlanRequest, Sources
from lium_plan.settings import Settings
from lium_plan.sim import faults
from lium_plan.sim.inprocess import InProcess, open_in_process
from lium_plan.sim.settings import Settings as ServerSettings
from lium_plan.sim.simulator import Beginning
from lium_plan.ssh.protocol import (
    Completed,
    Connector,
    Coordinates,
    FileToSend,
    HostKeyPin,
    OnOutput,
    OnStage,
    Session,
    discard,
    ignore_stage,
)
from lium_plan.state.local import LocalStore
from tests.support.virtual import run_virtual
from tests.support.world_machines import Behaviour, Machines
from tests.support.world_process import CURRENT, Process
from tests.support.world_shell import ShellConnector

T = TypeVar("T")
BALANCE_USD = 1e6
GPUS_A_NODE = 8
PORTS_A_NODE = 200


class Chances:
    """Durations, each from the seed and the name of what takes so long."""

    def __init__(self, seed: int, *, pulls: bool = False) -> None:
        """`pulls`: one fleet in eight has an image that its nodes lack."""
        self._seed = seed
        self._pulls = pulls

    def spread(self, name: str, middle: float, *, sigma: float, low: float, high: float) -> float:
        """Log-normal around `middle`, within low..high."""
        throw = random.Random(f"{self._seed}/{name}")
        return min(high, max(low, middle * throw.lognormvariate(0.0, sigma)))

    def latency_s(self, number: int, way: str) -> float:
        """One way of one request."""
        return self.spread(f"{way} {number}", 0.04, sigma=0.6, low=LEAST_LATENCY_S, high=0.6)

    def boot_s(self, member: str) -> float:
        """From the rent to RUNNING, as measured of cached images, and the pull of one that is not."""
        fleet = member.rpartition("-")[0]
        pulls = self._pulls and random.Random(f"{self._seed}/pull {fleet}").random() < 1 / 8
        pull_s = self.spread(f"pull {member}", 80.0, sigma=0.3, low=30.0, high=240.0) if pulls else 0.0
        return pull_s + self.spread(f"boot {member}", 20.0, sigma=0.34, low=12.0, high=55.0)

    def ssh_s(self, member: str) -> float:
        """From RUNNING to the banner."""
        return self.spread(f"ssh {member}", 4.0, sigma=0.5, low=1.0, high=30.0)

    def work_s(self, script: str, middle: float) -> float:
        return self.spread(f"work {script}", middle, sigma=0.4, low=1.0, high=3600.0)


LEAST_LATENCY_S = 0.015


@dataclass(slots=True)
class Travelled:
    """One request on its way, by the loop's clock."""

    method: str
    path: str
    body: bytes
    sent_at: float
    arrived_at: float
    left_at: float = 0.0
    answered_at: float = 0.0
    status: int = 0
    answer: bytes = b""
    """Of what changed something."""


class Network(httpx.AsyncBaseTransport):
    """Between the client and the server: every request takes its time both ways, and is written down."""

    def __init__(self, lium: InProcess, chances: Chances, meter: Meter, *, shapes_pods: bool) -> None:
        self._lium = lium
        self._shapes_pods = shapes_pods
        self._chances = chances
        self._meter = meter
        self._number = 0
        self.writes: list[Travelled] = []
        self.reads = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        # What is between and behind is not the client's work.
        return await self._meter.start(self._carry(request))

    async def _carry(self, request: httpx.Request) -> httpx.Response:
        loop = asyncio.get_running_loop()
        self._number += 1
        number, path = self._number, request.url.path.removeprefix("/api")
        body = b"".join([part async for part in request.stream])  # type: ignore[union-attr]
        item = Travelled(
            request.method, path, body, loop.time(), loop.time() + self._chances.latency_s(number, "there")
        )
        await asyncio.sleep(item.arrived_at - loop.time())
        if self._shapes_pods and path.endswith("/rent"):
            self._shape_pod(path, body)
        response = await self._lium.transport.handle_async_request(request)
        item.left_at = loop.time()
        await asyncio.sleep(self._chances.latency_s(number, "back"))
        item.answered_at, item.status = loop.time(), response.status_code
        if request.method == "GET":
            self.reads += 1
        else:
            item.answer = await response.aread()
            self.writes.append(item)
        return response

    def _shape_pod(self, path: str, body: bytes) -> None:
        """How long this pod is going to take."""
        member = member_of(str(json.loads(body)["pod_name"]))
        twist = {"create_seconds": self._chances.boot_s(member), "ssh_delay_seconds": self._chances.ssh_s(member)}
        spec = {"effect": {"do": "twist", "twist": twist}, "match": {"method": "POST", "path": path}}
        faults.add(self._lium.world, faults.FAULT.validate_python(spec))


def member_of(pod_name: str) -> str:
    """The readable tail of a pod's name, which is the same in every run."""
    marks = parse_pod_name(pod_name)
    return pod_name if marks is None else marks.tail


class TimedMachines(Machines):
    """Machines on which `work SECONDS …` takes about so many seconds."""

    def __init__(self, chances: Chances) -> None:
        super().__init__()
        self._chances = chances

    def behaviour(self, script: str) -> Behaviour:
        spent = sum(self._chances.work_s(found[0], float(found[1])) for found in _WORK.finditer(script))
        return Behaviour("", duration_s=spent)


_WORK = re.compile(r"\bwork ([0-9.]+) [^'\n]*")


class _Elsewhere:
    """A session whose work counts as the world's, not as its caller's."""

    def __init__(self, inner: Session, meter: Meter, process: Process) -> None:
        self._inner = inner
        self._meter = meter
        self._process = process

    async def put(self, files: Sequence[FileToSend], *, timeout_s: float) -> None:
        await _there(self._meter, self._process, self._inner.put(files, timeout_s=timeout_s))

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        keep_stdin_open: bool = False,
        leaves_jobs: bool = False,
        on_output: OnOutput = discard,
        timeout_s: float,
    ) -> Completed:
        work = self._inner.run(
            script,
            stdin=stdin,
            keep_stdin_open=keep_stdin_open,
            leaves_jobs=leaves_jobs,
            on_output=on_output,
            timeout_s=timeout_s,
        )
        return await _there(self._meter, self._process, work)

    async def follow(self, path: str, *, offset_bytes: int = 0, on_output: OnOutput) -> None:
        work = self._inner.follow(path, offset_bytes=offset_bytes, on_output=on_output)
        await _there(self._meter, self._process, work)

    async def close(self) -> None:
        await _there(self._meter, self._process, self._inner.close())


class _ElsewhereConnector:
    def __init__(self, inner: Connector, meter: Meter, process: Process) -> None:
        self._inner = inner
        self._meter = meter
        self._process = process

    async def open(
        self,
        coordinates: Coordinates,
        *,
        pin: HostKeyPin,
        key_path: Path,
        deadline_s: float,
        on_stage: OnStage = ignore_stage,
    ) -> Session:
        work = self._inner.open(coordinates, pin=pin, key_path=key_path, deadline_s=deadline_s, on_stage=on_stage)
        return _Elsewhere(await _there(self._meter, self._process, work), self._meter, self._process)


async def _there(meter: Meter, process: Process, work: Awaitable[T]) -> T:
    async def as_process() -> T:
        CURRENT.set(process)  # the model of SSH serves simulated processes only
        return await work

    return await meter.start(as_process())


@dataclass(slots=True)
class Ran:
    """One apply or destroy, by the loop's clock."""

    report: RunReport
    plan: Plan
    confirmed_at: float
    ended_at: float
    started: dict[str, float]
    """Address -> when its action started; and ended."""
    ended: dict[str, float]
    cpu_s: float
    """Of lium-plan: what the process took, less the server, the network and the machines."""
    world_cpu_s: float

    @property
    def took_s(self) -> float:
        """From the yes to the end of the run."""
        return self.ended_at - self.confirmed_at


@dataclass(slots=True)
class Stage:
    lium: InProcess
    machines: TimedMachines
    network: Network
    meter: Meter
    settings: Settings
    chance: random.Random
    manifest: str
    process: Process = field(default_factory=Process)

    async def apply(self, *, parallelism: int = 0) -> Ran:
        return await self._run(PlanRequest(Sources(("project",))), ApplyRequest(parallelism=parallelism))

    async def destroy(self) -> Ran:
        return await self._run(PlanRequest(Sources(("project",)), destroying=True), ApplyRequest())

    async def _run(self, request: PlanRequest, options: ApplyRequest) -> Ran:
        """Raises `Failure`, and RuntimeError for a run that did not end well: there is nothing to measure then."""
        loop = asyncio.get_running_loop()
        plans: list[Plan] = []
        confirmed: list[float] = []
        started: dict[str, float] = {}
        ended: dict[str, float] = {}

        def approve(plan: Plan) -> bool:
            plans.append(plan)
            confirmed.append(loop.time())
            return plan.refusal is None

        def hear(event: Event) -> None:
            if event.type is EventType.APPLY_START:
                started[str(event.address)] = loop.time()
            elif event.type in _ENDS:
                ended[str(event.address)] = loop.time()

        cpu_s, world_s = time.process_time(), self.meter.spent_s
        report = await operations.apply(
            self.settings,
            request,
            options,
            approve=approve,
            on_event=hear,
            interrupt=Interrupt(),
            outside=self._outside(),
        )
        world_cpu_s = self.meter.spent_s - world_s
        if report.exit_code:
            causes = [result.cause.message for result in report.results if result.cause is not None]
            raise RuntimeError(f"exit {report.exit_code}: {'; '.join(causes[:3])}")
        own_cpu_s = time.process_time() - cpu_s - world_cpu_s
        return Ran(report, plans[-1], confirmed[-1], loop.time(), started, ended, own_cpu_s, world_cpu_s)

    def _outside(self) -> Outside:
        def open_client(settings: Settings, key: str | None) -> LiumClient:
            chance = self.chance.random
            return LiumClient(settings.base_url, key, transport=self.network, random=chance, wall=self._now, environ={})

        return Outside(
            open_client=open_client,
            open_connector=lambda: _ElsewhereConnector(ShellConnector(self.machines), self.meter, self.process),
            open_store=lambda settings: LocalStore(settings.state_dir, settings.stack, now=self._now),
            now=self._now,
            random_bytes=self.chance.randbytes,
            new_uuid=lambda: str(UUID(int=self.chance.getrandbits(128), version=4)),
        )

    def _now(self) -> datetime:
        return self.lium.simulator.clock.now()


_ENDS = (EventType.APPLY_COMPLETE, EventType.APPLY_ERRORED, EventType.APPLY_SKIPPED)


def on_stage(
    seed: int,
    manifest: str,
    story: Callable[[Stage], Awaitable[T]],
    *,
    market: Mapping[str, int],
    server: ServerSettings | None = None,
    shapes_pods: bool = True,
    pulls: bool = False,
) -> T:
    """Tell `story` on a fresh stage. `market`: GPU model -> GPUs that are free, on nodes of eight.

    Without `shapes_pods` the server's own dice say how long each pod takes, which costs it less. `pulls` is that of
    `Chances`.
    """
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="lium-plan-stage-", dir=memory if memory.is_dir() else None))
    try:
        _write_project(folder, manifest)
        with chdir(folder):
            told = _told(seed, manifest, story, market, server, shapes_pods, Chances(seed, pulls=pulls))
            return run_virtual(told, limit_s=None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _told(
    seed: int,
    manifest: str,
    story: Callable[[Stage], Awaitable[T]],
    market: Mapping[str, int],
    server: ServerSettings | None,
    shapes_pods: bool,
    chances: Chances,
) -> T:
    asyncio.get_running_loop().set_task_factory(metering)
    meter = Meter()
    machines = TimedMachines(chances)
    settings = (server or ServerSettings()).model_copy(update={"balance_usd": BALANCE_USD})
    opened: asyncio.Future[InProcess] = asyncio.get_running_loop().create_future()
    closing = asyncio.Event()

    async def serve() -> None:
        async with open_in_process(Beginning(seed=seed, settings=settings), runtime=machines) as lium:
            _furnish(lium, market)
            opened.set_result(lium)
            await closing.wait()

    serving = meter.start(serve())
    try:
        await asyncio.wait((serving, opened), return_when=asyncio.FIRST_COMPLETED)
        lium = opened.result()
        network, chance = Network(lium, chances, meter, shapes_pods=shapes_pods), random.Random(f"client/{seed}")
        stage = Stage(lium, machines, network, meter, _settings(), chance, manifest)
        return await story(stage)
    finally:
        closing.set()
        await serving


def _furnish(lium: InProcess, market: Mapping[str, int]) -> None:
    """Nodes of eight, so that nobody waits for want of a machine. Only they are on the market."""
    nodes = lium.world.nodes
    models = {model: next(node for node in nodes if node.gpu_model == model) for model in market}
    for node in tuple(nodes):
        nodes.put(replace(node, others=node.gpu_count))
    for model, gpus in market.items():
        for number in range(-(-gpus // GPUS_A_NODE)):
            nodes.put(
                replace(
                    models[model],
                    id=str(
                        UUID(bytes=hashlib.blake2b(f"{model}/{number}".encode(), digest_size=16).digest(), version=4)
                    ),
                    gpu_count=GPUS_A_NODE,
                    min_rentable=1,
                    others=0,
                    tier="secure",
                    ports=PORTS_A_NODE,
                    price_per_gpu=Decimal("0.30") + Decimal(number % 40) / 100,
                )
            )


def _settings() -> Settings:
    return Settings(
        base_url="http://lium.test/api",
        workspace=None,
        ssh_key_path=Path("id_ed25519"),
        stack="default",
        state_dir=Path("state"),
        parallelism=0,
        sim=False,
        api_key="sk_sim_local",
        environ={},
    )


def _write_project(folder: Path, manifest: str) -> None:
    (folder / "project").mkdir()
    (folder / "project" / "lium.yaml").write_text(manifest)
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    path = folder / "id_ed25519"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b"\n")
