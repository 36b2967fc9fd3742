"""Looking at what a project has, for the tests of bootstraps and tasks."""

from __future__ import annotations

from pathlib import Path

from tests.support.projects import Done, Project
from tests.support.sims import Row

BOOT = "fleet.x[0].bootstrap"
TASK = "task.t[0]"


def pod_of(project: Project, member: str = "0") -> Row:
    row: Row = project.resources("pod")[f"fleet.x[{member}]"]
    return row


def bootstrap_of(project: Project, address: str = BOOT) -> Row:
    row: Row = project.resources("bootstrap")[address]
    return row


def task_of(project: Project, address: str = TASK) -> Row:
    row: Row = project.resources("task")[address]
    return row


def seen_on(project: Project, command: str, member: str = "0") -> str:
    return project.on_pod(pod_of(project, member), command).stdout


def log_path(project: Project, address: str) -> Path:
    return project.folder / "state" / "logs" / "default" / f"{address}.log"


def log_of(project: Project, address: str = BOOT) -> str:
    return log_path(project, address).read_text()


def nothing_to_do(project: Project) -> None:
    project.run("plan", "--detailed-exitcode", expect=0)


def with_env(project: Project, **more: str) -> Project:
    return Project(project.sim, project.account, project.folder, project.home, {**project.more, **more})


def is_known(project: Project, member: str = "0") -> bool:
    """Whether the state has the pod with a port to log in to."""
    if not (project.folder / "state" / "default.json").exists():
        return False
    pod = project.resources("pod").get(f"fleet.x[{member}]")
    return bool(pod and pod["attributes"].get("ssh_port"))


def has_written(project: Project, file: str, member: str = "0") -> bool:
    """Whether commands on the pod have got as far as to write a file."""
    return is_known(project, member) and project.on_pod(pod_of(project, member), f"test -s {file}").returncode == 0


def failed(done: Done, address: str, code: str) -> str:
    """Message and hint of the one error that ended an action, from `apply --json`."""
    events = [event for event in done.lines if event["type"] == "apply_errored" and event["address"] == address]
    found = [event["diagnostic"] for event in events]
    assert [item["code"] for item in found] == [code], found
    message: str = found[0]["message"] + " | " + (found[0]["hint"] or "")
    return message


def reclaim(project: Project, pod_id: str) -> None:
    project.sim.fault({"do": "reclaim", "pod": pod_id})
