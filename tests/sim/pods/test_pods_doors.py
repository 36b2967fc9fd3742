"""Ports, host keys and the ways in which SSH misbehaves on request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncssh
import pytest
from pods_lab import Lab, laboratory, run, until

from lium_plan.sim.runtime import Endpoint, SshFault


async def _first_bytes(endpoint: Endpoint) -> bytes:
    """What the port says by itself; raises as the connection does."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.ports[22])
    try:
        return await reader.read(64)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


async def _host_key(lab: Lab, endpoint: Endpoint) -> bytes:
    async with await lab.connect(endpoint) as connection:
        key = connection.get_server_host_key()
        assert key is not None
        return key.public_data


def test_ports_that_refuse_reset_or_close(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            endpoint = await lab.start()
            await lab.runtime.set_fault("pod-1", SshFault("refuse"))
            with pytest.raises(ConnectionRefusedError):
                await _first_bytes(endpoint)
            await lab.runtime.set_fault("pod-1", SshFault("reset"))
            with pytest.raises(ConnectionResetError):
                await _first_bytes(endpoint)
            await lab.runtime.set_fault("pod-1", SshFault("close"))
            assert await _first_bytes(endpoint) == b""
            await lab.runtime.set_fault("pod-1", SshFault("none"))
            assert (await _first_bytes(endpoint)).startswith(b"SSH-2.0-")

    run(test())


@pytest.mark.parametrize(("mode", "said"), [("silent", b""), ("banner_only", b"SSH-2.0-")])
def test_a_server_that_says_nothing_more_until_it_heals(tmp_path: Path, mode: str, said: bytes) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=True) as lab:
            endpoint = await lab.start()
            await lab.runtime.set_fault("pod-1", SshFault(mode, seconds=0.15))
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.ports[22])
            writer.write(b"SSH-2.0-test\r\n")
            assert (await reader.read()).startswith(said)
            writer.close()
            assert await lab.sh(endpoint, "echo healed") == "healed\n"

    run(test())


def test_refused_keys_are_a_refusal_of_login(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            endpoint = await lab.start()
            await lab.runtime.set_fault("pod-1", SshFault("auth"))
            with pytest.raises(asyncssh.PermissionDenied):
                await lab.connect(endpoint)
            await lab.runtime.set_fault("pod-1", SshFault("none"))
            assert await lab.sh(endpoint, "echo in") == "in\n"

    run(test())


def test_a_hung_session_neither_answers_nor_ends_until_it_heals(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            endpoint = await lab.start()
            connection = await lab.connect(endpoint)
            await lab.runtime.set_fault("pod-1", SshFault("hang"))
            command = asyncio.create_task(connection.run("echo hi"))
            # A second client comes and goes while the first hears nothing.
            assert await lab.sh(endpoint, "echo other") == "other\n"
            assert not command.done()
            await lab.runtime.set_fault("pod-1", SshFault("none"))
            with pytest.raises((asyncssh.Error, OSError)):
                await command

    run(test())


def test_unknown_modes_are_refused_and_unknown_pods_are_not(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=True) as lab:
            await lab.start()
            with pytest.raises(ValueError, match="sulk"):
                await lab.runtime.set_fault("pod-1", SshFault("sulk"))
            await lab.runtime.set_fault("unknown", SshFault("refuse"))
            await lab.runtime.change_host_key("unknown")
            await lab.runtime.stop("unknown")
            await lab.runtime.stop("../unknown")
            await lab.runtime.forget_volume("unknown")

    run(test())


def test_until_the_delay_is_over_connections_are_accepted_and_closed(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            endpoint = await lab.start(ssh_delay_s=0.4)
            assert await _first_bytes(endpoint) == b""

            async def answers() -> bool:
                return (await _first_bytes(endpoint)).startswith(b"SSH-2.0-")

            await until(answers)

    run(test())


def test_the_host_key_changes_on_request_and_with_the_generation(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            endpoint = await lab.start()
            keys = [await _host_key(lab, endpoint)]
            connection = await lab.connect(endpoint)
            await lab.runtime.change_host_key("pod-1")
            await connection.wait_closed()
            keys.append(await _host_key(lab, endpoint))
            endpoint = await lab.start(generation=2)
            keys.append(await _host_key(lab, endpoint))
            other = await lab.start(pod_id="pod-2")
            keys.append(await _host_key(lab, other))
            assert len(set(keys)) == 4

    run(test())
