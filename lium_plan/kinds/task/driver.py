"""Tasks over SSH: started detached exactly once, followed for as long as we like, judged by their exit-code file.

The directory on the pod is journaled before the start, so that whoever comes later asks the pod instead of starting
twice. A dropped connection never ends a task, and neither does our own exit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path

from lium_plan.addresses import Address
from lium_plan.diagnostics import error
from lium_plan.kinds.failures import begun_inputs
from lium_plan.kinds.logs import LogFile, log_path
from lium_plan.kinds.protocol import (
    ActionFailed,
    Json,
    OpenEffect,
    Outcome,
    Record,
    Run,
    Settlement,
    Step,
    Survey,
    Verb,
)
from lium_plan.kinds.sending import files_to_send, filled, secrets_of
from lium_plan.kinds.services import Services
from lium_plan.kinds.sessions import CONNECT_S, READY_EVERY_S, listening, open_session, why_gone
from lium_plan.kinds.task.spec import TaskSpec
from lium_plan.ssh.detached import (
    STOP_GRACE_S,
    DetachedCommand,
    Ending,
    Probe,
    TaskState,
    follow_log,
    probe,
    start,
    stop,
)
from lium_plan.ssh.errors import ConnectionLost, SshError
from lium_plan.ssh.image_env import run_in_image
from lium_plan.ssh.protocol import Session

ASK_S = 60.0
STOP_S = STOP_GRACE_S + 20.0
FOREVER_S = 30 * 24 * 3600.0
"""A pod's longest time to live: no task can outlast it."""
LINES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _Target:
    """One task on one pod, with what is needed to talk to it."""

    address: Address
    spec: TaskSpec
    pod: Record


def open_driver(services: Services) -> TaskDriver:
    return TaskDriver(services)


class TaskDriver:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def survey(self, records: Sequence[Record], *, scope_mark: str, lineage_mark: str | None) -> Survey:
        return Survey({})  # what a task does is asked of its pod, when something depends on it

    async def perform(self, step: Step, run: Run) -> None:
        if step.verb is Verb.DESTROY:
            await self._stop_before_forgetting(step, run)
            return
        spec: TaskSpec = step.wanted().spec
        target = _Target(step.address, spec, self._pod(spec, run))
        session = await self._open(target, run)
        try:
            if step.verb is Verb.REPLACE and step.record is not None:
                await self._stop(session, step.record, run)
            if step.verb is not Verb.ADOPT:
                await self._start(session, target, step, run)
        except SshError as failure:
            raise await self._lost(target, failure) from failure
        finally:
            await session.close()
        await self._await(target, run)

    async def settle(self, effect: OpenEffect, run: Run) -> Settlement:
        """Did the start of an earlier run take effect? Only the pod knows."""
        resource = run.desired(effect.address)
        pod = next((item for item in run.ledger.records().values() if item.id == effect.data.get("pod_id")), None)
        if run.destroying or resource is None or pod is None:
            run.ledger.failed(effect, "forgotten with its pod")
            return Settlement(Outcome.NOT_DONE, "it is forgotten with its pod")
        target = _Target(effect.address, resource.spec, pod)
        try:
            session = await self._open(target, run)
            try:
                found = await probe(session, str(effect.data["task_dir"]), timeout_s=ASK_S)
            finally:
                await session.close()
        except (SshError, ActionFailed) as failure:
            gone = await why_gone(self._services, pod)
            if gone is None:
                return Settlement(Outcome.UNKNOWN, f"nobody can say whether the task started: {failure}")
            run.ledger.failed(effect, gone)
            return Settlement(Outcome.NOT_DONE, gone)
        if found.state is TaskState.NEVER_STARTED:
            run.ledger.failed(effect, "it never started")
            return Settlement(Outcome.NOT_DONE, "it never started")
        run.ledger.done(effect, self._running(effect, target))
        return Settlement(Outcome.DONE, "it had started")

    # --- starting and stopping -----------------------------------------------------------------------------------

    def _pod(self, spec: TaskSpec, run: Run) -> Record:
        pod = run.ledger.record(spec.pod)
        if pod is None or pod.id is None:
            raise ActionFailed(error("missing-dependency", f"{spec.pod} does not exist", address=str(spec.pod)))
        return pod

    async def _open(self, target: _Target, run: Run) -> Session:
        try:
            return await open_session(
                self._services,
                target.pod,
                ssh_key=target.spec.ssh_key,
                deadline_s=CONNECT_S,
                say=lambda stage: run.phase(target.address, f"ssh: {stage}"),
            )
        except (SshError, OSError) as failure:
            raise await self._lost(target, failure) from failure

    async def _start(self, session: Session, target: _Target, step: Step, run: Run) -> None:
        spec = target.spec
        files = files_to_send(spec.files, target.address, run)
        if files:
            run.phase(target.address, f"sending {len(files)} file{'s' * (len(files) != 1)}")
            await session.put(files, timeout_s=ASK_S * 10)
        command = DetachedCommand(
            [run.resolve(text) for text in spec.commands],
            {**_cluster_env(spec, run), **filled(spec.env, run)},
            spec.working_dir,
            spec.user,
            spec.max_duration_s,
        )
        attempt = self._services.random_bytes(6).hex()
        data: dict[str, Json] = {
            "pod_id": target.pod.id,
            "task_dir": f".lium-plan/tasks/{target.address.name}-{attempt}",
            "inputs": dict(step.inputs),
        }

        async def send(effect: OpenEffect) -> None:
            await start(session, command, str(data["task_dir"]), timeout_s=ASK_S)
            run.ledger.done(effect, self._running(effect, target))

        run.phase(target.address, "starting")
        await run.effect(target.address, "start", data, send)

    def _running(self, effect: OpenEffect, target: _Target) -> Record:
        return Record(
            target.address,
            None,
            "running",
            begun_inputs(effect),
            {
                "pod_id": effect.data.get("pod_id"),
                "task_dir": effect.data.get("task_dir"),
                "started_at": effect.at.astimezone(UTC).isoformat(),
                "ended_at": None,
                "exit_code": None,
                "log": str(log_path(self._services.logs, target.address)),
            },
            (target.spec.pod,),
        )

    async def _stop(self, session: Session, record: Record, run: Run) -> None:
        task_dir = record.attributes.get("task_dir")
        if record.status == "running" and isinstance(task_dir, str):
            run.phase(record.address, "stopping")
            await stop(session, task_dir, timeout_s=STOP_S)

    async def _stop_before_forgetting(self, step: Step, run: Run) -> None:
        """A task that is no longer wanted, on a pod that stays, is stopped; what runs on a dead pod is dead."""
        record = step.record
        pod = None
        if record is not None and record.status == "running":
            pod = next(
                (item for item in run.ledger.records().values() if item.id == record.attributes.get("pod_id")), None
            )
        if record is not None and pod is not None:
            try:
                session = await open_session(
                    self._services, pod, ssh_key=None, deadline_s=CONNECT_S, say=lambda _: None
                )
                try:
                    await self._stop(session, record, run)
                finally:
                    await session.close()
            except (SshError, OSError) as failure:
                raise ActionFailed(error("task-stop", f"stop: {failure}", address=str(step.address))) from failure
        run.ledger.remove(str(step.address), "no longer wanted")

    # --- waiting -------------------------------------------------------------------------------------------------

    async def _await(self, target: _Target, run: Run) -> None:
        match target.spec.wait:
            case "started":
                return
            case "port":
                await self._await_port(target, run)
            case _:
                await self._await_end(target, run)

    async def _await_port(self, target: _Target, run: Run) -> None:
        port = target.spec.wait_port or 0
        run.phase(target.address, f"waiting for port {port}")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (target.spec.max_duration_s or FOREVER_S)
        session = await self._open(target, run)
        try:
            while loop.time() < deadline:
                done = await run_in_image(session, [listening(port)], env={}, timeout_s=ASK_S)
                if done.exit_status == 0:
                    return
                found = await probe(session, self._task_dir(target, run), timeout_s=ASK_S)
                if found.state is not TaskState.RUNNING:
                    self._conclude(target, found, "", run)
                await asyncio.sleep(READY_EVERY_S)
        except SshError as failure:
            raise await self._lost(target, failure) from failure
        finally:
            await session.close()
        raise ActionFailed(error("task-port", f"nothing listens on port {port}", address=str(target.address)))

    async def _await_end(self, target: _Target, run: Run) -> None:
        """Follow the log to the end, over as many connections as it takes."""
        run.phase(target.address, "running")
        task_dir = self._task_dir(target, run)
        path = log_path(self._services.logs, target.address)
        secrets = secrets_of(target.spec.env, target.spec.files, run)
        title = f"{target.address} on pod {target.pod.id}"
        offset = 0
        with LogFile(path, secrets=secrets, title=title, at=self._services.now()) as log:
            while True:
                session = await self._open(target, run)
                try:

                    def count(chunk: bytes) -> None:
                        nonlocal offset
                        offset += len(chunk)
                        log.write(chunk)

                    await follow_log(session, task_dir, offset_bytes=offset, on_output=count, timeout_s=FOREVER_S)
                    found = await probe(session, task_dir, timeout_s=ASK_S)
                except ConnectionLost as failure:
                    gone = await why_gone(self._services, target.pod)
                    if gone is not None:
                        raise await self._lost(target, failure) from failure
                    run.phase(target.address, "connection lost: connecting again")
                    continue
                except SshError as failure:
                    raise await self._lost(target, failure) from failure
                finally:
                    await session.close()
                if found.state is not TaskState.RUNNING:
                    break
        self._conclude(target, found, log.last_lines(LINES_SHOWN), run)

    def _task_dir(self, target: _Target, run: Run) -> str:
        record = run.ledger.record(target.address)
        return str(record.attributes.get("task_dir")) if record is not None else ""

    def _conclude(self, target: _Target, found: Probe, last_lines: str, run: Run) -> None:
        """Record how it ended; anything but exit status 0 is a failure of the action."""
        record = run.ledger.record(target.address)
        if record is None:
            return
        status = _status(found)
        ended = {"ended_at": self._services.now().isoformat(), "exit_code": found.exit_status}
        run.ledger.put(replace(record, status=status, attributes={**record.attributes, **ended}))
        if status == "completed":
            if target.spec.destroys_fleet:
                run.completed(target.address, 0)
            return
        path = Path(str(record.attributes.get("log")))
        why = {
            "timed-out": f"stopped after {target.spec.max_duration_s} s (max_duration)",
            "failed": f"exit status {found.exit_status}" + (f"; its last lines:\n{last_lines}" if last_lines else ""),
        }.get(status, "it is gone without an exit status: the pod was restarted")
        raise ActionFailed(error(f"task-{status}", f"task: {why}", address=str(target.address), hint=f"log: {path}"))

    async def _lost(self, target: _Target, failure: Exception) -> ActionFailed:
        """A broken connection explained: ask the API at once whether the pod is still there."""
        gone = await why_gone(self._services, target.pod)
        if gone is not None:
            return ActionFailed(error("pod-gone", f"task: {gone}", address=str(target.address)))
        return ActionFailed(
            error(
                "task-connection",
                f"task: {failure}",
                address=str(target.address),
                hint="what was started goes on; the next apply attaches to it",
            )
        )


def _status(found: Probe) -> str:
    if found.state is TaskState.EXITED and found.ending is Ending.TIMED_OUT:
        return "timed-out"
    if found.state is TaskState.EXITED:
        return "completed" if found.exit_status == 0 else "failed"
    return "unknown" if found.state is TaskState.LOST else "failed"


def _cluster_env(spec: TaskSpec, run: Run) -> dict[str, str]:
    """What distributed jobs read; hosts come from what exists now."""
    first = run.ledger.record(spec.peers[0]) if spec.peers else None
    host = first.attributes.get("host") if first is not None else None
    return {
        "LIUM_NODE_RANK": str(spec.rank),
        "LIUM_NODES_NUM": str(len(spec.peers)),
        "LIUM_MASTER_ADDR": str(host or ""),
        "LIUM_GPUS_PER_NODE": str(spec.gpus_per_node),
    }
