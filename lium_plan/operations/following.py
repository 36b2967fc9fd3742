"""`logs`: what a bootstrap or a task has written, and writes. Looks on; changes nothing, here or on the pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from lium_plan.addresses import Address, AddressError, parse
from lium_plan.answers import LogEnd
from lium_plan.diagnostics import ExitCode, Failure, Severity, error
from lium_plan.kinds.logs import log_path
from lium_plan.kinds.masking import Mask
from lium_plan.kinds.protocol import Record
from lium_plan.lium.errors import LiumError, NotFoundError
from lium_plan.operations.connecting import connect
from lium_plan.operations.hiding import hiding
from lium_plan.operations.reaching import key_path, one_record, pod_under
from lium_plan.operations.states import load_state
from lium_plan.operations.visiting import task_status
from lium_plan.settings import VARIABLE_PREFIX, Settings
from lium_plan.ssh.connector import SshConnector
from lium_plan.ssh.coordinates import parse_connect_command
from lium_plan.ssh.detached import follow_log, probe
from lium_plan.ssh.errors import ConnectionLost, SshError
from lium_plan.ssh.pins import PinStore
from lium_plan.ssh.protocol import Session
from lium_plan.state.lock import Liveness, liveness, read_owner
from lium_plan.state.model import State

CONNECT_S = 60.0
ASK_S = 30.0
FOREVER_S = 30 * 24 * 3600.0
LOOK_EVERY_S = 0.3
CHUNK_BYTES = 1 << 16

Out = Callable[[bytes], None]


async def show_log(settings: Settings, address: str, *, follow: bool, out: Out, say: Callable[[str], None]) -> LogEnd:
    """Pass the log to `out`; with `follow` until what writes it has ended. `say` is told what people should know.

    Of a task that runs, the pod is asked; everything else is read here. Raises `Failure`.
    """
    state = load_state(settings)
    logs = settings.state_dir / "logs" / settings.stack
    try:
        record = one_record(state, address, ("bootstrap", "task"))
    except Failure:
        left = _left_behind(logs, address)
        if left is None:
            raise
        out(left.read_bytes())
        return LogEnd("no longer in the state", None)
    path = log_path(logs, record.address)
    there = _is_there(path)
    if record.kind == "task" and (record.status == "running" or not there):
        return await _from_pod(settings, state, record, follow=follow, out=out, say=say)
    if not there:
        message = "there is no log of it (yet)"
        raise Failure(ExitCode.ERROR, (error("no-log", message, address=str(record.address)),))
    await _from_file(settings, record, path, follow=follow, out=out)
    now = load_state(settings).record(record.address) or record
    if now.status == "running" and _is_left(settings):
        say("the run that wrote this is gone: `lium-plan apply` goes on where it was")
    return LogEnd(now.status, _exit_code(now))


def _left_behind(logs: Path, address: str) -> Path | None:
    """The log of what was given back or forgotten since, where the address names one exactly."""
    try:
        named = parse(address)
    except AddressError:
        return None
    path = log_path(logs, named if named.head == "task" else Address.of("fleet", named.name, named.member, "bootstrap"))
    return path if _is_there(path) else None


def _is_there(path: Path) -> bool:
    return path.is_file()


# --- read here -----------------------------------------------------------------------------------------------


async def _from_file(settings: Settings, record: Record, path: Path, *, follow: bool, out: Out) -> None:
    """The masked log that an apply writes, from another process as a rule."""
    looked = 0
    with path.open("rb") as file:
        while True:
            running = follow and (looked % 4 != 0 or _is_written(settings, record.address))
            while chunk := file.read(CHUNK_BYTES):
                out(chunk)
            if not running:
                return
            looked += 1
            await asyncio.sleep(LOOK_EVERY_S)


def _is_written(settings: Settings, address: Address) -> bool:
    record = load_state(settings).record(address)
    return record is not None and record.status == "running" and not _is_left(settings)


def _is_left(settings: Settings) -> bool:
    """Whether the last run was killed: then nobody writes, whatever the state says."""
    owner = read_owner(settings.state_dir / f"{settings.stack}.lock")
    return owner is not None and liveness(owner) is Liveness.DEAD


# --- read on the pod -----------------------------------------------------------------------------------------


async def _from_pod(
    settings: Settings, state: State, record: Record, *, follow: bool, out: Out, say: Callable[[str], None]
) -> LogEnd:
    pod = pod_under(state, record)
    task_dir = str(record.attributes.get("task_dir") or "")
    if not task_dir:
        raise Failure(ExitCode.ERROR, (error("no-log", "it never started", address=str(record.address)),))
    mask = _mask(settings, state, record, say)
    offset = 0

    def count(chunk: bytes) -> None:
        nonlocal offset
        offset += len(chunk)
        out(mask.feed(chunk))

    while True:
        session = await _open(settings, pod)
        try:
            await follow_log(
                session, task_dir, offset_bytes=offset, once=not follow, on_output=count, timeout_s=FOREVER_S
            )
            found = await probe(session, task_dir, timeout_s=ASK_S)
            break
        except ConnectionLost as lost:
            if not follow:
                raise _failure(record, lost) from lost
            say(f"{lost}; connecting again")
        except SshError as failure:
            raise _failure(record, failure) from failure
        finally:
            await session.close()
    out(mask.flush())
    return LogEnd(task_status(found), found.exit_status)


async def _open(settings: Settings, pod: Record) -> Session:
    """Logs in where the pod is now; raises `Failure` when it is no more."""
    written = str(pod.attributes.get("connect_command") or "")
    try:
        async with connect(settings) as connection:
            row = await connection.client.pod(str(pod.id))
            written = row.ssh_connect_cmd or written
    except NotFoundError:
        found = error("pod-gone", "the server doesn't know this pod any more", address=str(pod.address))
        raise Failure(ExitCode.ERROR, (found,)) from None
    except LiumError:
        pass  # what was last seen may still do
    try:
        return await SshConnector().open(
            parse_connect_command(written),
            pin=PinStore(settings.state_dir / "known_hosts").pin(str(pod.id)),
            key_path=key_path(settings, pod),
            deadline_s=CONNECT_S,
        )
    except SshError as failure:
        raise _failure(pod, failure) from failure


def _failure(record: Record, failure: SshError) -> Failure:
    return Failure(ExitCode.ERROR, (error("connection", str(failure), address=str(record.address)),))


def _mask(settings: Settings, state: State, task: Record, say: Callable[[str], None]) -> Mask:
    try:
        hidden = hiding(settings, state)(task)
    except Failure as failure:
        why = "; ".join(item.message for item in failure.diagnostics if item.severity is Severity.ERROR)
        unset = all(item.code == "missing-variable" for item in failure.diagnostics if item.severity is Severity.ERROR)
        cure = f" (`logs` takes it from {VARIABLE_PREFIX}NAME in the environment)" if unset else ""
        say(f"secrets in this output are not masked, for the manifest here can't be read: {why}{cure}")
        return Mask(())
    if not hidden.complete:
        say("secrets in this output may show: it was started with one that the manifest here does not have (any more)")
    return hidden.mask


def _exit_code(record: Record) -> int | None:
    code = record.attributes.get("exit_code")
    return code if isinstance(code, int) else None
