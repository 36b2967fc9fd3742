"""Streams that are full, closed or gone: what was lost is told, and nothing of it is a crash."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lium_plan.cli.main import main
from lium_plan.together import together

LIUM_PLAN = f"{sys.executable} -m lium_plan"
COMMANDS = ("--help", "--version", "version", "schema", "state --help", "completion bash", "init --help")


def shell(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LIUM_")}
    return subprocess.run(
        ("bash", "-c", script), cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("stream", "why"), [(">/dev/full", "No space left"), (">&-", "Bad file descriptor")])
def test_what_could_not_be_written_to_stdout_is_an_error(tmp_path: Path, command: str, stream: str, why: str) -> None:
    done = shell(f"{LIUM_PLAN} {command} {stream}", tmp_path)
    assert done.returncode == 1, done.stderr
    assert why in done.stderr
    assert "not complete" in done.stderr


def test_a_reader_that_wants_no_more_is_no_error(tmp_path: Path) -> None:
    done = shell(f"{LIUM_PLAN} schema | head -c 1; echo ${{PIPESTATUS[0]}}", tmp_path)
    assert done.stdout == "{0\n"
    assert done.stderr == ""


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full", "<&-"])
def test_without_the_other_streams_the_work_is_done(tmp_path: Path, streams: str) -> None:
    done = shell(f"{LIUM_PLAN} init new {streams} && {LIUM_PLAN} schema {streams}", tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("{")
    assert (tmp_path / "new" / "lium.yaml").exists()


def test_a_refusal_keeps_its_exit_code_when_nothing_can_be_said(tmp_path: Path) -> None:
    assert shell(f"{LIUM_PLAN} nonsense >&- 2>&-", tmp_path).returncode == 64
    assert shell(f"{LIUM_PLAN} validate >&- 2>&- <&-", tmp_path).returncode == 1


WAITER = """
import os, sys
from lium_plan.cli import main
class Waiting(main.click.Command):
    def invoke(self, context):
        os.write(3, b"up")
        import time
        time.sleep(60)
main.LazyGroup.get_command = lambda self, context, name: Waiting("validate")
sys.exit(main.main(["validate"]))
"""


def test_an_interrupt_while_nobody_reads_is_no_crash(tmp_path: Path) -> None:
    out_reader, out = os.pipe()
    up, ready = os.pipe()

    def streams() -> None:
        os.dup2(ready, 3)

    with subprocess.Popen(
        (sys.executable, "-c", WAITER),
        stdout=out,
        stderr=out,
        cwd=tmp_path,
        pass_fds=(3,),
        preexec_fn=streams,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        os.close(out)
        os.close(ready)
        assert os.read(up, 2) == b"up"
        os.close(out_reader)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 7
    os.close(up)
    assert list(tmp_path.iterdir()) == []  # no crash report


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--max-hourly-cost", "1e999"),
        ("plan", "--max-hourly-cost", "NaN"),
        ("plan", "--max-hourly-cost", "inf"),
        ("plan", "--max-hourly-cost", "9999999999"),
        ("plan", "--max-hourly-cost", "-1"),
        ("extend", "fleet.a[0]", "999999999h"),
        ("extend", "fleet.a[0]", "999999999d999999999d"),
        ("state", "lock", "--ttl", "999999999d"),
        ("destroy", "--wait-timeout", "9" * 40),
    ],
    ids=lambda arguments: " ".join(arguments)[:40],
)
def test_numbers_without_measure_are_usage(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 64
    assert "Invalid value" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# --- several things at once ----------------------------------------------------------------------------------


def test_when_one_fails_the_others_have_ended_before_it_is_told() -> None:
    ended: list[str] = []

    async def slow(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # what takes its time to end is waited for
            ended.append(name)
            raise RuntimeError("said by nobody")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError

    async def run() -> None:
        with pytest.raises(LookupError):
            await together(slow("a"), fails(), together(slow("b"), slow("c")))
        assert sorted(ended) == ["a", "b", "c"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_a_second_cancellation_leaves_nothing_behind() -> None:
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)

    async def run() -> None:
        task = asyncio.ensure_future(together(slow(), slow()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_results_come_in_order() -> None:
    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    async def run() -> tuple[int, ...]:
        return await together(after(3), after(1), after(2))

    assert asyncio.run(run()) == (3, 1, 2)
