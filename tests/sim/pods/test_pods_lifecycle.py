"""Simulators that end, are killed, and come back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pods_lab import laboratory, run, sleeping, unmistakable_seconds, until

import lium_plan
from lium_plan.sim.pods import open_runtime, tracking

SIMULATOR = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from pods_lab import Lab
async def main():
    lab = Lab(Path(sys.argv[1]), confined=sys.argv[2] == "confined")
    endpoint = await lab.start(command="sleep " + sys.argv[4])
    await lab.sh(endpoint, "echo kept >file; setsid nohup sleep " + sys.argv[4] + " </dev/null >/dev/null 2>&1 &")
    print(lab.runtime.mode, endpoint.ports[22], await lab.sh(endpoint, "cat file"), flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


def test_a_restarted_simulator_finds_files_key_and_port(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        seen = []
        for _ in range(2):
            async with laboratory(tmp_path, confined=confined) as lab:
                endpoint = await lab.start(local_volume="/data")
                async with await lab.connect(endpoint) as connection:
                    await connection.run("echo line >>file", check=True)
                    key = connection.get_server_host_key()
                    assert key is not None
                    lines = str((await connection.run("cat file")).stdout)
                seen.append((endpoint, key.public_data, lines))
        (first, first_key, once), (second, second_key, twice) = seen
        assert (first, first_key) == (second, second_key)
        assert (once, twice) == ("line\n", "line\nline\n")

    run(test())


def test_a_killed_simulator_leaves_nothing_running(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        mode, seconds = "confined" if confined else "namespaces", unmistakable_seconds()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SIMULATOR, str(tmp_path), mode, str(Path(__file__).parent), seconds,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert (await process.stdout.readline()).decode().split()[0] == mode
        assert len(sleeping(seconds)) == 2
        process.kill()
        await process.wait()

        async def gone() -> bool:
            return not sleeping(seconds)

        await until(gone)
        async with laboratory(tmp_path, confined=confined) as lab:
            assert await lab.sh(await lab.start(), "cat file") == "kept\n"

    run(test())


def test_what_came_in_over_ssh_is_work_until_it_has_ended(tmp_path: Path, confined: bool) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            assert not await lab.runtime.working()
            endpoint = await lab.start(command="sh -c 'sleep 1000 & sleep 1000'")
            assert not await lab.runtime.working()
            async with await lab.connect(endpoint) as connection:
                assert await lab.runtime.working()
                detached = "setsid nohup sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"
                pid = str((await connection.run(detached, check=True)).stdout).strip()

            async def lost() -> bool:
                return not any(pod.is_entered for pod in lab.runtime._pods.values())  # type: ignore[attr-defined]

            await until(lost)
            assert await lab.runtime.working()
            await lab.sh(endpoint, f"kill {pid}")

            async def idle() -> bool:
                return not await lab.runtime.working()

            await until(idle)

    run(test())


def test_what_a_dead_launcher_left_is_ended_by_the_next_runtime(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=True) as lab:
            await lab.start()
        mark = lab.runtime._mark  # type: ignore[attr-defined]
        environment = {tracking.VARIABLE: f"{mark}/pod-1/", "PATH": os.environ["PATH"]}
        left = await asyncio.create_subprocess_exec("sleep", unmistakable_seconds(), env=environment)
        async with laboratory(tmp_path, confined=True):
            assert await left.wait() == -signal.SIGKILL

    run(test())


def test_two_simulators_do_not_share_a_directory(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=True):
            with pytest.raises(OSError, match="another simulator"):
                open_runtime(tmp_path, confined=True, say=print)

    run(test())


def test_closing_gives_back_every_descriptor_and_port(tmp_path: Path, confined: bool) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no list of descriptors on this system")

    async def test() -> None:
        before = len(os.listdir("/proc/self/fd"))
        async with laboratory(tmp_path, confined=confined) as lab:
            endpoints = await asyncio.gather(
                *(lab.start(pod_id=f"pod-{i}", internal_ports=(22, 8000)) for i in range(5))
            )
            await asyncio.gather(*(lab.sh(endpoint, "true") for endpoint in endpoints))
            await lab.start(pod_id="pod-0", generation=2)
            await lab.runtime.stop("pod-1")
        assert len(os.listdir("/proc/self/fd")) == before

    run(test())


def test_where_namespaces_are_not_allowed_pods_are_confined_and_one_line_says_so(tmp_path: Path) -> None:
    if _ends_well([*NO_NAMESPACES, "true"]) is False:
        pytest.skip("user namespaces can't be forbidden here for a trial")
    program = FALLBACK.replace("LAB", str(Path(__file__).parent))
    command = [*NO_NAMESPACES, sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 2, done.stderr
    assert lines[0].startswith("Pods run in confined mode")
    assert lines[1] == "confined fine"


NO_NAMESPACES = (
    "unshare",
    "-Ur",
    "sh",
    "-c",
    'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"',
    "sh",
)
FALLBACK = """
import sys
from pathlib import Path
sys.path.insert(0, "LAB")
from pods_lab import laboratory, run
async def main():
    async with laboratory(Path(sys.argv[1]), confined=False) as lab:
        word = await lab.sh(await lab.start(), "echo fine")
        print(*lab.said, sep="\\n")
        print(lab.runtime.mode, word)
run(main())
"""


def _ends_well(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def test_many_containers_at_once(tmp_path: Path, confined: bool) -> None:
    count = 16

    async def test() -> None:
        async with laboratory(tmp_path, confined=confined) as lab:
            endpoints = await asyncio.gather(*(lab.start(pod_id=f"pod-{i}", gpu_count=1 + i % 8) for i in range(count)))
            assert len({endpoint.ports[22] for endpoint in endpoints}) == count
            counts = await asyncio.gather(*(lab.sh(endpoint, "nvidia-smi -L | wc -l") for endpoint in endpoints))
            assert [int(text) for text in counts] == [1 + i % 8 for i in range(count)]

    run(test())


def test_an_ordinary_user_gets_namespaces_too(tmp_path: Path, namespaces: None) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("this run is an ordinary user's already")
    python = _python_for_everybody()
    root = Path("/tmp", f"lium-plan-pods-{os.getpid()}")
    root.mkdir()
    os.chown(root, 65534, 65534)
    program = root / "program.py"
    libraries = [str(Path(lium_plan.__file__).parent.parent), *(path for path in sys.path if path)]
    program.write_text((Path(__file__).parent / "pods_lab.py").read_text() + ORDINARY_USER)
    try:
        done = subprocess.run(
            [*AS_NOBODY, *python, str(program), str(root / "sim")],
            env={"PYTHONPATH": os.pathsep.join(libraries), "PATH": os.environ["PATH"]},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
        )  # fmt: skip
        assert done.stdout.split() == ["namespaces", "0", "/home/user", "1000", "root", "text"], done.stderr
    finally:
        shutil.rmtree(root)


AS_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
ORDINARY_USER = """
import sys
async def main():
    async with laboratory(Path(sys.argv[1]), confined=False) as lab:
        endpoint = await lab.start(image="limsim/uid1000", command="sh -c 'id -u; exec sleep infinity'")
        print(lab.runtime.mode, await lab.sh(endpoint, "id -u; readlink /proc/1/cwd; cat /proc/1/environ >/dev/null"))
        print(*await lab.runtime.output("pod-1", 1))
        async with await lab.connect(endpoint) as connection, connection.start_sftp_client() as sftp:
            async with sftp.open("/workspace/file", "w") as file:
                await file.write("text")
            await sftp.chown("/workspace/file", 0, 0)
            print({0: "root"}.get((await sftp.stat("/workspace/file")).uid))
        print(await lab.sh(endpoint, "cat /workspace/file"))
        await lab.runtime.stop("pod-1")
run(main())
"""


def _python_for_everybody() -> list[str]:
    """A Python that any user may run, of this version's kind, with our libraries readable to it."""
    found = next((path for path in (sys.executable, "/usr/bin/python3") if _open_to_all(Path(path))), None)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if found is not None:
        shown = subprocess.run([found, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True)
        if shown.stdout.decode().strip() == version:
            return [found, "-B"]
    pytest.skip(f"no Python {version} that another user may run")


def _open_to_all(path: Path) -> bool:
    real = path.resolve()
    return real.exists() and all(parent.stat().st_mode & 0o001 for parent in (real, *real.parents))
