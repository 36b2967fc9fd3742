"""Bootstraps over SSH: files by SFTP, commands in the image's environment, then readiness; all within one deadline.

A bootstrap that did not finish is never taken for done: its record says `running` before anything is sent, and only
the exit status of the last command (and the readiness check) makes it `ready`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, error
from lium_plan.kinds.bootstrap.spec import BootstrapSpec
from lium_plan.kinds.logs import LogFile, log_path
from lium_plan.kinds.protocol import (
    ActionFailed,
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
from lium_plan.ssh.errors import SshError
from lium_plan.ssh.image_env import LAUNCHER_FAILED, run_in_image
from lium_plan.ssh.protocol import Session

LINES_SHOWN = 5


class Unready(Exception):
    """The bootstrap ended without the machine being ready; the message is for people."""


def open_driver(services: Services) -> BootstrapDriver:
    return BootstrapDriver(services)


class BootstrapDriver:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._failures: Counter[str] = Counter()

    async def survey(self, records: Sequence[Record], *, scope_mark: str, lineage_mark: str | None) -> Survey:
        return Survey({})  # nothing of it is in the API: it goes with its pod

    async def settle(self, effect: OpenEffect, run: Run) -> Settlement:
        run.ledger.failed(effect, "it did not finish")
        return Settlement(Outcome.NOT_DONE, "it did not finish")

    async def perform(self, step: Step, run: Run) -> None:
        if step.verb is Verb.DESTROY:
            run.ledger.remove(str(step.address), "its pod is gone")
            return
        spec: BootstrapSpec = step.wanted().spec
        pod = run.ledger.record(spec.pod)
        if pod is None or pod.id is None:
            raise ActionFailed(error("missing-dependency", f"{spec.pod} does not exist", address=str(step.address)))
        if spec.max_failures is not None and self._failures[step.address.name] > spec.max_failures:
            raise ActionFailed(
                error(
                    "max-failures",
                    f"not started: more than {spec.max_failures} members of fleet.{step.address.name} failed",
                    address=str(step.address),
                )
            )
        record = Record(
            step.address, None, "running", {}, {"pod_id": pod.id}, step.wanted().depends_on, protected=False
        )
        run.ledger.put(record)

        async def send(effect: OpenEffect) -> Diagnostic | None:
            return await self._run(effect, step, pod, record, run)

        cause = await run.effect(step.address, "run", {"pod_id": pod.id}, send, abandon=True)
        if cause is None:
            return
        self._failures[step.address.name] += 1
        if spec.delete_on_failure:
            await run.destroy(spec.pod)
        raise ActionFailed(cause)

    async def _run(self, effect: OpenEffect, step: Step, pod: Record, record: Record, run: Run) -> Diagnostic | None:
        """None when it is ready, else why not; the effect is ended either way, also when cancelled."""
        spec: BootstrapSpec = step.wanted().spec
        path = log_path(self._services.logs, step.address)
        try:
            await self._steps(step.address, spec, pod, path, run)
        except (SshError, OSError, Unready) as failure:
            gone = await why_gone(self._services, pod) if isinstance(failure, SshError) else None
            why = gone or str(failure)
            run.ledger.done(
                effect, replace(record, status="failed", attributes={**record.attributes, "log": str(path)})
            )
            return error(
                "pod-gone" if gone else "bootstrap-failed",
                f"bootstrap: {why}",
                address=str(step.address),
                hint=f"log: {path}",
            )
        except BaseException:
            run.ledger.done(effect, replace(record, status="failed"))
            raise
        run.ledger.done(
            effect,
            replace(
                record,
                status="ready",
                inputs=dict(step.inputs),
                attributes={**record.attributes, "log": str(path)},
            ),
        )
        return None

    async def _steps(self, address: Address, spec: BootstrapSpec, pod: Record, path: Path, run: Run) -> None:
        loop = asyncio.get_running_loop()
        session = await open_session(
            self._services,
            pod,
            ssh_key=spec.ssh_key,
            deadline_s=CONNECT_S,
            say=lambda stage: run.phase(address, f"ssh: {stage}"),
        )
        deadline = loop.time() + spec.timeout_s
        try:
            await self._send_files(session, address, spec, run)
            with LogFile(
                path,
                secrets=secrets_of(spec.env, spec.files, run),
                title=f"{address} on pod {pod.id}",
                at=self._services.now(),
            ) as log:
                await self._commands(session, address, spec, log, deadline, run)
                await self._until_ready(session, address, spec, log, deadline, run)
        finally:
            await session.close()

    async def _send_files(self, session: Session, address: Address, spec: BootstrapSpec, run: Run) -> None:
        files = files_to_send(spec.files, address, run)
        if files:
            run.phase(address, f"sending {len(files)} file{'s' * (len(files) != 1)}")
            await session.put(files, timeout_s=spec.timeout_s)

    async def _commands(
        self, session: Session, address: Address, spec: BootstrapSpec, log: LogFile, deadline: float, run: Run
    ) -> None:
        if not spec.commands:
            return
        run.phase(address, f"running {len(spec.commands)} command{'s' * (len(spec.commands) != 1)}")
        done = await run_in_image(
            session,
            [run.resolve(command) for command in spec.commands],
            env=filled(spec.env, run),
            on_output=log.write,
            timeout_s=max(deadline - asyncio.get_running_loop().time(), 1.0),
        )
        if done.exit_status == LAUNCHER_FAILED:
            raise Unready(f"the commands could not be started:\n{log.last_lines(LINES_SHOWN)}")
        if done.exit_status != 0:
            raise Unready(f"exit status {done.exit_status}; its last lines:\n{log.last_lines(LINES_SHOWN)}")

    async def _until_ready(
        self, session: Session, address: Address, spec: BootstrapSpec, log: LogFile, deadline: float, run: Run
    ) -> None:
        if spec.ready is None:
            return
        written = spec.ready.command
        command = run.resolve(written) if written is not None else listening(spec.ready.port or 0)
        what = written.source if written is not None else f"port {spec.ready.port}"
        run.phase(address, f"waiting for {what}")
        loop = asyncio.get_running_loop()
        while True:
            left = deadline - loop.time()
            if left <= 0:
                raise Unready(f"not ready after {spec.timeout_s} s: {what}")
            done = await run_in_image(
                session, [command], env=filled(spec.env, run), on_output=log.write, timeout_s=max(left, 1.0)
            )
            if done.exit_status == 0:
                return
            await asyncio.sleep(min(READY_EVERY_S, max(left, 0)))
