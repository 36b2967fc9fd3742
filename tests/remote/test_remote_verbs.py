"""`ssh`, `logs`, `ssh-config`, `inventory`, `hostfile`, `status`: pods in the hands of people and of other tools."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from remote_looks import has_written, pod_of, seen_on, task_of, with_env

from lium_plan.ssh.keys import make_key
from tests.support.projects import Project, new_project, stop
from tests.support.sims import Sim, until

CANARY = "hf_canary-9c41"
MANIFEST = """\
version: 1
project: hands
fleets:
  my-fleet:
    nodes: [head, worker]
    resources: {gpu: "RTX4090:2"}
    max_price: 9.00
    ttl: 2h
    image: ubuntu:22.04
    bootstrap:
      env: {TOKEN: "${{ env.TOKEN }}"}
      commands: ['echo set up with $TOKEN']
tasks:
  serve:
    fleet: my-fleet
    members: [head]
    env: {TOKEN: "${{ env.TOKEN }}"}
    commands: ['n=0; while :; do n=$((n+1)); echo "line $n $TOKEN"; echo x >> ~/trace; sleep 0.3; done']
    wait: started
"""


@pytest.fixture(scope="module")
def applied(sim: Sim, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = with_env(new_project(sim, "hands", tmp_path_factory.mktemp("hands")), TOKEN=CANARY)
    project.write(MANIFEST)
    project.apply()
    yield project
    project.destroy()


def test_ssh_runs_a_command_and_hands_its_exit_code_on(applied: Project) -> None:
    done = applied.run("ssh", "fleet.my-fleet[head]", "--", "echo $((6*7)); nvidia-smi -L | wc -l; exit 5", expect=5)
    assert done.out.split() == ["42", "2"]
    host = applied.run("ssh", "task.serve", "--", "hostname", expect=0).out
    assert host == applied.run("ssh", "fleet.my-fleet[head].bootstrap", "--", "hostname", expect=0).out
    assert host != applied.run("ssh", "fleet.my-fleet[worker]", "--", "hostname", expect=0).out


def test_ssh_says_what_is_wrong_with_an_address(applied: Project) -> None:
    assert "fleet.my-fleet[head], fleet.my-fleet[worker]" in applied.run("ssh", "fleet.my-fleet", expect=1).err
    assert "did you mean fleet.my-fleet[head]" in applied.run("ssh", "fleet.my-flet[head]", expect=1).err
    assert applied.run("ssh", "no address!", expect=64).code == 64


def test_without_an_ssh_program_the_command_line_is_told(applied: Project, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    bare = Project(applied.sim, applied.account, applied.folder, applied.home, {"PATH": str(tmp_path / "bin")})
    done = bare.run("ssh", "fleet.my-fleet[head]", expect=1)
    assert "no `ssh` in PATH" in done.err
    assert "UserKnownHostsFile=" in done.err


def test_another_host_key_than_the_pinned_one_is_refused(applied: Project) -> None:
    pod = applied.resources("pod")["fleet.my-fleet[worker]"]
    pin = applied.folder / "state" / "known_hosts" / pod["id"]
    kept = pin.read_text()
    other = applied.folder / "state" / "known_hosts" / applied.resources("pod")["fleet.my-fleet[head]"]["id"]
    pin.write_text(other.read_text())
    try:
        done = applied.run("ssh", "fleet.my-fleet[worker]", "--", "true", expect=255)
        assert "HOST IDENTIFICATION HAS CHANGED" in done.err
    finally:
        pin.write_text(kept)


def test_a_key_that_was_moved_is_taken_from_where_it_is_now(applied: Project) -> None:
    """Also below a directory whose name OpenSSH would expand."""
    there = applied.home / "k%d" / "key"
    there.parent.mkdir()
    applied.key_path.rename(there)
    moved = with_env(applied, LIUM_SSH_KEY_PATH=str(there))
    try:
        assert moved.run("ssh", "fleet.my-fleet[worker]", "--", "echo in", expect=0).out == "in\n"
        assert "running" in moved.run("logs", "task.serve", expect=0).err
        planned = moved.run("plan", "--json", expect=0).json
        assert (planned["actions"], planned["diagnostics"]) == ([], [])
    finally:
        there.rename(applied.key_path)


def test_the_configuration_for_openssh_works_with_it(applied: Project, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(applied.run("ssh-config", expect=0).out)
    for host in ("my-fleet-worker", "fleet.my-fleet[worker]"):
        done = subprocess.run(
            ["ssh", "-F", str(config), "-o", "BatchMode=yes", host, "cat /proc/sys/kernel/hostname; exit 3"],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            timeout=60,
        )
        assert done.returncode == 3, done
    assert not (tmp_path / ".ssh").exists(), "nothing but the pins is believed or written"


def test_the_inventory_is_what_ansible_reads(applied: Project) -> None:
    groups = yaml.safe_load(applied.run("inventory", expect=0).out)["all"]["children"]
    assert list(groups) == ["my_fleet"], "a group's name is an identifier"
    hosts = groups["my_fleet"]["hosts"]
    assert list(hosts) == ["my-fleet-head", "my-fleet-worker"]
    pods = applied.resources("pod")
    for name, variables in hosts.items():
        pod = pods[f"fleet.my-fleet[{name.removeprefix('my-fleet-')}]"]
        assert variables["ansible_host"] == pod["attributes"]["host"]
        assert variables["ansible_port"] == pod["attributes"]["ssh_port"]
        assert Path(variables["ansible_ssh_private_key_file"]) == applied.key_path
        assert pod["id"] in variables["ansible_ssh_common_args"]
    script = json.loads(applied.run("inventory", "--json", expect=0).out)
    assert script["_meta"]["hostvars"] == hosts
    assert script["my_fleet"]["hosts"] == list(hosts)
    assert script["all"]["children"] == ["my_fleet", "ungrouped"]


def test_the_hostfile_has_a_slot_a_gpu(applied: Project) -> None:
    assert applied.run("hostfile", "fleet.my-fleet", expect=0).out == "my-fleet-head slots=2\nmy-fleet-worker slots=2\n"
    assert applied.run("hostfile", "fleet.my-fleet[worker]", expect=0).out == "my-fleet-worker slots=2\n"
    assert "not in the state" in applied.run("hostfile", "fleet.other", expect=1).err


def test_logs_of_a_bootstrap_and_of_a_running_task_hide_secrets(applied: Project) -> None:
    shown = applied.run("logs", "fleet.my-fleet[worker]", expect=0)
    assert "set up with ***" in shown.out
    running = applied.run("logs", "task.serve", expect=0)
    assert running.out.splitlines()[0] == "line 1 ***"
    assert "running" in running.err
    assert CANARY not in shown.out + running.out
    assert "there are: " in applied.run("logs", "volume.x", expect=1).err


def test_following_ends_with_ctrl_c_and_the_task_goes_on(applied: Project) -> None:
    with applied.start("logs", "task.serve[head]", "-f") as process:
        assert process.stdout is not None
        for number in range(1, 12):
            assert process.stdout.readline() == f"line {number} ***\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
        assert process.returncode == 0, (out, err)
        assert "goes on" in err
    before = len(applied.run("logs", "task.serve", expect=0).out.splitlines())
    until(lambda: len(applied.run("logs", "task.serve").out.splitlines()) > before, what="another line of the task")


def test_status_asks_the_pods_of_running_tasks(applied: Project) -> None:
    for more in ((), ("--gpu",)):
        (row,) = applied.run("status", "--json", *more, expect=0).json["tasks"]
        assert (row["address"], row["status"], row["exit_code"]) == ("task.serve[head]", "running", None)
        assert row["probed"] is True
    assert "task.serve[head]" in applied.run("status", expect=0).out


ONE = """\
version: 1
project: one
fleets:
  x:
    resources: {gpu: "RTX4090:1"}
    max_price: 2.00
    ttl: 2h
    image: ubuntu:22.04
"""


def test_a_pod_that_was_moved_by_a_reboot_is_found_again(project: Project) -> None:
    """A platform's reboot gives it another port and host key: the API's word for it is taken (contract §4.4, §7.4)."""
    project.write(f"{ONE}tasks:\n  t: {{fleet: x, commands: ['echo here']}}\n")
    project.apply()
    pod = pod_of(project)
    reboot(project, pod["id"])
    project.run("apply", "--auto-approve", "--replace", "task.t[0]", expect=0)
    assert task_of(project)["status"] == "completed"
    assert project.run("ssh", "fleet.x", "--", "echo in", expect=0).out == "in\n"


def test_a_pod_keeps_the_key_that_it_was_rented_with(project: Project) -> None:
    """A template that is switched, a bootstrap and a task later: another default key is another pod's."""
    project.write(ONE)
    project.apply()
    rented_with = pod_of(project)["attributes"]["ssh_key"]
    other = project.home / "other"
    make_key(other)
    later = replace(project, more={**project.more, "LIUM_SSH_KEY_PATH": str(other)})
    later.write(f"{ONE.replace('22.04', '24.04')}tasks:\n  t: {{fleet: x, commands: ['echo here']}}\n")
    planned = later.run("plan", "--json", expect=0).json["actions"]
    assert ("fleet.x[0]", "reboot") in [(action["address"], action["action"]) for action in planned]
    later.apply()
    assert pod_of(later)["attributes"]["ssh_key"] == rented_with
    assert later.run("ssh", "fleet.x", "--", "echo in", expect=0).out == "in\n"

    # The same key in another place, which the manifest names.
    moved = project.home / "moved"
    project.key_path.rename(moved)
    later.write(f"{ONE.replace('22.04', '24.04')}    ssh_key: {moved}\ntasks:\n  u: {{fleet: x, commands: ['true']}}\n")
    later.apply()


def reboot(project: Project, pod_id: str) -> None:
    import httpx

    headers = {"X-API-Key": project.environ["LIUM_API_KEY"]}
    url = f"{project.sim.base_url}/pods/{pod_id}"
    assert httpx.post(f"{url}/reboot", headers=headers, json={}).status_code == 200
    until(lambda: httpx.get(url, headers=headers).json()["status"] == "RUNNING", what="the pod after its reboot")


def test_logs_follow_a_bootstrap_that_another_process_runs(project: Project) -> None:
    commands = "for i in 1 2 3 4 5 6 7 8; do echo step $i; echo x >> ~/trace; sleep 0.5; done"
    project.write(f"{ONE}    bootstrap:\n      commands: ['{commands}']\n")
    process = project.start("apply", "--auto-approve")
    until(lambda: has_written(project, "~/trace"), process, what="the bootstrap's first line")
    followed = project.run("logs", "fleet.x[0]", "-f", expect=0)
    assert [line for line in followed.out.splitlines() if line.startswith("step")] == [
        f"step {number}" for number in range(1, 9)
    ]
    assert stop(process, within_s=30).code == 0
    assert seen_on(project, "wc -l <~/trace").strip() == "8"
