"""SFTP and scp: the pod's files, and never the host's."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import asyncssh
import pytest
from pods_lab import KEY, laboratory, run, with_files


def test_a_file_is_put_in_place_and_read_by_a_command(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with with_files(tmp_path, confined=confined) as (connection, sftp):
            await sftp.makedirs("deep/er")
            async with sftp.open("deep/er/file.part", "wb") as file:
                await file.write(b"payload")
            await sftp.chmod("deep/er/file.part", 0o640)
            await sftp.posix_rename("deep/er/file.part", "deep/er/file")
            done = await connection.run("cat deep/er/file; stat -c ' %a %U' deep/er/file")
            assert str(done.stdout).split()[:2] == ["payload", "640"]
            assert await sftp.listdir("deep/er") == [".", "..", "file"]
            attributes = await sftp.stat("deep/er/file")
            # Confined pods run as whoever runs the simulator.
            assert (attributes.size, attributes.uid) == (7, os.geteuid() if confined else 0)
            await sftp.remove("deep/er/file")
            assert not await sftp.exists("deep/er/file")

    run(test())


def test_home_is_the_login_directory(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with with_files(tmp_path, confined=confined) as (connection, sftp):
            here = await sftp.realpath(".")
            assert str((await connection.run("pwd")).stdout).strip() == here
            async with sftp.open(f"{here}/absolute", "w") as file:
                await file.write("inside")
            assert str((await connection.run("cat absolute")).stdout) == "inside"

    run(test())


def test_links_are_links(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with with_files(tmp_path, confined=confined) as (_, sftp):
            async with sftp.open("real", "w") as file:
                await file.write("text")
            await sftp.symlink("real", "link")
            assert await sftp.readlink("link") == "real"
            assert stat.S_ISLNK((await sftp.lstat("link")).permissions or 0)
            assert (await sftp.stat("link")).size == 4
            await sftp.remove("link")
            assert await sftp.exists("real")

    run(test())


def test_no_link_leads_to_the_host(tmp_path: Path, namespaces: None) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("the host's")

    async def test() -> None:
        async with laboratory(tmp_path / "root", confined=False) as lab:
            endpoint = await lab.start()
            await lab.sh(endpoint, f"ln -s {outside} abs; ln -s ../../../../../../../..{outside} up; ln -s / top")
            async with await lab.connect(endpoint) as connection, connection.start_sftp_client() as sftp:
                for path in ("abs/secret", "up/secret", f"top{outside}/secret", f"../..{outside}/secret"):
                    with pytest.raises(asyncssh.SFTPNoSuchFile):
                        await sftp.stat(path)
                await connection.run(f"mkdir -p {outside}", check=True)
                async with sftp.open("abs/mine", "w") as file:
                    await file.write("the pod's")
                assert str((await connection.run(f"cat {outside}/mine")).stdout) == "the pod's"
        assert [path.name for path in outside.iterdir()] == ["secret"]

    run(test())


def test_absolute_paths_work_in_namespaces(tmp_path: Path, namespaces: None) -> None:
    async def test() -> None:
        async with with_files(tmp_path, confined=False) as (connection, sftp):
            async with sftp.open("/workspace/file", "w") as file:
                await file.write("here")
            assert str((await connection.run("cat /workspace/file")).stdout) == "here"
            with pytest.raises(asyncssh.SFTPError):
                await sftp.open("/usr/file", "w")

    run(test())


def test_confined_sftp_refuses_what_lies_outside_with_the_reason(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path / "root", confined=True) as lab:
            endpoint = await lab.start()
            await lab.sh(endpoint, f"ln -s {tmp_path} link")
            async with await lab.connect(endpoint) as connection, connection.start_sftp_client() as sftp:
                for path in (f"{tmp_path}/file", "link/file", "../../file", "/workspace/file"):
                    with pytest.raises(asyncssh.SFTPPermissionDenied, match="confined mode"):
                        await sftp.open(path, "w")
        assert not (tmp_path / "file").exists()

    run(test())


def test_a_pipe_does_not_stop_the_server(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            endpoint = await lab.start()
            await lab.sh(endpoint, "mkfifo pipe")
            async with await lab.connect(endpoint) as connection, connection.start_sftp_client() as sftp:
                with pytest.raises(asyncssh.SFTPFailure):
                    await sftp.open("pipe", "r")

    run(test())


@pytest.mark.parametrize("protocol", ["-O", "-s"])
def test_openssh_s_scp_copies_both_ways(tmp_path: Path, confined: bool, protocol: str) -> None:
    if shutil.which("scp") is None:
        pytest.skip("no OpenSSH client on this machine")
    key = tmp_path / "key"
    key.write_bytes(KEY.export_private_key())
    key.chmod(0o600)
    (tmp_path / "sent").write_bytes(bytes(range(256)) * 300)

    async def test() -> None:
        import asyncio

        async with laboratory(tmp_path / "root", confined=confined) as lab:
            endpoint = await lab.start()
            options = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-F", "none")
            scp = ("scp", protocol, "-q", "-i", str(key), "-P", str(endpoint.ports[22]), *options)
            remote = f"root@{endpoint.host}:"
            for source, target in (
                (str(tmp_path / "sent"), f"{remote}there"),
                (f"{remote}there", str(tmp_path / "back")),
            ):
                process = await asyncio.create_subprocess_exec(
                    *scp, source, target, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
                _, complaint = await process.communicate()
                assert process.returncode == 0, complaint
        assert (tmp_path / "back").read_bytes() == (tmp_path / "sent").read_bytes()

    run(test())
