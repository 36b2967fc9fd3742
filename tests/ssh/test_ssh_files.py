"""Small files go in one command: byte for byte in every kind of shell, and whatever it leaves out is SFTP's."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ssh_servers import Gate, Server, session_on
from ssh_shells import SHELLS, Shell

from lium_plan.ssh.errors import FileNotSent
from lium_plan.ssh.image_env import LAUNCH, run_in_image
from lium_plan.ssh.protocol import FileToSend, Session
from lium_plan.ssh.small_files import MOST_BYTES, PutAnswer, chosen, put_script

CONTENTS = {
    "empty": b"",
    "no newline": b"last line",
    "every byte": bytes(range(256)) * 3,
    "nul": b"\0\0a\0",
    "crlf": b"a\r\nb\r\n",
    "here-document": b"cat <<EOF\nEOF\n__LP_END\n'\n",
    "format": b"%s %% %d \\n \\101 \\\\ \\c%",
    "option": b"-n --\n",
    "quotes": b"'\"`$HOME `id` $(id) \\'",
    "latin": "Füße €".encode("latin-1", "replace"),
    "utf-8": "Füße €\n".encode(),
    "newlines": b"\n\n\n",
    "-dash 'name'": b"x\n",
}


def by_command(shell: Shell, files: list[FileToSend]) -> frozenset[int]:
    """Which files the command has seen to, in a shell with that kind's tools alone."""
    answer = PutAnswer()

    async def scenario() -> None:
        script = put_script(files, chosen(files), "token")
        await shell.session().run(LAUNCH, stdin=script, on_output=answer.take, timeout_s=30)

    asyncio.run(scenario())
    assert answer.complete.is_set()
    return answer.seen_to


@pytest.fixture(params=[name for name in SHELLS if name != "bare"])
def can_put(request: pytest.FixtureRequest, shells: Callable[[str], Shell], tmp_path: Path) -> Shell:
    """Without chmod all is left to SFTP."""
    home = tmp_path / "home"
    home.mkdir()
    return replace(shells(request.param), home=home)


def test_every_byte_arrives(can_put: Shell) -> None:
    home = can_put.home
    files = [FileToSend(content, f"{home}/a b/{name}") for name, content in CONTENTS.items()]
    assert by_command(can_put, files) == frozenset(range(len(files)))
    assert {path.name: path.read_bytes() for path in (home / "a b").iterdir()} == CONTENTS


def test_relative_paths_begin_at_home_and_modes_are_as_told(can_put: Shell) -> None:
    modes = (0o600, 0o640, 0o755, 0o4711, 0o000)
    files = [FileToSend(b"x", f"new/dir/{mode:o}", mode) for mode in modes]
    assert by_command(can_put, files) == frozenset(range(len(files)))
    made = can_put.home / "new" / "dir"
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()} == set(modes)
    assert stat.S_IMODE(made.stat().st_mode) == 0o777 & ~_umask(), "others may enter as they may elsewhere"


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_what_is_there_already_is_not_written_again(can_put: Shell) -> None:
    def version(content: bytes, mode: int = 0o600) -> list[FileToSend]:
        return [FileToSend(content, "it's", mode, hashlib.sha256(content).hexdigest())]

    path = can_put.home / "it's"
    for content, mode, same in ((b"one", 0o600, False), (b"one", 0o644, True), (b"two", 0o600, False)):
        before = path.stat() if path.exists() else None
        assert by_command(can_put, version(content, mode)) == {0}
        after = path.stat()
        assert path.read_bytes() == content
        assert stat.S_IMODE(after.st_mode) == mode
        if before is not None:
            unchanged = (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
            assert unchanged is same


def test_what_can_not_be_stored_is_left_out_and_leaves_nothing(can_put: Shell) -> None:
    home = can_put.home
    (home / "dir" / "x").mkdir(parents=True)
    (home / "link").symlink_to("dir")
    (home / "file").write_text("old")
    targets = ("dir", "link", "file/below", "good")
    assert by_command(can_put, [FileToSend(b"new", target) for target in targets]) == {3}
    assert sorted(path.name for path in home.rglob("*")) == ["dir", "file", "good", "link", "x"]
    assert (home / "file").read_text() == "old"


def test_a_shell_without_chmod_leaves_all_to_sftp(shells: object, tmp_path: Path) -> None:
    bare = shells("bare")  # type: ignore[operator]
    shell = Shell(bare.name, bare.path, tmp_path)
    assert by_command(shell, [FileToSend(b"x", f"{tmp_path}/x")]) == frozenset()
    assert list(tmp_path.iterdir()) == []


def test_a_printf_that_is_a_program_is_given_nothing(tmp_path: Path) -> None:
    files = [FileToSend(b"canary", f"{tmp_path}/x")]
    script = tmp_path / "script"
    script.write_bytes(b"enable -n printf\n" + put_script(files, chosen(files), "token"))
    done = subprocess.run(["bash", str(script)], check=True, capture_output=True, env={"PATH": os.environ["PATH"]})
    assert done.stdout == b"lium-plan:put end\n"
    assert [path.name for path in tmp_path.iterdir()] == ["script"]


def test_a_torn_script_writes_nothing(dash: Shell) -> None:
    files = [FileToSend(b"one 'two' three\n", "a"), FileToSend(b"x", "b/c")]
    whole = put_script(files, chosen(files), "token")

    async def scenario() -> None:
        for cut in range(0, whole.index(b"\n__lp_put 2>") + 10, 37):
            await dash.session().run(LAUNCH, stdin=whole[:cut], timeout_s=10)

    asyncio.run(scenario())
    assert list(dash.home.iterdir()) == []


def test_contents_are_in_no_process_list(dash: Shell, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("mkdir", "chmod", "mv"):
        tool = tools / name
        tool.write_text(f"#!/bin/sh\ncat /proc/[0-9]*/cmdline >>'{tmp_path}/seen'\nexec /bin/{name} \"$@\"\n")
        tool.chmod(0o755)

    async def scenario() -> None:
        script = put_script(files, chosen(files), "token")
        session = dash.session(environment={"PATH": f"{tools}:{dash.path}"})
        await session.run(LAUNCH, stdin=script, timeout_s=10)

    files = [FileToSend(b"canary-7c1e", "new/secret")]
    asyncio.run(scenario())
    assert (dash.home / "new" / "secret").read_bytes() == b"canary-7c1e"
    seen = (tmp_path / "seen").read_bytes()
    assert b"secret" in seen
    assert b"canary-7c1e" not in seen


# --- over SSH --------------------------------------------------------------------------------------------------------


async def _output(session: Session, script: str, stdin: bytes = b"") -> str:
    out = bytearray()
    await session.run(script, stdin=stdin, on_output=out.extend, timeout_s=10)
    return out.decode()


def test_small_and_big_ones_together(openssh: Server, tmp_path: Path) -> None:
    contents = {**CONTENTS, "big": bytes(range(256)) * (MOST_BYTES // 128), "half": b"\xff" * (MOST_BYTES // 2)}
    local = tmp_path / "local"
    local.write_bytes(b"from a file\0")

    async def scenario() -> None:
        async with session_on(openssh) as session:
            files = [FileToSend(content, f"{tmp_path}/there/{name}", 0o640) for name, content in contents.items()]
            await session.put([*files, FileToSend(local, f"{tmp_path}/there/local", 0o640)], timeout_s=30)

    asyncio.run(scenario())
    there = {path.name: path.read_bytes() for path in (tmp_path / "there").iterdir()}
    assert there == {**contents, "local": b"from a file\0"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "there").iterdir()} == {0o640}


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB with nothing free."""
    disk = tmp_path / "full"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        (disk / "old").write_bytes(b"old")
        with open(disk / "fill", "wb", buffering=0) as fill, pytest.raises(OSError, match="No space"):
            while True:
                fill.write(bytes(4096))
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_is_told_and_keeps_what_was_there(openssh: Server, full: Path) -> None:
    async def scenario() -> None:
        async with session_on(openssh) as session:
            with pytest.raises(FileNotSent, match=r"can't write .*/old: the disk is full"):
                await session.put([FileToSend(b"new" * 1000, f"{full}/old")], timeout_s=10)

    asyncio.run(scenario())
    assert {path.name for path in full.iterdir()} == {"old", "fill"}
    assert (full / "old").read_bytes() == b"old"


def test_a_directory_that_may_not_be_written_is_told(openssh: Server) -> None:
    async def scenario() -> None:
        async with session_on(openssh) as session:
            with pytest.raises(FileNotSent, match=r"can't write /proc/none/x"):
                await session.put([FileToSend(b"x", "/proc/none/x")], timeout_s=10)

    asyncio.run(scenario())


def test_what_runs_next_finds_the_shell_as_it_would_be(openssh: Server, tmp_path: Path) -> None:
    look = (
        b"pwd; umask; echo $#; echo $-; printf '%s\\n' \"$PATH\"; [ $$ = \"$(cut -d' ' -f5 /proc/$$/stat)\" ]; exit 5\n"
    )

    async def scenario() -> tuple[str, str]:
        async with session_on(openssh) as session:
            plain = await _output(session, LAUNCH, look)
            await session.put([FileToSend(b"x", f"{tmp_path}/new/x")], timeout_s=10)
            after = await _output(session, LAUNCH, look)
            assert (await session.run(LAUNCH, stdin=b"exit 6\n", timeout_s=10)).exit_status == 6
            return plain, after

    plain, after = asyncio.run(scenario())
    assert after == plain
    assert plain.splitlines()[2] == "0"


def test_its_exit_status_and_its_end_are_its_own(openssh: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with session_on(openssh) as session:
            await session.put([FileToSend(b"x", f"{tmp_path}/x")], timeout_s=10)
            assert (await session.run(LAUNCH, stdin=b"kill -9 $$\n", timeout_s=10)).exit_status == 137
            await session.put([FileToSend(b"y", f"{tmp_path}/y")], timeout_s=10)
            out = bytearray()
            # Stays until its input ends, as if it had been begun for this.
            waits = session.run(LAUNCH, stdin=b"echo in; cat\n", on_output=out.extend, timeout_s=10)
            assert (await waits).exit_status == 0
            assert bytes(out) == b"in\n"

    asyncio.run(scenario())


def test_puts_and_runs_at_the_same_time(openssh: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with session_on(openssh) as session:
            for turn in range(3):
                puts = [
                    session.put([FileToSend(b"%d" % number, f"{tmp_path}/{turn}/{number}")], timeout_s=20)
                    for number in range(2)
                ]
                runs = [_output(session, LAUNCH, b"echo %d\n" % number) for number in range(3)]
                _, outputs = await asyncio.gather(asyncio.gather(*puts), asyncio.gather(*runs))
                assert outputs == [f"{number}\n" for number in range(3)]

    asyncio.run(scenario())
    assert {path.read_text() for path in (tmp_path / "2").iterdir()} == {"0", "1"}


def test_a_shell_that_has_gone_meanwhile_is_not_waited_for(openssh: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with session_on(openssh) as session:
            await session.put([FileToSend(b"x", f"{tmp_path}/x")], timeout_s=10)
            # The shells that sshd has begun, but not the one that asks.
            ends = "for s in $(pgrep -P $PPID); do [ $s = $$ ] || kill -9 $s; done; sleep 0.2"
            await session.run(ends, timeout_s=10)
            assert await _output(session, LAUNCH, b"echo still\n") == "still\n"

    asyncio.run(scenario())


def test_a_file_and_its_command_take_few_steps(openssh: Server, tmp_path: Path) -> None:
    """Each piece may be a wait for a pod at the other end of the world: with SFTP there would be 40 more.

    Nine or ten by themselves; what the server writes one after the other may come in several.
    """
    file = FileToSend(b"echo ran\n" * 100, f"{tmp_path}/new/setup.sh", 0o755)

    async def scenario() -> tuple[int, int]:
        async with Gate(openssh.coordinates.port) as gate:
            session = await openssh.open(port=gate.port)
            logged_in = gate.pieces
            await session.put([file], timeout_s=10)
            markers = f"{tmp_path}/marker"
            await run_in_image(session, [f"sh {file.target}"], env={}, markers=markers, timeout_s=10)
            done = gate.pieces
            await session.close()
            return logged_in, done - logged_in

    login, work = asyncio.run(scenario())
    assert login <= 30
    assert work <= 30
