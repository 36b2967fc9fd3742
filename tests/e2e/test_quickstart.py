"""The quickstart, from nothing to nothing, on a local Lium with namespaces and on a confined one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.projects import ROOT, Project, new_project
from tests.support.sims import Sim, serving

QUICKSTART = ROOT / "examples" / "quickstart"
PODS = ["fleet.store[0]", "fleet.trainers[0]", "fleet.trainers[1]"]


@pytest.fixture(scope="module")
def confined_sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    with serving(tmp_path_factory.mktemp("confined"), "--confined", "--nodes", "84") as running:
        yield running


@pytest.fixture(params=["namespaces", "confined"])
def where(request: pytest.FixtureRequest) -> Sim:
    """The server; namespaces are skipped where the system does not allow them, and the server said so itself."""
    if request.param == "confined":
        sim: Sim = request.getfixturevalue("confined_sim")
        assert sim.world()["machines"] == "confined"
        return sim
    sim = request.getfixturevalue("sim")
    if sim.world()["machines"] != "namespaces":
        pytest.skip("namespaces are not allowed here")
    return sim


def quickstart(sim: Sim, account: str, under: Path) -> Project:
    project = new_project(sim, account, under)
    shutil.copytree(QUICKSTART, project.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("state"))
    return project


@pytest.mark.timeout(300)
def test_from_nothing_to_nothing(where: Sim, tmp_path: Path) -> None:
    project = quickstart(where, "quick", tmp_path)
    project.run("validate", expect=0)
    project.run("plan", "--detailed-exitcode", expect=2)
    assert project.ledger() == []

    applied = project.apply()

    pods = project.resources("pod")
    assert sorted(pods) == PODS
    assert {row["id"] for row in project.ledger("pod", open_only=True)} == {pod["id"] for pod in pods.values()}
    assert sorted(row["kind"] for row in project.ledger(open_only=True)) == [
        *("credential", *["pod"] * 3, *["template"] * 2, "volume")
    ]
    shown_outputs(project, applied.out)
    the_task_ran(project)
    data_outlives_nothing_else(project, pods["fleet.store[0]"])
    nothing_more_to_do(project)

    destroyed = project.destroy()
    assert "3 of 3 gone" in destroyed.out
    assert project.ledger(open_only=True) == []
    assert project.state()["resources"] == []
    assert project.run("destroy", "--auto-approve", expect=0)
    assert len(project.ledger("pod")) == 3


def shown_outputs(project: Project, shown: str) -> None:
    pods = project.resources("pod")
    store = pods["fleet.store[0]"]["attributes"]
    outputs = project.run("output", "--json", expect=0).json["outputs"]
    assert outputs["trainers"]["value"] == [pods[f"fleet.trainers[{n}]"]["attributes"]["host"] for n in range(2)]
    url = f"ssh://root@{store['host']}:{store['ssh_port']}"
    assert project.run("output", "store", expect=0).out == f"{url}\n"
    assert url in shown


def the_task_ran(project: Project) -> None:
    tasks = project.resources("task")
    assert {task["status"] for task in tasks.values()} == {"completed"}
    assert {task["attributes"]["exit_code"] for task in tasks.values()} == {0}
    for number in range(2):
        log = (project.folder / tasks[f"task.train[{number}]"]["attributes"]["log"]).read_text()
        assert f"node {number} of 2, first node at " in log
        assert "epoch 3: done" in log
        said = (
            project.folder / project.resources("bootstrap")[f"fleet.trainers[{number}].bootstrap"]["attributes"]["log"]
        )
        assert "hello from " in said.read_text()
        assert "GPU 0: NVIDIA GeForce RTX 4090" in said.read_text()


def data_outlives_nothing_else(project: Project, store: dict[str, object]) -> None:
    """/mnt is a file system of its own, and what is written there can be read."""
    confined = project.sim.world()["machines"] == "confined"
    mount = "mnt" if confined else "/mnt"
    done = project.on_pod(store, f"echo kept > {mount}/file && cat {mount}/file && mountpoint -q /mnt && echo mounted")
    assert (done.returncode, done.stdout.split()) == (0, ["kept", "mounted"]), done


def nothing_more_to_do(project: Project) -> None:
    before, asked = project.state(), len(project.sim.requests(project.account))
    again = project.apply()
    assert "No changes." in again.out
    project.run("plan", "--detailed-exitcode", expect=0)
    project.apply()
    assert project.state() == before
    assert {row["method"] for row in project.sim.requests(project.account)[asked:]} == {"GET"}


@pytest.mark.timeout(300)
def test_a_plan_asks_only_and_the_saved_one_is_what_runs(sim: Sim, tmp_path: Path) -> None:
    project = quickstart(sim, "planned", tmp_path)
    project.run("plan", "--out", "saved.plan", "--var", "trainers=1", expect=0)
    assert {row["method"] for row in sim.requests(project.account)} <= {"GET"}
    assert not (project.folder / "state" / "default.json").exists()
    project.run("apply", "saved.plan", expect=0)
    assert sorted(project.resources("pod")) == PODS[:2]
    project.run("apply", "saved.plan", expect=4)
    project.destroy()
    assert project.ledger(open_only=True) == []
