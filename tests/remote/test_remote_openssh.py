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

from tests.ssh.ssh_servers import openssh_server
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
def there(project: Project, tmp_path: Path) -> Iterator[Path]:
    """A directory to work in, with the project's pod reached through an sshd of this machine."""
    if not Path("/usr/sbin/sshd").exists() or shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH's server is not installed")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    project.write(FLEET)
    project.apply()
    directory = tmp_path / "sshd"
    directory.mkdir()
    with openssh_server(directory, project.key_path, getpass.getuser()) as server:
        path = project.folder / "state" / "default.json"
        state = json.loads(path.read_text())
        pod = state["records"]["fleet.x[0]"]
        where = server.coordinates
        pod["attributes"]["connect_command"] = f"ssh {where.user}@{where.host} -p {where.port}"
        path.write_text(json.dumps(state))
        (project.folder / "state" / "known_hosts" / pod["id"]).unlink()
        yield directory


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
