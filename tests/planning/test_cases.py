"""Every planning case in `tests/cases/planning`, and what must hold for each of them whatever it expects."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from planning_cases import Given, action_line, carried_out, load_cases, read_case, summary_line

from lium_plan.diagnostics import Failure
from lium_plan.planning.members import members_now
from lium_plan.planning.plan import Plan, needs_a_human

ALL = dict(load_cases())
EXPECTATIONS = {
    "actions", "summary", "cost", "refusal", "diagnostics", "messages", "drift", "open", "complete", "outputs",
    "members", "wait_s", "failure", "needs_a_human", "applyable", "has_changes",
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_case(name: str, tmp_path: Path) -> None:
    case = ALL[name]
    expect: Mapping[str, Any] = case["expect"]
    assert not set(expect) - EXPECTATIONS
    if "failure" in expect:
        with pytest.raises(Failure) as caught:
            read_case(case, tmp_path).plan()
        code, *texts = expect["failure"]
        assert int(caught.value.exit_code) == code
        for text in texts:
            assert text in f"{caught.value.diagnostics}"
        return
    given = read_case(case, tmp_path)
    plan = given.plan()
    check_actions(expect.get("actions", []), plan)
    if "summary" in expect:
        assert summary_line(plan) == expect["summary"]
    check_rest(expect, plan, given)
    check_invariants(given, plan)
    whole = plan.complete and all(found.code != "no-offer" for found in plan.diagnostics)
    settled = given.state is None or not given.state.open
    if whole and plan.refusal is None and settled and not given.request.refresh_only:
        check_convergence(given, plan)


def check_actions(expected: list[str], plan: Plan) -> None:
    lines = [action_line(action) for action in plan.actions]
    heads = [line.split(" ; ")[0] for line in lines]
    assert heads == [line.split(" ; ")[0] for line in expected], "\n".join(lines)
    for wanted, line in zip(expected, lines, strict=True):
        for fragment in wanted.split(" ; ")[1:]:
            absent = fragment.startswith("no ")
            found = fragment.removeprefix("no ") in line if absent else fragment in line
            assert found != absent, f"{fragment!r}: {line}"


def check_rest(expect: Mapping[str, Any], plan: Plan, given: Given) -> None:
    codes = [found.code for found in plan.diagnostics]
    assert sorted(codes) == sorted(expect.get("diagnostics", [])), plan.diagnostics
    for text in expect.get("messages", []):
        assert any(text in f"{found.message} {found.hint}" for found in plan.diagnostics), plan.diagnostics
    assert (int(plan.refusal) if plan.refusal is not None else None) == expect.get("refusal")
    drift = [" ".join((str(row.address), row.status, *(change.path for change in row.changes))) for row in plan.drift]
    assert drift == expect.get("drift", [])
    shown = [f"{row.address}: {row.will}" for row in plan.open]
    assert len(shown) == len(expect.get("open", []))
    assert all(text in row for text, row in zip(expect.get("open", []), shown, strict=True)), shown
    assert plan.complete == expect.get("complete", True)
    assert needs_a_human(plan) == expect.get("needs_a_human", False)
    if "applyable" in expect:
        assert plan.applyable == expect["applyable"]
    if "has_changes" in expect:
        assert plan.has_changes == expect["has_changes"]
    if "members" in expect:
        assert {name: list(map(str, names)) for name, names in expect["members"].items()} == {
            name: list(names) for name, names in given.members.items()
        }
    if "outputs" in expect:
        assert {name: "?" if item.unknown else item.value for name, item in plan.outputs.items()} == expect["outputs"]
    if "wait_s" in expect:
        assert plan.rate_limit_wait_s == expect["wait_s"]
    cost = plan.cost
    for name, value in expect.get("cost", {}).items():
        found = {"before": cost.before_per_hour_usd, "after": cost.after_per_hour_usd, "until_ttl": cost.until_ttl_usd,
                 "limit": cost.ceiling_per_hour_usd}[name]  # fmt: skip
        assert found == (None if value is None else Decimal(str(value))), name


def check_invariants(given: Given, plan: Plan) -> None:
    """Determinism, order, one action for a thing; and a plan is the same however the state's rows are ordered."""
    assert given.plan() == plan
    identities = [(action.address, action.deposed_id, action.source) for action in plan.actions]
    assert len(identities) == len(set(identities))
    place: dict[str, int] = {}
    for index, action in enumerate(plan.actions):
        for before in action.depends_on:
            assert place[str(before)] < index, f"{action.address} comes before {before}"
        if action.deposed_id is None:
            place[str(action.address)] = index
        else:
            place.setdefault(str(action.address), index)
    if given.state is not None:
        backwards = dict(reversed(given.state.records.items()))
        assert replace(given, state=replace(given.state, records=backwards)).plan() == plan


def check_convergence(given: Given, plan: Plan) -> None:
    """Carried out as it says, a plan leaves nothing to do, and nothing that nobody wants."""
    after = carried_out(given, plan)
    asked_once = replace(after.request, replace=(), targets=(), excludes=())
    left = replace(after, request=asked_once).plan()
    assert [action_line(action) for action in left.actions if action.counted] == []
    assert left.drift == ()
    if given.desired is not None and after.state is not None and not given.request.destroying:
        ended = [name for name in given.desired.fleets if not given.members[name]]
        again = members_now(given.desired, after.state, after.observed, asked_once, completed=ended)
        assert again == {name: given.members[name] for name in given.desired.fleets}


# A fleet that goes with its task is not there any more once it has been applied.
STAYING = [name for name, case in ALL.items() if "destroy-fleet" not in case.get("manifest", "destroy-fleet")]


@pytest.mark.parametrize("name", STAYING)
def test_what_has_been_applied_needs_nothing(name: str, tmp_path: Path) -> None:
    """The second apply does nothing, for every manifest that appears in a case."""
    case = {key: value for key, value in ALL[name].items() if key in ("manifest", "files")}
    plan = read_case({**case, "applied": "same", "feed": []}, tmp_path).plan()
    assert [action_line(action) for action in plan.actions if action.counted] == []
    assert plan.drift == ()


PRINT_ALL = """
import json, sys, tempfile
from pathlib import Path
sys.path[:0] = sys.argv[1:]
from planning_cases import load_cases, read_case
from lium_plan.views.plan_json import plan_to_json
with tempfile.TemporaryDirectory() as folder:
    for number, (name, case) in enumerate(load_cases()):
        if "failure" not in case["expect"]:
            place = Path(folder) / str(number)
            place.mkdir()
            plan = json.dumps(plan_to_json(read_case(case, place).plan(), saved=True))
            print(name, plan.replace(folder, ""))
"""


@pytest.mark.timeout(300)
def test_a_plan_is_the_same_to_the_byte_in_every_process() -> None:
    """Sets and hashes have another order in each; no plan may show it."""
    here = Path(__file__).parent
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PRINT_ALL, str(here.parents[1]), str(here)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) > 200
