"""What pods say for themselves: what has become of the tasks that run there, and how busy their GPUs are.

Looks on and changes nothing. One connection a pod; of one that does not answer in time nothing is known, and what is
recorded stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lium_plan.answers import GpuUse
from lium_plan.diagnostics import in_words
from lium_plan.kinds.protocol import Observation, Presence, Record
from lium_plan.kinds.services import SshKeys
from lium_plan.kinds.sessions import key_of
from lium_plan.settings import Settings
from lium_plan.ssh.coordinates import parse_connect_command
from lium_plan.ssh.detached import Ending, Probe, TaskState, follow_log, probe
from lium_plan.ssh.errors import SshError
from lium_plan.ssh.pins import PinStore
from lium_plan.ssh.protocol import Connector, Session
from lium_plan.state.model import State
from lium_plan.together import together

ANSWER_S = 10.0
"""For the login, and for each question."""
AT_ONCE = 32
TAIL_BYTES = 4096
GPU_QUERY = "nvidia-smi --query-gpu=utilization.gpu,memory.used,memory.total --format=csv,noheader,nounits"


@dataclass(slots=True)
class Visits:
    """What has been heard so far."""

    uses: dict[str, GpuUse] = field(default_factory=dict)
    """By key of the pod."""
    probes: dict[str, Probe] = field(default_factory=dict)
    """By key of the task, as the rest."""
    tails: dict[str, bytes] = field(default_factory=dict)
    """The end of what a task wrote that ended, but not well. Whole lines."""
    silent: dict[str, str] = field(default_factory=dict)
    """Why nothing is known."""


async def visit(
    settings: Settings,
    connector: Connector,
    state: State,
    observed: Mapping[str, Observation],
    *,
    gpu: bool,
    tails: bool,
) -> Visits:
    """Ask the pods with tasks whose end nobody has seen; with `gpu` every pod. `observed`: where they are, by key."""
    visits = Visits()
    tasks_on: dict[object, list[Record]] = {}
    for record in state.records.values():
        if record.kind == "task" and record.status == "running":
            tasks_on.setdefault(record.attributes.get("pod_id"), []).append(record)
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(pod: Record, where: str) -> None:
        tasks = tasks_on.get(pod.id, [])
        async with slots:
            try:
                session = await _open(settings, connector, pod, where)
                try:
                    await _ask(session, pod, tasks, visits, gpu=gpu, tails=tails)
                finally:
                    await session.close()
            except (SshError, OSError) as failure:
                visits.silent.update({task.key: in_words(failure) for task in tasks if task.key not in visits.probes})

    found = [
        (record, _where(record, observed.get(record.key)))
        for record in state.records.values()
        if record.kind == "pod" and (gpu or record.id in tasks_on)
    ]
    await together(*(one(pod, where) for pod, where in found if where is not None))
    return visits


def _where(pod: Record, seen: Observation | None) -> str | None:
    """Its connect command; None for one that is not there, or has none yet."""
    if seen is not None and seen.presence is not Presence.PRESENT:
        return None
    facts = pod.attributes if seen is None else {**pod.attributes, **seen.attributes}
    written = facts.get("connect_command")
    return written if isinstance(written, str) else None


async def _open(settings: Settings, connector: Connector, pod: Record, where: str) -> Session:
    return await connector.open(
        parse_connect_command(where),
        pin=PinStore(settings.state_dir / "known_hosts").pin(str(pod.id)),
        key_path=key_of(SshKeys(settings.ssh_key_path), pod),
        deadline_s=ANSWER_S,
    )


async def _ask(
    session: Session, pod: Record, tasks: Sequence[Record], visits: Visits, *, gpu: bool, tails: bool
) -> None:
    for task in tasks:
        task_dir = str(task.attributes.get("task_dir"))
        found = await probe(session, task_dir, timeout_s=ANSWER_S)
        if tails and task_status(found) not in ("running", "completed"):
            visits.tails[task.key] = await _tail(session, task_dir, found.log_bytes)
        visits.probes[task.key] = found
    if gpu:
        output = bytearray()
        await session.run(GPU_QUERY, on_output=output.extend, timeout_s=ANSWER_S)
        use = read_use(bytes(output))
        if use is not None:
            visits.uses[pod.key] = use


async def _tail(session: Session, task_dir: str, log_bytes: int) -> bytes:
    """Without a line whose beginning is not among it: half a secret would not be known for one."""
    output = bytearray()
    offset = max(0, log_bytes - TAIL_BYTES)
    await follow_log(session, task_dir, offset_bytes=offset, once=True, on_output=output.extend, timeout_s=ANSWER_S)
    return bytes(output.partition(b"\n")[2]) if offset else bytes(output)


# --- in the words of others --------------------------------------------------------------------------------------


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


def observations(visits: Visits) -> Mapping[str, Observation]:
    """For a plan, by key of the task."""
    seen = {
        key: Observation(Presence.PRESENT, task_status(found), {"exit_code": found.exit_status})
        for key, found in visits.probes.items()
    }
    unseen = {key: Observation(Presence.PRESENT, reason=why) for key, why in visits.silent.items()}
    return {**seen, **unseen}


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
