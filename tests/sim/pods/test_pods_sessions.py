"""What an SSH client sees of a session, in both modes."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import asyncssh
import pytest
from pods_lab import KEY, entered, laboratory, run, until

from lium_plan.sim.runtime import SshFault


def test_streams_and_exit_status_arrive(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with entered(tmp_path, confined=confined) as connection:
            done = await connection.run("cat; echo problem >&2; exit 7", input="some text")
            assert (done.stdout, done.stderr, done.exit_status) == ("some text", "problem\n", 7)

    run(test())


class Told(asyncssh.SSHClientSession[bytes]):
    """What a channel's end looks like from the client's side."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.received = 0

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        self.received += len(data)

    def eof_received(self) -> bool:
        self.order.append(f"eof after {self.received}")
        return True

    def exit_status_received(self, status: int) -> None:
        self.order.append(f"status {status}")

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self.order.append(f"signal {signal}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.order.append("closed")


@pytest.mark.parametrize("end", [("exit 3", "status 3"), ("kill -TERM $$", "signal TERM")])
def test_a_channel_says_eof_before_it_is_closed(tmp_path: Path, confined: bool, end: tuple[str, str]) -> None:
    """As OpenSSH does, also when data waits for the client's window: clients wait for both status and EOF."""

    async def test() -> None:
        async with entered(tmp_path, confined=confined) as connection:
            command = f"head -c 3000000 /dev/zero; {end[0]}"
            channel, told = await connection.create_session(Told, command, encoding=None)
            channel.pause_reading()
            await asyncio.sleep(0.2)
            channel.resume_reading()
            await channel.wait_closed()
            assert sorted(told.order[:2]) == sorted(["eof after 3000000", end[1]])
            assert told.order[2:] == ["closed"]

    run(test())


@pytest.mark.parametrize("stdin", ["open", "ended", "full"])
def test_a_signal_ends_the_command_and_is_reported(tmp_path: Path, confined: bool, stdin: str) -> None:
    async def test() -> None:
        async with entered(tmp_path, confined=confined) as connection:
            process = await connection.create_process("echo ready; exec sleep 1000")
            assert await process.stdout.readline() == "ready\n"
            if stdin == "ended":
                process.stdin.write_eof()
            elif stdin == "full":
                process.stdin.write("x" * 500_000)
            process.send_signal("TERM")
            done = await process.wait()
            assert done.exit_signal is not None
            assert done.exit_signal[0] == "TERM"

    run(test())


def test_the_environment_is_roots_own_and_requests_are_ignored(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            endpoint = await lab.start(environment={"FROM_TEMPLATE": "1"})
            names = {
                line.partition("=")[0] for line in (await lab.sh(endpoint, "env", env={"ASKED_FOR": "1"})).splitlines()
            }
            assert {"HOME", "PATH", "USER", "SSH_CONNECTION"} <= names
            assert not {"ASKED_FOR", "FROM_TEMPLATE", "NVIDIA_VISIBLE_DEVICES"} & names
            assert ("LIUM_SIM_CONFINED" in names) == confined

    run(test())


def test_a_command_starts_at_home(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            home, here = (await lab.sh(await lab.start(), "echo $HOME; pwd")).split()
            assert home == here
            assert home == (str(tmp_path / "pods/pod-1/local") if confined else "/root")

    run(test())


def test_a_terminal_is_a_terminal(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with entered(tmp_path, confined=confined) as connection:
            options = {"term_type": "xterm-256color", "term_size": (101, 37)}
            process = await connection.create_process("tty; stty size; echo $TERM; read line; stty size", **options)
            lines = [(await process.stdout.readline()).strip() for _ in range(3)]
            process.change_terminal_size(80, 24)
            process.stdin.write("go\n")
            rest = await process.wait()
            assert lines[0].startswith("/dev/pts/")
            assert lines[1:] == ["37 101", "xterm-256color"]
            assert str(rest.stdout).split() == ["go", "24", "80"]

    run(test())


def test_a_shell_reads_commands_and_knows_the_template_s_environment(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            endpoint = await lab.start(environment={"FROM_TEMPLATE": "a b"})
            async with await lab.connect(endpoint) as connection:
                process = await connection.create_process(input="echo [$FROM_TEMPLATE]; exit 3\n")
                done = await process.wait()
                assert "[a b]" in str(done.stdout)
                assert done.exit_status == 3

    run(test())


def test_output_nobody_reads_is_not_held_in_memory(tmp_path: Path, confined: bool) -> None:
    size = 48 << 20

    async def test() -> None:
        async with entered(tmp_path, confined=confined) as connection:
            before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            process = await connection.create_process(f"head -c {size} /dev/zero", encoding=None)
            got = 0
            while data := await process.stdout.read(1 << 20):
                got += len(data)
            assert (got, (await process.wait()).exit_status) == (size, 0)
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 20 << 10

    run(test())


def test_input_nobody_reads_is_not_an_error(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with entered(tmp_path, confined=confined) as connection:
            done = await connection.run("exec 0<&-; echo fine", input="x" * 200_000)
            assert (done.stdout, done.exit_status) == ("fine\n", 0)

    run(test())


def test_a_detached_process_outlives_its_session_and_a_cut_connection(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            endpoint = await lab.start()
            script = "mkfifo go; setsid nohup sh -c 'read line <go; echo $line >done' </dev/null >/dev/null 2>&1 &"
            await lab.sh(endpoint, script)
            await lab.runtime.set_fault("pod-1", SshFault("drop"))
            await lab.sh(endpoint, "echo finished >go")

            async def finished() -> bool:
                return await lab.sh(endpoint, "cat done 2>/dev/null || true") == "finished\n"

            await until(finished)

    run(test())


def test_a_cut_connection_does_not_end_the_command(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            endpoint = await lab.start()
            await lab.sh(endpoint, "mkfifo go")
            connection = await lab.connect(endpoint)
            process = await connection.create_process("echo ready; read line <go; echo $line >done")
            assert await process.stdout.readline() == "ready\n"
            await lab.runtime.set_fault("pod-1", SshFault("drop"))
            assert (await process.wait()).exit_status is None
            await lab.sh(endpoint, "echo finished >go; while [ ! -s done ]; do sleep 0.02; done")
            assert await lab.sh(endpoint, "cat done") == "finished\n"

    run(test())


@pytest.mark.parametrize("username", ["root", "ubuntu"])
def test_only_roots_own_key_gets_in(tmp_path: Path, confined: bool, username: str) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            endpoint = await lab.start()
            stranger = asyncssh.generate_private_key("ssh-ed25519")
            keys = [stranger] if username == "root" else [KEY]
            with pytest.raises(asyncssh.PermissionDenied):
                await lab.connect(endpoint, username=username, client_keys=keys)

    run(test())


def test_many_sessions_share_a_connection(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with entered(tmp_path, confined=confined) as connection:
            done = await asyncio.gather(*(connection.run(f"echo {i}") for i in range(12)))
            assert [str(each.stdout) for each in done] == [f"{i}\n" for i in range(12)]

    run(test())
