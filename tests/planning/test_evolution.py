"""From any small manifest to any other, whatever was deleted by hand meanwhile: a plan is made, and it converges."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planning_cases import read_case
from planning_markets import NOW, feed
from test_cases import check_convergence, check_invariants

from lium_plan.operations.saved import staleness
from lium_plan.planning.plan import Action

NODES = st.sampled_from([1, 2, 3, "1..3", ["head", "left"], ["head", "right"]])


@st.composite
def fleets(draw: st.DrawFn, templates: list[str]) -> dict[str, Any]:
    nodes = draw(NODES)
    fleet: dict[str, Any] = {
        "nodes": nodes,
        "resources": {"gpu": draw(st.sampled_from(["H100", "A100", "H100,A100"]))},
        "ttl": draw(st.sampled_from(["6h", "8h"])),
    }
    used = draw(st.sampled_from([*templates, None]))
    fleet.update({"template": used} if used else {"image": draw(st.sampled_from(["ubuntu", "debian"]))})
    if draw(st.booleans()):
        fleet["bootstrap"] = {"commands": [draw(st.sampled_from(["echo one", "echo two"]))]}
    if draw(st.booleans()):
        fleet["lifecycle"] = {"create_before_destroy": True}
    elif nodes == 1 and draw(st.booleans()):
        fleet["volume"] = "data"
    return fleet


@st.composite
def manifests(draw: st.DrawFn) -> str:
    names = draw(st.lists(st.sampled_from(["t", "u"]), unique=True))
    templates: dict[str, Any] = {}
    for name in names:
        templates[name] = {"image": draw(st.sampled_from(["lab/one", "lab/two"]))}
        if draw(st.booleans()):
            login = {"username": draw(st.sampled_from(["ann", "ben"])), "password": draw(st.sampled_from(["1", "2"]))}
            templates[name]["registry_auth"] = {**login, "password": f"word-{login['password']}"}
    chosen = draw(st.lists(st.sampled_from(["a", "b", "c"]), unique=True))
    written: dict[str, Any] = {}
    for name in chosen:
        written[name] = draw(fleets(names))
        if any(fleet.get("volume") for other, fleet in written.items() if other != name):
            written[name].pop("volume", None)  # one volume, one pod
    tasks = {
        f"on-{name}": {"fleet": name, "commands": ["train"], "max_duration": "1h"}
        for name in chosen
        if draw(st.booleans())
    }
    volumes = {"data": {"description": draw(st.sampled_from(["x", "y"]))}} if draw(st.booleans()) else {}
    if any("volume" in fleet for fleet in written.values()):
        volumes = volumes or {"data": {"description": "x"}}
    return yaml.safe_dump({"templates": templates, "fleets": written, "tasks": tasks, "volumes": volumes})


POD_FOUND = st.sampled_from(
    [
        *("absent by hand", "absent RECLAIMED", "BROKEN", "FAILED", "REBOOT_FAILED", "DELETING", "STOPPED"),
        *("RUNNING removal_at=none", "RUNNING removal_at=+1h", "RUNNING template_id=theirs", "RUNNING gpu_count=7"),
    ]
)
MARKET = ["n1 1-8xH100 2.00", "n2 1-8xH100 2.10", "n3 1-8xA100 1.00", "n4 1-8xA100 1.10"]


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    """One manifest applied, another wanted, and whatever happened meanwhile."""
    case: dict[str, Any] = {
        "applied": draw(manifests()),
        "manifest": draw(manifests()),
        "feed": MARKET,
        "request": {"allow_destroy": ["all"]},
    }
    with tempfile.TemporaryDirectory() as folder:
        state = read_case(case, Path(folder)).state
    assert state is not None
    things = [key for key in state.records if key.startswith(("volume", "template", "credential"))]
    pods = [key for key, record in state.records.items() if record.kind == "pod"]
    missing = draw(st.sets(st.sampled_from(things), max_size=2)) if things else set()
    found = draw(st.dictionaries(st.sampled_from(pods), POD_FOUND, max_size=3)) if pods else {}
    return {**case, "observed": {**dict.fromkeys(missing, "absent by hand"), **found}}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(situations())
def test_any_change_of_a_manifest_converges(case: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given_ = read_case(case, Path(folder))
        plan = given_.plan()
        assert plan.refusal is None
        check_invariants(given_, plan)
        if plan.complete:
            check_convergence(given_, plan)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(situations(), st.data())
def test_targets_and_excludes_are_parts_of_the_whole_plan(case: dict[str, Any], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given_ = read_case(case, Path(folder))
    whole = given_.plan()
    if not whole.actions:
        return
    chosen = str(data.draw(st.sampled_from(whole.actions)).address)
    for option in ("targets", "excludes"):
        part = replace(given_, request=replace(given_.request, **{option: (chosen,)})).plan()
        assert {_identity(action) for action in part.actions} <= {_identity(action) for action in whole.actions}
        check_invariants(replace(given_, request=replace(given_.request, **{option: (chosen,)})), part)
        named = any(str(action.address) == chosen for action in part.actions)
        assert named == (option == "targets")


def _identity(action: Action) -> tuple[str, str | None]:
    return str(action.address), action.deposed_id


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(situations(), st.lists(st.sampled_from(["n1 1-8xH100 2.05", "n9 1-8xA100 1.00", "n8 1-8xH100 1.99"])))
def test_a_plan_that_is_applied_at_once_is_never_stale(case: dict[str, Any], market: list[str]) -> None:
    """The clock goes on, nodes are taken and prices move: none of it matters."""
    with tempfile.TemporaryDirectory() as folder:
        given_ = read_case(case, Path(folder))
    later = replace(given_, observed=replace(given_.observed, feed=feed(*dict.fromkeys(market))))
    fresh = later.plan(now=NOW + timedelta(seconds=50))
    assert staleness(given_.plan(), fresh) is None
