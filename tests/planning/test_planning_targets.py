"""D5: a target of every kind, making and ending: what is planned stands on its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from planning_cases import read_case

LAB = """
volumes: {data: {}}
templates: {t: {image: lab/a, registry_auth: {username: demo, password: word}}}
fleets: {a: {resources: {gpu: H100}, template: t, volume: data, ttl: 6h, bootstrap: {commands: [echo]}}}
tasks: {train: {fleet: a, commands: [train], max_duration: 1h}}
"""
NEEDED_BY = {
    "volume.data": [],
    "credential.t": [],
    "template.t": ["credential.t"],
    "fleet.a[0]": ["volume.data", "credential.t", "template.t"],
    "fleet.a[0].bootstrap": ["volume.data", "credential.t", "template.t", "fleet.a[0]"],
    "task.train[0]": ["volume.data", "credential.t", "template.t", "fleet.a[0]", "fleet.a[0].bootstrap"],
}
ENDED_WITH = {
    "volume.data": ["fleet.a[0]", "fleet.a[0].bootstrap", "task.train[0]", "template.t", "credential.t"],
    "credential.t": ["template.t", "fleet.a[0]", "fleet.a[0].bootstrap", "task.train[0]"],
    "template.t": ["credential.t", "fleet.a[0]", "fleet.a[0].bootstrap", "task.train[0]"],
    # What exists for it alone goes with it; a volume holds data and stays.
    "fleet.a[0]": ["fleet.a[0].bootstrap", "task.train[0]", "template.t", "credential.t"],
    "fleet.a[0].bootstrap": [],
    "task.train[0]": [],
}


@pytest.mark.parametrize("target", NEEDED_BY)
def test_making_one_thing_makes_what_it_needs(target: str, tmp_path: Path) -> None:
    request = {"targets": [target]}
    plan = read_case({"manifest": LAB, "feed": ["n1 1xH100 2.00"], "request": request}, tmp_path).plan()
    made = {str(action.address) for action in plan.actions}
    # A pod as target includes its bootstrap.
    extra = {"fleet.a[0].bootstrap"} if target == "fleet.a[0]" else set()
    assert made == {target, *NEEDED_BY[target]} | extra
    assert {before for action in plan.actions for before in map(str, action.depends_on)} <= made
    assert plan.complete == (len(made) == len(NEEDED_BY))


@pytest.mark.parametrize("target", ENDED_WITH)
def test_ending_one_thing_ends_what_uses_it(target: str, tmp_path: Path) -> None:
    request = {"targets": [target], "destroying": True}
    plan = read_case({"manifest": LAB, "applied": "same", "request": request}, tmp_path).plan()
    ended = {str(action.address) for action in plan.actions}
    assert ended == {target, *ENDED_WITH[target]}
    pulled = {found.address for found in plan.diagnostics if found.code == "pulled-in"}
    named = {target, f"{target}.bootstrap"}
    assert pulled == ended - named
