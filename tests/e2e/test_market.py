"""Renting on a market that moves: what is on offer and why not, what is taken instead, what is given back, what is lost
(cases A3, A5, F5, F8; promises 2 and 4).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.support.projects import ROOT, Project
from tests.support.sims import Row, Sim, serving

RECORDED = ROOT / "tests" / "data" / "nodes-2026-09-10.json"
RENT = "/executors/*/rent"
MODELS = {"A4000": 2, "A5000": 3, "A6000": 4, "L4": 2, "L40": 2, "RTX 4090": 6}
"""GPU model -> nodes. A test that takes nodes away has a model for itself."""

ONE = """\
version: 1
project: market

templates:
  base:
    image: ubuntu:22.04

fleets:
  one:
    resources: {gpu: "MODEL:1"}
    max_price: 2.00
    template: base
    ttl: 2h
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    with serving(tmp_path_factory.mktemp("recorded"), "--feed", str(RECORDED)) as running:
        yield running


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    """Of each model a few nodes of two GPUs, each a cent dearer than the one before."""
    scratch = tmp_path_factory.mktemp("market")
    feed = scratch / "feed.json"
    rows = [node(model, number) for model, count in MODELS.items() for number in range(count)]
    feed.write_text(json.dumps({"nodes": rows}))
    with serving(scratch, "--feed", str(feed)) as running:
        yield running


def node(model: str, number: int) -> Row:
    family = list(MODELS).index(model)
    return {
        "id": f"00000000-0000-4000-8000-{family:06x}{number:06x}",
        "gpu_model": model,
        "gpu_count": 2,
        "available_gpu_count": 2,
        "min_rentable_gpu_count": 1,
        "price_per_gpu_hour": round(0.30 + number / 100, 2),
        "gpu_memory_gb": 24,
        "cpu_count": 32,
        "ram_gb": 128,
        "disk_gb": 1500,
        "disk_free_gb": 1200,
        "tier": "secure",
        "country": "United States",
        "country_code": "US",
        "region": "VA",
        "city": "Ashburn",
    }


def one_of(project: Project, model: str) -> None:
    project.write(ONE.replace("MODEL", model.replace(" ", "")))


def on_rent(project: Project, **more: object) -> Row:
    return {"method": "POST", "path": RENT, "account": project.account, **more}


def assert_agreed(project: Project, count: int) -> list[Row]:
    """State and ledger hold the same pods, so many of them; the ledger's rows."""
    billed = project.ledger("pod", open_only=True)
    assert {pod["id"] for pod in project.resources("pod").values()} == {row["id"] for row in billed}
    assert len(billed) == count
    return billed


def ended(project: Project) -> None:
    project.destroy()
    assert project.ledger(open_only=True) == []


# --- what is on offer -------------------------------------------------------------------------------------------------


def test_the_offers_of_a_recorded_market(recorded: Sim, another: Callable[[Sim], Project]) -> None:
    project = another(recorded)
    offers = project.run("offers", "--json", expect=0).json["offers"]
    assert len(offers) == 8
    h200 = {offer["gpu_count"]: offer for offer in offers if offer["gpu"] == "H200"}
    assert sorted(h200) == [1, 2, 3, 4, 5]
    assert (h200[1]["memory_gib"], h200[1]["cpu"], h200[1]["disk_gb"]) == (249, 24, 61)
    assert [offer["price_per_hour_usd"] for offer in offers] == sorted(offer["price_per_hour_usd"] for offer in offers)


H200 = """\
version: 1
project: big

templates:
  base: {image: "ubuntu:22.04"}

fleets:
  big:
    resources: {gpu: "H200:1", memory: 249GB.., disk: 61GB..}
    template: base
    ttl: 2h
"""


@pytest.mark.timeout(120)
def test_what_just_fits_is_rented_and_what_does_not_is_told_why(
    recorded: Sim, another: Callable[[Sim], Project]
) -> None:
    project = another(recorded)
    project.write(H200)
    project.apply()
    (row,) = assert_agreed(project, 1)
    assert row["node_id"] == "f092246d-5704-4c9e-b57f-7c0710a06deb"
    assert row["price_per_hour_usd"] == 3.99
    ended(project)

    project.write(H200.replace("61GB", "62GB"))
    planned = project.run("plan", "--json", expect=0).json
    create = next(action for action in planned["actions"] if action["address"] == "fleet.big[0]")
    assert create["offer"] is None
    (warning,) = [item for item in planned["diagnostics"] if item["severity"] == "warning"]
    assert "disk" in warning["message"], warning
    failed = project.apply(expect=3)
    assert "disk" in failed.err + failed.out, failed
    assert project.ledger("pod", open_only=True) == []
    ended(project)


# --- what is taken instead --------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_a_node_taken_after_the_plan_gives_way_to_the_next(market: Sim, another: Callable[[Sim], Project]) -> None:
    project = another(market)
    one_of(project, "A5000")
    project.run("plan", "--out", "saved.plan", expect=0)
    market.fault({"do": "take_node", "node": node("A5000", 0)["id"]})
    assert_substituted(project, project.run("apply", "saved.plan", "--json", expect=0).lines, "A5000")


@pytest.mark.timeout(120)
def test_a_node_taken_at_the_last_moment_gives_way_too(market: Sim, another: Callable[[Sim], Project]) -> None:
    project = another(market)
    one_of(project, "A6000")
    market.fault({"do": "take_node"}, match=on_rent(project))
    assert_substituted(project, project.apply("--json").lines, "A6000")
    assert [row["status"] for row in market.requests(project.account, "POST", RENT)] == [400, 200]


def assert_substituted(project: Project, events: list[Row], model: str) -> None:
    (event,) = [event for event in events if event["type"] == "substitution"]
    (row,) = assert_agreed(project, 1)
    assert (event["address"], event["from_node_id"], event["to_node_id"]) == (
        "fleet.one[0]",
        node(model, 0)["id"],
        node(model, 1)["id"],
    )
    assert row["node_id"] == event["to_node_id"]
    assert row["price_per_hour_usd"] == event["price_per_hour_usd"] == 0.31
    ended(project)


@pytest.mark.timeout(120)
def test_when_every_node_is_taken_nothing_is_left_billed(market: Sim, another: Callable[[Sim], Project]) -> None:
    project = another(market)
    one_of(project, "A4000")
    market.fault({"do": "take_node"}, match=on_rent(project, times=None))
    failed = project.apply(expect=3)
    assert "fleet.one[0]" in failed.out + failed.err
    assert_agreed(project, 0)
    assert len(market.requests(project.account, "POST", RENT)) == MODELS["A4000"]
    ended(project)


@pytest.mark.timeout(120)
def test_a_pod_that_comes_back_dearer_is_given_back(market: Sim, another: Callable[[Sim], Project]) -> None:
    project = another(market)
    one_of(project, "L4")
    dearer = {"do": "twist", "twist": {"price_factor": 10}}
    market.fault(dearer, match=on_rent(project, times=None))
    failed = project.apply(expect=3)
    assert "given back on node" in failed.out + failed.err, failed
    assert "it costs $3.00/h, the ceiling is $2.00/h" in failed.out + failed.err, failed
    assert "exclude_nodes" not in failed.out + failed.err, failed
    assert_agreed(project, 0)
    rows = project.ledger("pod")
    assert [row["to"] is not None for row in rows] == [True] * MODELS["L4"]
    assert all(row["id"] in failed.out for row in rows), failed
    ended(project)


@pytest.mark.timeout(120)
def test_an_image_that_never_starts_is_no_fault_of_the_market(market: Sim, another: Callable[[Sim], Project]) -> None:
    project = another(market)
    project.write(ONE.replace("MODEL", "A5000").replace("ubuntu:22.04", "limsim/fails-x:1"))
    failed = project.apply(expect=3)
    said = " ".join((failed.out + failed.err).split())
    why = "failed to register layer of limsim/fails-x: unexpected EOF"
    assert f"creation failed on 3 nodes: Container creation failed due to {why}" in said, failed
    assert "check the image limsim/fails-x:1 (and its registry login)" in said, failed
    assert f"giving it back: Container creation failed due to {why}" in said, failed
    events = project.run("events", "--json", expect=0).json["events"]
    forgotten = [item["result"] for item in events if item["action"] == "forget" and item["id"]]
    given_back = [
        result for result in forgotten if result.startswith(f"given back: Container creation failed due to {why}")
    ]
    assert len(given_back) == len(project.ledger("pod")) == 3, forgotten
    assert_agreed(project, 0)
    ended(project)


@pytest.mark.timeout(120)
def test_a_price_that_rose_past_the_ceiling_is_not_rented(market: Sim, another: Callable[[Sim], Project]) -> None:
    project = another(market)
    one_of(project, "L40")
    project.run("plan", "--out", "saved.plan", expect=0)
    for number in range(MODELS["L40"]):
        market.fault({"do": "price", "node": node("L40", number)["id"], "per_gpu_hour_usd": 2.5})
    assert project.run("apply", "saved.plan").code in (3, 4)
    assert market.requests(project.account, "POST", RENT) == []
    assert project.ledger("pod") == []
    ended(project)


# --- answers that are wrong -------------------------------------------------------------------------------------------

WRONG = {
    "refused for capacity": {"status": 409, "body": {"detail": "Executor is already rented"}},
    "refused for the request": {"status": 400, "body": {"detail": "no"}},
    "refused for the budget": {"status": 402, "body": {"detail": {"code": "api_key_budget_exceeded", "message": "no"}}},
    "another id": {"status": 200, "body": {"pod_id": "00000000-0000-4000-8000-000000000000"}},
    "no id at all": {"status": 200, "body": {"pod_id": "../../users/me"}},
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("answer", WRONG)
def test_a_rent_that_was_answered_wrongly_is_known_when_the_run_ends(
    market: Sim, another: Callable[[Sim], Project], answer: str
) -> None:
    project = another(market)
    one_of(project, "RTX 4090")
    effect = {"do": "answer", "where": "after", **WRONG[answer]}
    market.fault(effect, match={"method": "POST", "path": RENT, "account": project.account})
    first = project.run("apply", "--auto-approve")
    assert first.code in (0, 3), first
    known = {record["id"] for record in project.resources("pod").values()}
    assert {row["id"] for row in project.ledger("pod", open_only=True)} == known, first
    if first.code:
        project.apply()
    assert_agreed(project, 1)
    project.run("plan", "--detailed-exitcode", expect=0)
    ended(project)


# --- what is lost on the way ------------------------------------------------------------------------------------------

ACCIDENTS = {
    "lost before acting": {"do": "lose_reply", "where": "before"},
    "lost after acting": {"do": "lose_reply", "where": "after"},
    "500 after acting": {"do": "answer", "status": 500, "where": "after"},
    "502 before acting": {"do": "answer", "status": 502, "text": "<html>Bad Gateway</html>", "where": "before"},
    "nonsense after acting": {"do": "answer", "status": 200, "text": "not JSON", "where": "after"},
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("accident", ACCIDENTS)
def test_an_accident_on_the_way_makes_no_second_one(
    market: Sim, another: Callable[[Sim], Project], accident: str
) -> None:
    """Of a rent, a template and a volume, in one apply."""
    project = another(market)
    one_of(project, "RTX 4090")
    manifest = (project.folder / "lium.yaml").read_text()
    project.write(manifest.replace("    ttl:", "    volume: data\n    ttl:") + "\nvolumes:\n  data: {}\n")
    for path in (RENT, "/templates", "/volumes"):
        market.fault(ACCIDENTS[accident], match={"method": "POST", "path": path, "account": project.account})
    project.apply()
    assert_agreed(project, 1)
    assert sorted(row["kind"] for row in project.ledger()) == ["pod", "template", "volume"]
    project.run("plan", "--detailed-exitcode", expect=0)
    ended(project)
