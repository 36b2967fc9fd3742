"""Bootstraps and tasks against OpenSSH's own server: the pod is the local Lium's, its SSH is a real sshd on loopback.

Whatever is written goes to a directory of the test's own; commands see the environment of this machine's PID 1.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_looks import BOOT, TASK, bootstrap_of, failed, log_of, nothing_to_do, pod_of, task_of, with_env

from tests.ssh.ssh_servers import Server, openssh_server
from tests.ssh.ssh_shells import make_shell
from tests.support.projects import Project, stop
from tests.support.sims import until

CANARY = "hf_canary-41aa"
FLEET = """\
version: 1
project: openssh
fleets:
  x:
    resources: {gpu: "RTX4090:1"}
    max_price: 2.00
    ttl: 2h
    image: ubuntu:22.04
"""


@pytest.fixture
def sshd(request: pytest.FixtureRequest, project: Project, tmp_path: Path) -> Iterator[Server]:
    """The project's pod is reached through an sshd of this machine, whose sessions begin in a directory of the test.

    With the parameter `busybox` they have BusyBox alone.
    """
    if not Path("/usr/sbin/sshd").exists() or shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH's server is not installed")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    project.write(FLEET)
    project.apply()
    directory = tmp_path / "sshd"
    directory.mkdir()
    environment = ""
    if getattr(request, "param", "") == "busybox":
        environment = f"PATH={make_shell('busybox', tmp_path).path} LIUM_SIM_CONFINED=1"
    with openssh_server(directory, project.key_path, getpass.getuser(), environment) as server:
        state = json.loads((project.folder / "state" / "default.json").read_text())
        pod = state["records"]["fleet.x[0]"]
        where = server.coordinates
        pod["attributes"]["connect_command"] = f"ssh {where.user}@{where.host} -p {where.port}"
        edited = tmp_path / "edited.json"
        edited.write_text(json.dumps(state))
        project.run("state", "push", "--force", str(edited), expect=0)
        (project.folder / "state" / "known_hosts" / pod["id"]).unlink()
        yield server


@pytest.fixture
def there(sshd: Server) -> Path:
    return sshd.home


def test_a_bootstrap_from_failure_to_ready(project: Project, there: Path) -> None:
    (project.folder / "conf").mkdir()
    project.write("a\n", "conf/a.txt")
    project.write("me ${{ member.name }} ${{ env.TOKEN }}\n", "who.tpl")
    project = with_env(project, TOKEN=CANARY)
    project.write(
        f"""{FLEET}    bootstrap:
      files:
        - {{source: conf, target: {there}/conf, mode: "0640"}}
        - {{source: who.tpl, target: {there}/who, template: true}}
      env: {{TOKEN: "${{{{ env.TOKEN }}}}", D: {there}}}
      commands:
        - echo one >> $D/trace; cat $D/who; echo $TOKEN
        - echo two >> $D/trace; test -e $D/flag || exit 9
        - echo three >> $D/trace
      ready: {{command: test -s $D/trace}}
"""
    )
    message = failed(project.apply("--json", expect=3), BOOT, "bootstrap-failed")
    assert "exit status 9 in command 2 of 3" in message
    assert "me 0 ***" in log_of(project)
    assert CANARY not in log_of(project) + message
    assert (there / "conf" / "a.txt").stat().st_mode & 0o777 == 0o640
    inode = (there / "who").stat().st_ino
    (there / "flag").touch()
    project.apply()
    assert (there / "trace").read_text().split() == ["one", "two", "two", "three"]
    assert (there / "who").stat().st_ino == inode, "not sent again"
    assert bootstrap_of(project)["status"] == "ready"
    nothing_to_do(project)


def test_a_killed_bootstrap_is_finished_by_the_next_apply(project: Project, there: Path) -> None:
    project.write(
        f"{FLEET}    bootstrap:\n      env: {{D: {there}}}\n      commands:\n"
        "        - echo one >> $D/trace\n"
        "        - echo two >> $D/trace; test -e $D/flag || sleep 600\n"
    )
    process = project.start("apply", "--auto-approve")
    until(lambda: (there / "trace").exists() and "two" in (there / "trace").read_text(), process, what="command 2")
    process.send_signal(signal.SIGKILL)
    stop(process, within_s=10)
    assert bootstrap_of(project)["status"] == "running"
    assert pod_of(project)["status"] == "pending"
    (there / "flag").touch()
    project.apply()
    assert (there / "trace").read_text().split() == ["one", "two", "two"]
    assert bootstrap_of(project)["status"] == "ready"


def test_a_task_survives_its_launcher(project: Project, there: Path) -> None:
    lines = "for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.7; done; echo run >> $D/runs"
    project.write(
        f"{FLEET}tasks:\n  t:\n    fleet: x\n    env: {{D: {there}}}\n    working_dir: {there}\n"
        f"    commands: ['pwd; {lines}']\n    max_duration: 2m\n"
    )
    process = project.start("apply", "--auto-approve")
    log = project.folder / "state" / "logs" / "default" / f"{TASK}.log"
    until(lambda: log.exists() and "line 2" in log.read_text(), process, what="the task's second line")
    process.send_signal(signal.SIGKILL)
    stop(process, within_s=10)
    project.apply()
    assert task_of(project)["attributes"]["exit_code"] == 0
    assert log_of(project, TASK).splitlines()[1:] == [str(there), *(f"line {number}" for number in range(1, 9))]
    assert (there / "runs").read_text() == "run\n"


def test_every_ending_of_a_bootstrap(project: Project, sshd: Server) -> None:
    """G1, G2, too late, not ready, ready: one after the other on one pod."""
    there = sshd.home
    text = "{}    bootstrap:\n      commands: ['echo {} >> {}/trace; {}']\n      timeout: {}\n      ready: {}\n"
    sleeps = f"sleep 600 & echo $! > {there}/pid; wait"

    def write(name: str, commands: str, timeout: str = "1m", ready: str = "{command: 'true'}") -> None:
        project.write(text.format(FLEET, name, there, commands, timeout, ready))

    def has_begun(name: str) -> bool:
        trace = there / "trace"
        return trace.exists() and name in trace.read_text().split()

    def has_ended() -> bool:
        status = Path(f"/proc/{(there / 'pid').read_text().strip()}/status")
        return not status.exists() or "State:\tZ" in status.read_text()

    write("late", sleeps, timeout="3s")
    assert "3 s" in failed(project.apply("--json", expect=3), BOOT, "bootstrap-timeout")
    until(has_ended, what="the end of the late commands")

    write("interrupted", sleeps)
    process = project.start("apply", "--auto-approve")
    until(lambda: has_begun("interrupted"), process, what="the commands")
    process.send_signal(signal.SIGINT)
    assert stop(process, within_s=10).code == 7
    assert bootstrap_of(project)["attributes"]["ending"] == "interrupted"
    until(has_ended, what="the end of the interrupted commands")

    write("dropped", sleeps)
    process = project.start("apply", "--auto-approve", "--json")
    until(lambda: has_begun("dropped"), process, what="the commands")
    sshd.drop()
    done = stop(process, within_s=60)
    assert "connection was lost" in failed(done, BOOT, "bootstrap-connection")
    until(has_ended, what="the end of the dropped commands")

    write("unready", "exit 0", timeout="3s", ready="{port: 8131}")
    failed(project.apply("--json", expect=3), BOOT, "bootstrap-unready")
    write("ready", "(sleep 1; exec setsid python3 -m http.server 8131) >/dev/null 2>&1 &", ready="{port: 8131}")
    project.apply()
    (server,) = (pid for pid in os.listdir("/proc") if pid.isdigit() and b"8131" in command_line(pid))
    os.kill(int(server), signal.SIGTERM)
    assert (there / "trace").read_text().split() == ["late", "interrupted", "dropped", "unready", "ready"]
    nothing_to_do(project)


def command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("sshd", ["busybox"], indirect=True)
def test_every_ending_of_a_task_with_busybox_alone(project: Project, sshd: Server) -> None:
    """Its status, its longest time, a change while it runs, a broken connection: on one pod."""
    there = sshd.home
    counts = f"for i in 1 2 3 4 5 6; do echo line $i; echo $i >> {there}/trace; sleep 0.5; done"
    trap = f'trap "echo stopped >> {there}/old; exit 1" TERM; echo {{}} >> {there}/up; while :; do sleep 0.2; done'
    tasks = {
        "bad": "commands: ['busybox | head -c 7; exit 9']",
        "long": "commands: ['echo begun; sleep 600'], max_duration: 2s",
        "serve": f"commands: ['{trap.format('first')}'], wait: started",
        "t": f"commands: ['{counts}']",
    }

    def write() -> None:
        project.write(f"{FLEET}tasks:\n" + "".join(f"  {name}: {{fleet: x, {text}}}\n" for name, text in tasks.items()))

    write()
    process = project.start("apply", "--auto-approve", "--json")
    until(lambda: (there / "trace").exists(), process, what="the task's first line")
    sshd.drop()
    done = stop(process, within_s=60)
    assert "exit status 9" in failed(done, "task.bad[0]", "task-failed")
    assert "BusyBox" in log_of(project, "task.bad[0]")
    failed(done, "task.long[0]", "task-timed-out")
    assert log_of(project, TASK).splitlines()[1:] == [f"line {number}" for number in range(1, 7)]

    del tasks["bad"], tasks["long"]
    tasks["serve"] = f"commands: ['{trap.format('second')}'], wait: started"
    until(lambda: (there / "up").exists(), what="the first task")
    write()
    project.apply()
    until(lambda: "second" in (there / "up").read_text(), what="the second task")
    assert (there / "old").read_text() == "stopped\n"
    nothing_to_do(project)
    del tasks["serve"]
    write()
    project.apply()
    assert (there / "old").read_text() == "stopped\nstopped\n"
