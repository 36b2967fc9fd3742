"""Tasks on pods of the local Lium, by the real command: who runs them and where, how they end, that they survive us."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from remote_looks import (
    TASK,
    failed,
    has_written,
    log_of,
    log_path,
    nothing_to_do,
    pod_of,
    seen_on,
    task_of,
    with_env,
)

from tests.support.projects import Project, stop
from tests.support.sims import until

Fleet = Callable[..., Project]


def task(lines: str) -> str:
    """A task `t` on the fleet `x`; lines are its fields."""
    body = "".join(f"    {line}\n" for line in lines.strip().splitlines())
    return f"  t:\n    fleet: x\n{body}"


def words(project: Project, address: str = TASK) -> list[str]:
    """The log without its first line, which is ours."""
    return log_of(project, address).splitlines()[1:]


# --- who, where, with what -----------------------------------------------------------------------------------


def test_users_directories_and_secrets(fleet_of: Fleet) -> None:
    show = "commands: ['echo $(id -u) $(pwd) $TOKEN; id -un']"
    env = 'env: {TOKEN: "${{ env.TOKEN }}"}'
    tasks = (
        f"  root: {{fleet: x, {show}, {env}}}\n"
        f"  image: {{fleet: x, {show}, {env}, user: image}}\n"
        f"  named: {{fleet: x, {show}, {env}, user: user, working_dir: /tmp}}\n"
        "  nobody: {fleet: x, commands: ['true'], user: no-such-user}\n"
        "  nowhere: {fleet: x, commands: ['true'], working_dir: /no/such}\n"
    )
    project = with_env(fleet_of(tasks=tasks, image="limsim/uid1000:1"), TOKEN="hf_canary-77ab")
    done = project.apply("--json", expect=3)
    assert "no user no-such-user" in (project.folder / "state/logs/default/task.nobody[0].log").read_text()
    assert "/no/such" in failed(done, "task.nowhere[0]", "task-start")
    assert words(project, "task.root[0]") == ["0 /home/user ***", "root"]
    assert words(project, "task.image[0]")[0] == "1000 /home/user ***"
    assert words(project, "task.named[0]")[0] == "1000 /tmp ***"
    for path in (project.folder / "state").rglob("*"):
        assert not path.is_file() or b"hf_canary" not in path.read_bytes(), path


def test_images_with_busybox_alone_will_do(fleet_of: Fleet) -> None:
    project = fleet_of(
        "      commands: ['echo set up > ~/boot', 'cat ~/boot']\n      ready: {command: 'test -s ~/boot'}\n",
        tasks=task("commands: ['cat ~/boot; echo on $LIUM_NODE_RANK of $LIUM_NODES_NUM']\nmax_duration: 1m"),
        image="limsim/busybox:1",
    )
    project.apply()
    assert words(project) == ["set up", "on 0 of 1"]
    nothing_to_do(project)


def test_distributed_jobs_are_told_of_each_other(fleet_of: Fleet) -> None:
    show = "echo $LIUM_NODE_RANK/$LIUM_NODES_NUM $LIUM_MASTER_ADDR $LIUM_GPUS_PER_NODE"
    project = fleet_of(
        tasks=f"  all: {{fleet: x, commands: ['{show}']}}\n"
        f"  two: {{fleet: x, commands: ['{show}'], members: [2, 0]}}\n"
        f"  one: {{fleet: x, commands: ['{show}'], members: first}}\n",
        more="    nodes: 3\n",
    )
    manifest = (project.folder / "lium.yaml").read_text().replace("RTX4090:1", "RTX4090:2").replace("2.00", "9.00")
    project.write(manifest)
    project.apply()
    host = pod_of(project)["attributes"]["host"]
    assert [words(project, f"task.all[{member}]") for member in "012"] == [[f"{rank}/3 {host} 2"] for rank in (0, 1, 2)]
    assert [words(project, f"task.two[{member}]") for member in "02"] == [[f"{rank}/2 {host} 2"] for rank in (0, 1)]
    assert set(project.resources("task")) >= {"task.one[0]"}
    assert "task.one[1]" not in project.resources("task")


# --- waiting and ending --------------------------------------------------------------------------------------


def test_waits_for_the_start_for_a_port_or_for_the_end(fleet_of: Fleet) -> None:
    serve = "sleep 2; exec python3 -m http.server 8124"
    listens = 'grep -qi ":$(printf %04X 8126) .* 0A " /proc/net/tcp'
    daemon = f"setsid python3 -m http.server 8126 >/dev/null 2>&1 & until {listens}; do sleep 0.1; done"
    tasks = (
        "  begun: {fleet: x, commands: ['echo begun; sleep 600'], wait: started}\n"
        f"  serve: {{fleet: x, commands: ['{serve}'], wait: {{port: 8124}}}}\n"
        f"  daemon: {{fleet: x, commands: ['{daemon}'], wait: {{port: 8126}}}}\n"
        "  brief: {fleet: x, commands: ['echo brief'], wait: {port: 8125}}\n"
    )
    project = fleet_of(tasks=tasks)
    done = project.apply("--json", expect=3)
    assert "before anything listened on port 8125" in failed(done, "task.brief[0]", "task-port")
    assert "brief" in log_of(project, "task.brief[0]")
    project = fleet_of(tasks="".join(tasks.splitlines(keepends=True)[:3]))
    project.apply()
    assert {task_of(project, f"task.{name}[0]")["status"] for name in ("begun", "serve")} == {"running"}
    nothing_to_do(project)
    assert task_of(project, "task.daemon[0]")["status"] in ("running", "completed")
    shown = project.run("logs", "task.begun[0]", expect=0)
    assert shown.out == "begun\n", "its log is on the pod"


def test_each_end_has_its_status_and_its_words(fleet_of: Fleet) -> None:
    tasks = (
        "  good: {fleet: x, commands: ['echo fine']}\n"
        "  bad: {fleet: x, commands: ['echo oh no; exit 9']}\n"
        "  long: {fleet: x, commands: ['echo begun; sleep 600'], max_duration: 3s}\n"
    )
    project = fleet_of(tasks=tasks)
    done = project.apply("--json", expect=3)
    message = failed(done, "task.bad[0]", "task-failed")
    assert "exit status 9" in message
    assert "oh no" in message
    assert "max_duration" in failed(done, "task.long[0]", "task-timed-out")
    phases = [row["phase"] for row in done.lines if row["type"] == "phase" and row["address"] == "task.long[0]"]
    assert phases[-1] == "running", "not the login that it is watched over"
    found = {name: task_of(project, f"task.{name}[0]") for name in ("good", "bad", "long")}
    assert {name: row["status"] for name, row in found.items()} == {
        "good": "completed",
        "bad": "failed",
        "long": "timed-out",
    }
    assert [found[name]["attributes"]["exit_code"] for name in ("good", "bad")] == [0, 9]
    assert all(row["attributes"]["ended_at"] > row["attributes"]["started_at"] for row in found.values())
    status = {row["address"]: row["status"] for row in project.run("status", "--json", expect=0).json["tasks"]}
    assert status == {"task.bad[0]": "failed", "task.good[0]": "completed", "task.long[0]": "timed-out"}
    planned = project.run("plan", "--json", expect=0).json["actions"]
    assert {action["address"] for action in planned} == {"task.bad[0]", "task.long[0]"}, "failed ones are tried again"


def test_one_that_nobody_waits_for_is_asked_about_by_status_and_plan(fleet_of: Fleet) -> None:
    """Its end is told; a failed one is tried again by the next apply, as any other, and what it wrote is kept."""
    ends = "echo $TOKEN; echo oh; echo no; echo run >> ~/runs; until [ -e ~/{}_go ]; do sleep 0.1; done; exit {}"
    env = 'env: {TOKEN: "${{ env.TOKEN }}"}, wait: started'
    project = with_env(
        fleet_of(
            tasks=f"  bad: {{fleet: x, commands: ['{ends.format('bad', 7)}'], {env}}}\n"
            f"  good: {{fleet: x, commands: ['{ends.format('good', 0)}'], {env}}}\n"
        ),
        TOKEN="hf_canary-31fc",
    )
    project.apply()
    nothing_to_do(project)
    project.on_pod(pod_of(project), "touch ~/bad_go ~/good_go")

    def ended() -> bool:
        return all(row["status"] != "running" for row in project.run("status", "--json", expect=0).json["tasks"])

    until(ended, what="the end of both tasks")
    bad, good = project.run("status", "--json", expect=0).json["tasks"]
    assert (bad["status"], bad["exit_code"], bad["last_lines"]) == ("failed", 7, ["***", "oh", "no"])
    assert (good["status"], good["exit_code"], good["last_lines"]) == ("completed", 0, [])
    shown = project.run("status", expect=0).out
    assert "task.bad[0], its last lines:\n    ***\n    oh\n    no\n" in shown
    rotated = with_env(project, TOKEN="hf_canary-32aa")
    shown = rotated.run("status", expect=0).out
    assert "its last lines" not in shown, "what the manifest can't hide any more"
    assert "hf_canary" not in shown

    planned = project.run("plan", "--json", "--detailed-exitcode", expect=2).json
    assert {action["address"]: action["action"] for action in planned["actions"]} == {
        "task.bad[0]": "run",
        "task.good[0]": "adopt",
    }
    assert [(row["address"], row["status"]) for row in planned["drift"]] == [("task.bad[0]", "failed")]
    assert project.run("plan", "--no-refresh", "--json", expect=0).json["actions"] == [], "nobody is asked"

    project.on_pod(pod_of(project), "rm ~/bad_go")
    project.apply()
    nothing_to_do(project)
    assert {name: task_of(project, f"task.{name}[0]")["status"] for name in ("bad", "good")} == {
        "bad": "running",
        "good": "completed",
    }
    assert words(project, "task.bad[0]") == words(project, "task.good[0]") == ["***", "oh", "no"]
    until(lambda: seen_on(project, "cat ~/runs").split() == ["run"] * 3, what="the second attempt")


def test_on_completion_the_fleet_goes_and_stays_gone(fleet_of: Fleet) -> None:
    text = "commands: ['echo {}']\non_completion: destroy-fleet"
    project = fleet_of(tasks=task(text.format("done")))
    project.apply()
    assert project.ledger("pod", open_only=True) == []
    assert len(project.ledger("pod")) == 1
    nothing_to_do(project)
    fleet_of(tasks=task(text.format("more")))
    project.apply()
    assert len(project.ledger("pod")) == 2
    assert project.ledger("pod", open_only=True) == []


def test_on_completion_the_fleet_goes_though_another_task_has_failed(fleet_of: Fleet) -> None:
    """What failed elsewhere keeps running what it ran on, and what has done its work goes in the same run."""
    other = "  y: {resources: {gpu: 'RTX4090:1'}, max_price: 2.00, ttl: 2h, image: 'ubuntu:22.04'}\n"
    bad = "  bad: {fleet: y, commands: ['exit 3']}\n"
    project = fleet_of(tasks=task("commands: ['echo done']\non_completion: destroy-fleet") + bad, more=other)
    project.apply(expect=3)
    assert set(project.resources("pod")) == {"fleet.y[0]"}
    assert len(project.ledger("pod", open_only=True)) == 1
    assert task_of(project, "task.bad[0]")["attributes"]["exit_code"] == 3


# --- outliving us --------------------------------------------------------------------------------------------

COUNTS = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i; echo x >> ~/trace; sleep 0.7; done; echo run >> ~/runs"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_task_survives_its_launcher_and_the_next_apply_attaches(fleet_of: Fleet, how: signal.Signals) -> None:
    project = fleet_of(tasks=task(f"commands: ['{COUNTS}']"))
    process = project.start("apply", "--auto-approve")
    until(lambda: has_written(project, "~/trace"), process, what="the task's first line")
    process.send_signal(how)
    done = stop(process, within_s=15)
    assert done.code == (-9 if how is signal.SIGKILL else 7)
    if how is signal.SIGINT:
        assert f"goes on on its pod: lium-plan logs -f '{TASK}'" in done.out
    assert task_of(project)["status"] == "running"
    assert "attach" in project.run("plan", expect=0).out
    attached = project.apply("--json").lines
    (planned,) = (row for row in attached if "untouched_per_hour_usd" in row)
    assert planned["untouched_per_hour_usd"] == attached[-1]["running_per_hour_usd"] > 0
    assert task_of(project)["status"] == "completed"
    assert words(project) == [f"line {number}" for number in range(1, 13)], "each line once"
    assert seen_on(project, "cat ~/runs") == "run\n"
    nothing_to_do(project)


def test_a_dropped_connection_is_made_again(fleet_of: Fleet) -> None:
    project = fleet_of(tasks=task(f"commands: ['{COUNTS}']"))
    process = project.start("apply", "--auto-approve")
    until(lambda: has_written(project, "~/trace"), process, what="the task's first line")
    for _ in range(2):
        project.sim.fault({"do": "ssh", "mode": "drop", "pod": pod_of(project)["id"], "seconds": 0.5})
    assert stop(process, within_s=90).code == 0
    assert words(project) == [f"line {number}" for number in range(1, 13)]


def test_a_changed_running_task_is_stopped_and_started_anew(fleet_of: Fleet) -> None:
    text = "commands: [\"trap 'echo stopped >> ~/old; exit 1' TERM; echo {} >> ~/trace; while :; do sleep 0.2; done\"]"
    project = fleet_of(tasks=task(text.format("first") + "\nwait: started"))
    project.apply()
    until(lambda: has_written(project, "~/trace"), what="the first task")
    fleet_of(tasks=task(text.format("second") + "\nwait: started"))
    planned = project.run("plan", "--json", expect=0).json["actions"]
    assert [(action["address"], action["action"]) for action in planned] == [(TASK, "replace")]
    project.apply()
    until(lambda: "second" in seen_on(project, "cat ~/trace"), what="the second task")
    assert seen_on(project, "cat ~/old") == "stopped\n"
    fleet_of()
    project.apply()
    assert seen_on(project, "cat ~/old") == "stopped\nstopped\n", "one that is no longer declared is stopped"


def test_what_does_not_heed_term_or_was_left_behind_never_runs_beside_the_next(fleet_of: Fleet) -> None:
    beats = "trap : TERM; while :; do echo $V >> ~/beats; sleep 0.2; done"
    leaves = "sleep 600 & echo $! >> ~/left; exit 4"
    tasks = (
        f"  t: {{{{fleet: x, commands: ['sh -c \"{beats}\"'], env: {{{{V: '{{}}'}}}}, wait: started}}}}\n"
        f"  u: {{{{fleet: x, commands: ['{leaves}']}}}}\n"
    )
    project = fleet_of(tasks=tasks.format(1))
    project.apply(expect=3)
    until(lambda: has_written(project, "~/beats"), what="the first one")
    fleet_of(tasks=tasks.format(2))
    project.apply(expect=3)
    look = ": > ~/beats; until test -s ~/beats; do sleep 0.1; done; sleep 0.5; sort -u ~/beats"
    assert seen_on(project, look) == "2\n"
    lives = "for one in $(cat ~/left); do readlink /proc/$one/exe >/dev/null && echo $one; done; :"  # no zombie
    assert seen_on(project, lives).split() == seen_on(project, "tail -n 1 ~/left").split()


def test_what_has_lost_its_runner_is_waited_for_and_is_not_started_beside_itself(fleet_of: Fleet) -> None:
    runs = 'sh -c "echo run >> ~/runs; until test -e ~/go; do sleep 0.1; done"'
    project = fleet_of(tasks=task(f"commands: ['{runs}']"))
    process = project.start("apply", "--auto-approve", "--json")
    until(lambda: has_written(project, "~/runs"), process, what="the task")
    assert seen_on(project, "kill -s KILL $(cut -d ' ' -f 1 .lium-plan/tasks/*/run) && echo killed") == "killed\n"
    (row,) = project.run("status", "--json", expect=0).json["tasks"]
    assert row["status"] == "running"
    project.on_pod(pod_of(project), "touch ~/go")
    assert "without an exit status" in failed(stop(process, within_s=30), TASK, "task-unknown")
    assert task_of(project)["status"] == "unknown"
    project.apply()
    assert seen_on(project, "cat ~/runs") == "run\nrun\n"


# --- much output ---------------------------------------------------------------------------------------------


def test_two_hundred_megabytes_are_held_in_memory_on_neither_side(fleet_of: Fleet) -> None:
    size, line = 200 * 2**20, "0123456789abcde\n"
    command = f"yes 0123456789abcde | head -c {size}"
    project = fleet_of(tasks=task(f"commands: ['{command}']"))
    peak_mib = peak_memory_mib(project.start_fresh("apply", "--auto-approve"))
    path = log_path(project, TASK)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        head = file.readline()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    expected = hashlib.sha256()
    for _ in range(200):
        expected.update((line * (2**20 // len(line))).encode())
    assert head.startswith(b"--- ")
    assert digest.digest() == expected.digest()
    assert 20 < peak_mib < 150, f"apply had {peak_mib:.0f} MiB"
    path.unlink()


def peak_memory_mib(process: subprocess.Popen[str]) -> float:
    """Of a command until it ends well. Not its `ru_maxrss`, which a child takes over from whoever started it."""
    peak = 0.0
    with process:
        while process.poll() is None:
            with contextlib.suppress(OSError, IndexError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = max(peak, int(status.partition("VmHWM:")[2].split()[0]) / 1024)
            time.sleep(0.05)
        assert process.returncode == 0, stop(process, within_s=1)
    return peak


def test_a_thousand_lines_a_second_are_followed_without_loss(fleet_of: Fleet) -> None:
    writes = (
        "import time\nstart=time.monotonic()\n"
        "for n in range(8000):\n print(n, flush=True)\n time.sleep(max(0, start+n/1000-time.monotonic()))\n"
    )
    project = fleet_of(
        tasks="  t:\n    fleet: x\n    files: [{source: w.py, target: w.py}]\n    commands: [python3 ~/w.py]\n"
    )
    project.write(writes, "w.py")
    process = project.start("apply", "--auto-approve")
    until(lambda: os.path.exists(log_path(project, TASK)), process, what="the task's log")
    with project.start("logs", TASK, "-f") as follower:
        followed = stop(follower, within_s=60).out.split()
    assert stop(process, within_s=60).code == 0
    assert words(project) == [str(number) for number in range(8000)]
    assert [line for line in followed if line.isdigit()][-8000:] == [str(number) for number in range(8000)]
