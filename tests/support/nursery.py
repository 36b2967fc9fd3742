"""Commands as processes that are there at once.

Most of what a start of `lium-plan` takes is loading it. Here one process has loaded it and forks for each command: that
is a process like any other, with the arguments, directory, environment and streams it was given, that hears signals and
can be killed. What differs: it has loaded every module of ours, no stream of it is a terminal, and it ends with whoever
started it, however that ends.

    started = nursery().start(MAIN, ["plan"], cwd=folder, env=environ)
    out, err = started.communicate(timeout=60)
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any

ROOT = Path(__file__).parents[2]
MAIN = "lium_plan.cli.main"
SIM = "lium_plan.sim.__main__"
"""Modules whose `main` can be started: the command, and the local Lium as `python -m lium_plan.sim`."""
_LATE = (
    "jsonschema", "jsonschema.protocols", "deepdiff", "rich.live", "rich.text", "rich.console", "logging.config",
    "highspy", "numpy", "uvicorn.protocols.http.h11_impl", "uvicorn.loops.asyncio", "uvicorn.lifespan.off",
    "asyncio.unix_events", "httpcore", "anyio._backends._asyncio", "certifi", "encodings.idna", "encodings.utf_8_sig",
    "pwd", "grp",
)  # fmt: skip
"""What our modules load when they need it."""
_LARGEST_REQUEST = 1 << 18
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Started:
    """A process that runs: as much of `subprocess.Popen` as tests use, text alone."""

    def __init__(self, args: list[str], report: socket.socket, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.args = args
        self.stdout, self.stderr = stdout, stderr
        self._report = report
        self._reading = threading.Lock()
        self._said: dict[str, str] = {}
        self._readers: list[threading.Thread] = []
        self.pid = self._told()
        self.returncode: int | None = None

    def __enter__(self) -> Started:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self.wait()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, -N for a signal N. Raises subprocess.TimeoutExpired."""
        with self._reading:
            if self.returncode is None:
                if not select.select([self._report], [], [], timeout)[0]:
                    assert timeout is not None
                    raise subprocess.TimeoutExpired(self.args, timeout)
                self.returncode = self._told()
                self._report.close()
        return self.returncode

    def _told(self) -> int:
        told = self._report.recv(64)
        assert told, "the process that forks has ended; it has said why on stderr"
        return int(told)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it still says, until it ends. Raises subprocess.TimeoutExpired, and can then be called again."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._readers:
            for name in ("stdout", "stderr"):
                self._readers.append(threading.Thread(target=self._read, args=(name,), daemon=True))
                self._readers[-1].start()
        for reader in self._readers:
            reader.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
        self._close()
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return self._said.get("stdout", ""), self._said.get("stderr", "")

    def _read(self, name: str) -> None:
        stream = getattr(self, name)
        if stream is not None and not stream.closed:
            self._said[name] = stream.read()

    def _close(self) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # as with `subprocess`: it may end between the two
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(15)

    def kill(self) -> None:
        self.send_signal(9)


Process = Started | subprocess.Popen[str]


class Nursery:
    """The process that forks, seen from the tests. Use from any thread."""

    def __init__(self) -> None:
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        for side in (self._asking, theirs):
            side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _LARGEST_REQUEST)
        # One arithmetic thread: a process that forks must not have others.
        environ = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main({theirs.fileno()})"],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdout: int | IO[Any] = subprocess.PIPE,
        stderr: int | IO[Any] = subprocess.PIPE,
    ) -> Started:
        """Run `main` of the module, which takes its arguments from `sys.argv` and returns the exit code. Its stdin is
        empty; `stdout` and `stderr` are as for Popen: PIPE, DEVNULL or a file with a descriptor."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as passing:
            passing.callback(theirs.close)
            nothing = os.open(os.devnull, os.O_RDWR)
            passing.callback(os.close, nothing)
            ends, ours = [nothing], []
            for wanted in (stdout, stderr):
                if wanted == subprocess.PIPE:
                    read, write = os.pipe()
                    passing.callback(os.close, write)
                    ours.append(open(read, encoding="utf-8"))  # noqa: SIM115
                    ends.append(write)
                else:
                    ours.append(None)
                    ends.append(nothing if wanted == subprocess.DEVNULL else wanted.fileno())
            asked = {
                "module": module,
                "argv": ["lium-plan", *arguments],
                "cwd": str(cwd or Path.cwd()),
                "env": dict(os.environ if env is None else env),
            }
            message = json.dumps(asked).encode()
            assert len(message) <= _LARGEST_REQUEST
            with self._lock:
                socket.send_fds(self._asking, [message], [*ends, theirs.fileno()])
        return Started(asked["argv"], mine, *ours)


@cache
def nursery() -> Nursery:
    """The one of this test process; it ends when that does."""
    return Nursery()


# --- in the process that forks ---------------------------------------------------------------------------------------


def main(asked_on: int) -> None:
    """Load everything, then fork for each request. Never returns: each process exits with its command's code."""
    with socket.socket(fileno=asked_on) as asking:
        _load()
        try:
            given = _until_forked(asking)
        except KeyboardInterrupt:  # a terminal's Ctrl-C is for whoever runs the tests
            os._exit(130)
    os.environ.clear()
    os.environ.update(given["env"])
    time.tzset()
    os.chdir(given["cwd"])
    sys.argv[:] = given["argv"]
    code = importlib.import_module(given["module"]).main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take everything that is loaded apart again would take longer than most commands


def _load() -> None:
    import lium_plan

    for found in pkgutil.walk_packages(lium_plan.__path__, "lium_plan."):
        if not found.name.endswith(("__main__", ".sim.testing")):  # a program, and pytest's plugin
            importlib.import_module(found.name)
    for name in _LATE:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _until_forked(asking: socket.socket) -> dict[str, Any]:
    """Serve requests; returns in each child, with its request. The parent exits when nobody can ask any more."""
    children: dict[int, tuple[int, socket.socket]] = {}
    """Descriptor of a running child -> its pid, and where its end is told."""
    while True:
        for ready in select.select([asking, *children], [], [])[0]:
            if ready is not asking:
                pid, report = children.pop(ready)
                os.close(ready)
                _tell(report, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                report.close()
                continue
            message, passed, _, _ = socket.recv_fds(asking, _LARGEST_REQUEST, 4)
            if not message:
                os._exit(0)
            report = socket.socket(fileno=passed.pop())
            forking = os.getpid()
            pid = os.fork()
            if pid == 0:
                _end_with(forking)
                for number, handle in enumerate(passed):
                    os.dup2(handle, number)
                for other in (report, *(other for _, other in children.values())):
                    other.close()
                for handle in (*passed, *children):
                    os.close(handle)
                found: dict[str, Any] = json.loads(message)
                return found
            for handle in passed:
                os.close(handle)
            _tell(report, pid)
            children[os.pidfd_open(pid)] = pid, report


def _end_with(parent: int) -> None:
    """Have this process killed when its parent ends: nobody is left then who would end it."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        os._exit(1)


def _tell(report: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # whoever asked has gone
        report.send(str(number).encode())
