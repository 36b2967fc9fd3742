"""The background local Lium of a state directory: what `--sim` starts or joins.

Owns `<state>/.sim/` (0700): `server.json` (port, pid and its start time), `world.jsonl`, `log`, `lock`. Two commands
that start at once get one server: whoever holds the kernel's lock on `lock` looks, and starts it if it isn't there.
Knows nothing of what the server does.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lium_plan.diagnostics import ExitCode, Failure, error, in_words

API_KEY = "sk_sim_local"
IDLE_TIMEOUT_S = 900
SPEED = 10
"""Times as fast as the real thing: whoever tries a manifest wants a pod in seconds, and still sees it come."""
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 15.0
_ANSWER_TIMEOUT_S = 5.0
_POLL_S = 0.05
_LOG_LIMIT = 5_000_000


@dataclass(frozen=True, slots=True)
class Background:
    """A running local Lium."""

    base_url: str
    """`http://127.0.0.1:PORT/api`."""
    api_key: str
    pid: int
    directory: Path
    """Where its files lie; a made SSH key too."""
    started: bool
    """False: it was running already."""

    @property
    def port(self) -> int:
        return int(self.base_url.removeprefix("http://127.0.0.1:").split("/")[0])

    @property
    def log(self) -> Path:
        return self.directory / "log"


def directory_of(state_dir: Path) -> Path:
    return state_dir.resolve() / ".sim"


def start_or_join(state_dir: Path) -> Background:
    """The local Lium of this state directory, started if it isn't running. Raises `Failure` (exit 1)."""
    directory = directory_of(state_dir)
    with _locked(directory):
        running = _running(directory)
        return running if running is not None else _start(directory)


def find(state_dir: Path) -> Background | None:
    """The running one, if there is one; starts nothing and writes nothing."""
    return _running(directory_of(state_dir))


def stop(state_dir: Path) -> bool:
    """End it (SIGTERM, after a while SIGKILL). False when none was running. Its world stays on disk."""
    directory = directory_of(state_dir)
    if not directory.is_dir():
        return False
    with _locked(directory):
        known = _read(directory)
        if known is None or not _is_alive(known.pid, known.started_at):
            return False
        os.kill(known.pid, signal.SIGTERM)
        if not _gone(known, _STOP_TIMEOUT_S):
            os.kill(known.pid, signal.SIGKILL)
            _gone(known, _STOP_TIMEOUT_S)
        (directory / "server.json").unlink(missing_ok=True)
        return True


def forget_world(state_dir: Path) -> bool:
    """Delete the world of a server that isn't running. False when there was none. Raises `Failure` while it runs."""
    directory = directory_of(state_dir)
    if not directory.is_dir():
        return False
    with _locked(directory):
        known = _read(directory)
        if known is not None and _is_alive(known.pid, known.started_at):
            raise _failure("the local Lium is running", "ask it: lium-plan sim reset")
        found = tuple(directory.glob("world.jsonl*"))
        try:
            for path in found:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        except OSError as fault:
            raise _failure(f"the world cannot be deleted: {in_words(fault)}", f"delete {directory} by hand") from None
        return bool(found)


# --- the record ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    port: int
    pid: int
    started_at: str
    """The process's start time as the kernel tells it: a number alone may belong to somebody else by now."""


def _read(directory: Path) -> _Known | None:
    try:
        row = json.loads((directory / "server.json").read_text(encoding="utf-8"))
        return _Known(int(row["port"]), int(row["pid"]), str(row["started_at"]))
    except (OSError, ValueError, KeyError, TypeError):
        # Only a note about a process: unreadable means that nobody can join it.
        return None


def _write(directory: Path, known: _Known) -> None:
    path = directory / "server.json"
    temporary = directory / f"server.json.{os.getpid()}"
    text = json.dumps({"port": known.port, "pid": known.pid, "started_at": known.started_at}) + "\n"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        # `parents=True` would make the state directory itself with everybody's rights.
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        raise _failure(f"{directory} cannot be used: {fault.strerror}", "choose another place with --state") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# --- the process -----------------------------------------------------------------------------------------------


def _running(directory: Path) -> Background | None:
    known = _read(directory)
    if known is None or not _is_alive(known.pid, known.started_at) or not _answers(known.port):
        return None
    return Background(f"http://127.0.0.1:{known.port}/api", API_KEY, known.pid, directory, started=False)


def _start(directory: Path) -> Background:
    stale = _read(directory)
    if stale is not None and _is_alive(stale.pid, stale.started_at):
        # It lives and doesn't answer: two servers on one world would spoil it.
        os.kill(stale.pid, signal.SIGKILL)
        _gone(stale, _STOP_TIMEOUT_S)
    log_path = directory / "log"
    if log_path.exists() and log_path.stat().st_size > _LOG_LIMIT:
        log_path.replace(directory / "log.1")
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    # -P: a file of the user's called like a module of Python's must not be imported.
    command = (sys.executable, "-P", "-m", "lium_plan", "sim", "serve", "--port", "0")
    options = ("--world", str(directory / "world.jsonl"), "--idle-timeout", f"{IDLE_TIMEOUT_S}s", "--speed", f"{SPEED}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LIUM_")}
    # It starts in another directory: relative entries would point elsewhere.
    entries = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    root = Path(__file__).resolve().parents[2]
    environment["PYTHONPATH"] = os.pathsep.join([str(root), *(os.path.abspath(path) for path in entries)])
    try:
        process = subprocess.Popen(
            (*command, *options),
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            # Its own session: a Ctrl-C in our terminal is not meant for it.
            start_new_session=True,
        )
    except OSError as fault:
        raise _failure(f"the local Lium could not be started: {fault.strerror}", None) from None
    finally:
        os.close(log)
    port = _await_ready(process, directory)
    known = _Known(port, process.pid, _start_time(process.pid) or "")
    _write(directory, known)
    # It outlives this command, so its exit is nobody's business here.
    process.returncode = 0
    return Background(f"http://127.0.0.1:{port}/api", API_KEY, process.pid, directory, started=True)


def _await_ready(process: subprocess.Popen[bytes], directory: Path) -> int:
    """Read the two lines that a ready server prints, and return its port."""
    assert process.stdout is not None
    with process.stdout:
        descriptor = process.stdout.fileno()
        deadline = time.monotonic() + _START_TIMEOUT_S
        said = b""
        while said.count(b"\n") < 2:
            left = deadline - time.monotonic()
            readable, _, _ = select.select([descriptor], [], [], max(0.0, left))
            chunk = os.read(descriptor, 4096) if readable else b""
            if not chunk:
                process.kill()
                process.wait()
                raise _failure(
                    "the local Lium did not start" + ("" if readable else f" within {_START_TIMEOUT_S:.0f} s"),
                    f"its log is {directory / 'log'}" + _tail(directory / "log"),
                )
            said += chunk
    url = said.decode("ascii", "replace").splitlines()[0].partition("=")[2]
    port = url.rpartition(":")[2].partition("/")[0]
    if not port.isdigit():
        process.kill()
        process.wait()
        raise _failure("the local Lium did not say where it listens", f"its log is {directory / 'log'}")
    return int(port)


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
    except OSError:
        return ""
    return "".join(f"\n{line}" for line in lines)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", "/api/version")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _is_alive(pid: int, started_at: str) -> bool:
    found = _start_time(pid)
    return found is not None and found == started_at


def _start_time(pid: int) -> str | None:
    """The kernel's start time of a living process; None when there is none (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else fields[19]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except OSError:
        return None
    shown = subprocess.run(("ps", "-o", "lstart=", "-p", str(pid)), capture_output=True, text=True, check=False)
    return shown.stdout.strip() or None


def _gone(known: _Known, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while _is_alive(known.pid, known.started_at):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _failure(message: str, hint: str | None) -> Failure:
    return Failure(ExitCode.ERROR, (error("local-lium", message, hint=hint),))
