"""What is waited for, what is not, and how long: against a real server behind a gate that misbehaves."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import asyncssh
import pytest
from ssh_servers import FAST, Gate, Server, asyncssh_server

from lium_plan.ssh.connector import SshConnector, Timing
from lium_plan.ssh.errors import HostKeyChanged, KeyUnusable, LoginRefused, Stage, Unreachable
from lium_plan.ssh.keys import make_key
from lium_plan.ssh.pins import PinStore
from lium_plan.ssh.protocol import Coordinates


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_stages_are_told_in_order(tmp_path: Path, key_path: Path) -> None:
    async def scenario() -> list[str]:
        stages: list[str] = []
        async with asyncssh_server(tmp_path, key_path) as server:
            session = await SshConnector(FAST).open(
                server.coordinates,
                pin=server.pins.pin("pod-1"),
                key_path=key_path,
                deadline_s=10,
                on_stage=stages.append,
            )
            await session.close()
        return stages

    assert asyncio.run(scenario()) == ["port", "banner", "host-key", "login"]


def test_g3_a_refused_port_is_waited_for(tmp_path: Path, key_path: Path) -> None:
    async def scenario() -> int:
        where = Coordinates("root", "127.0.0.1", _free_port())
        refused = asyncio.Event()
        attempts = 0

        def on_stage(stage: Stage) -> None:
            nonlocal attempts
            attempts += stage is Stage.PORT
            if attempts == 3:
                refused.set()

        opening = asyncio.create_task(
            SshConnector(FAST).open(
                where,
                pin=PinStore(tmp_path / "pins").pin("p"),
                key_path=key_path,
                deadline_s=10,
                on_stage=on_stage,
            )
        )
        await refused.wait()
        async with asyncssh_server(tmp_path, key_path, port=where.port):
            await (await opening).close()
        return attempts

    assert asyncio.run(scenario()) >= 3


@pytest.mark.parametrize("fault", ["close", "reset", "silent", "banner", "http"])
def test_g3_a_port_that_leads_nowhere_yet_is_waited_for(tmp_path: Path, key_path: Path, fault: str) -> None:
    timing = Timing(connect_s=0.4, banner_s=0.1, attempt_every_s=0.01, login_patience_s=0.3)

    async def scenario() -> int:
        async with asyncssh_server(tmp_path, key_path) as server, Gate(server.coordinates.port, [fault, fault]) as gate:
            session = await server.open(port=gate.port, timing=timing)
            done = await session.run("true", timeout_s=5)
            assert done.exit_status == 0
            await session.close()
            return gate.connections

    assert asyncio.run(scenario()) == 3


@pytest.mark.parametrize(
    ("fault", "stage", "reason"),
    [
        ("close", Stage.BANNER, "closed before a banner"),
        ("reset", Stage.BANNER, "reset"),
        ("silent", Stage.BANNER, "no banner within"),
        ("http", Stage.BANNER, "no SSH server"),
        ("banner", Stage.HOST_KEY, "no answer within"),
    ],
)
def test_the_deadline_ends_with_stage_reason_attempts_and_time(
    tmp_path: Path, key_path: Path, fault: str, stage: Stage, reason: str
) -> None:
    timing = Timing(connect_s=0.1, banner_s=0.1, attempt_every_s=0.05, login_patience_s=0.3)

    async def scenario() -> Unreachable:
        async with asyncssh_server(tmp_path, key_path) as server, Gate(server.coordinates.port, [fault] * 99) as gate:
            with pytest.raises(Unreachable) as caught:
                await server.open(port=gate.port, timing=timing, deadline_s=0.45)
        return caught.value

    problem = asyncio.run(scenario())
    assert problem.stage is stage
    assert reason in str(problem)
    assert 2 <= problem.attempts <= 10
    assert problem.waited_s <= 0.6
    assert f"{problem.attempts} attempts" in str(problem)


def test_a_name_that_does_not_resolve_is_a_reason_of_the_port(tmp_path: Path, key_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(Unreachable, match=r"can't be reached \(port\).*resolved") as caught:
            await SshConnector(FAST).open(
                Coordinates("root", "no-such-host.invalid", 22),
                pin=PinStore(tmp_path).pin("p"),
                key_path=key_path,
                deadline_s=0.05,
            )
        assert caught.value.stage is Stage.PORT

    asyncio.run(scenario())


def test_g3_a_refused_login_is_waited_for(tmp_path: Path, key_path: Path) -> None:
    answers = [False, False]

    async def scenario() -> None:
        async with asyncssh_server(tmp_path, key_path, lets_in=lambda: not answers or answers.pop()) as server:
            await (await server.open()).close()

    asyncio.run(scenario())
    assert not answers


def test_g3_the_wrong_key_is_given_up_after_its_patience_long_before_the_deadline(
    tmp_path: Path, key_path: Path
) -> None:
    async def scenario() -> LoginRefused:
        async with asyncssh_server(tmp_path, key_path) as server:
            wrong = tmp_path / "wrong"
            make_key(wrong)
            with pytest.raises(LoginRefused) as caught:
                await Server(server.coordinates, wrong, server.home, server.pins).open(deadline_s=60)
            assert server.pins.pin("pod-1").load() == ()
        return caught.value

    problem = asyncio.run(scenario())
    assert 0.3 <= problem.waited_s < 5
    assert problem.attempts > 1
    assert "wrong" in problem.key


def test_a_missing_key_is_told_before_connecting(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Gate(1) as gate:
            with pytest.raises(KeyUnusable):
                await SshConnector(FAST).open(
                    Coordinates("root", "127.0.0.1", gate.port),
                    pin=PinStore(tmp_path).pin("p"),
                    key_path=tmp_path / "none",
                    deadline_s=5,
                )
            assert gate.connections == 0

    asyncio.run(scenario())


def test_g7_the_first_key_is_pinned_and_another_one_refused_until_forgotten(tmp_path: Path, key_path: Path) -> None:
    async def scenario() -> None:
        first, second = (asyncssh.generate_private_key(kind) for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256"))
        async with asyncssh_server(tmp_path, key_path, host_key=first) as server:
            port = server.coordinates.port
            for _ in range(2):
                await (await server.open()).close()
            pinned = server.pins.pin("pod-1").load()
            assert pinned == (" ".join(first.export_public_key().decode().split()[:2]),)
        async with asyncssh_server(tmp_path, key_path, host_key=second, port=port) as server:
            with pytest.raises(HostKeyChanged) as caught:
                await server.open()
            assert caught.value.expected == (first.get_fingerprint(),)
            assert caught.value.shown == second.get_fingerprint()
            assert server.pins.pin("pod-1").load() == pinned
            # The address now belongs to another pod: nothing wrong with that.
            await (await server.open("pod-2")).close()
            server.pins.forget_pin("pod-1")
            await (await server.open()).close()
            assert server.pins.pin("pod-1").load() != pinned

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["silent", "banner"])
def test_cancelling_takes_effect_at_once(tmp_path: Path, key_path: Path, fault: str) -> None:
    async def scenario() -> float:
        async with asyncssh_server(tmp_path, key_path) as server, Gate(server.coordinates.port, [fault] * 9) as gate:
            told = asyncio.Event()

            def on_stage(stage: Stage) -> None:
                if stage is (Stage.BANNER if fault == "silent" else Stage.HOST_KEY):
                    told.set()

            opening = asyncio.create_task(
                SshConnector(Timing()).open(
                    Coordinates("root", "127.0.0.1", gate.port),
                    pin=server.pins.pin("p"),
                    key_path=key_path,
                    deadline_s=60,
                    on_stage=on_stage,
                )
            )
            await told.wait()
            began = time.monotonic()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            return time.monotonic() - began

    assert asyncio.run(scenario()) < 1


@pytest.mark.parametrize("content", [b"", b"\xff\0", b"one\ntwo fields\n", b"# nothing\n", None], ids=str)
def test_a_pin_that_can_not_be_read_is_not_taken_for_none(tmp_path: Path, content: bytes | None) -> None:
    pin = PinStore(tmp_path).pin("p")
    assert pin.load() == ()
    if content is None:
        os.mkfifo(pin.path)
    else:
        pin.path.write_bytes(content)
    with pytest.raises(OSError, match=r"no host key|not a file"):
        pin.load()
