"""A whole world in one event loop of virtual time: the local Lium, its machines, a disk, and runs of lium-plan in it.

`world_opening.run_world` opens one and tells a story in it.

Everything follows from the seed: ids, chance, latencies, the order of events; `world.history()` is the same to the
byte for the same seed and story. A run is a `Process` that can be killed at any point that it passes; what it did not
send or write by then never happens. After every step the oracles of `world_oracles` look at the server's own ledger.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

from lium_plan import operations
from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.engine.events import Event, RunReport
from lium_plan.interrupts import Interrupt
from lium_plan.lium.client import LiumClient
from lium_plan.operations.outside import Outside
from lium_plan.planning.plan import Plan
from lium_plan.requests import ApplyRequest, PlanRequest, Sources
from lium_plan.settings import Settings
from lium_plan.sim import faults
from lium_plan.sim.inprocess import InProcess
from lium_plan.sim.records import TimerKind
from lium_plan.sim.rows import Charge, NodeState
from lium_plan.state.files import identity_of
from lium_plan.state.local import LocalStore
from lium_plan.state.model import State
from tests.support.world_disk import Disk
from tests.support.world_machines import Machines
from tests.support.world_process import Point, Process, Version
from tests.support.world_shell import ShellConnector
from tests.support.world_wire import ProcessTransport

ACCOUNT = "local"
CANARY_PASSWORD = "canary-Pa55word/äöü"
CANARY_TOKEN = "canary-token-0123456789abcdef"
RUN_LIMIT_S = 6 * 3600.0
"""No run may take longer, whatever the other side does (O8)."""
INTERRUPTED_WITHIN_S = 10.0
"""After the first interrupt (O8)."""


class Broken(AssertionError):
    """An oracle is broken."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run ended."""

    command: str
    code: int | None
    """None: it was killed."""
    report: RunReport | None
    failure: Failure | None
    events: tuple[Event, ...]
    plans: tuple[Plan, ...]
    took_s: float
    died_at: Point | None
    points: tuple[tuple[Point, Version], ...]
    passed: int
    changes: int
    """Requests that it sent and that could have changed something."""
    alone: bool
    """Whether no other run was going on when it ended."""

    @property
    def words(self) -> str:
        """What was said, for a failure's message."""
        found = self.report.diagnostics if self.report is not None else ()
        found = (*found, *(self.failure.diagnostics if self.failure is not None else ()))
        causes = [item.cause for item in self.report.results if item.cause] if self.report is not None else []
        lines = [f"{item.code}: {item.message}" for item in (*found, *causes)]
        lines += [f"not gone: {proof.address}" for proof in self.report.proofs if not proof.gone] if self.report else []
        return f"{self.command} -> {self.code}" + "".join(f"\n    {line}" for line in lines)


@dataclass(slots=True)
class World:
    """`story`s get one; see the module. `expected` are the tails of the pods that the manifest asks for."""

    seed: int
    lium: InProcess
    machines: Machines
    disk: Disk
    folder: Path
    settings: Settings
    transport: ProcessTransport
    chance: random.Random
    """The client's: nonces, keys, jitter."""
    expected: frozenset[str]
    environ: Mapping[str, str]
    secrets: tuple[str, ...] = (CANARY_PASSWORD, CANARY_TOKEN)
    runs: list[Ran] = field(default_factory=list)
    checks: list[Callable[[World, str], None]] = field(default_factory=list)
    """Called after every step with words for where; raise Broken."""
    run_checks: list[Callable[[World, Ran], None]] = field(default_factory=list)
    """Called after every run; raise Broken."""
    foreign: frozenset[str] = frozenset()
    """Ids of what is not ours on the account."""
    awaits_tasks: bool = True
    """Whether the manifest has every task waited for to its end."""
    serials: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """What the story did and what happened to it, in order."""
    outside: contextvars.Context = field(default_factory=contextvars.copy_context)
    """The context that belongs to no process."""
    prices: dict[str, Decimal] = field(default_factory=dict)
    """Of each node in the beginning."""
    running: int = 0
    """Runs that go on now."""
    _read: tuple[object, State | None] | None = None

    # --- runs ------------------------------------------------------------------------------------------------------

    async def apply(self, **options: object) -> Ran:
        """See `run`."""
        return await self.run("apply", **options)  # type: ignore[arg-type]

    async def destroy(self, **options: object) -> Ran:
        return await self.run("destroy", **options)  # type: ignore[arg-type]

    async def run(
        self,
        command: str,
        *,
        crash_at: int | None = None,
        crash_on: tuple[str, str, int] | None = None,
        recording: bool = False,
        request: PlanRequest | None = None,
        options: ApplyRequest | None = None,
        environ: Mapping[str, str] | None = None,
        interrupt_after_s: Sequence[float] = (),
        kill_after_s: float | None = None,
        approve: Callable[[Plan], bool] | None = None,
    ) -> Ran:
        """One `lium-plan apply` or `destroy` from its start to its end, or to its death."""
        process = Process(crash_at=crash_at, crash_on=crash_on, recording=recording, version=self.version)
        events: list[Event] = []
        plans: list[Plan] = []
        asked = request or PlanRequest()
        asked = replace(asked, sources=Sources(("project",)), destroying=command == "destroy")
        settings = self.settings if environ is None else replace(self.settings, environ=dict(environ))
        interrupt = Interrupt()

        def approved(plan: Plan) -> bool:
            plans.append(plan)
            interrupt.arm()
            return plan.refusal is None and (approve is None or approve(plan))

        loop = asyncio.get_running_loop()
        started = loop.time()
        self.running += 1
        task = process.start(
            operations.apply(
                settings,
                asked,
                options or ApplyRequest(),
                approve=approved,
                on_event=events.append,
                interrupt=interrupt,
                outside=self._outside(process),
            )
        )
        # As the command line has it: before the yes a signal simply ends the run.
        interrupt._cancel = task.cancel
        timers = [loop.call_later(after, interrupt.trigger) for after in interrupt_after_s]
        if kill_after_s is not None:
            timers.append(loop.call_later(kill_after_s, process.kill))
        await asyncio.wait((task,), timeout=RUN_LIMIT_S)
        for timer in timers:
            timer.cancel()
        report, failure, code = None, None, None
        if not task.done():
            process.kill()
            self.broken.append(f"O8: {command} still runs after {RUN_LIMIT_S:g} s")
        elif process.spun:
            self.broken.append(f"O8: {command} goes round and round without waiting for anything")
        elif process.dead:
            pass
        elif task.cancelled():
            code = int(ExitCode.INTERRUPTED)
            if not interrupt.count:
                self.broken.append(f"{command} was cancelled by nobody")
        elif (problem := task.exception()) is None:
            report = task.result()
            code = report.exit_code
        elif isinstance(problem, Failure):
            failure, code = problem, int(problem.exit_code)
        else:
            code = 70
            self.broken.append(f"{command} raised {type(problem).__name__}: {problem}")
        if process.dead:
            await process.buried()
        else:
            left = [item for item in process._tasks if not item.done()]
            if left:
                self.broken.append(f"{command} ended and left {len(left)} tasks behind: {left[0]}")
                process.kill()
                await process.buried()
        ran = Ran(
            command,
            code,
            report,
            failure,
            tuple(events),
            tuple(plans),
            loop.time() - started,
            process.died_at,
            tuple(process.points),
            process.passed,
            process.changes,
            self.running == 1,
        )
        self.running -= 1
        self.runs.append(ran)
        if interrupt.count and ran.took_s > interrupt_after_s[0] + INTERRUPTED_WITHIN_S:
            self.broken.append(
                f"O8: {command} went on for {ran.took_s - interrupt_after_s[0]:.1f} s after an interrupt"
            )
        if ran.code == ExitCode.INTERRUPTED and not interrupt.count:
            self.broken.append(f"O7: {command} says that it was interrupted, and nobody did: {ran.words}")
        ended = f"killed at {ran.died_at or f'{kill_after_s} s'}" if code is None else ran.words
        self.log.append(f"{started:10.2f} s  {command}: {ended}")
        self.look(f"after {command}")
        for check in self.run_checks:
            self._judge(check, ran)
        return ran

    def _outside(self, process: Process) -> Outside:
        def open_client(settings: Settings, key: str | None) -> LiumClient:
            return LiumClient(
                settings.base_url,
                key,
                transport=self.transport,
                random=self.chance.random,
                wall=self.now,
                environ={},
            )

        return Outside(
            open_client=open_client,
            open_connector=lambda: ShellConnector(self.machines),
            open_store=lambda settings: self.store(),
            now=self.now,
            random_bytes=self.chance.randbytes,
            new_uuid=lambda: str(UUID(int=self.chance.getrandbits(128), version=4)),
        )

    # --- what there is ---------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        return self.lium.simulator.clock.now()

    @property
    def clock(self) -> float:
        """Seconds since the beginning."""
        return asyncio.get_running_loop().time()

    def version(self) -> Version:
        """Changes with everything that outlives a process: the disk, the server, the machines, the time."""
        server = self.lium.world
        return (
            self.disk.version,
            self.transport.sent,
            self.transport.answered,
            server.serial,
            server.dice.drawn,
            self.machines.version,
            asyncio.get_running_loop().time(),
        )

    def store(self) -> LocalStore:
        return LocalStore(self.settings.state_dir, self.settings.stack, now=self.now)

    def state(self) -> State | None:
        """What snapshot and journal say; read again only when a file has changed."""
        mark = [identity_of(self.store().path(suffix)) for suffix in ("json", "journal.jsonl")]
        if self._read is None or self._read[0] != mark:
            self._read = (mark, self.store().load().state)
        return self._read[1]

    @property
    def account_id(self) -> str:
        return next(account.id for account in self.lium.world.accounts if account.name == ACCOUNT)

    def open_charges(self, kind: str | None = None) -> tuple[Charge, ...]:
        """What the server bills, or holds for us, now; without what was there before."""
        self.lium.simulator.advance()
        return tuple(
            charge
            for charge in self.lium.world.charges.where("open", self.account_id)
            if kind in (None, charge.kind) and charge.object_id not in self.foreign
        )

    def changes(self) -> int:
        """Requests so far that could have changed something."""
        return sum(row.method != "GET" for row in self.lium.world.requests)

    def files(self) -> dict[str, bytes]:
        """Every file of the state directory."""
        root = self.settings.state_dir
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    def look(self, where: str) -> None:
        for check in self.checks:
            self._judge(check, where)

    def _judge(self, check: Callable[..., None], what: object) -> None:
        try:
            self.outside.copy().run(check, self, what)
        except (Broken, Failure) as problem:
            text = str(problem) if isinstance(problem, Broken) else f"O3: the state can't be read: {problem}"
            if text not in self.broken:
                self.broken.append(text)

    # --- what happens to it ----------------------------------------------------------------------------------------

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def fault(self, effect: Mapping[str, object], *, at: float | None = None, **match: object) -> None:
        """See `sim.faults.FaultSpec`; `match` are its fields, `at` seconds from now."""
        spec: dict[str, object] = {"effect": effect}
        where = match.pop("where", None)
        if where is not None:
            spec["where"] = where
        if match:
            spec["match"] = match
        if at is not None:
            spec["at"] = at
        self.lium.simulator.advance()  # `at` counts from the world's time, which stands still between requests
        faults.add(self.lium.world, faults.FAULT.validate_python(spec))
        self.lium.simulator.machines.kick()

    def configure(self, **settings: object) -> None:
        self.fault({"do": "config", "settings": settings})

    def clear_faults(self) -> None:
        """What was to go wrong no longer does; what already did stays."""
        server = self.lium.world
        server.faults.clear()
        for timer in tuple(server.timers):
            if timer.kind is TimerKind.SCENARIO:
                server.timers.drop(timer.id)

    def accept_host_keys(self) -> None:
        """What a person does who knows why a machine shows another key."""
        for pin in (self.settings.state_dir / "known_hosts").glob("*"):
            pin.unlink()

    def restore_market(self) -> None:
        """Every node free, well and at the price it began with, but for what this account has."""
        server = self.lium.world
        for node in tuple(server.nodes):
            price = self.prices[node.id]
            server.nodes.put(replace(node, others=0, state=NodeState.OK, price_per_gpu=price, pending_price=None))

    def write(self, name: str, text: str) -> None:
        path = self.folder / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def remove_file(self, name: str) -> None:
        """Of the state directory, behind everybody's back."""
        (self.settings.state_dir / name).unlink()

    # --- its history -----------------------------------------------------------------------------------------------

    def history(self) -> bytes:
        """Everything that happened, as the server, the runs and the disk tell it."""
        lines: list[object] = [
            [row.at.isoformat(), row.method, row.path, row.query, row.idempotency_key, row.body, row.status]
            for row in self.lium.world.requests
        ]
        lines += [
            [
                charge.kind,
                charge.object_id,
                charge.name,
                str(charge.price_per_hour),
                str(charge.since),
                str(charge.until),
            ]
            for charge in self.lium.world.charges
        ]
        lines += [
            [ran.command, ran.code, [_told(event) for event in ran.events], str(ran.died_at)] for ran in self.runs
        ]
        lines += [[name, self._digest(data)] for name, data in self.files().items() if not name.endswith(".lock")]
        lines += self.log
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def _digest(self, content: bytes) -> str:
        """Without the name of the folder, which is another each time, and sums over it."""
        return hashlib.sha256(_SUM.sub(b"", content.replace(str(self.folder).encode(), b"FOLDER"))).hexdigest()


_SUM = re.compile(rb'"sum":"[0-9a-f]{8}"|"checksum": "[0-9a-f]{64}"')


def _told(event: Event) -> list[str]:
    return [event.type, event.at.isoformat(), str(event.address), str(event.phase), str(event.message)]
