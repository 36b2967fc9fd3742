"""Bootstraps over SSH: files, commands in the image's environment, then readiness; all within one deadline.

A bootstrap that did not finish is never taken for done: its record says `running` before anything is sent, and only
the exit status of the last command (and the readiness check) makes it `ready`. Connections are made again as long as
the deadline allows; commands are not: what may have begun is judged by what the pod recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from lium_plan.diagnostics import error, in_words
from lium_plan.kinds.bootstrap.attempt import Attempt, Earlier, Unready
from lium_plan.kinds.bootstrap.spec import (
    CONTAINER,
    BootstrapSpec,
    attempt_digest,
    contents,
    is_older,
)
from lium_plan.kinds.logs import LogFile, log_path
from lium_plan.kinds.pod.spec import READY_AT
from lium_plan.kinds.protocol import (
    ActionFailed,
    Begin,
    Interrupted,
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
from lium_plan.kinds.sending import secrets_of
from lium_plan.kinds.services import Services
from lium_plan.kinds.sessions import PodGone, taken_away
from lium_plan.ssh.errors import BadScript, FileNotSent, LoginRefused, SshError

MAX_FAILURES = "max-failures"
CLOCK_STEP = timedelta(seconds=1)
"""By so much may the server's time, which is known to the second, be corrected during a run."""


def open_driver(services: Services) -> BootstrapDriver:
    return BootstrapDriver(services)


class BootstrapDriver:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._failures: Counter[str] = Counter()
        self._since = services.now() - CLOCK_STEP

    async def survey(self, records: Sequence[Record], *, scope_mark: str, lineage_mark: str | None) -> Survey:
        return Survey({})  # nothing of it is in the API: it goes with its pod

    async def settle(self, effect: OpenEffect, run: Run) -> Settlement:
        """The plan runs it again; how much of it the pod is asked then."""
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
        try:
            self._refuse_beyond_max_failures(step, spec)
        except ActionFailed as refused:
            raise await self._after_failure(refused, step, pod, run) from None
        earlier = _earlier(step, pod)
        going_on = earlier is not None and earlier.unfinished and earlier.same
        name = earlier.attempt if earlier is not None and going_on else self._services.random_bytes(6).hex()
        facts: dict[str, Json] = {
            "pod_id": pod.id,
            CONTAINER: pod.attributes.get(READY_AT),
            "attempt": name,
            "digest": attempt_digest(step.inputs),
            "log": str(log_path(self._services.logs, step.address)),
            "started_at": self._services.now().isoformat(),
            "ended_at": None,
            "exit_code": None,
            "commands": len(spec.commands),
            "commands_done": 0,
        }
        record = Record(step.address, None, "running", {}, facts, step.wanted().depends_on)
        run.ledger.put(record)

        async def send(begin: Begin) -> ActionFailed | None:
            attempt = Attempt(self._services, step.address, spec, pod, record, run, earlier=earlier)
            return await self._run(begin(), step, pod, attempt, run, going_on=going_on)

        cause = await run.effect(step.address, "run", {"pod_id": pod.id}, send, abandon=True)
        if cause is None:
            return
        if isinstance(cause, Interrupted):
            raise cause
        self._failures[step.address.name] += 1
        raise await self._after_failure(cause, step, pod, run)

    def _refuse_beyond_max_failures(self, step: Step, spec: BootstrapSpec) -> None:
        if spec.max_failures is not None and self._failures[step.address.name] > spec.max_failures:
            raise ActionFailed(
                error(
                    MAX_FAILURES,
                    f"not started: more than {spec.max_failures} members of fleet.{step.address.name} failed",
                    address=str(step.address),
                )
            )

    async def _after_failure(self, cause: ActionFailed, step: Step, pod: Record, run: Run) -> ActionFailed:
        """`on_failure: delete`: the bill stops, and the record goes with its pod. Answers what failed, with a word on a
        pod that has to stay."""
        spec: BootstrapSpec = step.wanted().spec
        found = cause.diagnostic
        not_begun = found.code == MAX_FAILURES and not self._is_new(pod)
        if not spec.delete_on_failure or found.code == "pod-gone" or not_begun:
            return cause
        if pod.protected:
            hint = "; ".join(text for text in ("its pod stays, for prevent_destroy protects it", found.hint) if text)
            return ActionFailed(replace(found, hint=hint))
        run.phase(step.address, "giving the pod back (on_failure: delete)")
        await run.destroy(spec.pod)
        run.ledger.remove(str(step.address), "its pod was given back")
        return cause

    def _is_new(self, pod: Record) -> bool:
        """Whether this run has rented it: what was there before is none the worse for what was not begun."""
        rented_at = pod.attributes.get("rented_at")
        return isinstance(rented_at, str) and datetime.fromisoformat(rented_at) >= self._since

    async def _run(
        self, effect: OpenEffect, step: Step, pod: Record, attempt: Attempt, run: Run, *, going_on: bool
    ) -> ActionFailed | None:
        """None when it is ready, else why not; the effect is ended either way, also when cancelled."""
        spec: BootstrapSpec = step.wanted().spec
        path = log_path(self._services.logs, step.address)
        ending = "interrupted"
        cause: ActionFailed | None = None
        try:
            with LogFile(
                path,
                secrets=secrets_of((*spec.env.values(), *spec.also_secret), contents(spec.files), run),
                title=f"{step.address} on pod {pod.id}",
                at=self._services.now(),
                going_on=going_on,
            ) as log:
                await attempt.carry_out(log, lambda: self._refuse_beyond_max_failures(step, spec))
            ending = "done"
        except Unready as failure:
            ending = failure.ending
            cause = _failed(step, str(failure), failure.code, path)
        except PodGone as failure:
            ending = "pod-gone"
            cause = taken_away(failure.gone, pod, "bootstrap", step.address, str(path))
        except LoginRefused as failure:
            ending = "connection"
            cause = _failed(step, str(failure), "ssh-login", path, "check the fleet's ssh_key")
        except (FileNotSent, BadScript) as failure:
            ending = "not-started"
            cause = _failed(step, str(failure), "bootstrap-failed", path)
        except SshError as failure:
            ending = "connection"
            cause = _failed(step, str(failure), "bootstrap-connection", path)
        except OSError as failure:
            ending = "not-started"
            cause = _failed(step, f"on this machine: {in_words(failure)}", "bootstrap-failed", path)
        except ActionFailed as failure:
            ending = "not-started"
            cause = failure
        finally:
            # Also when cancelled: what was begun is then marked, and the next apply asks the pod about it.
            done = ending == "done"
            run.ledger.done(effect, attempt.ended("ready" if done else "failed", step.inputs if done else {}, ending))
        return cause


def _failed(step: Step, why: str, code: str, path: Path, advice: str = "") -> ActionFailed:
    hint = f"{advice}; log: {path}" if advice else f"log: {path}"
    return ActionFailed(error(code, f"bootstrap: {why}", address=str(step.address), hint=hint))


def _earlier(step: Step, pod: Record) -> Earlier | None:
    """The attempt before this one on the same pod."""
    record = step.record
    spec: BootstrapSpec = step.wanted().spec
    if record is None or record.attributes.get("pod_id") != pod.id or is_older(record, pod):
        return None
    facts = record.attributes
    same = facts.get("digest") == attempt_digest(step.inputs) and spec.run != "always"
    return Earlier(str(facts.get("attempt") or "none"), unfinished=record.status != "ready", same=same)
