"""Moves, imports, releases and renewals, as real commands against the local Lium."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.support.projects import Project

BEFORE = """
project: moving
volumes: {old-data: {name: data}}
templates: {old: {image: "ubuntu:22.04"}}
fleets:
  old: {nodes: 2, resources: {gpu: {count: 1}}, spot_policy: auto, template: old, ttl: 6h, bootstrap: {commands: ["true"]}}
  store: {resources: {gpu: {count: 1}}, spot_policy: auto, template: old, ttl: 6h, volume: old-data}
tasks: {old: {fleet: old, commands: ["true"]}}
"""
AFTER = """
project: moving
volumes: {data: {name: data}}
templates: {new: {image: "ubuntu:22.04"}}
fleets:
  new: {nodes: [head, worker], resources: {gpu: {count: 1}}, spot_policy: auto, template: new, ttl: 6h, bootstrap: {commands: ["true"]}}
  store: {resources: {gpu: {count: 1}}, spot_policy: auto, template: new, ttl: 6h, volume: data}
tasks: {new: {fleet: new, commands: ["true"]}}
moved:
  - {from: volume.old-data, to: volume.data}
  - {from: template.old, to: template.new}
  - {from: "fleet.old[0]", to: "fleet.new[head]"}
  - {from: "fleet.old[1]", to: "fleet.new[worker]"}
  - {from: task.old, to: task.new}
"""


def ids(project: Project) -> dict[str, str]:
    return {row["address"]: row["id"] for row in project.state()["resources"] if row["id"]}


def sent(project: Project) -> list[str]:
    return [f"{row['method']} {row['path']}" for row in project.sim.requests(project.account) if row["method"] != "GET"]


@pytest.mark.timeout(240)
def test_everything_gets_another_name_and_nothing_is_sent(project: Project) -> None:
    project.write(BEFORE)
    project.apply()
    before, asked = ids(project), len(sent(project))
    project.write(AFTER)

    refused = project.run("plan", "--detailed-exitcode", expect=2).out
    assert "→ fleet.new[head]" in refused
    project.apply()

    after = ids(project)
    moved = {"volume.data": "volume.old-data", "template.new": "template.old", "fleet.store[0]": "fleet.store[0]",
             "fleet.new[head]": "fleet.old[0]", "fleet.new[worker]": "fleet.old[1]"}  # fmt: skip
    assert after == {new: before[old] for new, old in moved.items()}
    assert len(sent(project)) == asked
    statuses = {row["address"]: row["status"] for row in project.state()["resources"]}
    assert statuses["task.new[head]"] == "completed"
    assert statuses["fleet.new[worker].bootstrap"] == "ready"
    for expected in ("same entries", "no entries"):
        plan = project.run("plan", "--json", expect=0).json
        assert plan["actions"] == [], expected
        project.write(AFTER.partition("moved:")[0])
    project.destroy()
    assert project.ledger(open_only=True) == []


@pytest.mark.timeout(240)
def test_a_released_fleet_is_taken_back_by_an_import(project: Project) -> None:
    one = "fleets: {box: {resources: {gpu: {count: 1}}, spot_policy: auto, image: ubuntu, ttl: 6h}}\n"
    project.write("project: releasing\n" + one)
    project.apply()
    held = ids(project)
    pod, template = held["fleet.box[0]"], next(found for name, found in held.items() if name.startswith("template."))
    asked = len(sent(project))

    project.write("project: releasing\nvolumes: {v: {}}\nremoved: [{from: fleet.box, destroy: false}]\n")
    project.apply()
    state = project.state()
    assert [row["address"] for row in state["resources"]] == ["volume.v"]
    assert {row["id"] for row in state["released"]} == {pod, template}
    assert [line for line in sent(project)[asked:] if "/volumes" not in line] == []

    image = next(name for name in held if name.startswith("template."))
    project.write(
        "project: releasing\n" + one + "imports:\n"
        f'  - {{to: "fleet.box[0]", id: {pod}}}\n  - {{to: {image}, id: {template}}}\nvolumes: {{v: {{}}}}\n'
    )
    plan = project.run("plan", "--json", expect=0).json
    assert sorted((row["address"], row["action"]) for row in plan["actions"]) == [
        ("fleet.box[0]", "adopt"), (image, "adopt"),
    ]  # fmt: skip
    project.apply()
    assert ids(project) | {"volume.v": ""} == {**held, "volume.v": ""}
    assert project.state()["released"] == []
    assert project.run("plan", "--json", expect=0).json["actions"] == []
    project.destroy()
    assert project.ledger(open_only=True) == []


@pytest.mark.timeout(240)
def test_every_apply_renews_and_what_was_spent_counts(project: Project) -> None:
    manifest = """
project: renewing
policy: {max_total_cost: LIMIT}
fleets:
  box: {nodes: COUNT, resources: {gpu: {count: 1}}, spot_policy: auto, image: ubuntu, ttl: 2h, ttl_renew: true}
"""
    project.write(manifest.replace("COUNT", "1").replace("LIMIT", "1000"))
    project.apply()
    first = removal(project)
    project.sim.control("POST", "/advance", {"seconds": 3600})

    shown = project.run("plan", expect=0).out
    assert "» fleet.box[0]" in shown
    assert "ttl_renew: 2h from now on" in shown
    project.apply()
    assert 3500 < (removal(project) - first).total_seconds() < 3800
    assert project.run("plan", "--json", expect=0).json["actions"] == []

    spent = sum(row["amount_usd"] for row in project.ledger("pod"))
    price = next(row["price_per_hour_usd"] for row in project.ledger("pod"))
    project.write(manifest.replace("COUNT", "2").replace("LIMIT", f"{price * 4.1:.3f}"))
    said = project.run("plan", "--json", expect=6).json
    assert next(row["message"] for row in said["diagnostics"] if row["code"] == "total-cost").startswith(
        f"${spent:.2f} spent"
    )
    project.destroy()


def removal(project: Project) -> datetime:
    return datetime.fromisoformat(project.resources("pod")["fleet.box[0]"]["attributes"]["removal_at"])
