"""Kind × action × how the thing was found: every cell has a case, or a reason why it can't be. The run prints it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from planning_cases import Given, load_cases, read_case

from lium_plan.addresses import Address
from lium_plan.kinds.protocol import Verb
from lium_plan.kinds.registry import KINDS, kind
from lium_plan.planning.moving import relocate
from lium_plan.planning.plan import Plan
from lium_plan.planning.rents import host_of

NOTHING = "nothing"
ACTIONS = (NOTHING, *(verb.value for verb in Verb))
FOUND = ("new", "as recorded", "changed", "gone", "dead", "deleting", "unreachable")
GROUPS = {
    **dict.fromkeys(("changed", "ttl-lost", "ttl-changed", "template-switched", "gpu-count", "rebooted"), "changed"),
    **dict.fromkeys(("gone", "expired", "reclaimed"), "gone"),
    **dict.fromkeys(
        ("broken", "failed", "creation-failed", "reboot-failed", "stopped", "stop-pending", "unknown"), "dead"
    ),
    **dict.fromkeys(("deleting", "unreachable"), ""),
}
"""Every drift status that a plan can tell, and the column that it stands in (its own where that is empty)."""
LASTING_ONLY = ("update", "reboot", "replace", "destroy", "forget", "move")

Cells = Counter[tuple[str, str, str]]


def impossible(name: str, action: str, found: str) -> str | None:
    """Why a cell can't be; None: it can."""
    return (
        _by_action(name, action)
        or _by_finding(name, found)
        or _by_both(kind(name).hosted, action, found, name == "pod")
    )


def _by_action(name: str, action: str) -> str | None:
    if kind(name).hosted:
        if action == "create":
            return "what runs on a pod is run, not created"
        if action in ("update", "reboot"):
            return "it runs again instead"
        if name == "bootstrap" and action in ("replace", "adopt"):
            return "nothing of it goes on while nobody is connected"
        return None
    if action in ("run", "reboot") and name != "pod":
        return "only pods and what is on them"
    if action == "update" and name == "template":
        return "never edited in place: the server would reboot its pods"
    return "its content would go with it" if action == "replace" and name == "volume" else None


def _by_finding(name: str, found: str) -> str | None:
    """What runs on a pod is found as its pod is."""
    if name in ("pod", "bootstrap", "task"):
        return None
    if found in ("dead", "deleting"):
        return "only pods have a status"
    if found == "unreachable":
        return "a good list tells whether it is there"
    return "the list shows nothing that could differ" if found == "changed" and name == "credential" else None


def _by_both(hosted: bool, action: str, found: str, is_pod: bool) -> str | None:
    if action == "adopt" and found not in ("new", "changed") and not hosted and not is_pod:
        return "an import is of what the state does not have, a refresh of what was changed"
    if found == "new":
        if action in LASTING_ONLY or (hosted and action == "adopt") or (is_pod and action == "run"):
            return "there is nothing yet"
        return "what is wanted and missing is made" if action == NOTHING else None
    if action == "create" and found != "gone":
        return "it is there"
    if found == "gone":
        allowed = ("run", "forget", "move") if hosted else ("create", "forget", "move")
        return None if action in allowed else "it is not there any more"
    if found == "unreachable":
        return None if action in (NOTHING, "move") else "left alone until somebody knows"
    if not hosted and action in ("destroy", "forget") and found != "as recorded":
        return "what nobody wants is not compared"
    if found in ("dead", "deleting"):
        allowed = ("run", "forget", "move") if hosted else ("replace", "move")
        return None if action in allowed else "what is dead is replaced, and what ran on it runs anew or goes"
    if hosted and found == "changed" and action in ("adopt", "replace"):
        return "that the pod was changed says nothing about it"
    return "what was changed is put right" if found == "changed" and is_pod and action == "run" else None


def count(given: Given, plan: Plan, cells: Cells) -> None:
    moved = relocate(given.desired.moved if given.desired is not None else (), given.state, given.observed)
    records = moved.state.records if moved.state is not None else {}
    drift = {row.address: GROUPS[row.status] or row.status for row in plan.drift}
    acted: set[str] = set()
    for action in plan.actions:
        acted.add(str(action.address))
        thing = _pod_of(given, action.address) or action.address
        known = str(thing) in records or action.deposed_id is not None
        imported = action.verb is Verb.ADOPT and action.source is not None
        later = not known and any(other.address == thing and other.source for other in plan.actions)
        found = drift.get(thing) or ("as recorded" if (known or later) and not imported else "new")
        cells[action.address.kind, action.verb.value, found] += 1
    for record in records.values():
        if not record.deposed and str(record.address) not in acted:
            thing = _pod_of(given, record.address) or record.address
            cells[record.kind, NOTHING, drift.get(thing, "as recorded")] += 1


def _pod_of(given: Given, address: Address) -> Address | None:
    """What runs on a pod is found as its pod is."""
    if address.host is not None:
        return address.host
    resource = given.desired.resources.get(address) if given.desired is not None else None
    if resource is not None:
        return host_of(resource)
    record = given.state.records.get(str(address)) if given.state is not None else None
    return next(iter(record.depends_on), None) if record is not None and address.head == "task" else None


def all_cells(folder: Path) -> tuple[Cells, set[str]]:
    cells: Cells = Counter()
    statuses: set[str] = set()
    for number, (_, case) in enumerate(load_cases()):
        if "failure" not in case["expect"]:
            plan_of_case(case, folder / str(number), cells, statuses)
    return cells, statuses


def plan_of_case(case: Mapping[str, Any], folder: Path, cells: Cells, statuses: set[str]) -> None:
    folder.mkdir()
    given = read_case(case, folder)
    plan = given.plan()
    statuses.update(row.status for row in plan.drift)
    count(given, plan, cells)


def matrix(cells: Cells) -> str:
    """Counts; `·` for what can't be; `EMPTY` for what has no case."""
    lines = [f"{'':<22}" + "".join(f"{found:>13}" for found in FOUND)]
    for name in KINDS:
        for action in ACTIONS:
            shown = [
                str(cells[name, action, found] or ("·" if impossible(name, action, found) else "EMPTY"))
                for found in FOUND
            ]
            if any(cell != "·" for cell in shown):
                lines.append(f"{name + ' ' + action:<22}" + "".join(f"{cell:>13}" for cell in shown))
    reasons = sorted(
        {why for name in KINDS for action in ACTIONS for found in FOUND if (why := impossible(name, action, found))}
    )
    return "\n".join((*lines, "· can't be:", *(f"    {reason}" for reason in reasons), ""))


def test_no_cell_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells, statuses = all_cells(tmp_path)
    with capsys.disabled():
        print(f"\n{sum(1 for _ in load_cases())} planning cases\n{matrix(cells)}")
    empty = [
        (name, action, found)
        for name in KINDS
        for action in ACTIONS
        for found in FOUND
        if not cells[name, action, found] and impossible(name, action, found) is None
    ]
    assert empty == []
    assert statuses == set(GROUPS), "every drift status has a case of its own"


def test_there_are_enough_cases() -> None:
    assert sum(1 for _ in load_cases()) >= 150
