"""The launcher: a small single-threaded process that forks everything which runs inside pods.

It exists because forking, joining namespaces and reaping are cheap and safe in a process with one thread and few
pages, and neither in an asyncio server. It owns no decision: a request names what to do (`create`, `enter`,
`socket`, `confine`) and brings its descriptors; the child reports through the first of them; every death is told
to the simulator. When the simulator's end of the socket closes, the launcher ends, and with it every PID 1.

Requests and events are a 4-byte length and a JSON object; descriptors travel with the length.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

from lium_plan.sim.pods import inside, linux, tracking

HEADER = struct.Struct("!I")
MOST_DESCRIPTORS = 8
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """One message and its descriptors; None at the end of the stream."""
    header, descriptors, _, _ = socket.recv_fds(channel, HEADER.size, MOST_DESCRIPTORS, _CLOSE_ON_EXEC)
    for fd in descriptors:
        os.set_inheritable(fd, False)
    if not header:
        return None
    header += _exactly(channel, HEADER.size - len(header))
    body = _exactly(channel, HEADER.unpack(header)[0])
    message: dict[str, Any] = json.loads(body)
    return message, descriptors


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = channel.recv(size - len(data))
        if not more:
            raise EOFError("the other side went away in the middle of a message")
        data += more
    return data


def send(channel: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message in one call: two processes share the other end of a report, and must not interleave."""
    body = json.dumps(message).encode("ascii")
    data = HEADER.pack(len(body)) + body
    sent = socket.send_fds(channel, [data], list(descriptors)) if descriptors else channel.send(data)
    channel.sendall(data[sent:])


class _Report:
    """The child's way to tell the simulator what became of it; closes by itself on exec."""

    def __init__(self, fd: int) -> None:
        self._channel = socket.socket(fileno=fd)

    def tell(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        send(self._channel, message, descriptors)

    def failed(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more: there is nobody left to tell
            self.tell({"error": text})


def _create(spec: dict[str, Any], report: _Report, descriptors: list[int]) -> None:
    inside.unshare_container()
    pid = linux.fork_as_sibling()
    if pid:
        report.tell({"pid": pid})
        return
    os.setsid()
    os.umask(0o022)
    inside.build_root(spec)
    user_namespace = os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    report.tell({"built": True}, (user_namespace, root))
    os.close(user_namespace)
    os.close(root)
    inside.attach(descriptors)
    inside.become(spec["uid"], spec["gid"])
    inside.execute(spec, report.failed)
    os._exit(127)


def _enter(spec: dict[str, Any], report: _Report, descriptors: list[int]) -> None:
    user_fd, process_fd, *streams = descriptors
    inside.join_container(user_fd, process_fd)
    pid = linux.fork_as_sibling()
    if pid:
        report.tell({"pid": pid})
        return
    os.setsid()
    inside.as_container_root()
    _run_session(spec, report, streams)


def _confine(spec: dict[str, Any], report: _Report, descriptors: list[int]) -> None:
    os.setsid()
    report.tell({"pid": os.getpid()})
    inside.stay_confined(spec)
    _run_session(spec, report, descriptors)


def _run_session(spec: dict[str, Any], report: _Report, streams: list[int]) -> None:
    if streams:
        inside.attach(streams)
    else:
        master = inside.attach_terminal(spec["terminal"])
        report.tell({"terminal": True}, (master,))
        os.close(master)
    inside.execute(spec, report.failed)
    os._exit(127)


def _socket(spec: dict[str, Any], report: _Report, descriptors: list[int]) -> None:
    inside.join_container(*descriptors)
    with inside.network_socket(spec["family"]) as made:
        report.tell({"socket": True}, (made.fileno(),))


_WORK = {"create": _create, "enter": _enter, "confine": _confine, "socket": _socket}


class Launcher:
    """The main loop: requests from the simulator, deaths to it."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._helpers: set[int] = set()
        self._confined: set[int] = set()
        self._marker = ""

    def run(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._channel:
                        if not self._serve():
                            return
                    else:
                        with contextlib.suppress(BlockingIOError):
                            os.read(wake_read, 4096)
                        self._reap()

    def _serve(self) -> bool:
        received = receive(self._channel)
        if received is None:
            return False
        spec, descriptors = received
        if spec["do"] == "track":
            self._marker = spec["marker"]
            return True
        try:
            pid = os.fork()
        except OSError as error:
            _Report(descriptors[0]).failed(f"fork: {error}")
            descriptors = descriptors[1:]
        else:
            if pid == 0:
                self._child(spec, descriptors)
            (self._confined if spec["do"] == "confine" else self._helpers).add(pid)
        for fd in descriptors:
            os.close(fd)
        return True

    def _child(self, spec: dict[str, Any], descriptors: list[int]) -> None:
        status = 1
        report = _Report(descriptors[0])
        try:
            signal.set_wakeup_fd(-1)
            # Our end must not keep the simulator's socket open after the launcher has gone.
            self._channel.close()
            _WORK[spec["do"]](spec, report, descriptors[1:])
            status = 0
        except Exception as error:  # whatever it is, the simulator must hear of it: this process ends here
            report.failed(error.strerror or str(error) if isinstance(error, OSError) else repr(error))
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._helpers:
                self._helpers.discard(pid)
            else:
                self._confined.discard(pid)
                send(self._channel, {"pid": pid, "status": os.waitstatus_to_exitcode(status)})

    def end(self) -> None:
        """Confined pods have no PID 1 whose end is theirs: what they are known to run goes now."""
        for pid in self._confined:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        if self._marker:
            tracking.end_marked(self._marker)


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    launcher = Launcher(socket.socket(fileno=int(sys.argv[1])))
    with contextlib.suppress(OSError, EOFError):  # a simulator that was killed leaves a broken socket
        launcher.run()
    launcher.end()
