"""`status`: each pod of the stack as it is now, what it costs and has cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from lium_plan.answers import GpuUse, PodStatus, StatusAnswer, TaskStatus
from lium_plan.diagnostics import Diagnostic, warning
from lium_plan.kinds.protocol import Observation, Presence, Record
from lium_plan.kinds.services import SshKeys
from lium_plan.lium.client import LiumClient
from lium_plan.lium.errors import LiumError
from lium_plan.marks import lineage_mark, scope_mark
from lium_plan.operations.connecting import api_failures, connect, open_drivers
from lium_plan.operations.states import load_state
from lium_plan.settings import Settings
from lium_plan.ssh.connector import SshConnector
from lium_plan.ssh.coordinates import parse_connect_command
from lium_plan.ssh.detached import Ending, Probe, TaskState, probe
from lium_plan.ssh.errors import SshError
from lium_plan.ssh.pins import PinStore
from lium_plan.ssh.protocol import Session
from lium_plan.state.model import State
from lium_plan.views.state_json import shown_status

GPU_QUERY = "nvidia-smi --query-gpu=utilization.gpu,memory.used,memory.total --format=csv,noheader,nounits"
GPU_TIMEOUT_S = 20.0


async def status(settings: Settings, *, gpu: bool) -> StatusAnswer:
    """Raises `Failure` without a state, without a key, or when the pods can't be listed."""
    state = load_state(settings)
    async with connect(settings) as connection:
        drivers = open_drivers(settings, connection, state)
        records = [record for record in state.records.values() if record.kind == "pod"]
        with api_failures("list the pods"):
            survey = await drivers["pod"].survey(
                records, scope_mark=scope_mark(state.project, state.stack), lineage_mark=lineage_mark(state.lineage)
            )
        now = connection.client.server_time()
        bills, visits = await asyncio.gather(
            _bills(connection.client, records), _visits(settings, state, records) if gpu else _no_visits()
        )
    pods = tuple(
        _row(state, record, survey.observations[record.key], bills.get(record.key), visits, now) for record in records
    )
    unbilled = [record for record in records if record.key not in bills]
    return StatusAnswer(
        pods,
        sum((pod.price_per_hour_usd for pod in pods if pod.status != "expired"), Decimal(0)),
        sum((pod.spent_usd for pod in pods), Decimal(0)),
        _diagnostics(unbilled),
        tuple(_task(record, visits) for record in _tasks(state)),
    )


async def _bills(client: LiumClient, records: list[Record]) -> dict[str, Decimal]:
    """USD so far by the server's own statements, where it has them."""
    answers = await asyncio.gather(*(client.statement(str(record.id)) for record in records), return_exceptions=True)
    bills = {}
    for record, answer in zip(records, answers, strict=True):
        if isinstance(answer, LiumError):
            continue
        if isinstance(answer, BaseException):
            raise answer
        if answer.total_usd is not None:
            bills[record.key] = answer.total_usd
    return bills


def _diagnostics(unbilled: list[Record]) -> tuple[Diagnostic, ...]:
    return tuple(
        warning(
            "no-statement",
            "the server gives no statement; spent is reckoned from price and age",
            address=str(record.address),
        )
        for record in unbilled
    )


def _row(
    state: State, record: Record, seen: Observation, bill: Decimal | None, visits: Visits, now: datetime
) -> PodStatus:
    facts = {**record.attributes, **seen.attributes}
    price = Decimal(str(facts.get("price_per_hour_usd") or 0))
    since = facts.get("created_at") or facts.get("rented_at")
    age_s = max((now - datetime.fromisoformat(str(since))).total_seconds(), 0.0) if since else 0.0
    removal = facts.get("removal_at")
    left = (datetime.fromisoformat(str(removal)) - now).total_seconds() if removal else None
    reckoned = (price * Decimal(str(age_s)) / 3600).quantize(Decimal("0.00001"))
    return PodStatus(
        address=record.key,
        id=str(record.id),
        name=str(facts.get("pod_name") or ""),
        phase=seen.status or str(seen.presence),
        status="unreachable" if seen.presence is Presence.UNREACHABLE else shown_status(record, state),
        age_s=age_s,
        price_per_hour_usd=price,
        spent_usd=bill if bill is not None else reckoned,
        ttl_left_s=None if left is None else max(left, 0.0),
        drift=_drift(record, seen),
        node_id=str(facts.get("node_id") or ""),
        gpu=str(facts.get("gpu") or ""),
        gpu_count=int(str(facts.get("gpu_count") or 0)),
        use=visits.uses.get(record.key),
    )


def _drift(record: Record, seen: Observation) -> tuple[str, ...]:
    """What the API shows otherwise than the state has it."""
    if seen.presence is not Presence.PRESENT:
        return (f"{seen.presence}: {seen.reason}",)
    watched = ("price_per_hour_usd", "template_id", "host", "ssh_port", "removal_at")
    return tuple(
        f"{name}: {record.attributes[name]} -> {seen.attributes[name]}"
        for name in watched
        if name in record.attributes and name in seen.attributes and record.attributes[name] != seen.attributes[name]
    )


# --- on the pods -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Visits:
    """What pods said for themselves, as far as they answered: by key of the pod, by address of the task."""

    uses: Mapping[str, GpuUse]
    probes: Mapping[str, Probe]


async def _no_visits() -> Visits:
    return Visits({}, {})


async def _visits(settings: Settings, state: State, records: list[Record]) -> Visits:
    """One connection a pod: how busy its GPUs are, and what has become of the tasks that run on it."""
    uses: dict[str, GpuUse] = {}
    probes: dict[str, Probe] = {}

    async def visit(record: Record) -> None:
        output = bytearray()
        with suppress(SshError, OSError):
            session = await _open(settings, record)
            try:
                await session.run(GPU_QUERY, on_output=output.extend, timeout_s=GPU_TIMEOUT_S)
                use = read_use(bytes(output))
                if use is not None:
                    uses[record.key] = use
                for task in _tasks(state):
                    if task.status == "running" and task.attributes.get("pod_id") == record.id:
                        task_dir = str(task.attributes.get("task_dir"))
                        probes[str(task.address)] = await probe(session, task_dir, timeout_s=GPU_TIMEOUT_S)
            finally:
                await session.close()

    await asyncio.gather(*(visit(record) for record in records if record.attributes.get("connect_command")))
    return Visits(uses, probes)


async def _open(settings: Settings, record: Record) -> Session:
    key = record.attributes.get("ssh_key")
    return await SshConnector().open(
        parse_connect_command(str(record.attributes["connect_command"])),
        pin=PinStore(settings.state_dir / "known_hosts").pin(str(record.id)),
        key_path=SshKeys(settings.ssh_key_path).private_key(key if isinstance(key, str) else None),
        deadline_s=GPU_TIMEOUT_S,
    )


def _tasks(state: State) -> list[Record]:
    tasks = [record for record in state.records.values() if record.kind == "task"]
    return sorted(tasks, key=lambda record: record.address)


def _task(record: Record, visits: Visits) -> TaskStatus:
    facts = record.attributes
    found = visits.probes.get(str(record.address))
    code = facts.get("exit_code") if found is None else found.exit_status
    return TaskStatus(
        address=str(record.address),
        status=record.status if found is None else task_status(found),
        exit_code=code if isinstance(code, int) else None,
        started_at=_time(facts.get("started_at")),
        ended_at=_time(facts.get("ended_at")),
        log=str(facts["log"]) if facts.get("log") else None,
        probed=found is not None,
    )


def _time(value: object) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else None


def task_status(found: Probe) -> str:
    """Our word for what a pod says of a task."""
    match found.state:
        case TaskState.RUNNING:
            return "running"
        case TaskState.EXITED if found.ending is Ending.TIMED_OUT:
            return "timed-out"
        case TaskState.EXITED:
            return "completed" if found.exit_status == 0 else "failed"
        case _:
            return "unknown"


def read_use(output: bytes) -> GpuUse | None:
    """`utilisation, used MiB, total MiB` a line and GPU; None when there is no such line."""
    rows = []
    for line in output.decode("utf-8", "replace").splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 3 and all(part.isdigit() for part in parts):
            rows.append(tuple(int(part) for part in parts))
    if not rows:
        return None
    return GpuUse(sum(row[0] for row in rows) // len(rows), sum(row[1] for row in rows), sum(row[2] for row in rows))
