"""What confined mode promises."""

from __future__ import annotations

from pathlib import Path

import asyncssh
import pytest
from pods_lab import entered, laboratory, run, sleeping, unmistakable_seconds, until

from lium_plan.sim.pods import linux


def test_the_mode_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=True) as lab:
            assert lab.runtime.mode == "confined"
            assert lab.said == [] or "Landlock" in lab.said[0]

    run(test())


def test_commands_can_write_in_the_pod_s_directory_and_nowhere_else(tmp_path: Path) -> None:
    if not linux.landlock_version():
        pytest.skip("no Landlock on this system: commands are not fenced in, as the runtime says")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("before")

    async def test() -> None:
        async with laboratory(tmp_path / "root", confined=True) as lab:
            one, _ = await lab.start(pod_id="one"), await lab.start(pod_id="two")
            neighbour = tmp_path / "root/pods/two/local/file"
            script = (
                f"for f in {elsewhere}/file {elsewhere}/new {neighbour}; do echo x >$f; done; "
                f"rm {elsewhere}/file; mv {elsewhere}/file here; ln -s {elsewhere} l; echo x >l/new; "
                "echo x >here && echo x >$TMPDIR/here && echo x >/dev/null && echo fine"
            )
            async with await lab.connect(one) as connection:
                assert str((await connection.run(script)).stdout) == "fine\n"
            assert not neighbour.exists()
        assert (elsewhere / "file").read_text() == "before"
        assert [path.name for path in elsewhere.iterdir()] == ["file"]

    run(test())


def test_gpus_and_mounts_are_told_by_programs_in_path(tmp_path: Path) -> None:
    async def test() -> None:
        async with laboratory(tmp_path, confined=True) as lab:
            endpoint = await lab.start(pod_id="one", volume_id="vol-1")
            script = "nvidia-smi -L | wc -l; mountpoint /mnt; mountpoint -q /mnt && echo yes; echo kept >mnt/file"
            assert (await lab.sh(endpoint, script)).split() == ["2", "/mnt", "is", "a", "mountpoint", "yes"]
            other = await lab.start(pod_id="two", volume_id="vol-1")
            assert await lab.sh(other, "cat mnt/file") == "kept\n"
            none = await lab.start(pod_id="three")
            assert await lab.sh(none, "mountpoint -q /mnt || echo no") == "no\n"

    run(test())


def test_stop_ends_what_was_detached(tmp_path: Path) -> None:
    seconds = unmistakable_seconds()

    async def test() -> None:
        async with laboratory(tmp_path, confined=True) as lab:
            endpoint = await lab.start(command=f"sh -c 'sleep {seconds} & exec sleep {seconds}'")
            await lab.sh(endpoint, f"setsid nohup sh -c 'sleep {seconds}; true' </dev/null >/dev/null 2>&1 &")

            async def all_run() -> bool:
                return len(sleeping(seconds)) == 3

            await until(all_run)
            await lab.runtime.stop("pod-1")
            assert sleeping(seconds) == []
            assert list((tmp_path / "pods").iterdir()) == []

    run(test())


def test_forwarding_reaches_loopback_only(tmp_path: Path) -> None:
    async def test() -> None:
        async with entered(tmp_path, confined=True) as connection:
            with pytest.raises(asyncssh.ChannelOpenError, match="loopback"):
                await connection.open_connection("192.0.2.1", 80)

    run(test())
