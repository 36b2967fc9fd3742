"""The simulator's side of the launcher: start it, ask it for processes, hear of their deaths.

Knows pids, descriptors and plain specs; what a spec means is decided by `container` and `confined`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lium_plan
from lium_plan.sim.pods import launcher

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from lium_plan.sim.pods.launcher import main; main()"
_PROBE_S = 20.0
_RECEIVE_BYTES = 64


class LaunchError(Exception):
    """A process could not be started; the text is the kernel's reason."""


@dataclass(slots=True)
class Started:
    """A process that the launcher made, and the descriptors it handed back. `ended` gives its exit status, or
    minus the number of the signal that ended it."""

    pid: int
    descriptors: tuple[int, ...]
    ended: asyncio.Future[int]

    def signal(self, number: int) -> None:
        """Signal the process's group; nothing when it has ended."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


class Processes:
    """One launcher process. Made before or inside an event loop; used from one loop only."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        package_parent = str(Path(lium_plan.__file__).resolve().parent.parent)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, package_parent, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._unclaimed: dict[int, int] = {}

    def try_out(self, spec: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Start a process outside any loop and wait for its end. Raises LaunchError unless it exits with 0."""
        with self._request(spec, descriptors) as answers:
            answers.settimeout(_PROBE_S)
            pid, fds, error = None, [], ""
            try:
                while (received := launcher.receive(answers)) is not None:
                    message, more = received
                    fds += more
                    pid = message.get("pid", pid)
                    error = message.get("error", error)
            except OSError as reason:
                error = f"no answer: {reason}"
        for fd in fds:
            os.close(fd)
        if error or pid is None:
            raise LaunchError(error or "the launcher ended")
        self._channel.settimeout(_PROBE_S)
        try:
            while (event := launcher.receive(self._channel)) is not None:
                if event[0]["pid"] == pid:
                    if event[0]["status"] != 0:
                        raise LaunchError(f"the trial ended with status {event[0]['status']}")
                    return
        except OSError as reason:
            raise LaunchError(f"the trial did not end: {reason}") from reason
        finally:
            self._channel.settimeout(None)
        raise LaunchError("the launcher ended")

    def track(self, marker: str) -> None:
        """Have the launcher end everything with this mark when the simulator is gone."""
        launcher.send(self._channel, {"do": "track", "marker": marker})

    async def start(self, spec: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Started:
        """Fork and execute what `spec` says, with copies of `descriptors`. Raises LaunchError.

        Returns once the program is running.
        """
        pid, fds = await self._ask(spec, descriptors)
        if pid is None:
            _close(fds)
            raise LaunchError("the launcher ended")
        return Started(pid=pid, descriptors=tuple(fds), ended=self._claim(pid))

    def _claim(self, pid: int) -> asyncio.Future[int]:
        """The end of a process; the launcher may have told it before anybody asked."""
        assert self._loop is not None
        ended: asyncio.Future[int] = self._loop.create_future()
        if pid in self._unclaimed:
            ended.set_result(self._unclaimed.pop(pid))
        else:
            self._waiting[pid] = ended
        return ended

    async def network_socket(self, family: int, descriptors: Sequence[int]) -> socket.socket:
        """A TCP socket that lives in the network of the container behind `descriptors`. Raises LaunchError."""
        _, fds = await self._ask({"do": "socket", "family": int(family)}, descriptors)
        if len(fds) != 1:
            _close(fds)
            raise LaunchError("the launcher sent no socket")
        made = socket.socket(fileno=fds[0])
        made.setblocking(False)
        return made

    def close(self) -> None:
        """End the launcher and, through it, every PID 1."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._channel)
        self._channel.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def _request(self, spec: Mapping[str, Any], descriptors: Sequence[int]) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                launcher.send(self._channel, dict(spec), (theirs.fileno(), *descriptors))
            except OSError as error:
                ours.close()
                raise LaunchError("the launcher ended; start the simulator again") from error
        return ours

    async def _ask(self, spec: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[int | None, list[int]]:
        self._listen()
        assert self._loop is not None
        pid, fds, error = None, [], ""
        with self._request(spec, descriptors) as answers:
            answers.setblocking(False)
            try:
                while (received := await self._receive(answers)) is not None:
                    message, more = received
                    fds += more
                    pid = message.get("pid", pid)
                    error = message.get("error", error)
            except BaseException:
                _close(fds)
                raise
        if error:
            _close(fds)
            if pid is not None:
                self._claim(pid)  # its end has come or is coming, and is nobody's business
            raise LaunchError(error)
        return pid, fds

    async def _receive(self, answers: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
        """One answer. Answers are far smaller than the socket's buffer, so once one begins all of it is there."""
        assert self._loop is not None
        readable = asyncio.Event()
        self._loop.add_reader(answers, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(answers)
        answers.setblocking(True)
        try:
            return launcher.receive(answers)
        finally:
            answers.setblocking(False)

    def _listen(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._channel, self._on_event)

    def _on_event(self) -> None:
        assert self._loop is not None
        try:
            received = launcher.receive(self._channel)
        except (OSError, EOFError):
            received = None
        if received is None:
            self._loop.remove_reader(self._channel)
            for future in self._waiting.values():
                if not future.done():
                    future.set_result(-signal.SIGKILL)
            self._waiting.clear()
            return
        pid, status = received[0]["pid"], received[0]["status"]
        if pid not in self._waiting:
            self._unclaimed[pid] = status
            return
        future = self._waiting.pop(pid)
        if not future.done():
            future.set_result(status)


def _close(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        os.close(fd)
