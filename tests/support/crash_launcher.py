"""Runs `lium-plan` and kills it, with SIGKILL, at one chosen point. For a process of its own:

    CRASH_AT='answered POST /executors/*/rent #3' python -m tests.support.crash_launcher apply --auto-approve

It changes nothing of lium-plan: it stands behind the interpreter's own calls (`os.fdatasync`, `os.pwrite`,
`os.replace`, `socket.send`, `socket.recv`), where a kernel's view of the process begins.
A site is what happens, an occurrence (`#3`)
how many times it has happened; the names, with ids as `*`:

    before METHOD PATH      a request is about to be sent; nothing of it has left
    half METHOD PATH        its head has been sent, its body has not
    answered METHOD PATH    the answer lies in the socket, and nobody has read it
    ssh-write, ssh-read     bytes of SSH are about to be written or read, on any connection
    before|after|torn journal           around a write to the journal; torn: half of the line reached the disk
    before|after snapshot   around the rename that puts a new snapshot in place

Without CRASH_AT nothing is killed. With CRASH_LOG each site that is passed is written to that file, one a line.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

_IDS = re.compile(r"/[0-9a-f]{8}-[0-9a-f-]{27}")
_HEAD = re.compile(rb"(GET|POST|PUT|PATCH|DELETE) (/\S*) HTTP/1\.1\r\n")


class Crash:
    """Counts the sites that are passed, and ends the process at the chosen one."""

    def __init__(self, site: str | None, log: str | None) -> None:
        self._at = site
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if log else None
        self._passed: Counter[str] = Counter()

    def here(self, site: str) -> bool:
        """Count the site; whether it is the chosen one (the caller does what has to be done before `die`)."""
        self._passed[site] += 1
        name = f"{site} #{self._passed[site]}"
        if self._log is not None:
            os.write(self._log, name.encode() + b"\n")
        return name == self._at

    def passing(self, site: str) -> None:
        if self.here(site):
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Wire:
    """The sockets of the process: HTTP to the API's port, SSH to every other one."""

    def __init__(self, crash: Crash, api_port: int) -> None:
        self._crash = crash
        self._api_port = api_port
        self._asked: WeakKeyDictionary[socket.socket, str] = WeakKeyDictionary()
        """Connections whose request has begun to leave, and whose answer has not been looked at."""

    def sending(self, sock: socket.socket, data: bytes) -> None:
        if not self._counts(sock):
            return
        if not self._is_api(sock):
            self._crash.passing("ssh-write")
            return
        head = _HEAD.match(data)
        if head is not None:
            request = f"{head[1].decode()} {_short(head[2].decode())}"
            self._crash.passing(f"before {request}")
            self._asked[sock] = request
        elif sock in self._asked:
            self._crash.passing(f"half {self._asked[sock]}")

    def receiving(self, sock: socket.socket) -> None:
        if not self._counts(sock):
            return
        if not self._is_api(sock):
            self._crash.passing("ssh-read")
        elif sock in self._asked:
            self._crash.passing(f"answered {self._asked.pop(sock)}")

    def _counts(self, sock: socket.socket) -> bool:
        return sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM

    def _is_api(self, sock: socket.socket) -> bool:
        try:
            return sock.getpeername()[1] == self._api_port
        except OSError:
            return False


def _short(target: str) -> str:
    """`/executors/*/rent` of `/api/executors/0f…/rent?x=y`."""
    return _IDS.sub("/*", urlsplit(target).path.removeprefix("/api"))


def watch_sockets(wire: Wire) -> None:
    kind: Any = socket.socket
    send, sendmsg, recv, recv_into = kind.send, kind.sendmsg, kind.recv, kind.recv_into

    def watched_send(self: socket.socket, data: Any, *rest: Any) -> int:
        wire.sending(self, bytes(data))
        return int(send(self, data, *rest))

    def watched_sendmsg(self: socket.socket, buffers: Any, *rest: Any) -> int:
        buffers = list(buffers)
        wire.sending(self, b"".join(bytes(part) for part in buffers))
        return int(sendmsg(self, buffers, *rest))

    def watched_recv(self: socket.socket, *rest: Any) -> bytes:
        wire.receiving(self)
        return bytes(recv(self, *rest))

    def watched_recv_into(self: socket.socket, *rest: Any) -> int:
        wire.receiving(self)
        return int(recv_into(self, *rest))

    kind.send, kind.sendmsg, kind.recv, kind.recv_into = (
        watched_send,
        watched_sendmsg,
        watched_recv,
        watched_recv_into,
    )


def watch_files(crash: Crash) -> None:
    system: Any = os
    fdatasync, pwrite, replace = os.fdatasync, os.pwrite, os.replace

    def is_journal(handle: int) -> bool:
        return os.readlink(f"/proc/self/fd/{handle}").endswith(".journal.jsonl")

    def around(call: Callable[[], Any], what: str | None) -> Any:
        if what is None:
            return call()
        crash.passing(f"before {what}")
        result = call()
        crash.passing(f"after {what}")
        return result

    def watched_fdatasync(handle: int) -> None:
        around(lambda: fdatasync(handle), "journal" if is_journal(handle) else None)

    def watched_pwrite(handle: int, data: Any, offset: int) -> int:
        if is_journal(handle) and bytes(data[:1]) != b"\0" and crash.here("torn journal"):
            pwrite(handle, data[: len(data) // 2], offset)
            fdatasync(handle)
            die()
        return pwrite(handle, data, offset)

    def watched_replace(source: Any, target: Any, **options: Any) -> None:
        around(lambda: replace(source, target, **options), "snapshot" if str(target).endswith(".json") else None)

    system.fdatasync, system.pwrite, system.replace = watched_fdatasync, watched_pwrite, watched_replace


def main() -> int:
    crash = Crash(os.environ.pop("CRASH_AT", None), os.environ.pop("CRASH_LOG", None))
    api_port = urlsplit(os.environ["LIUM_BASE_URL"]).port
    assert api_port is not None
    watch_sockets(Wire(crash, api_port))
    watch_files(crash)
    from lium_plan.cli.main import main as lium_plan

    return lium_plan(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
