"""What `plan`, `status` and `destroy` say of money, beside the server's own ledger."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from tests.support.projects import Project, new_project
from tests.support.sims import Row, Sim, serving

MANIFEST = """\
version: 1
project: money
fleets:
  a:
    nodes: 2
    resources: {gpu: "RTX4090:1"}
    max_price: 2.00
    image: ubuntu:22.04
    ttl: 2h
"""


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    with serving(tmp_path_factory.mktemp("money")) as running:
        yield running


def project_on(sim: Sim, account: str, tmp_path: Path) -> Project:
    project = new_project(sim, account, tmp_path)
    project.write(MANIFEST)
    return project


def billed(project: Project) -> dict[str, Row]:
    """By pod id, with the dollars that the server counts for it."""
    return {row["id"]: row for row in project.ledger("pod")}


def pass_hours(sim: Sim, hours: float) -> None:
    sim.control("POST", "/advance", {"seconds": hours * 3600})


@pytest.mark.timeout(150)
def test_spent_so_far_and_in_the_end_are_the_servers_own_figures(sim: Sim, tmp_path: Path) -> None:
    project = project_on(sim, "spender", tmp_path)
    project.apply()
    pass_hours(sim, 1)
    low = billed(project)
    shown = project.run("status", "--json", expect=0).json
    high = billed(project)
    assert len(shown["pods"]) == 2
    for pod in shown["pods"]:
        assert low[pod["id"]]["amount_usd"] - 1e-5 <= pod["spent_usd"] <= high[pod["id"]]["amount_usd"] + 1e-5
        assert pod["spent_usd"] > 0.9 * pod["price_per_hour_usd"]
        assert pod["price_per_hour_usd"] == high[pod["id"]]["price_per_hour_usd"]
    assert shown["total_spent_usd"] == pytest.approx(sum(pod["spent_usd"] for pod in shown["pods"]), abs=1e-6)
    assert not [item for item in shown["diagnostics"] if item["code"] == "no-statement"]
    text = project.run("status", expect=0).out
    assert re.search(r"2 pods, \$\S+/h, \$\S+ so far", text), text

    gone = project.destroy()
    ended = billed(project)
    total = sum(row["amount_usd"] for row in ended.values())
    assert all(row["to"] is not None for row in ended.values())
    stated = re.search(r"\$(\S+) in all by the server's statements", gone.out)
    assert stated is not None, gone
    assert float(stated[1]) == pytest.approx(total, abs=0.005)
    each = {pod_id: re.search(rf"{pod_id}.*\$(\S+)", gone.out) for pod_id in ended}
    shown = {pod_id: Decimal(found[1]) for pod_id, found in each.items() if found is not None}
    assert sum(shown.values()) == Decimal(stated[1]), gone
    for pod_id, row in ended.items():
        assert float(shown[pod_id]) == pytest.approx(row["amount_usd"], abs=0.005), gone


@pytest.mark.timeout(150)
def test_the_price_of_a_pod_that_was_repriced_is_the_statements_not_price_times_age(sim: Sim, tmp_path: Path) -> None:
    project = project_on(sim, "repriced", tmp_path)
    project.apply()
    (first, *_) = project.ledger("pod", open_only=True)
    sim.fault({"do": "price", "node": first["node_id"], "factor": 3, "announced_seconds": 1800})
    pass_hours(sim, 1)
    shown = project.run("status", "--json", expect=0).json
    spent: dict[str, float] = {}
    for row in project.ledger("pod"):
        spent[row["id"]] = spent.get(row["id"], 0.0) + row["amount_usd"]
    for pod in shown["pods"]:
        assert pod["spent_usd"] == pytest.approx(spent[pod["id"]], rel=0.02)
    assert max(pod["spent_usd"] for pod in shown["pods"]) > 1.5 * min(row["price_per_hour_usd"] for row in [first])
    gone = project.destroy()
    total = sum(row["amount_usd"] for row in project.ledger("pod"))
    stated = re.search(r"\$(\S+) in all", gone.out)
    assert stated is not None, gone
    assert float(stated[1]) == pytest.approx(total, abs=0.005)


@pytest.mark.timeout(150)
def test_what_ended_by_itself_is_no_longer_billed_and_still_told(sim: Sim, tmp_path: Path) -> None:
    """Its time to live was over: there is nothing to delete, and the statement knows what it has cost."""
    project = project_on(sim, "expired", tmp_path)
    project.apply()
    pass_hours(sim, 3)
    shown = project.run("status", "--json", expect=0).json
    rows = billed(project)
    assert [pod["status"] for pod in shown["pods"]] == ["expired", "expired"]
    assert shown["total_per_hour_usd"] == 0
    assert shown["total_spent_usd"] == pytest.approx(sum(row["amount_usd"] for row in rows.values()), abs=1e-5)
    gone = project.destroy("--json")
    proofs = {event["id"]: event for event in gone.lines if event["type"] == "proof"}
    for pod_id, row in rows.items():
        assert proofs[pod_id]["gone"] is True
        assert proofs[pod_id]["total_usd"] == pytest.approx(row["amount_usd"], abs=1e-5)


@pytest.mark.timeout(150)
def test_a_plan_says_how_long_the_balance_lasts(sim: Sim, tmp_path: Path) -> None:
    project = project_on(sim, "poor", tmp_path)
    sim.ledger("poor")
    project.run("plan", expect=0)
    sim.fault({"do": "balance", "account": "poor", "usd": 5.0})
    planned = project.run("plan", "--json", expect=0).json["cost"]
    hourly = planned["after_per_hour_usd"]
    assert planned["balance_usd"] == 5.0
    assert planned["balance_floor_usd"] == pytest.approx(hourly / 4)
    assert planned["runway_s"] == pytest.approx(5.0 / hourly * 3600, abs=1)
    text = project.run("plan", expect=0).out
    assert f"Balance: $5.00 lasts {5.0 / hourly:.1f} h with all open pods" in text, text

    sim.fault({"do": "balance", "account": "poor", "usd": hourly / 4})
    refused = project.run("plan", expect=6)
    assert "balance-too-low" in project.run("plan", "--json", expect=6).out
    assert "0.25 h" in refused.err, refused
    assert project.run("apply", "--auto-approve").code == 6
    assert project.ledger("pod") == []
