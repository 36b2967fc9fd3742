"""The contract of a session: the same tests on every server there is."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from ssh_servers import FAST, Gate, Server, asyncssh_server, session_on
from ssh_sim import sim_pod

from lium_plan.ssh.connector import Timing
from lium_plan.ssh.errors import BadScript, ConnectionLost, FileNotSent, Stage, TimedOut
from lium_plan.ssh.protocol import FileToSend, Session

Scenario = Callable[[Session], Awaitable[None]]


@pytest.fixture(params=["asyncssh", "openssh", "sim", "sim-confined"])
def on_each(request: pytest.FixtureRequest, tmp_path: Path, key_path: Path) -> Callable[[Scenario], None]:
    """Runs a scenario with a fresh session on one kind of server."""
    kind = request.param
    openssh: Server | None = request.getfixturevalue("openssh") if kind == "openssh" else None

    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[Server]:
        if openssh is not None:
            yield openssh
        elif kind == "asyncssh":
            async with asyncssh_server(tmp_path, key_path) as server:
                yield server
        else:
            async with sim_pod(tmp_path, key_path, confined=kind == "sim-confined") as server:
                yield server

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            async with serving() as server, session_on(server) as session:
                await scenario(session)

        asyncio.run(main())

    return run


@pytest.fixture
def place() -> Iterator[str]:
    """A name of this test alone, in the directory where sessions begin: with OpenSSH, the user's own home."""
    name = f"lp-test-{uuid.uuid4().hex}"
    yield name
    left = Path.home() / name
    if left.is_dir():
        shutil.rmtree(left)
    left.unlink(missing_ok=True)


async def _output(session: Session, script: str) -> str:
    out = bytearray()
    await session.run(script, on_output=out.extend, timeout_s=10)
    return out.decode()


def test_run(on_each: Callable[[Scenario], None]) -> None:
    async def scenario(session: Session) -> None:
        out = bytearray()
        done = await session.run(
            "echo out; echo err >&2; cat; exit 3", stdin=b"a\0b" * 50_000, on_output=out.extend, timeout_s=10
        )
        assert done.exit_status == 3
        assert b"out\n" in out
        assert b"err\n" in out
        # The two streams may meet anywhere.
        assert b"a\0b" * 50_000 in out.replace(b"err\n", b"", 1)
        assert (await session.run("true", timeout_s=5)).exit_status == 0
        assert (await session.run("kill -9 $$", timeout_s=5)).exit_status == 137
        assert (await session.run("exec sh -c 'kill -15 $$'", timeout_s=5)).exit_status == 143
        with pytest.raises(BadScript):
            await session.run("echo \0", timeout_s=5)

    on_each(scenario)


def test_the_shortest_commands_lose_nothing(on_each: Callable[[Scenario], None]) -> None:
    async def scenario(session: Session) -> None:
        outputs = [await asyncio.gather(*[_output(session, "echo x") for _ in range(5)]) for _ in range(6)]
        assert outputs == [["x\n"] * 5] * 6

    on_each(scenario)


def test_output_is_streamed_and_commands_run_side_by_side(on_each: Callable[[Scenario], None]) -> None:
    async def scenario(session: Session) -> None:
        seen = 0

        def count(chunk: bytes) -> None:
            nonlocal seen
            assert len(chunk) <= 1 << 20
            seen += len(chunk)

        waiting = asyncio.create_task(session.run("cat", keep_stdin_open=True, timeout_s=60))
        await session.run("head -c 8000000 /dev/zero", on_output=count, timeout_s=20)
        assert seen == 8_000_000
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])

    on_each(scenario)


def test_a_command_out_of_time_is_given_up_and_the_session_lives(on_each: Callable[[Scenario], None]) -> None:
    async def scenario(session: Session) -> None:
        with pytest.raises(TimedOut, match=r"0\.2 s") as caught:
            await session.run("exec sleep 60", timeout_s=0.2)
        assert caught.value.stage is Stage.COMMAND
        assert await _output(session, "echo still") == "still\n"

    on_each(scenario)


def test_what_on_output_raises_ends_the_command(on_each: Callable[[Scenario], None]) -> None:
    def full(_chunk: bytes) -> None:
        raise BrokenPipeError("nobody reads")

    async def scenario(session: Session) -> None:
        with pytest.raises(BrokenPipeError, match="nobody reads"):
            await session.run("yes", on_output=full, timeout_s=10)
        assert await _output(session, "echo still") == "still\n"

    on_each(scenario)


@pytest.mark.parametrize("on_each", ["openssh", "sim", "sim-confined"], indirect=True)
def test_a_command_has_ended_though_what_it_left_holds_its_output(on_each: Callable[[Scenario], None]) -> None:
    async def scenario(session: Session) -> None:
        out = bytearray()
        left = "(sleep 0.3; echo more; exec sleep 60) & echo $!; exit 3"
        done = await session.run(left, leaves_jobs=True, on_output=out.extend, timeout_s=20)
        assert done.exit_status == 3
        pid, more = out.split()
        assert more == b"more", "what comes soon is not lost"
        await session.run(f"kill {pid.decode()}", timeout_s=5)

    on_each(scenario)


@pytest.mark.parametrize("on_each", ["openssh", "sim"], indirect=True)
def test_all_output_is_waited_for_however_long_after_the_end(on_each: Callable[[Scenario], None]) -> None:
    """A slow link brings it after the exit status."""

    async def scenario(session: Session) -> None:
        assert await _output(session, "(sleep 3.5; echo late) & echo soon") == "soon\nlate\n"

    on_each(scenario)


def test_put(on_each: Callable[[Scenario], None], place: str, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(bytes(range(256)) * 4096)

    async def scenario(session: Session) -> None:
        files = [
            FileToSend(b"one\n", f"{place}/a/b c/one.txt", 0o640),
            FileToSend(b"", f"{place}/-dash"),
            FileToSend(big, f"{place}/big", 0o755),
        ]
        await session.put(files, timeout_s=20)
        await session.put([FileToSend(b"two\n", f"{place}/a/b c/one.txt", 0o600)], timeout_s=20)
        listing = await _output(
            session, f"cd {place} && find . -type f -exec ls -l {{}} + | cut -c1-10,42-; cat a/b*/*"
        )
        assert listing.count("-rw-------") == 2
        assert listing.count("-rwxr-xr-x") == 1
        assert listing.endswith("two\n")
        assert len(listing.splitlines()) == 4
        digest = hashlib.sha256(big.read_bytes()).hexdigest()
        assert digest in await _output(session, f"sha256sum {place}/big")

    on_each(scenario)


def test_an_unchanged_file_is_not_sent_again(on_each: Callable[[Scenario], None], place: str) -> None:
    async def scenario(session: Session) -> None:
        def version(content: bytes, mode: int) -> FileToSend:
            return FileToSend(content, f"{place}/it's", mode, hashlib.sha256(content).hexdigest())

        await session.put([version(b"one", 0o600)], timeout_s=20)
        before = await _output(session, f"ls -i {place}")
        await session.put([version(b"one", 0o644)], timeout_s=20)
        assert await _output(session, f"ls -i {place}") == before
        assert (await _output(session, f"ls -l {place}/*")).startswith("-rw-r--r--")
        await session.put([version(b"two", 0o600)], timeout_s=20)
        assert await _output(session, f"cat {place}/*") == "two"

    on_each(scenario)


def test_a_file_that_cannot_be_stored_is_named(on_each: Callable[[Scenario], None], place: str, tmp_path: Path) -> None:
    async def scenario(session: Session) -> None:
        await session.run(f"mkdir -p {place}/dir/x; echo > {place}/file", timeout_s=5)
        for target in (f"{place}/dir", f"{place}/file/below", f"{place}/", ".."):
            with pytest.raises(FileNotSent, match=r"can't write"):
                await session.put([FileToSend(b"", target)], timeout_s=20)
        with pytest.raises(FileNotSent, match="local file"):
            await session.put([FileToSend(tmp_path / "none", f"{place}/none")], timeout_s=20)
        assert (await _output(session, f"ls -A {place}")).split() == ["dir", "file"]

    on_each(scenario)


def test_follow(on_each: Callable[[Scenario], None], place: str) -> None:
    async def scenario(session: Session) -> None:
        seen = bytearray()
        arrived = asyncio.Event()

        def on_output(chunk: bytes) -> None:
            seen.extend(chunk)
            arrived.set()

        async def until(text: bytes) -> None:
            while text not in seen:
                await arrived.wait()
                arrived.clear()

        async with asyncio.timeout(20):
            following = asyncio.create_task(session.follow(place, offset_bytes=2, on_output=on_output))
            await session.run(f"echo abcd > {place}.new; mv {place}.new {place}", timeout_s=5)
            await until(b"cd\n")
            await session.run(f"echo more >> {place}", timeout_s=5)
            await until(b"more\n")
            following.cancel()
            await asyncio.wait([following])
        assert bytes(seen) == b"cd\nmore\n"

    on_each(scenario)


@pytest.mark.parametrize("command", ["drop", "no-status"])
def test_g2_a_missing_exit_status_is_no_success(tmp_path: Path, key_path: Path, command: str) -> None:
    async def scenario() -> None:
        async with asyncssh_server(tmp_path, key_path) as server, session_on(server) as session:
            out = bytearray()
            with pytest.raises(ConnectionLost):
                await session.run(command, on_output=out.extend, timeout_s=5)
            if command == "drop":
                assert bytes(out) == b"begun\n"

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["run", "follow", "put"])
def test_g2_a_connection_that_is_cut_is_a_failure_everywhere(tmp_path: Path, key_path: Path, method: str) -> None:
    async def scenario() -> None:
        async with asyncssh_server(tmp_path, key_path) as server, Gate(server.coordinates.port) as gate:
            session = await server.open(port=gate.port)
            begun = asyncio.Event()

            def on_output(_chunk: bytes) -> None:
                begun.set()

            work: Awaitable[object]
            if method == "run":
                work = session.run("echo; sleep 60", on_output=on_output, timeout_s=30)
            elif method == "follow":
                (server.home / "log").write_text("x")
                work = session.follow("log", on_output=on_output)
            else:
                begun.set()
                gate.freeze()
                work = session.put([FileToSend(b"x", "f")], timeout_s=30)
            task = asyncio.ensure_future(work)
            await begun.wait()
            gate.cut()
            with pytest.raises(ConnectionLost):
                await task
            with pytest.raises(ConnectionLost):
                await session.run("true", timeout_s=5)
            await session.close()

    asyncio.run(scenario())


def test_g5_a_host_that_vanishes_without_a_word_is_noticed(tmp_path: Path, key_path: Path) -> None:
    timing = Timing(connect_s=3, keepalive_s=0.05, keepalive_misses=2)

    async def scenario() -> float:
        async with asyncssh_server(tmp_path, key_path) as server, Gate(server.coordinates.port) as gate:
            session = await server.open(port=gate.port, timing=timing)
            gate.freeze()
            began = time.monotonic()
            with pytest.raises(ConnectionLost, match="keepalive"):
                await session.run("sleep 60", timeout_s=30)
            return time.monotonic() - began

    assert asyncio.run(scenario()) < 3


def test_nothing_blocks_when_the_host_has_vanished(tmp_path: Path, key_path: Path) -> None:
    async def scenario() -> float:
        async with asyncssh_server(tmp_path, key_path) as server, Gate(server.coordinates.port) as gate:
            session = await server.open(port=gate.port, timing=FAST)
            begun = asyncio.Event()
            running = asyncio.create_task(session.run("echo; sleep 60", on_output=lambda _: begun.set(), timeout_s=60))
            await begun.wait()
            gate.freeze()
            began = time.monotonic()
            with pytest.raises(TimedOut):
                await session.put([FileToSend(b"x", "f")], timeout_s=0.1)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await session.close()
            await session.close()
            return time.monotonic() - began

    assert asyncio.run(scenario()) < 2.5
