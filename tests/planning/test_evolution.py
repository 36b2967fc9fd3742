"""From any small manifest to any other, whatever was deleted by hand meanwhile: a plan is made, and it converges."""

from __future__ import annotations

import copy
import os
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planning_cases import read_case
from planning_markets import NOW, feed
from test_cases import check_convergence, check_invariants

from lium_plan.operations.saved import staleness
from lium_plan.planning.plan import Action

pytestmark = pytest.mark.timeout(900)
EXAMPLES = int(os.environ.get("LIUM_PLAN_EXAMPLES", "120"))
NODES = st.sampled_from([1, 2, 3, "1..3", ["head", "left"], ["head", "right"]])
Manifest = dict[str, Any]
MEMORY = Path("/dev/shm")
POD_ID, OTHER_ID = "6b1f2a7e-4c1d-4e0f-9a3b-2d5e6f708192", "6b1f2a7e-4c1d-4e0f-9a3b-2d5e6f708193"


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Hundreds of small files, in memory where there is such a place."""
    return tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)


@st.composite
def fleets(draw: st.DrawFn, templates: list[str]) -> Manifest:
    nodes = draw(NODES)
    fleet: Manifest = {
        "nodes": nodes,
        "resources": {"gpu": draw(st.sampled_from(["H100", "A100", "H100,A100"]))},
        "ttl": draw(st.sampled_from(["6h", "8h"])),
        "placement": draw(st.sampled_from(["any", "any", "spread", "pack"])),
    }
    used = draw(st.sampled_from([*templates, None]))
    fleet.update({"template": used} if used else {"image": draw(st.sampled_from(["ubuntu", "debian"]))})
    if draw(st.booleans()):
        fleet["bootstrap"] = draw(bootstraps())
    if draw(st.integers(0, 3)) == 0:
        fleet["ttl_renew"] = True
    lifecycle: Manifest = {}
    if draw(st.booleans()):
        lifecycle["create_before_destroy"] = True
    elif nodes == 1 and draw(st.booleans()):
        fleet["volume"] = "data"
    if draw(st.integers(0, 3)) == 0:
        lifecycle["ignore_changes"] = draw(st.sampled_from([["ttl"], ["template"], ["resources.gpu"]]))
    return {**fleet, "lifecycle": lifecycle}


@st.composite
def bootstraps(draw: st.DrawFn) -> Manifest:
    found: Manifest = {
        "commands": [draw(st.sampled_from(["echo one", "echo two"]))],
        "run": draw(st.sampled_from(["changed", "changed", "once", "always"])),
    }
    if draw(st.booleans()):
        found["env"] = {"WHO": draw(st.sampled_from(["${{ member.name }}", "${{ member.index }}", "nobody"]))}
    return found


@st.composite
def tasks_on(draw: st.DrawFn, fleet: str) -> Manifest:
    return {
        "fleet": fleet,
        "commands": [draw(st.sampled_from(["train", "train more"]))],
        "members": draw(st.sampled_from(["all", "first"])),
        "wait": draw(st.sampled_from(["completed", "started"])),
        "max_duration": "1h",
    }


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = draw(st.lists(st.sampled_from(["t", "u"]), unique=True))
    templates: Manifest = {}
    for name in names:
        templates[name] = {"image": draw(st.sampled_from(["lab/one", "lab/two"]))}
        if draw(st.booleans()):
            login = {"username": draw(st.sampled_from(["ann", "ben"])), "password": draw(st.sampled_from(["1", "2"]))}
            templates[name]["registry_auth"] = {**login, "password": f"word-{login['password']}"}
    chosen = draw(st.lists(st.sampled_from(["a", "b", "c"]), unique=True))
    written = {name: draw(fleets(names)) for name in chosen}
    tasks = {f"on-{name}": draw(tasks_on(name)) for name in chosen if draw(st.booleans())}
    volumes: Manifest = {}
    if draw(st.booleans()) or any("volume" in fleet for fleet in written.values()):
        volumes["data"] = {"description": draw(st.sampled_from(["x", "y"]))}
    return sound({"templates": templates, "fleets": written, "tasks": tasks, "volumes": volumes})


def sound(manifest: Manifest) -> Manifest:
    """One volume, one pod; what a fleet uses is declared."""
    taken = False
    for fleet in manifest["fleets"].values():
        if "volume" in fleet and (taken or fleet["volume"] not in manifest["volumes"]):
            del fleet["volume"]
        taken = taken or "volume" in fleet
        if "template" in fleet and fleet["template"] not in manifest["templates"]:
            del fleet["template"]
            fleet["image"] = "ubuntu"
    return manifest


NEW_NAMES = {"a": "d", "b": "e", "c": "f", "t": "v", "data": "store"}


@st.composite
def renamed(draw: st.DrawFn, before: Manifest, after: Manifest) -> Manifest:
    """What is declared no more: it may have got another name, with what is on it, or be given up."""
    after = {**after, "moved": [], "removed": []}
    for section, head in (("volumes", "volume"), ("templates", "template"), ("fleets", "fleet")):
        for name in [name for name in before[section] if name not in after[section]]:
            fate = draw(st.sampled_from(["gone", "moved", "released", "removed"]))
            if fate == "moved" and name in NEW_NAMES:
                _move(draw, before, after, section, name)
            elif fate in ("released", "removed"):
                after["removed"].append({"from": f"{head}.{name}", "destroy": fate == "removed"})
    return sound(after)


def _move(draw: st.DrawFn, before: Manifest, after: Manifest, section: str, name: str) -> None:
    new = NEW_NAMES[name]
    after["moved"].append({"from": f"{section[:-1]}.{name}", "to": f"{section[:-1]}.{new}"})
    block = copy.deepcopy(before[section][name])
    if section == "fleets":
        for used in ("volume", "template"):
            if block.get(used) in NEW_NAMES and NEW_NAMES[block[used]] in after[f"{used}s"]:
                block[used] = NEW_NAMES[block[used]]
        if draw(st.booleans()):
            block["resources"] = {"gpu": "A100"}
        if f"on-{name}" in before["tasks"] and draw(st.booleans()):
            after["tasks"][f"on-{name}"] = {**before["tasks"][f"on-{name}"], "fleet": new}
    after[section][new] = block


POD_FOUND = st.sampled_from(
    [
        *("absent by hand", "absent RECLAIMED", "BROKEN", "FAILED", "REBOOT_FAILED", "DELETING", "STOPPED"),
        *("RUNNING removal_at=none", "RUNNING removal_at=+1h", "RUNNING template_id=theirs", "RUNNING gpu_count=7"),
        "RUNNING ip=192.0.2.77",
    ]
)
MARKET = ["n1 1-8xH100 2.00", "n2 1-8xH100 2.10", "n3 1-8xA100 1.00", "n4 1-8xA100 1.10"]


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    """One manifest applied, another wanted, and whatever happened meanwhile."""
    before = draw(manifests())
    after = draw(renamed(before, draw(manifests())))
    request: dict[str, Any] = {"allow_destroy": ["all"]}
    how = draw(st.sampled_from(["apply", "apply", "apply", "replace", "fill", "destroy"]))
    if how in ("fill", "destroy"):
        request["fill" if how == "fill" else "destroying"] = True
    case: dict[str, Any] = {"applied": yaml.safe_dump(before), "feed": MARKET, "request": request}
    with scratch() as folder:
        state = read_case({**case, "manifest": yaml.safe_dump(before)}, Path(folder)).state
    assert state is not None
    things = [key for key in state.records if key.startswith(("volume", "template", "credential"))]
    pods = [key for key, record in state.records.items() if record.kind == "pod"]
    missing = draw(st.sets(st.sampled_from(things), max_size=2)) if things else set()
    found = draw(st.dictionaries(st.sampled_from(pods), POD_FOUND, max_size=3)) if pods else {}
    case["observed"] = {**dict.fromkeys(missing, "absent by hand"), **found}
    if pods and draw(st.booleans()):
        _appear(draw, case, pods)
    fresh = [name for name in after["fleets"] if name not in before["fleets"] and name not in NEW_NAMES.values()]
    if fresh and draw(st.booleans()):
        member = (
            (after["fleets"][fresh[0]]["nodes"] or ["0"])
            if isinstance(after["fleets"][fresh[0]]["nodes"], list)
            else ["0"]
        )
        address = f"fleet.{fresh[0]}[{member[0]}]"
        after["imports"] = [{"to": address, "id": POD_ID}]
        case["imports"] = {address: "n9 1xH100 2.00"}
    if how == "replace" and after["fleets"]:
        request["replace"] = [f"fleet.{draw(st.sampled_from(sorted(after['fleets'])))}"]
    return {**case, "manifest": yaml.safe_dump(after)}


def _appear(draw: st.DrawFn, case: dict[str, Any], pods: list[str]) -> None:
    """A pod that nobody counted on any more, at an address that has one or lost it."""
    where = draw(st.sampled_from(pods))
    case["late"] = [f"{where} lp-late n8 1x{draw(st.sampled_from(['H100', 'A100']))} 2.50"]
    if draw(st.booleans()):
        hosted = (key for key in (f"{where}.bootstrap", where.replace("fleet.", "task.on-")))
        case["state"] = {where: "none", **dict.fromkeys(hosted, "none")}
        case["observed"] = {key: row for key, row in case["observed"].items() if key != where}


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(situations())
def test_any_change_of_a_manifest_converges(case: dict[str, Any]) -> None:
    with scratch() as folder:
        given_ = read_case(case, Path(folder))
        plan = given_.plan()
        assert plan.refusal is None
        check_invariants(given_, plan)
        if plan.complete:
            check_convergence(given_, plan)


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(situations(), st.data())
def test_targets_and_excludes_are_parts_of_the_whole_plan(case: dict[str, Any], data: st.DataObject) -> None:
    with scratch() as folder:
        given_ = read_case(case, Path(folder))
    whole = given_.plan()
    # What changes the state alone is neither chosen nor left out, nor is a late pod whose place is taken.
    spare = {late.record.id for late in given_.observed.late if late.record.deposed}
    choice = [action for action in whole.actions if action.source is None and action.deposed_id not in spare]
    if not choice:
        return
    chosen = str(data.draw(st.sampled_from(choice)).address)
    for option in ("targets", "excludes"):
        part = replace(given_, request=replace(given_.request, **{option: (chosen,)})).plan()
        assert {_identity(action) for action in part.actions} <= {_identity(action) for action in whole.actions}
        check_invariants(replace(given_, request=replace(given_.request, **{option: (chosen,)})), part)
        rest = [action for action in part.actions if action.source is None and action.deposed_id not in spare]
        named = any(str(action.address) == chosen for action in rest)
        # How a declared task has ended is not forgotten as long as its pod stays.
        stays = option == "targets" and any(found.code == "pulled-out" for found in part.diagnostics)
        assert stays or named == (option == "targets")


def _identity(action: Action) -> tuple[str, str | None, str | None]:
    return str(action.address), action.deposed_id, action.source


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(situations(), st.lists(st.sampled_from(["n1 1-8xH100 2.05", "n9 1-8xA100 1.00", "n8 1-8xH100 1.99"])))
def test_a_plan_that_is_applied_at_once_is_never_stale(case: dict[str, Any], market: list[str]) -> None:
    """The clock goes on, nodes are taken and prices move: none of it matters."""
    with scratch() as folder:
        given_ = read_case(case, Path(folder))
    later = replace(given_, observed=replace(given_.observed, feed=feed(*dict.fromkeys(market))))
    fresh = later.plan(now=NOW + timedelta(seconds=50))
    assert staleness(given_.plan(), fresh) is None
