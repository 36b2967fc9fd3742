"""The machines behind simulated pods, and the way to them: `ssh.protocol` in virtual time, without sockets or shells.

No script is run. What a script of lium-plan *intends* is recognised by the text that lium-plan itself builds it from
(the check of GPUs and mounts, `image_env`'s run, `detached`'s start, probe, stop and follow, `markers`' reading), and
done to a small model of a container: its files, its detached commands with their claim and exit, its marked runs. What
a user's command takes, prints and exits with is scripted (`Behaviour`). Exit statuses, markers and the answers' wording
are those of the real scripts; tests/ssh proves what those do on real shells.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shlex
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from lium_plan.kinds.pod.waiting import CHECK_SCRIPT
from lium_plan.ssh import detached, image_env, markers
from lium_plan.ssh.errors import (
    ConnectionLost,
    HostKeyChanged,
    LoginRefused,
    SshError,
    Stage,
    TimedOut,
    Unreachable,
)
from lium_plan.ssh.keys import public_key_line
from lium_plan.ssh.protocol import (
    Completed,
    Coordinates,
    FileToSend,
    HostKeyPin,
    OnOutput,
    OnStage,
    Session,
    discard,
    ignore_stage,
)
from tests.support.world_machines import Machine, Machines, Started, now_s
from tests.support.world_process import CURRENT, Process

LATENCY_S = 0.05
RETRY_S = 2.0
LOGIN_PATIENCE_S = 45.0
SILENCE_S = 15.0
"""How long a connection without a banner is waited for."""

_STEP = re.compile(r"__lp_step (\d+) (?:last|more)\b")
_DIR = re.compile(r"__lp_use_(?:dir|marks) ('(?:[^']|'\\'')*')")
_MARKERS = re.compile(r"__lp_markers=('(?:[^']|'\\'')*')")
_OFFSET = re.compile(r"__lp_offset=(\d+)")
_MAX = re.compile(r"__lp_max='(\d*)'")


class ShellConnector:
    """`ssh.protocol.Connector` into `Machines`, for one process."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    async def open(
        self,
        coordinates: Coordinates,
        *,
        pin: HostKeyPin,
        key_path: Path,
        deadline_s: float,
        on_stage: OnStage = ignore_stage,
    ) -> Session:
        process = _process()
        loop = asyncio.get_running_loop()
        started = loop.time()
        ends_at = started + deadline_s
        first_banner: float | None = None
        attempts = 0
        key = " ".join(public_key_line(key_path).split()[:2])
        process.may_crash("ssh open", "before")
        while True:
            attempts += 1
            on_stage(Stage.PORT)
            await asyncio.sleep(LATENCY_S)
            process.alive()
            machine = self._machines.at(coordinates.port)
            stage, reason, wait_s = _look(machine, loop.time())
            if machine is not None and stage is None:
                on_stage(Stage.HOST_KEY)
                first_banner = loop.time() if first_banner is None else first_banner
                self._check_pin(pin, machine, str(coordinates))
                allowed = {" ".join(line.split()[:2]) for line in machine.container.public_keys}
                if key in allowed and machine.mode(loop.time()) != "auth":
                    on_stage(Stage.LOGIN)
                    process.may_crash("ssh open", "after")
                    return _Session(self._machines, machine, process, str(coordinates))
                waited = loop.time() - first_banner
                if waited >= LOGIN_PATIENCE_S or loop.time() + RETRY_S >= ends_at:
                    raise LoginRefused(str(coordinates), key=str(key_path), attempts=attempts, waited_s=waited)
                stage, reason, wait_s = Stage.LOGIN, "the key is refused", 0.0
            if stage is Stage.BANNER:
                on_stage(Stage.BANNER)
            await asyncio.sleep(min(max(wait_s, RETRY_S), max(0.0, ends_at - loop.time())))
            process.alive()
            if loop.time() >= ends_at:
                raise Unreachable(
                    str(coordinates),
                    stage=stage or Stage.PORT,
                    reason=reason,
                    attempts=attempts,
                    waited_s=loop.time() - started,
                )

    def _check_pin(self, pin: HostKeyPin, machine: Machine, where: str) -> None:
        known = pin.load()
        if not known:
            pin.save(machine.host_key)
        elif machine.host_key not in known:
            raise HostKeyChanged(where, pin=str(pin), expected=known, shown=machine.host_key)


def _look(machine: Machine | None, now: float) -> tuple[Stage | None, str, float]:
    """What is in the way of a login, if anything, and how long an attempt lasts until that shows."""
    if machine is None:
        return Stage.PORT, "connection refused", 0.0
    mode = machine.mode(now)
    if mode == "refuse":
        return Stage.PORT, "connection refused", 0.0
    if mode in ("reset", "close") or now < machine.started_at + machine.container.ssh_delay_s:
        return Stage.BANNER, "closed without a banner", 0.0
    if mode == "silent":
        return Stage.BANNER, "no banner", SILENCE_S
    if mode == "banner_only":
        return Stage.HOST_KEY, "no key exchange", SILENCE_S
    return None, "", 0.0


class _Session:
    """`ssh.protocol.Session` on one machine."""

    def __init__(self, machines: Machines, machine: Machine, process: Process, where: str) -> None:
        self._machines = machines
        self._machine = machine
        self._process = process
        self._where = where
        self._number = next(machines.numbers)
        machine.sessions[self._number] = self
        self._opened_at = now_s()
        self._broken = asyncio.Event()
        self._hangs = False
        self._running: dict[int, Started] = {}
        self._numbers = count(1)
        process.on_death.append(self._leave)

    # --- protocol --------------------------------------------------------------------------------------------------

    async def put(self, files: Sequence[FileToSend], *, timeout_s: float) -> None:
        self._process.may_crash("ssh put", "before")
        await self._spend(LATENCY_S * (1 + len(files)), timeout_s, "sending files", Stage.FILES)
        for file in files:
            content = file.source if isinstance(file.source, bytes) else file.source.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            self._machine.files[file.target] = (digest, file.mode)
            self._machines.did(self._machine, "put", f"{file.target} {digest}")
            self._process.may_crash("ssh put", "one file stored")

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
        """What is asked for is told by the texts that our scripts are made of."""
        text = stdin.decode("utf-8", "surrogateescape")
        kind, act = self._meaning(script, text)
        site = f"ssh {kind}"
        self._process.may_crash(site, "before")
        await self._spend(LATENCY_S, timeout_s, kind, Stage.COMMAND)
        done = await act(text, on_output, timeout_s)
        self._process.may_crash(site, "answered")
        return done

    async def follow(self, path: str, *, offset_bytes: int = 0, on_output: OnOutput) -> None:
        raise SshError(f"{self._where}: {path} can't be read")

    async def close(self) -> None:
        self._leave()

    # --- meanings --------------------------------------------------------------------------------------------------

    def _meaning(self, script: str, text: str) -> tuple[str, Callable[..., object]]:
        if script == CHECK_SCRIPT:
            return "check", self._check
        if script != image_env.LAUNCH:
            raise AssertionError(f"the shell model knows nothing like this script:\n{script[:500]}")
        for mark, kind, act in (
            (detached._START, "start", self._start),
            (detached._FOLLOW, "follow", self._follow_log),
            (detached._FORESTALL, "forestall", self._forestall),
            (detached._STOP, "stop", self._stop),
            (detached._PROBE, "probe", self._probe),
            (markers._READ, "markers", self._read_markers),
            (image_env._RUN, "run", self._run),
        ):
            if mark in text:
                return kind, act
        raise AssertionError(f"the shell model knows nothing like this script:\n{text[-500:]}")

    async def _check(self, text: str, on_output: OnOutput, timeout_s: float) -> Completed:
        container = self._machine.container
        mounted = container.volume_id is not None and not container.volume_mount_fails
        on_output(f"lium-plan-check gpus={container.gpu_count} mnt={'yes' if mounted else 'no'}\n".encode())
        return Completed(0)

    async def _run(self, text: str, on_output: OnOutput, timeout_s: float) -> Completed:
        """The commands of a bootstrap, one after the other, ended when their caller leaves."""
        script = _word(text, "__lp_script=")
        markers = _found(_MARKERS, text)
        now = now_s()
        if markers is not None:
            before = self._machine.runs.get(markers)
            if before is not None and not before.lost and not before.ended(now):
                on_output(b"lium-plan: an earlier run of the same (process 1) still goes on\n")
                return Completed(image_env.LAUNCHER_FAILED)
        if "/proc/net/tcp" in script and "grep -qi" in script:
            return Completed(0)
        does = self._machines.behaviour(script)
        started = Started(script, now, now + does.duration_s, does.exit_status, does.output)
        started.steps = len(_STEP.findall(script))
        if markers is not None:
            self._machine.runs[markers] = started
        self._machines.did(self._machine, "run", script)
        number = next(self._numbers)
        self._running[number] = started
        try:
            await self._spend(does.duration_s, timeout_s, "a command", Stage.COMMAND)
        finally:
            if not started.ended(now_s()):
                started.lost = True
            self._running.pop(number, None)
        on_output(does.output)
        return Completed(does.exit_status)

    async def _start(self, text: str, on_output: OnOutput, timeout_s: float) -> Completed:
        directory = _found(_DIR, text) or ""
        if directory in self._machine.commands:
            on_output(b"lium-plan:already\n")
            return Completed(0)
        script = _word(text, "__lp_script=")
        does = self._machines.behaviour(script)
        longest = _MAX.search(text)
        limit = float(longest[1]) if longest is not None and longest[1] else None
        late = limit is not None and does.duration_s > limit
        duration = min(does.duration_s, limit) if limit is not None else does.duration_s
        self._machine.commands[directory] = Started(
            script,
            now_s(),
            now_s() + duration,
            143 if late else does.exit_status,
            does.output,
            "timed-out" if late else "by-itself",
        )
        self._machines.did(self._machine, "start", script)
        self._process.may_crash("ssh start", "started")
        on_output(b"lium-plan:started\n")
        return Completed(0)

    async def _probe(self, text: str, on_output: OnOutput, timeout_s: float) -> Completed:
        started = self._machine.commands.get(_found(_DIR, text) or "")
        if started is None:
            on_output(b"lium-plan:never-started\n")
        elif started.lost:
            on_output(b"lium-plan:lost\n")
        elif started.ended(now_s()):
            on_output(f"lium-plan:exited {started.exit_status} {started.ending}\n".encode())
        else:
            on_output(b"lium-plan:running\n")
        if started is not None:
            on_output(f"lium-plan:log {len(started.written(now_s()))}\n".encode())
        return Completed(0)

    async def _forestall(self, text: str, on_output: OnOutput, timeout_s: float) -> Completed:
        directory = _found(_DIR, text) or ""
        if directory in self._machine.commands:
            on_output(b"lium-plan:already\n")
            return Completed(0)
        # Claimed for good: a start that is still on its way will do nothing.
        self._machine.commands[directory] = Started("", now_s(), now_s(), 0, b"", lost=True)
        self._machines.did(self._machine, "forestall", directory)
        on_output(b"lium-plan:forestalled\n")
        return Completed(0)

    async def _stop(self, text: str, on_output: OnOutput, timeout_s: float) -> Completed:
        started = self._machine.commands.get(_found(_DIR, text) or "")
        if started is not None and not started.ended(now_s()):
            await self._spend(0.5, timeout_s, "stopping", Stage.COMMAND)
            started.ends_at, started.exit_status, started.ending = now_s(), 143, "stopped"
            self._machines.did(self._machine, "stop", started.script)
        return await self._probe(text, on_output, timeout_s)

    async def _follow_log(self, text: str, on_output: OnOutput, timeout_s: float) -> Completed:
        on_output(b"lium-plan:log\n")
        started = self._machine.commands.get(_found(_DIR, text) or "")
        match = _OFFSET.search(text)
        offset = int(match[1]) if match is not None else 0
        ends_at = asyncio.get_running_loop().time() + timeout_s
        while started is not None:
            ended = started.ended(now_s())
            new = started.written(now_s())[offset:]
            if new:
                offset += len(new)
                on_output(new)
            if ended or "__lp_once=1" in text:
                break
            left = started.ends_at - now_s()
            await self._spend(min(left, 10.0), ends_at - now_s(), "following a log", Stage.COMMAND)
        return Completed(0)

    async def _read_markers(self, text: str, on_output: OnOutput, timeout_s: float) -> Completed:
        started = self._machine.runs.get(_found(_DIR, text) or "")
        now = now_s()
        if started is None:
            on_output(b"lium-plan:never-started\n")
            return Completed(0)
        if started.lost:
            on_output(b"lium-plan:lost\n")
        elif started.ended(now):
            on_output(f"lium-plan:exited {started.exit_status}\n".encode())
        else:
            on_output(b"lium-plan:running\n")
        whole = not started.lost and started.ended(now) and started.exit_status == 0
        for step in range(started.steps if whole else max(0, started.steps - 1)):
            last = step == started.steps - 1
            on_output(f"lium-plan:step {step}{'' if last else ' as-before'}\n".encode())
        return Completed(0)

    # --- the connection --------------------------------------------------------------------------------------------

    async def _spend(self, seconds: float, timeout_s: float, doing: str, stage: Stage) -> None:
        """Time on the machine; ends early with the connection, or with the caller's patience."""
        self._process.alive()
        try:
            async with asyncio.timeout(min(seconds, max(0.0, timeout_s))):
                await self._broken.wait()
        except TimeoutError:
            self._process.alive()
            if seconds > timeout_s:
                raise TimedOut(self._where, stage=stage, doing=doing, timeout_s=timeout_s) from None
            return
        self._process.alive()
        if self._hangs:
            try:
                # Keepalives find out in the end.
                async with asyncio.timeout(min(60.0, timeout_s)):
                    await asyncio.Event().wait()
            except TimeoutError:
                self._process.alive()
        raise ConnectionLost(
            self._where, stage=stage, reason="the connection was cut", after_s=now_s() - self._opened_at
        )

    def cut(self, *, hang: bool = False) -> None:
        """The server's end of it."""
        self._hangs = hang
        self._broken.set()
        self._leave()

    def _leave(self) -> None:
        """The caller is gone: what it ran attached ends, as the watcher on the pod sees to it."""
        now = now_s()
        for started in self._running.values():
            if not started.ended(now):
                started.lost = True
        self._running.clear()
        self._machine.sessions.pop(self._number, None)


def _word(text: str, name: str) -> str:
    """The value that a script assigns with `name`, as a shell would read it."""
    lexer = shlex.shlex(text.split(f"\n{name}", 1)[1], posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    return lexer.get_token() or ""


def _found(pattern: re.Pattern[str], text: str) -> str | None:
    """The last quoted word that the pattern finds; scripts define functions before they use them."""
    words = pattern.findall(text)
    return shlex.split(words[-1])[0] if words else None


def _process() -> Process:
    process = CURRENT.get()
    if process is None:
        raise AssertionError("only a simulated process connects here")
    return process
