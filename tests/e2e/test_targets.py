"""`--target`: what is named goes, with what hangs on it and what nothing else uses; everything else is left alone."""

from __future__ import annotations

import shutil

import pytest

from tests.support.projects import ROOT, Project

QUICKSTART = ROOT / "examples" / "quickstart"


@pytest.mark.timeout(240)
def test_one_fleet_goes_and_the_other_is_not_touched(project: Project) -> None:
    shutil.copytree(QUICKSTART, project.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("state"))
    project.apply()
    before = {row["id"]: row for row in project.ledger(open_only=True)}
    store = project.resources("pod")["fleet.store[0]"]
    volume = project.resources("volume")["volume.datasets"]
    template = next(address for address in project.resources("template") if address != "template.torch")
    asked = len(project.sim.requests(project.account))

    project.destroy("--target", "fleet.trainers")

    left = {row["id"]: row for row in project.ledger(open_only=True)}
    assert sorted(row["address"] for row in project.state()["resources"]) == sorted(
        ["fleet.store[0]", template, "volume.datasets"]
    )
    assert {store["id"], volume["id"]} < set(left)
    assert sorted(row["kind"] for row in left.values()) == ["pod", "template", "volume"]
    for row_id, row in left.items():
        assert {**row, "amount_usd": 0} == {**before[row_id], "amount_usd": 0}
    touched = [row["path"] for row in project.sim.requests(project.account)[asked:] if row["method"] != "GET"]
    assert not [path for path in touched if store["id"] in path or volume["id"] in path], touched
    gone = [row for row in before.values() if row["id"] not in left]
    assert sorted(row["kind"] for row in gone) == ["credential", "pod", "pod", "template"]

    project.destroy()
    assert project.ledger(open_only=True) == []
    assert project.state()["resources"] == []


@pytest.mark.timeout(240)
def test_one_member_is_destroyed_and_comes_back_alone(project: Project) -> None:
    shutil.copytree(QUICKSTART, project.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("state"))
    project.apply()
    before = {address: pod["id"] for address, pod in project.resources("pod").items()}

    project.destroy("--target", "fleet.trainers[0]")
    assert {address: pod["id"] for address, pod in project.resources("pod").items()} == {
        address: pod_id for address, pod_id in before.items() if address != "fleet.trainers[0]"
    }

    project.apply("--target", "fleet.trainers[0]")
    after = {address: pod["id"] for address, pod in project.resources("pod").items()}
    assert after.keys() == before.keys()
    assert {address for address in after if after[address] != before[address]} == {"fleet.trainers[0]"}
    assert {row["id"] for row in project.ledger("pod", open_only=True)} == set(after.values())

    project.destroy()
    assert project.ledger(open_only=True) == []
