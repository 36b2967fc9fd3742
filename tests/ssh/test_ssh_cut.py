"""A connection to OpenSSH's server is cut at every step of a bootstrap and of a task's start; what is done next is right.

At every piece that crosses the wire, whole or half of it lost, and before every program that a script calls on the
machine. Cases G2, G10.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import getpass
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from ssh_servers import Server, openssh_server

from lium_plan.kinds.bootstrap.resuming import first_command
from lium_plan.ssh import detached
from lium_plan.ssh.detached import DetachedCommand, Ending, Probe, TaskState
from lium_plan.ssh.errors import ConnectionLost
from lium_plan.ssh.image_env import run_in_image
from lium_plan.ssh.markers import RunState, read_markers
from lium_plan.ssh.protocol import FileToSend, Session

TOOLS = "cat chmod env mkdir mv rm setsid sha256sum tr"
# The connection's processes are the daemon's children.
TOOL = """\
#!/bin/sh
echo {name} >>{there}/calls
read -r at 2>/dev/null <{there}/at
if [ "$(/usr/bin/wc -l <{there}/calls)" = "${{at:-0}}" ]; then
    read -r daemon <{there}/daemon
    read -r children <"/proc/$daemon/task/$daemon/children"
    kill -KILL $children
fi
exec {program} "$@"
"""
Step = Callable[[Session, Path], Awaitable[None]]


@contextlib.contextmanager
def serving(directory: Path, key_path: Path, environment: str) -> Iterator[Server]:
    if not Path("/usr/sbin/sshd").exists() or shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH's server is not installed")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    tools = directory / "tools"
    tools.mkdir()
    for name in TOOLS.split():
        program = shutil.which(name)
        assert program is not None
        (tools / name).write_text(TOOL.format(name=name, there=directory, program=program))
        (tools / name).chmod(0o755)
    path = f"PATH={tools}:/usr/bin:/bin {environment}"
    with openssh_server(directory, key_path, getpass.getuser(), path) as server:
        (directory / "daemon").write_text(f"{server.pid}\n")
        yield server


class Wire:
    """A TCP forwarder. Once armed it counts the pieces that arrive on either side, and at the chosen one it resets the
    connection: nothing of that piece, or half of it, goes on."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._left: int | None = None
        self._torn = False
        self._open: list[asyncio.StreamWriter] = []
        self.port = 0

    def arm(self, number: int, *, torn: bool) -> None:
        self._left, self._torn = number, torn

    @property
    def has_cut(self) -> bool:
        return self._left is not None and self._left < 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            there = await asyncio.open_connection("127.0.0.1", self._to)
            self._open += [writer, there[1]]
            await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))
        writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                if self._left is not None:
                    self._left -= 1
                if self.has_cut:
                    if self._torn:
                        writer.write(data[: len(data) // 2])
                    for one in self._open:
                        one.transport.abort()
                    return
                writer.write(data)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def wire_to(server: Server) -> AsyncIterator[Wire]:
    wire = Wire(server.coordinates.port)
    listener = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    wire.port = listener.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        listener.close()


async def cut_on_the_wire(server: Server, step: Step, there: Path, number: int, *, torn: bool) -> bool:
    """Whether the step got as far as to be cut."""
    async with wire_to(server) as wire:
        session = await server.open(port=wire.port)
        wire.arm(number, torn=torn)
        with contextlib.suppress(ConnectionLost):
            await step(session, there)
        reached = wire.has_cut
        await session.close()
        return reached


async def cut_at_a_program(server: Server, step: Step, there: Path, number: int) -> bool:
    session = await server.open()
    (server.home / "calls").write_bytes(b"")
    (server.home / "at").write_text(f"{number + 1}\n")
    try:
        await step(session, there)
    except ConnectionLost:
        return True
    finally:
        (server.home / "at").write_text("0\n")
        await session.close()
    # A command that went on without us may have cut nothing but its own connection's end.
    return len((server.home / "calls").read_text().split()) > number


async def at_every_step(server: Server, step: Step, judge: Step, ways: str) -> int:
    """Cut it further and further on, until it is through; each time `judge` does what a next run does, and looks."""
    cuts = 0
    noise: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context))
    for way in ways.split():
        for number in range(60):
            there = server.home / f"{way}-{number}"
            there.mkdir()
            if way == "program":
                reached = await cut_at_a_program(server, step, there, number)
            else:
                reached = await cut_on_the_wire(server, step, there, number, torn=way == "torn")
            session = await server.open()
            try:
                await judge(session, there)
            except AssertionError as fault:
                raise AssertionError(f"cut {way} #{number}: {fault}") from fault
            finally:
                await session.close()
            if not reached:
                break
            cuts += 1
        else:
            raise AssertionError(f"{way}: never through")
    gc.collect()
    assert noise == [], "what nobody looks at would be printed in the middle of a user's screen"
    return cuts


def test_a_tasks_start_takes_effect_once(tmp_path: Path, key_path: Path) -> None:
    async def start(session: Session, there: Path) -> None:
        command = DetachedCommand(["echo run >>runs", "echo line 1; echo line 2; exit 7"], cwd=str(there))
        await detached.start(session, command, f"{there}/task", timeout_s=20)

    async def judge(session: Session, there: Path) -> None:
        await start(session, there)
        while (found := await detached.probe(session, f"{there}/task", timeout_s=20)).state is TaskState.RUNNING:
            pass
        log = bytearray()
        await detached.follow_log(session, f"{there}/task", on_output=log.extend, timeout_s=20)
        # A shell whose program was taken away under it may have said so before.
        assert bytes(log).endswith(b"line 1\nline 2\n")
        assert log.count(b"line 1\n") == 1
        assert found == Probe(TaskState.EXITED, 7, Ending.BY_ITSELF, len(log))
        assert (there / "runs").read_text() == "run\n"

    with serving(tmp_path, key_path, "LIUM_SIM_CONFINED=1") as server:
        cuts = asyncio.run(at_every_step(server, start, judge, "lost torn program"))
    assert cuts > 15


def test_a_bootstrap_is_finished_by_the_next_run(tmp_path: Path, key_path: Path) -> None:
    steps = [f"cd $D; sh ./setup.sh {name}" for name in ("one", "two", "three")]
    commands = [f"({step})" for step in steps]
    setup = b"set -eu\necho $1 >>trace\n" + b"# padding\n" * 100

    async def attempt(session: Session, there: Path, name: str, first: int) -> None:
        await session.put([FileToSend(setup, f"{there}/new/../setup.sh", 0o755)], timeout_s=20)
        assert (there / "setup.sh").read_bytes() == setup
        done = await run_in_image(
            session,
            commands[first:],
            env={"D": str(there)},
            markers=f"{there}/{name}",
            first_step=first,
            timeout_s=20,
        )
        assert done.exit_status == 0

    async def first_attempt(session: Session, there: Path) -> None:
        await attempt(session, there, "first", 0)

    async def judge(session: Session, there: Path) -> None:
        while (found := await read_markers(session, f"{there}/first", timeout_s=20)).state is RunState.RUNNING:
            pass
        first = first_command(commands, found)
        if found.state is RunState.EXITED and found.exit_status == 0:
            assert (there / "trace").read_text().split() == ["one", "two", "three"], "taken for ready"
        if first < len(commands):
            await attempt(session, there, "second", first)
        trace = (there / "trace").read_text().split()
        assert [name for name in ("one", "two", "three") if name in trace] == ["one", "two", "three"], trace
        assert trace[-1] == "three"
        assert all(trace.count(name) <= 2 for name in trace), trace

    with serving(tmp_path, key_path, "") as server:
        cuts = asyncio.run(at_every_step(server, first_attempt, judge, "lost torn program"))
    assert cuts > 15
