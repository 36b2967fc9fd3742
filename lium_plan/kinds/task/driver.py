"""Tasks over SSH: started detached exactly once, followed for as long as we like, judged by their exit-code file.

The directory on the pod is journaled before the start, so that whoever comes later asks the pod instead of starting
twice. A dropped connection never ends a task, and neither does our own exit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC

from lium_plan.addresses import Address
from lium_plan.diagnostics import error, in_words
from lium_plan.kinds.bootstrap.spec import CONTAINER, contents
from lium_plan.kinds.differ import field_changes
from lium_plan.kinds.failures import begun_inputs
from lium_plan.kinds.logs import LogFile, log_path
from lium_plan.kinds.pod.spec import READY_AT
from lium_plan.kinds.protocol import (
    ActionFailed,
    Begin,
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
from lium_plan.kinds.sessions import (
    CONNECT_S,
    READY_EVERY_S,
    PodGone,
    listening,
    open_session,
    raise_if_gone,
    taken_away,
)
from lium_plan.kinds.task.spec import TaskSpec, reached
from lium_plan.ssh.detached import (
    STOP_GRACE_S,
    DetachedCommand,
    Ending,
    Probe,
    TaskState,
    follow_log,
    forestall,
    probe,
    start,
    stop,
)
from lium_plan.ssh.errors import BadScript, ConnectionLost, FileNotSent, LoginRefused, SshError, TimedOut, Unreachable
from lium_plan.ssh.image_env import run_in_image
from lium_plan.ssh.protocol import Session

ASK_S = 60.0
SEND_S = 3600.0
STOP_S = STOP_GRACE_S + 30.0
FOREVER_S = 30 * 24 * 3600.0
"""A pod's longest time to live: no task can outlast it."""
LINES_SHOWN = 10
STARTS = 3
OVERTIME_S = 600.0
"""How long a task that must have ended is asked how, while its pod is there and can't be reached."""
BROKEN = (ConnectionLost, TimedOut, Unreachable)
"""What says nothing of the task: it goes on."""
MAY_RUN = ("running", "unknown")


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
        async with self._explained(target):
            if step.verb is not Verb.ADOPT:
                await self._start_anew(target, step, run)
                await self._await(target, run)
            elif spec.wait == "port" and not reached(spec, step.record):
                await self._await_port(target, run, attached=False)
            else:
                await self._await_end(target, run, attached=False)

    async def settle(self, effect: OpenEffect, run: Run) -> Settlement:
        """Did the start of an earlier run take effect? Only the pod knows; a start that has not is called off.

        Also of what is wanted no more: where it had started the plan then stops it. A pod that is destroyed with all
        that is on it has gone by now.
        """
        pod = next((item for item in run.ledger.records().values() if item.id == effect.data.get("pod_id")), None)
        if pod is None:
            run.ledger.failed(effect, "forgotten with its pod")
            return Settlement(Outcome.NOT_DONE, "it is forgotten with its pod")
        resource = run.desired(effect.address)
        ssh_key = resource.spec.ssh_key if resource is not None else None
        try:
            session = await self._open_on(pod, effect.address, run, ssh_key=ssh_key)
            try:
                never = await forestall(session, str(effect.data["task_dir"]), timeout_s=ASK_S)
            finally:
                await session.close()
        except PodGone as failure:
            run.ledger.failed(effect, failure.gone.why)
            return Settlement(Outcome.NOT_DONE, failure.gone.why)
        except (SshError, OSError) as failure:
            return Settlement(Outcome.UNKNOWN, f"nobody can say whether the task started: {in_words(failure)}")
        if never:
            run.ledger.failed(effect, "it never started")
            return Settlement(Outcome.NOT_DONE, "it never started")
        run.ledger.done(effect, self._running(effect, pod))
        return Settlement(Outcome.DONE, "it had started")

    # --- starting and stopping -----------------------------------------------------------------------------------

    def _pod(self, spec: TaskSpec, run: Run) -> Record:
        pod = run.ledger.record(spec.pod)
        if pod is None or pod.id is None:
            raise ActionFailed(error("missing-dependency", f"{spec.pod} does not exist", address=str(spec.pod)))
        return pod

    async def _open(self, target: _Target, run: Run, *, quiet: bool = False) -> Session:
        return await self._open_on(target.pod, target.address, run, ssh_key=target.spec.ssh_key, quiet=quiet)

    async def _open_on(
        self, pod: Record, address: Address, run: Run, *, ssh_key: str | None, quiet: bool = False
    ) -> Session:
        def say(stage: str) -> None:
            if not quiet:
                run.phase(address, f"ssh: {stage}")

        return await open_session(self._services, pod, ssh_key=ssh_key, deadline_s=CONNECT_S, say=say)

    @asynccontextmanager
    async def _explained(self, target: _Target) -> AsyncIterator[None]:
        """What goes wrong with the connection, as the action's failure; is the pod still there?"""
        address, log = str(target.address), str(log_path(self._services.logs, target.address))
        try:
            try:
                yield
            except SshError:
                await raise_if_gone(self._services, target.pod)
                raise
        except PodGone as failure:
            raise taken_away(failure.gone, target.pod, "task", target.address, log) from failure
        except LoginRefused as failure:
            found = error("ssh-login", f"task: {failure}", address=address, hint="check the fleet's ssh_key")
            raise ActionFailed(found) from failure
        except (FileNotSent, BadScript) as failure:
            why = f"task: it can't be started: {failure}"
            raise ActionFailed(error("task-start", why, address=address)) from failure
        except SshError as failure:
            hint = "what was started goes on; the next apply attaches to it"
            raise ActionFailed(error("task-connection", f"task: {failure}", address=address, hint=hint)) from failure
        except OSError as failure:
            why = f"task: on this machine: {in_words(failure)}"
            raise ActionFailed(error("task-local", why, address=address)) from failure

    async def _start_anew(self, target: _Target, step: Step, run: Run) -> None:
        """Stop what may still run of it, on this pod or on another one of ours, then start it."""
        before = step.record
        here = before is not None and before.attributes.get("pod_id") == target.pod.id
        if before is not None and not here:
            await self._stop_where_it_is(before, run)
        command = DetachedCommand(
            [run.resolve(text) for text in target.spec.commands],
            {**_cluster_env(target.spec, run), **filled(target.spec.env, run)},
            target.spec.working_dir,
            target.spec.user,
            target.spec.max_duration_s,
        )
        files = files_to_send(target.spec.files, target.address, run, may_be_there=here)
        session = await self._open(target, run)
        try:
            if before is not None and here:
                await self._stop(session, before, run)
                if before.status == "running" and not field_changes(before.inputs, step.inputs):
                    await self._keep_log(session, target, run)
            if files:
                run.phase(target.address, f"sending {len(files)} file{'s' * (len(files) != 1)}")
                await session.put(files, timeout_s=SEND_S)
            data: dict[str, Json] = {
                "pod_id": target.pod.id,
                CONTAINER: target.pod.attributes.get(READY_AT),
                "task_dir": f".lium-plan/tasks/{target.address.name}-{self._services.random_bytes(6).hex()}",
                "inputs": dict(step.inputs),
            }

            async def send(begin: Begin) -> None:
                await self._start(begin(), session, command, target, run)

            run.phase(target.address, "starting")
            await run.effect(target.address, "start", data, send)
        finally:
            await session.close()

    async def _start(
        self, effect: OpenEffect, session: Session, command: DetachedCommand, target: _Target, run: Run
    ) -> None:
        """Over a new connection when the answer is lost: of two starts in one directory only one takes effect.

        Leaves the effect open when nobody can say.
        """
        task_dir = str(effect.data["task_dir"])
        current = session
        for attempt in range(1, STARTS + 1):
            try:
                await start(current, command, task_dir, timeout_s=ASK_S)
                break
            except (ConnectionLost, TimedOut):
                if attempt == STARTS:
                    raise
                await raise_if_gone(self._services, target.pod)
            except SshError as failure:
                run.ledger.done(effect, self._never_started(effect, target.pod))
                why = f"task: it can't be started: {failure}"
                raise ActionFailed(error("task-start", why, address=str(target.address))) from failure
            finally:
                if current is not session:
                    await current.close()
            run.phase(target.address, "connection lost: connecting again")
            current = await self._open(target, run)
        run.ledger.done(effect, self._running(effect, target.pod))

    def _running(self, effect: OpenEffect, pod: Record) -> Record:
        return Record(
            effect.address,
            None,
            "running",
            begun_inputs(effect),
            {
                "pod_id": effect.data.get("pod_id"),
                CONTAINER: effect.data.get(CONTAINER),
                "task_dir": effect.data.get("task_dir"),
                "started_at": effect.at.astimezone(UTC).isoformat(),
                "ended_at": None,
                "exit_code": None,
                "log": str(log_path(self._services.logs, effect.address)),
            },
            (pod.address,),
        )

    def _never_started(self, effect: OpenEffect, pod: Record) -> Record:
        record = self._running(effect, pod)
        facts = {**record.attributes, "started_at": None, "ending": "not-started"}
        return replace(record, status="failed", attributes=facts)

    async def _stop(self, session: Session, record: Record, run: Run) -> None:
        """Also what an attempt left behind that has ended: two of them never run side by side."""
        task_dir = record.attributes.get("task_dir")
        if not isinstance(task_dir, str):
            return
        if record.status in MAY_RUN:
            run.phase(record.address, "stopping")
        if (await stop(session, task_dir, timeout_s=STOP_S)).state is TaskState.RUNNING:
            why = "stop: something of it goes on, and the pod can't end it"
            hint = "look at its processes there (`lium-plan ssh`); `lium-plan apply` tries again"
            raise ActionFailed(error("task-stop", why, address=str(record.address), hint=hint))

    async def _keep_log(self, session: Session, target: _Target, run: Run) -> None:
        """What an attempt wrote whose end nobody saw; only while the secrets in it are those of now, and so known."""
        with self._log(target, run) as log:
            task_dir = self._task_dir(target, run)
            await follow_log(
                session, task_dir, offset_bytes=log.offset, once=True, on_output=log.write, timeout_s=SEND_S
            )

    async def _stop_before_forgetting(self, step: Step, run: Run) -> None:
        """A task that is no longer wanted, on a pod that stays, is stopped."""
        if step.record is not None:
            await self._stop_where_it_is(step.record, run)
        run.ledger.remove(str(step.address), "no longer wanted")

    async def _stop_where_it_is(self, record: Record, run: Run) -> None:
        """What runs on a dead pod is dead."""
        pod = None
        if record.status in MAY_RUN:
            pod = next(
                (item for item in run.ledger.records().values() if item.id == record.attributes.get("pod_id")), None
            )
        if pod is None:
            return
        try:
            session = await open_session(self._services, pod, ssh_key=None, deadline_s=CONNECT_S, say=lambda _: None)
            try:
                await self._stop(session, record, run)
            except SshError:
                await raise_if_gone(self._services, pod)
                raise
            finally:
                await session.close()
        except PodGone:
            pass  # and the task with it
        except (SshError, OSError) as failure:
            why = f"stop: it may still run on {pod.address}: {in_words(failure)}"
            raise ActionFailed(error("task-stop", why, address=str(record.address))) from failure

    # --- waiting -------------------------------------------------------------------------------------------------

    async def _await(self, target: _Target, run: Run) -> None:
        match target.spec.wait:
            case "started":
                return
            case "port":
                await self._await_port(target, run)
            case _:
                await self._await_end(target, run)

    async def _attach(self, target: _Target, run: Run, *, attached: bool, until: float) -> Session:
        """Who is `attached` knows that the task goes on there, and tries until `until` on the loop's clock.

        Raises what `_open` raises.
        """
        if not attached:
            return await self._open(target, run)
        unreachable = False
        while True:
            try:
                return await self._open(target, run, quiet=unreachable)
            except Unreachable:  # and the API knows the pod
                if asyncio.get_running_loop().time() >= until:
                    raise
            if not unreachable:
                run.phase(target.address, "the pod can't be reached at the moment: the task goes on there")
            unreachable = True

    async def _lost(self, target: _Target, run: Run) -> None:
        await raise_if_gone(self._services, target.pod)
        run.phase(target.address, "connection lost: connecting again")

    async def _await_port(self, target: _Target, run: Run, *, attached: bool = True) -> None:
        port = target.spec.wait_port or 0
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (target.spec.max_duration_s or FOREVER_S)
        task_dir = self._task_dir(target, run)
        while loop.time() < deadline:
            session = await self._attach(target, run, attached=attached, until=deadline)
            attached = True
            run.phase(target.address, f"waiting for port {port}")
            try:
                while loop.time() < deadline:
                    done = await run_in_image(session, [listening(port)], env={}, timeout_s=ASK_S)
                    found = await probe(session, task_dir, timeout_s=ASK_S)
                    listens = done.exit_status == 0
                    if found.state is not TaskState.RUNNING:
                        await self._ended(session, target, found, run, listens=listens)
                        return
                    if listens:
                        self._reached(target, run)
                        return
                    await asyncio.sleep(READY_EVERY_S)
            except BROKEN:
                await self._lost(target, run)
            finally:
                await session.close()
        raise ActionFailed(error("task-port", f"nothing listens on port {port}", address=str(target.address)))

    def _reached(self, target: _Target, run: Run) -> None:
        """What was waited for has come; the task goes on, and the next apply need not wait again."""
        record = run.ledger.record(target.address)
        if record is not None:
            run.ledger.put(
                replace(record, attributes={**record.attributes, "reached": f"port {target.spec.wait_port}"})
            )

    async def _ended(self, session: Session, target: _Target, found: Probe, run: Run, *, listens: bool) -> None:
        """While its port was waited for. What it left in the background may listen all the same."""
        with self._log(target, run) as log:
            await self._follow(session, target, log, run)
        if _status(found) == "completed" and not listens:
            self._record_end(target, found, "failed", run)
            why = f"task: it ended (exit status 0) before anything listened on port {target.spec.wait_port}"
            raise ActionFailed(error("task-port", why, address=str(target.address), hint=f"log: {log.path}"))
        self._conclude(target, found, log.last_lines(LINES_SHOWN), run)

    async def _await_end(self, target: _Target, run: Run, *, attached: bool = True) -> None:
        """Follow the log to the end, over as many connections as it takes."""
        longest_s = target.spec.max_duration_s or FOREVER_S
        until = asyncio.get_running_loop().time() + longest_s + OVERTIME_S
        with self._log(target, run) as log:
            found = None
            while found is None or found.state is TaskState.RUNNING:
                session = await self._attach(target, run, attached=attached, until=until)
                attached = True
                run.phase(target.address, "running")
                try:
                    found = await self._follow(session, target, log, run)
                except BROKEN:
                    if asyncio.get_running_loop().time() >= until:
                        raise
                    await self._lost(target, run)
                finally:
                    await session.close()
        self._conclude(target, found, log.last_lines(LINES_SHOWN), run)

    def _log(self, target: _Target, run: Run) -> LogFile:
        spec = target.spec
        return LogFile(
            log_path(self._services.logs, target.address),
            secrets=secrets_of((*spec.env.values(), *spec.also_secret), contents(spec.files), run),
            title=f"{target.address} on pod {target.pod.id}",
            at=self._services.now(),
            source=f"{target.pod.id} {self._task_dir(target, run)}",
        )

    async def _follow(self, session: Session, target: _Target, log: LogFile, run: Run) -> Probe:
        task_dir = self._task_dir(target, run)
        await follow_log(session, task_dir, offset_bytes=log.offset, on_output=log.write, timeout_s=FOREVER_S)
        return await probe(session, task_dir, timeout_s=ASK_S)

    def _task_dir(self, target: _Target, run: Run) -> str:
        record = run.ledger.record(target.address)
        return str(record.attributes.get("task_dir")) if record is not None else ""

    def _record_end(self, target: _Target, found: Probe, status: str, run: Run) -> None:
        record = run.ledger.record(target.address)
        if record is not None:
            ended = {"ended_at": self._services.now().isoformat(), "exit_code": found.exit_status}
            run.ledger.put(replace(record, status=status, attributes={**record.attributes, **ended}))

    def _conclude(self, target: _Target, found: Probe, last_lines: str, run: Run) -> None:
        """Record how it ended; anything but exit status 0 is a failure of the action."""
        status = _status(found)
        self._record_end(target, found, status, run)
        if status == "completed":
            if target.spec.destroys_fleet:
                run.completed(target.address, 0)
            return
        tail = f"\nIts last lines:\n{last_lines}" if last_lines else ""
        why = {
            "timed-out": f"stopped after {target.spec.max_duration_s} s (max_duration){tail}",
            "failed": f"exit status {found.exit_status}{tail}",
        }.get(status, f"it is gone without an exit status: the pod was restarted, or the task killed{tail}")
        hint = f"log: {log_path(self._services.logs, target.address)}"
        raise ActionFailed(error(f"task-{status}", f"task: {why}", address=str(target.address), hint=hint))


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
