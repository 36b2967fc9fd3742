"""From any small manifest to any other, whatever was deleted by hand meanwhile: a plan is made, and it converges."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planning_cases import read_case
from test_cases import check_convergence, check_invariants

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


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_change_of_a_manifest_converges(data: st.DataObject) -> None:
    case: dict[str, Any] = {
        "applied": data.draw(manifests()),
        "manifest": data.draw(manifests()),
        "feed": ["n1 1-8xH100 2.00", "n2 1-8xH100 2.10", "n3 1-8xA100 1.00", "n4 1-8xA100 1.10"],
        "request": {"allow_destroy": ["all"]},
    }
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder, "first")
        first.mkdir()
        state = read_case(case, first).state
        assert state is not None
        billed = [key for key, record in state.records.items() if record.address.part is None]
        pods = [key for key in billed if key.startswith(("fleet", "volume", "template", "credential"))]
        missing = data.draw(st.sets(st.sampled_from(pods), max_size=3)) if pods else set()
        second = Path(folder, "second")
        second.mkdir()
        given_ = read_case({**case, "observed": dict.fromkeys(missing, "absent by hand")}, second)
        plan = given_.plan()
        assert plan.refusal is None
        check_invariants(given_, plan)
        if plan.complete:
            check_convergence(given_, plan)
