"""One attempt at a bootstrap on one pod: connect, send, run, wait until ready.

Owns what is done again and what is not. Connecting, sending files and asking for readiness are repeated freely while
the time lasts. Commands are begun once: after a lost connection the pod's own record says what became of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from lium_plan.addresses import Address
from lium_plan.kinds.bootstrap.resuming import first_command
from lium_plan.kinds.bootstrap.spec import BootstrapSpec
from lium_plan.kinds.logs import LogFile
from lium_plan.kinds.protocol import Json, Record, Run
from lium_plan.kinds.sending import files_to_send, filled
from lium_plan.kinds.services import Services
from lium_plan.kinds.sessions import CONNECT_S, READY_EVERY_S, listening, open_session, raise_if_gone
from lium_plan.ssh.errors import ConnectionLost, SshError, TimedOut
from lium_plan.ssh.image_env import LAUNCHER_FAILED, run_in_image
from lium_plan.ssh.markers import Markers, RunState, read_markers
from lium_plan.ssh.protocol import Session

LINES_SHOWN = 5
COMMAND_SHOWN = 60
ASK_S = 30.0
READY_CHECK_S = 60.0
"""One check of readiness that takes longer counts as a no."""
STEPS_EVERY_S = 3.0


class Unready(Exception):
    """It ended without the machine being ready; the message is for people, `ending` for the state."""

    def __init__(self, why: str, *, ending: str, code: str) -> None:
        super().__init__(why)
        self.ending = ending
        self.code = code


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier run did on this pod."""

    attempt: str
    """Its name on the pod."""
    unfinished: bool
    same: bool
    """It was the same bootstrap as this one: what it has finished need not be done again."""


class Attempt:
    def __init__(
        self,
        services: Services,
        address: Address,
        spec: BootstrapSpec,
        pod: Record,
        record: Record,
        run: Run,
        *,
        earlier: Earlier | None,
    ) -> None:
        self._services = services
        self._address = address
        self._spec = spec
        self._pod = pod
        self._record = record
        self._run = run
        self._earlier = earlier
        self._clock = asyncio.get_running_loop().time
        self._deadline = self._clock() + spec.timeout_s
        self._marker_path = _marker_path(str(record.attributes["attempt"]))
        self._first = 0
        self._asked = False
        """Whether the pod was asked what an earlier attempt has done."""
        self._begun = False
        """Whether this attempt's commands may have begun on the pod."""
        self._commands_over = False

    async def carry_out(self, log: LogFile, still_wanted: Callable[[], None]) -> None:
        """Returns when the machine is ready. Raises `Unready`, `PodGone`, `SshError`, `OSError`, `ActionFailed`."""
        while True:
            session = await self._open()
            try:
                await self._through(session, log, still_wanted)
                return
            except ConnectionLost as lost:
                await raise_if_gone(self._services, self._pod)
                if self._left() <= 0:
                    raise
                log.say(f"{lost}; connecting again")
                self._phase("connection lost: connecting again")
            except TimedOut as late:
                why = f"{late.doing} did not end within {self._spec.timeout_s} s (timeout)"
                raise Unready(self._with_last_lines(why, log), ending="timeout", code="bootstrap-timeout") from None
            finally:
                await session.close()

    def ended(self, status: str, inputs: Mapping[str, Json], ending: str) -> Record:
        """The record to keep."""
        facts = {**self._record.attributes, "ended_at": self._services.now().isoformat(), "ending": ending}
        return replace(self._record, status=status, inputs=dict(inputs), attributes=facts)

    async def _open(self) -> Session:
        return await open_session(
            self._services,
            self._pod,
            ssh_key=self._spec.ssh_key,
            deadline_s=max(min(CONNECT_S, self._left()), 1.0),
            say=lambda stage: self._phase(f"ssh: {stage}"),
        )

    async def _through(self, session: Session, log: LogFile, still_wanted: Callable[[], None]) -> None:
        if self._begun:
            await self._judge_lost_commands(session, log)
        if not self._commands_over:
            await self._look_at_earlier(session, log)
            if self._first < len(self._spec.commands) or not self._spec.commands:
                await self._send_files(session)
                still_wanted()
                await self._commands(session, log)
            self._commands_over = True
        await self._until_ready(session, log)

    # --- what was done already -----------------------------------------------------------------------------------

    async def _look_at_earlier(self, session: Session, log: LogFile) -> None:
        """Set the command to begin with. Two runs of a bootstrap never go on side by side."""
        if self._asked or self._earlier is None or not self._earlier.unfinished:
            return
        found = await self._markers(session, _marker_path(self._earlier.attempt), log)
        if self._earlier.same:
            self._first = first_command([command.source for command in self._spec.commands], found)
            self._note(commands_done=self._first)
            if self._first:
                log.say(f"{self._first} of {len(self._spec.commands)} commands had finished in an earlier run")
        self._asked = True

    async def _judge_lost_commands(self, session: Session, log: LogFile) -> None:
        """The connection broke while commands ran: what has become of them?"""
        found = await self._markers(session, self._marker_path, log)
        self._note(commands_done=len(found.finished_steps))
        match found.state:
            case RunState.NEVER_STARTED:
                self._begun = False
            case RunState.EXITED if found.exit_status is not None:
                log.say(f"the commands ended with exit status {found.exit_status} meanwhile; their output is missing")
                self._judge(found.exit_status, log, begun=found.begun)
                self._begun = False
                self._commands_over = True
            case _:
                why = f"the connection was lost, and with it {self._which(found)}"
                raise Unready(self._with_last_lines(why, log), ending="connection", code="bootstrap-connection")

    async def _markers(self, session: Session, markers: str, log: LogFile) -> Markers:
        """What the pod recorded, once nothing of it runs any more."""
        told = False
        while True:
            found = await read_markers(session, markers, timeout_s=ASK_S)
            if found.state is not RunState.RUNNING:
                return found
            if self._left() <= 0:
                why = f"an earlier run still goes on after {self._spec.timeout_s} s (timeout)"
                raise Unready(why, ending="timeout", code="bootstrap-timeout")
            if not told:
                told = True
                log.say("an earlier run still goes on; waiting for its end")
                self._phase("waiting for an earlier run to end")
            await asyncio.sleep(min(READY_EVERY_S, max(self._left(), 0)))

    # --- doing ---------------------------------------------------------------------------------------------------

    async def _send_files(self, session: Session) -> None:
        """On a pod that had a bootstrap before, only those that it doesn't have."""
        files = files_to_send(
            self._spec.files, self._address, self._run, may_be_there=self._earlier is not None or self._begun
        )
        if files:
            self._phase(f"sending {len(files)} file{'s' * (len(files) != 1)}")
            await session.put(files, timeout_s=max(self._left(), 1.0))

    async def _commands(self, session: Session, log: LogFile) -> None:
        commands = self._spec.commands
        if not commands:
            return
        texts = [self._run.resolve(command) for command in commands]
        env = filled(self._spec.env, self._run)
        self._phase(f"bootstrap {self._first + 1}/{len(commands)}")
        self._begun = True
        counting = asyncio.ensure_future(self._count_steps(session)) if len(commands) > 1 else None
        try:
            done = await run_in_image(
                session,
                texts[self._first :],
                env=env,
                markers=self._marker_path,
                first_step=self._first,
                on_output=log.write,
                timeout_s=max(self._left(), 1.0),
            )
        finally:
            if counting is not None:
                counting.cancel()
                await asyncio.wait((counting,))
        begun = True
        if done.exit_status == 0:
            self._note(commands_done=len(commands))
        else:
            with suppress(SshError):
                found = await read_markers(session, self._marker_path, timeout_s=ASK_S)
                begun = found.begun
                self._note(commands_done=len(found.finished_steps))
        self._judge(done.exit_status, log, begun=begun)
        self._begun = False

    async def _count_steps(self, session: Session) -> None:
        """Tell people, and the state, which command it is at."""
        with suppress(SshError):
            while True:
                await asyncio.sleep(STEPS_EVERY_S)
                found = await read_markers(session, self._marker_path, timeout_s=ASK_S)
                finished = len(found.finished_steps)
                if finished > int(str(self._record.attributes["commands_done"])):
                    self._note(commands_done=finished)
                    self._run.ledger.put(self._record)
                    if finished < len(self._spec.commands):
                        self._phase(f"bootstrap {finished + 1}/{len(self._spec.commands)}")

    def _judge(self, exit_status: int, log: LogFile, *, begun: bool) -> None:
        self._note(exit_code=exit_status)
        if exit_status == 0:
            return
        if exit_status == LAUNCHER_FAILED and not begun:
            why = self._with_last_lines("the commands could not be started", log)
            raise Unready(why, ending="not-started", code="bootstrap-failed")
        done, count = int(str(self._record.attributes["commands_done"])), len(self._spec.commands)
        where = f" in command {done + 1} of {count}" if count > 1 and done < count else ""
        if done < count:
            where += f": {self._shown(done)}"
        why = self._with_last_lines(f"exit status {exit_status}{where}", log)
        raise Unready(why, ending="exit", code="bootstrap-failed")

    async def _until_ready(self, session: Session, log: LogFile) -> None:
        ready = self._spec.ready
        if ready is None:
            return
        command = self._run.resolve(ready.command) if ready.command is not None else listening(ready.port or 0)
        what = ready.command.source if ready.command is not None else f"port {ready.port}"
        self._phase(f"waiting for {what}")
        env = filled(self._spec.env, self._run)
        while self._left() > 0:
            limit_s = max(min(READY_CHECK_S, self._left()), 1.0)
            try:
                done = await run_in_image(session, [command], env=env, on_output=log.write, timeout_s=limit_s)
            except TimedOut:
                log.say(f"the check did not answer within {limit_s:.0f} s")
            else:
                if done.exit_status == 0:
                    return
            await asyncio.sleep(min(READY_EVERY_S, max(self._left(), 0)))
        why = f"not ready after {self._spec.timeout_s} s (timeout): {what}"
        raise Unready(self._with_last_lines(why, log), ending="timeout", code="bootstrap-unready")

    # --- small things --------------------------------------------------------------------------------------------

    def _left(self) -> float:
        return self._deadline - self._clock()

    def _phase(self, words: str) -> None:
        self._run.phase(self._address, words)

    def _note(self, **facts: Json) -> None:
        self._record = replace(self._record, attributes={**self._record.attributes, **facts})

    def _shown(self, number: int) -> str:
        """A command as it is written, whose source holds nothing sensitive: its first line."""
        first, _, more = self._spec.commands[number].source.strip().partition("\n")
        return first[:COMMAND_SHOWN] + ("…" if more or len(first) > COMMAND_SHOWN else "")

    def _which(self, found: Markers) -> str:
        count = len(self._spec.commands)
        return f"command {min(len(found.finished_steps) + 1, count)} of {count}" if count > 1 else "the command"

    def _with_last_lines(self, why: str, log: LogFile) -> str:
        lines = log.last_lines(LINES_SHOWN)
        return f"{why}\nIts last lines:\n{lines}" if lines else why


def _marker_path(attempt: str) -> str:
    return f".lium-plan/bootstrap/{attempt}"
