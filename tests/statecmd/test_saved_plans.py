"""D1, D2: a saved plan is carried out once, where it was made, and as long as nothing that it rests on has changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import httpx
import pytest

from tests.statecmd.commands import here
from tests.support.projects import Project, new_project

LAB = """\
version: 1
project: lab
variables: {what: {type: string, default: one}}
volumes:
  a: {description: "${{ var.what }}"}
"""
BOX = "fleets: {box: {resources: {gpu: {count: 1}}, max_price: 3.00, image: 'ubuntu:22.04', ttl: 2h}}\n"


@pytest.fixture
def lab(project: Project) -> Project:
    made = here(project)
    made.write(LAB)
    return made


def stale(project: Project, *arguments: str) -> str:
    """Why it is refused, and that nothing was changed and the cure is told."""
    before = project.ledger()
    done = project.run("apply", *arguments, expect=4)
    assert "the saved plan is stale: " in done.err
    assert "plan --out FILE" in done.err
    assert project.ledger() == before
    project.run("state", "lock", "--ttl", "0", expect=0)  # C2: the lock is free
    return done.err


def test_d1_a_plan_made_before_any_state_is_carried_out_once(lab: Project) -> None:
    lab.run("plan", "--out", "first.plan", expect=0)
    lab.run("plan", "--out", "second.plan", expect=0)
    lab.run("apply", "first.plan", expect=0)
    for plan in ("first.plan", "second.plan"):
        assert "was applied already: nothing is left to do" in stale(lab, plan)
    assert len(lab.ledger("volume")) == 1
    lab.write(LAB + "  b: {}\n")
    assert "there was none when it was made" in stale(lab, "first.plan")
    lab.run("plan", "--out", "third.plan", expect=0)
    lab.run("apply", "third.plan", expect=0)
    assert "was applied already: nothing is left to do" in stale(lab, "third.plan")


def test_d1_a_copy_somewhere_else_is_refused(lab: Project, tmp_path: Path) -> None:
    lab.write(LAB + BOX)
    lab.run("plan", "--out", "first.plan", expect=0)
    assert "stack default" in stale(lab, "first.plan", "--stack", "prod")
    lab.run("apply", "first.plan", expect=0)
    beside = here(new_project(lab.sim, lab.account, tmp_path / "beside"))
    beside.write(LAB + BOX)
    shutil.copy(lab.folder / "first.plan", beside.folder / "copied.plan")
    refused = beside.run("apply", "copied.plan", expect=6)
    assert "--allow-foreign-lineage" in refused.err
    assert len(lab.ledger("pod")) == 1
    assert not list((beside.folder / "state").glob("*.json"))


def test_every_way_to_become_stale_is_told(lab: Project) -> None:
    lab.apply()
    lab.write(LAB + "  b: {}\n")
    lab.run("plan", "--out", "b.plan", expect=0)

    lab.write(LAB + "  b: {description: other}\n")
    assert "the manifest, its files or its variables have changed" in stale(lab, "b.plan")
    lab.write(LAB + "  b: {}\n")
    assert "variables have changed" in stale(lab, "b.plan", "--var", "what=two")
    volume = lab.resources("volume")["volume.a"]["id"]
    answer = httpx.put(
        f"{lab.sim.base_url}/volumes/{volume}",
        json={"description": "by hand"},
        headers={"X-API-KEY": f"sk_sim_{lab.account}"},
    )
    assert answer.is_success
    assert "update volume.a is needed now" in stale(lab, "b.plan")
    lab.apply()
    assert "it, or another plan, was applied already" in stale(lab, "b.plan")
    lab.write(LAB + "  b: {}\n  c: {}\n")
    assert "the state has changed since (serial" in stale(lab, "b.plan")

    other = here(Project(lab.sim, f"{lab.account}-other", lab.folder, lab.home))
    assert "another" in other.run("apply", "b.plan", expect=1).err


def test_d2_an_apply_without_changes_makes_no_plan_stale(lab: Project) -> None:
    lab.apply()
    serial = lab.state()["serial"]
    lab.write(LAB + "  b: {}\n")
    lab.run("plan", "--out", "b.plan", expect=0)
    lab.write(LAB)
    lab.apply()
    assert lab.state()["serial"] == serial
    lab.write(LAB + "  b: {}\n")
    lab.run("apply", "b.plan", expect=0)
    assert lab.state()["serial"] > serial


def test_a_plan_that_did_not_look_is_applied_as_it_was_made(lab: Project) -> None:
    """`--no-refresh` holds for the apply, too: what was reviewed is what runs."""
    lab.apply()
    volume = lab.resources("volume")["volume.a"]["id"]
    lab.write(LAB + "  b: {}\n")
    lab.run("plan", "--no-refresh", "--out", "b.plan", expect=0)
    answer = httpx.put(
        f"{lab.sim.base_url}/volumes/{volume}",
        json={"description": "by hand"},
        headers={"X-API-KEY": f"sk_sim_{lab.account}"},
    )
    assert answer.is_success
    lab.run("apply", "b.plan", expect=0)
    assert set(lab.resources("volume")) == {"volume.a", "volume.b"}


def test_d8_a_file_with_another_name_is_the_same_manifest(lab: Project) -> None:
    lab.apply()
    (lab.folder / "lium.yaml").rename(lab.folder / "volumes.lium.yaml")
    lab.run("plan", "--detailed-exitcode", expect=0)


def test_events_that_cannot_be_written_are_no_success(lab: Project) -> None:
    """As with a stdout that can't be written: what was begun goes on, is saved, and the exit code says it."""
    nothing_done = lab.run("apply", "--json-into", "/dev/full", expect=1)
    assert lab.ledger() == []
    done = lab.apply("--json-into", "/dev/full", expect=3)
    for said in (nothing_done, done):
        assert "error: /dev/full is not complete: No space left on device" in said.err
    assert len(lab.ledger("volume")) == 1
    assert lab.state()["open"] == []
    lab.apply("--json-into", "/dev/full", expect=1)
    lab.destroy("--json-into", "/dev/full", expect=3)
    assert lab.ledger(open_only=True) == []


# --- where a plan is saved -----------------------------------------------------------------------------------


def test_a_plan_is_saved_in_a_file_and_in_nothing_else(lab: Project) -> None:
    os.mkfifo(lab.folder / "pipe")
    (lab.folder / "folder").mkdir()
    (lab.folder / "to-pipe").symlink_to("pipe")
    (lab.folder / "to-nowhere").symlink_to("none/there")
    for name in ("pipe", "folder", "to-pipe", "to-nowhere", "none/plan"):
        before = sorted((path.name, path.lstat().st_ino) for path in lab.folder.iterdir())
        refused = lab.run("plan", "--out", name, expect=1)
        assert "the plan can't be saved" in refused.err, name
        assert sorted((path.name, path.lstat().st_ino) for path in lab.folder.iterdir()) == before
    lab.run("apply", "pipe", expect=1)  # never waited for


def test_the_file_behind_a_link_is_replaced_and_the_link_stays(lab: Project) -> None:
    (lab.folder / "plans").mkdir()
    (lab.folder / "link").symlink_to("plans/one")
    for _ in range(2):  # a new file, and one that is there
        lab.run("plan", "--out", "link", expect=0)
        assert (lab.folder / "link").is_symlink()
        assert (lab.folder / "plans" / "one").stat().st_mode & 0o777 == 0o600
    lab.run("apply", "link", expect=0)


def test_the_state_is_not_sent_to_pods(lab: Project) -> None:
    boot = "bootstrap: {files: [{source: ., target: work}]}"
    lab.write(LAB)
    lab.apply()
    lab.write(LAB + BOX.replace("ttl: 2h", f"ttl: 2h, {boot}"))
    for command in (("validate",), ("plan",), ("apply", "--auto-approve")):
        refused = lab.run(*command, expect=1)
        assert "is part of the state" in refused.err
    lab.run("plan", "--state", "file:../elsewhere", expect=0)
    assert len(lab.ledger()) == 1
