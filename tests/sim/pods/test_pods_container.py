"""What is special about a container in namespaces."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import asyncssh
import pytest
from pods_lab import entered, laboratory, run, sleeping, unmistakable_seconds, until

pytestmark = pytest.mark.usefixtures("namespaces")

READ_FIRST_PROCESS = "tr '\\0' '\\n' </proc/1/environ; readlink /proc/1/cwd"


def test_pid_1_has_the_image_s_environment_and_directory(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=False) as lab:
            image = "pytorch/pytorch:2.4.1-cuda12.1-cudnn9-runtime"
            endpoint = await lab.start(image=image, environment={"TOKEN": "a 'quoted' b"})
            *environment, directory = (await lab.sh(endpoint, READ_FIRST_PROCESS)).splitlines()
            values = dict(line.split("=", 1) for line in environment)
            assert values["PYTORCH_VERSION"] == "2.4.1"
            assert values["CUDA_VERSION"] == "12.1"
            assert values["TOKEN"] == "a 'quoted' b"
            assert values["PATH"].startswith("/opt/conda/bin:")
            assert directory == "/workspace"

    run(test())


def test_an_image_for_another_user_runs_pid_1_as_that_user_and_sessions_as_root(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=False) as lab:
            endpoint = await lab.start(
                image="limsim/uid1000:1",
                command="sh -c 'id -u; touch here; exec sleep infinity'",
            )
            *environment, directory = (await lab.sh(endpoint, READ_FIRST_PROCESS)).splitlines()
            assert "HOME=/home/user" in environment
            assert directory == "/home/user"
            assert await lab.sh(endpoint, "id -u; ls /home/user") == "0\nhere\n"
            assert await lab.runtime.output("pod-1", 5) == ("1000",)

    run(test())


def test_the_smallest_image_has_neither_bash_nor_python_but_what_a_launcher_needs(tmp_path: Path) -> None:
    tools = "sh env tr wc xargs nohup mkdir chmod kill sleep mv rm cat ls mountpoint nvidia-smi"

    async def test() -> None:
        async with laboratory(tmp_path, confined=False) as lab:
            endpoint = await lab.start(image="limsim/busybox:1.36")
            found = await lab.sh(endpoint, f"for t in {tools} bash python3 perl; do command -v $t; done; true")
            assert {line.rpartition("/")[2] for line in found.splitlines()} == set(tools.split())
            assert await lab.sh(endpoint, "echo $SHELL; echo a b | xargs -n1 echo; nvidia-smi -L | wc -l") == (
                "/bin/sh\na\nb\n2\n"
            )

    run(test())


def test_nothing_of_the_host_is_there_or_can_be_changed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the host's")

    async def test() -> None:
        async with laboratory(tmp_path / "root", confined=False) as lab:
            endpoint = await lab.start()
            script = (
                f"cat {tmp_path}/secret /etc/shadow; ls -A /home /mnt /opt /tmp; "
                "for f in /usr/x /bin/x /usr/local/sbin/x /etc/ssl/x /proc/sys/vm/swappiness; do "
                "echo 1 >$f && echo wrote $f; done; "
                "for m in '-o remount,rw,bind /usr' '-t tmpfs x /usr'; do mount $m && echo mounted; done; "
                "umount /usr && echo unmounted; true"
            )
            async with await lab.connect(endpoint) as connection:
                done = await connection.run(script)
            assert str(done.stdout).split() == ["/home:", "/mnt:", "/opt:", "/tmp:"]
            assert str(done.stderr).count("\n") >= 10

    run(test())


def test_private_directories_are_private_and_writable(tmp_path: Path) -> None:
    places = "/root /mnt /workspace /tmp /var/tmp /run /home /opt /etc /dev/shm"

    async def test() -> None:
        async with laboratory(tmp_path, confined=False) as lab:
            one, two = await lab.start(pod_id="one"), await lab.start(pod_id="two")
            await lab.sh(one, f"set -e; for d in {places}; do echo 1 >$d/mark; done")
            count = await lab.sh(two, f"for d in {places}; do cat $d/mark 2>/dev/null; done | wc -l")
            assert count.strip() == "0"
            assert (await lab.sh(two, "ps ax -o pid= -o comm=")).split()[:2] == ["1", "sleep"]

    run(test())


def test_devices_are_there(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=False) as lab:
            script = (
                "set -e; head -c 3 /dev/zero | wc -c; head -c 3 /dev/urandom | wc -c; echo x >/dev/null; "
                "[ -c /dev/ptmx ]; ls /dev/nvidia[0-9]* | wc -l; echo through | cat /dev/stdin"
            )
            assert (await lab.sh(await lab.start(), script)).split() == ["3", "3", "2", "through"]

    run(test())


@pytest.mark.parametrize(("attached", "fails"), [(True, False), (True, True), (False, False)])
def test_mnt_is_a_mount_exactly_when_a_volume_is_attached(tmp_path: Path, attached: bool, fails: bool) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=False) as lab:
            endpoint = await lab.start(volume_id="vol-1" if attached else None, volume_mount_fails=fails)
            script = "mountpoint -q /mnt; echo $?; grep -c ' /mnt ' /proc/self/mountinfo; true"
            status, lines = (await lab.sh(endpoint, script)).split()
            assert (status == "0", int(lines) > 0) == ((True, True) if attached and not fails else (False, False))
            if os.access("/dev/fuse", os.R_OK | os.W_OK):
                s3fs = await lab.sh(endpoint, "grep -c ' /mnt .* - fuse.s3fs ' /proc/self/mountinfo; true")
                assert s3fs.strip() == lines.replace("2", "1")

    run(test())


def test_volume_content_outlives_pods_and_goes_when_forgotten(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=False) as lab:
            await lab.sh(await lab.start(pod_id="one", volume_id="vol-1"), "echo kept >/mnt/file")
            await lab.runtime.stop("one")
            assert await lab.sh(await lab.start(pod_id="two", volume_id="vol-1"), "cat /mnt/file") == "kept\n"
            await lab.runtime.stop("two")
            await lab.runtime.forget_volume("vol-1")
            assert await lab.sh(await lab.start(pod_id="three", volume_id="vol-1"), "ls /mnt") == ""

    run(test())


def test_a_new_generation_keeps_the_local_volume_alone(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=False) as lab:
            first = await lab.start(local_volume="/data")
            await lab.sh(first, "echo kept >/data/file; echo lost >/root/file; echo lost >/workspace/file")
            second = await lab.start(local_volume="/data", generation=2)
            shown = await lab.sh(second, "cat /data/file; ls /root /workspace; mountpoint -q /data && echo mounted")
            assert shown.split() == ["kept", "/root:", "/workspace:", "mounted"]

    run(test())


def test_published_ports_and_forwarding_reach_the_pod_s_own_loopback(tmp_path: Path) -> None:
    server = "sh -c 'exec python3 -m http.server --bind 127.0.0.1 8000'"

    async def test() -> None:
        async with laboratory(tmp_path, confined=False) as lab:
            endpoint = await lab.start(internal_ports=(22, 8000), extra_ports=2, command=server)
            assert set(endpoint.ports) == {22, 8000, 20000, 20001}
            assert len(set(endpoint.ports.values())) == 4

            async def published() -> bool:
                reader, writer = await asyncio.open_connection(endpoint.host, endpoint.ports[8000])
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                answer = await reader.read()
                writer.close()
                await writer.wait_closed()
                return answer.startswith(b"HTTP/1.0 200")

            await until(published)
            async with await lab.connect(endpoint) as connection:
                reader, writer = await connection.open_connection("localhost", 8000)
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                assert (await reader.read()).startswith(b"HTTP/1.0 200")
                for host, port in (("localhost", 9), ("192.0.2.1", 80), ("example.invalid", 80)):
                    with pytest.raises(asyncssh.ChannelOpenError):
                        await connection.open_connection(host, port)

    run(test())


def test_low_ports_can_be_bound_and_names_fail_at_once(tmp_path: Path) -> None:
    bind = "import socket; socket.create_server(('127.0.0.1', 80)); print('bound')"
    script = f'python3 -c "{bind}"; getent hosts example.com'

    async def test() -> None:
        async with entered(tmp_path, confined=False) as connection:
            done = await connection.run(script)
            assert (done.stdout, done.exit_status) == ("bound\n", 2)

    run(test())


def test_a_pid_1_that_ends_is_run_again_and_takes_everything_with_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=False) as lab:
            endpoint = await lab.start(command="sh -c 'echo begins; mkfifo /tmp/end 2>/dev/null; read x </tmp/end'")
            await lab.sh(endpoint, "while [ ! -p /tmp/end ]; do sleep 0.02; done")
            connection = await lab.connect(endpoint)
            process = await connection.create_process("sleep 1000")
            async with await lab.connect(endpoint) as other:
                await other.run("echo >/tmp/end; sleep 1000")
            assert (await process.wait()).exit_status is None

            async def again() -> bool:
                return (await lab.runtime.output("pod-1", 10)).count("begins") == 2

            await until(again)
            assert "begins" in await lab.runtime.output("pod-1", 1)
            assert (await lab.sh(endpoint, "ls /tmp")).strip() == "end"

    run(test())


def test_output_has_the_last_lines_and_says_what_the_image_lacks(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=False) as lab:
            await lab.start(entrypoint="/bin/sh -c", command="'seq 5000; exec sleep infinity'")

            async def printed() -> bool:
                return await lab.runtime.output("pod-1", 2) == ("4999", "5000")

            await until(printed)
            endpoint = await lab.start(generation=2, entrypoint="/start.sh")
            assert await lab.sh(endpoint, "cat /proc/1/comm") == "sleep\n"
            (line,) = await lab.runtime.output("pod-1", 5)
            assert "/start.sh" in line
            assert await lab.runtime.output("unknown", 5) == ()

    run(test())


def test_pid_1_reaps_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=False) as lab:
            endpoint = await lab.start()
            # It ends only after the shell that started it, which would have reaped it.
            start = "mkfifo go; setsid sh -c 'echo $$ >pid; read line <go' </dev/null >/dev/null 2>&1 &"
            await lab.sh(endpoint, start)
            await lab.sh(endpoint, "echo >go")
            script = "while ! grep -q 'State:.Z' /proc/$(cat pid)/status; do sleep 0.02; done; kill -0 $(cat pid)"
            await lab.sh(endpoint, script)

    run(test())


def test_stop_ends_every_process_and_deletes_every_file(tmp_path: Path) -> None:
    seconds = unmistakable_seconds()

    async def test() -> None:
        async with laboratory(tmp_path, confined=False) as lab:
            endpoint = await lab.start(volume_id="vol-1")
            await lab.sh(
                endpoint,
                f"mkdir -p d/e; touch d/e/f; chmod 0 d/e d; setsid sleep {seconds} >/dev/null 2>&1 &",
            )
            await lab.runtime.stop("pod-1")
            assert not sleeping(seconds)
            assert list((tmp_path / "pods").iterdir()) == []
            assert (tmp_path / "volumes/vol-1").is_dir()
            with pytest.raises(OSError, match="Connect call failed"):
                await lab.connect(endpoint)

    run(test())
