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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from lium_plan.kinds.pod.waiting import CHECK_SCRIPT
from lium_plan.sim.runtime import Container, Endpoint, SshFault
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
from tests.support.world_process import CURRENT, Process

LATENCY_S = 0.05
RETRY_S = 2.0
LOGIN_PATIENCE_S = 45.0
SILENCE_S = 15.0
"""How long a connection without a banner is waited for."""

_STEP = re.compile(r"__lp_step (\d+) (?:last|more)\b")
_DIR = re.compile(r"__lp_use_dir ('(?:[^']|'\\'')*')")
_MARKER_DIR = re.compile(r"__lp_marker_dir=('(?:[^']|'\\'')*')")
_OFFSET = re.compile(r"__lp_offset=(\d+)")
_MAX = re.compile(r"__lp_max='(\d*)'")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a user's commands do where `pattern` is found in them."""

    pattern: str
    duration_s: float = 1.0
    exit_status: int = 0
    output: bytes = b"done\n"
    times: int | None = None
    """How often, None: always; then the next behaviour that fits counts."""


@dataclass(slots=True)
class Started:
    """A detached command, or a marked run."""

    script: str
    began_at: float
    ends_at: float
    exit_status: int
    output: bytes
    ending: str = "by-itself"
    steps: int = 0
    lost: bool = False

    def ended(self, now: float) -> bool:
        return now >= self.ends_at

    def written(self, now: float) -> bytes:
        """What it has printed by now: evenly over its time."""
        span = self.ends_at - self.began_at
        share = 1.0 if span <= 0 else min(1.0, (now - self.began_at) / span)
        return self.output[: int(len(self.output) * share)]


@dataclass(eq=False, slots=True)
class Machine:
    """One container of one pod."""

    container: Container
    host_key: str
    started_at: float
    fault: SshFault = field(default_factory=lambda: SshFault("none"))
    fault_until: float | None = None
    gone: bool = False
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Target -> (sha256, mode)."""
    commands: dict[str, Started] = field(default_factory=dict)
    """Detached ones, by directory."""
    runs: dict[str, Started] = field(default_factory=dict)
    """Marked ones, by directory."""
    sessions: dict[int, _Session] = field(default_factory=dict)

    def mode(self, now: float) -> str:
        healed = self.fault_until is not None and now >= self.fault_until
        return "none" if healed else self.fault.mode


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that a process did to a machine, for the checks of what was done how often."""

    pod_id: str
    what: str
    """`run`, `start`, `stop`, `put`."""
    script: str
    at: float


class Machines:
    """A `sim.runtime.Runtime`, and the connectors into it."""

    mode = "shell model"

    def __init__(self, behaviours: Iterable[Behaviour] = ()) -> None:
        self.behaviours = list(behaviours)
        self.effects: list[Effect] = []
        self.version = 0
        self._used: dict[int, int] = {}
        self._machines: dict[str, Machine] = {}
        self._doors: dict[int, str] = {}
        self._ports = count(30000)
        self._keys = count(1)
        self._numbers = count(1)

    # --- the server's side -----------------------------------------------------------------------------------------

    async def start(self, container: Container) -> Endpoint:
        await self.stop(container.pod_id)
        inner = [*container.internal_ports, *(20000 + index for index in range(container.extra_ports))]
        ports = {port: next(self._ports) for port in dict.fromkeys(inner)}
        self._machines[container.pod_id] = Machine(container, self._new_key(), _now())
        self._doors[ports[22]] = container.pod_id
        return Endpoint("127.0.0.1", "root", ports)

    async def stop(self, pod_id: str) -> None:
        machine = self._machines.pop(pod_id, None)
        if machine is not None:
            machine.gone = True
            self._cut(machine)

    async def output(self, pod_id: str, tail: int) -> tuple[str, ...]:
        return ()

    async def set_fault(self, pod_id: str, fault: SshFault) -> None:
        machine = self._machines.get(pod_id)
        if machine is None:
            return
        machine.fault = fault
        machine.fault_until = None if fault.seconds is None else _now() + fault.seconds
        if fault.mode in ("drop", "hang"):
            self._cut(machine, hang=fault.mode == "hang")
            machine.fault = SshFault("none")

    async def change_host_key(self, pod_id: str) -> None:
        machine = self._machines.get(pod_id)
        if machine is not None:
            machine.host_key = self._new_key()
            self._cut(machine)

    async def forget_volume(self, volume_id: str) -> None:
        return None

    async def close(self) -> None:
        for pod_id in tuple(self._machines):
            await self.stop(pod_id)

    def machine(self, pod_id: str) -> Machine | None:
        return self._machines.get(pod_id)

    def _new_key(self) -> str:
        return f"ssh-ed25519 {hashlib.sha256(str(next(self._keys)).encode()).hexdigest()[:43]}="

    def _cut(self, machine: Machine, *, hang: bool = False) -> None:
        for session in tuple(machine.sessions.values()):
            session.cut(hang=hang)

    # --- the client's side -----------------------------------------------------------------------------------------

    def at(self, port: int) -> Machine | None:
        pod_id = self._doors.get(port)
        return None if pod_id is None else self._machines.get(pod_id)

    def open_session(self, machine: Machine, process: Process, where: str) -> _Session:
        number = next(self._numbers)
        session = machine.sessions[number] = _Session(self, machine, process, where, number)
        return session

    def behaviour(self, script: str) -> Behaviour:
        for index, behaviour in enumerate(self.behaviours):
            used = self._used.get(index, 0)
            if re.search(behaviour.pattern, script) and (behaviour.times is None or used < behaviour.times):
                self._used[index] = used + 1
                return behaviour
        return Behaviour("")

    def did(self, machine: Machine, what: str, script: str) -> None:
        self.version += 1
        self.effects.append(Effect(machine.container.pod_id, what, script, _now()))


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
                    return self._machines.open_session(machine, process, str(coordinates))
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

    def __init__(self, machines: Machines, machine: Machine, process: Process, where: str, number: int) -> None:
        self._machines = machines
        self._machine = machine
        self._process = process
        self._where = where
        self._number = number
        self._opened_at = _now()
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
        directory = _found(_MARKER_DIR, text)
        now = _now()
        if directory is not None:
            before = self._machine.runs.get(directory)
            if before is not None and not before.lost and not before.ended(now):
                on_output(b"lium-plan: an earlier run of the same (process 1) still goes on\n")
                return Completed(image_env.LAUNCHER_FAILED)
        if "/proc/net/tcp" in script and "grep -qi" in script:
            return Completed(0)
        does = self._machines.behaviour(script)
        started = Started(script, now, now + does.duration_s, does.exit_status, does.output)
        started.steps = len(_STEP.findall(script))
        if directory is not None:
            self._machine.runs[directory] = started
        self._machines.did(self._machine, "run", script)
        number = next(self._numbers)
        self._running[number] = started
        try:
            await self._spend(does.duration_s, timeout_s, "a command", Stage.COMMAND)
        finally:
            if not started.ended(_now()):
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
            _now(),
            _now() + duration,
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
        elif started.ended(_now()):
            on_output(f"lium-plan:exited {started.exit_status} {started.ending}\n".encode())
        else:
            on_output(b"lium-plan:running\n")
        if started is not None:
            on_output(f"lium-plan:log {len(started.written(_now()))}\n".encode())
        return Completed(0)

    async def _forestall(self, text: str, on_output: OnOutput, timeout_s: float) -> Completed:
        directory = _found(_DIR, text) or ""
        if directory in self._machine.commands:
            on_output(b"lium-plan:already\n")
            return Completed(0)
        # Claimed for good: a start that is still on its way will do nothing.
        self._machine.commands[directory] = Started("", _now(), _now(), 0, b"", lost=True)
        self._machines.did(self._machine, "forestall", directory)
        on_output(b"lium-plan:forestalled\n")
        return Completed(0)

    async def _stop(self, text: str, on_output: OnOutput, timeout_s: float) -> Completed:
        started = self._machine.commands.get(_found(_DIR, text) or "")
        if started is not None and not started.ended(_now()):
            await self._spend(0.5, timeout_s, "stopping", Stage.COMMAND)
            started.ends_at, started.exit_status, started.ending = _now(), 143, "stopped"
            self._machines.did(self._machine, "stop", started.script)
        return await self._probe(text, on_output, timeout_s)

    async def _follow_log(self, text: str, on_output: OnOutput, timeout_s: float) -> Completed:
        on_output(b"lium-plan:log\n")
        started = self._machine.commands.get(_found(_DIR, text) or "")
        match = _OFFSET.search(text)
        offset = int(match[1]) if match is not None else 0
        ends_at = asyncio.get_running_loop().time() + timeout_s
        while started is not None:
            ended = started.ended(_now())
            new = started.written(_now())[offset:]
            if new:
                offset += len(new)
                on_output(new)
            if ended or "__lp_once=1" in text:
                break
            left = started.ends_at - _now()
            await self._spend(min(left, 10.0), ends_at - _now(), "following a log", Stage.COMMAND)
        return Completed(0)

    async def _read_markers(self, text: str, on_output: OnOutput, timeout_s: float) -> Completed:
        started = self._machine.runs.get(_found(_DIR, text) or "")
        now = _now()
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
            self._where, stage=stage, reason="the connection was cut", after_s=_now() - self._opened_at
        )

    def cut(self, *, hang: bool = False) -> None:
        """The server's end of it."""
        self._hangs = hang
        self._broken.set()
        self._leave()

    def _leave(self) -> None:
        """The caller is gone: what it ran attached ends, as the watcher on the pod sees to it."""
        now = _now()
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


def _now() -> float:
    return asyncio.get_running_loop().time()


def _process() -> Process:
    process = CURRENT.get()
    if process is None:
        raise AssertionError("only a simulated process connects here")
    return process
