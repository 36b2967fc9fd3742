"""What the account shows and the state does not know: taken over, given back, waited for or not, on real commands."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from lium_plan.addresses import parse
from lium_plan.marks import pod_name
from lium_plan.state.journal import JournaledLedger, RunIdentity
from lium_plan.state.lock import this_process
from tests.statecmd.commands import here, store
from tests.support.projects import Project

BOX = """\
version: 1
project: demo
volumes: {data: {description: mine}}
fleets:
  box:
    resources: {gpu: {count: 1}}
    max_price: 3.00
    image: ubuntu:22.04
    ttl: 2h
    bootstrap: {commands: ["true"]}
"""


@pytest.fixture
def box(project: Project) -> Project:
    made = here(project)
    made.write(BOX)
    made.apply()
    return made


def ask(project: Project, method: str, path: str, body: object = None) -> Any:
    """The account's owner, by another tool."""
    answer = httpx.request(
        method, f"{project.sim.base_url}{path}", json=body, headers={"X-API-KEY": f"sk_sim_{project.account}"}
    )
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def sent(project: Project) -> list[str]:
    return [f"{row['method']} {row['path']}" for row in project.sim.requests(project.account) if row["method"] != "GET"]


def pod_id(project: Project, address: str = "fleet.box[0]") -> str:
    return str(project.resources("pod")[address]["id"])


def changed_by_hand(project: Project) -> datetime:
    """The volume has another description, the pod another end."""
    volume = project.resources("volume")["volume.data"]
    ask(project, "PUT", f"/volumes/{volume['id']}", {"description": "theirs"})
    later = (datetime.now(UTC) + timedelta(hours=5)).replace(microsecond=0)
    ask(project, "POST", f"/pods/{pod_id(project)}/schedule-removal", {"removal_scheduled_at": later.isoformat()})
    return later


# --- refresh only --------------------------------------------------------------------------------------------


def test_what_was_changed_is_shown_and_taken_into_the_state_and_nothing_else_happens(box: Project) -> None:
    box.run("plan", "--refresh-only", "--detailed-exitcode", expect=0)
    later = changed_by_hand(box)
    before, asked = box.state(), sent(box)

    shown = box.run("plan", "--refresh-only", "--detailed-exitcode", expect=2).out
    assert "Changed since the last apply, and not by it" in shown
    assert "description: mine -> theirs" in shown
    assert "Plan: 2 to take into the state, 0 to forget. Nothing on the account changes." in shown
    document = box.run("plan", "--refresh-only", "--json", expect=0).json
    assert document["applyable"]
    assert {(row["address"], row["action"]) for row in document["actions"]} == {
        ("fleet.box[0]", "adopt"), ("volume.data", "adopt"),
    }  # fmt: skip
    assert {row["address"]: [change["path"] for change in row["changes"]] for row in document["drift"]} == {
        "fleet.box[0]": ["removal_at"], "volume.data": ["description"],
    }  # fmt: skip
    assert not any(document["summary"].values())
    assert box.state() == before

    box.run("apply", "--refresh-only", expect=1)  # nobody said yes
    box.run("plan", "--refresh-only", "--out", "look.plan", expect=0)
    box.run("apply", "look.plan", expect=0)
    assert sent(box) == asked
    after = box.state()
    assert after["serial"] > before["serial"]
    pod, volume = box.resources("pod")["fleet.box[0]"], box.resources("volume")["volume.data"]
    assert datetime.fromisoformat(pod["attributes"]["removal_at"]) == later
    assert volume["attributes"]["description"] == "theirs"
    assert "applied already" in box.run("apply", "look.plan", expect=4).err
    assert (
        "The state is as the account shows it" in box.run("plan", "--refresh-only", "--detailed-exitcode", expect=0).out
    )

    planned = box.run("plan", "--json", expect=0).json
    assert planned["drift"] == []
    assert {(row["address"], row["action"]) for row in planned["actions"]} == {
        ("fleet.box[0]", "update"), ("volume.data", "update"),
    }  # fmt: skip
    box.apply()
    box.run("plan", "--detailed-exitcode", expect=0)
    box.run("plan", "--refresh-only", "--detailed-exitcode", expect=0)


def test_what_is_gone_is_forgotten_with_what_was_on_it_and_a_target_limits_it(box: Project) -> None:
    changed_by_hand(box)
    ask(box, "DELETE", f"/pods/{pod_id(box)}")
    while box.run("plan", "--refresh-only", "--json", expect=0).json["drift"][0]["status"] == "deleting":
        box.sim.control("POST", "/advance", {"seconds": 60})
    asked = sent(box)
    box.run("apply", "--refresh-only", "--auto-approve", "--target", "fleet.box", expect=0)
    assert [row["address"] for row in box.state()["resources"] if row["address"].startswith("fleet.")] == []
    assert box.resources("volume")["volume.data"]["attributes"]["description"] == "mine"
    assert sent(box) == asked
    assert box.run("plan", "--refresh-only", "--json", expect=0).json["drift"][0]["address"] == "volume.data"


def test_a_pod_on_its_way_out_is_so_in_the_state_too(box: Project) -> None:
    ask(box, "DELETE", f"/pods/{pod_id(box)}")
    box.run("apply", "--refresh-only", "--auto-approve", expect=0)
    rows = box.resources("pod")
    assert not rows or rows["fleet.box[0]"]["status"] == "deleting"


def test_an_open_rent_stays_open_and_nothing_is_sent(project: Project) -> None:
    project.write(BOX)
    assert project.crash("apply", "--auto-approve", at="before POST /executors/*/rent #1").code == -9
    asked = sent(project)
    shown = project.run("plan", "--refresh-only", expect=0).out
    assert "leave it open" in shown
    project.run("apply", "--refresh-only", "--auto-approve", expect=0)
    assert sent(project) == asked
    assert [row["address"] for row in project.state()["open"]] == ["fleet.box[0]"]
    project.apply()
    assert len(project.ledger("pod")) == 1


# --- late pods -----------------------------------------------------------------------------------------------


def appears_late(project: Project, address: str) -> str:
    """A rent that was settled as not done, and the pod of it all the same: its id."""
    place, where = store(project.folder), parse(address)
    owner = this_process(who="ann", command="lium-plan apply", run="x", since=datetime.now(UTC))
    with asyncio.run(place.lock(owner, timeout_s=0)):
        state = place.load().state
        assert state is not None
        name = pod_name("demo", "default", state.lineage, "aaaabbbb", where.name, str(where.member))
        run = RunIdentity("r", "ann@box", "test")
        ledger = JournaledLedger(place, state, run=run, now=lambda: datetime.now(UTC))
        ledger.watch(name, where, datetime.now(UTC) + timedelta(hours=24))
        ledger.compact()
    template = next(row for row in project.state()["resources"] if row["kind"] == "template")
    node = next(
        row
        for row in httpx.get(f"{project.sim.base_url}/public/v1/nodes").json()["nodes"]
        if row["available_gpu_count"] and row["min_rentable_gpu_count"] == 1 and row["price_per_gpu_hour"] < 3
    )
    body = {
        "pod_name": name,
        "template_id": template["id"],
        "gpu_count": 1,
        "user_public_key": [project.key_path.with_suffix(".pub").read_text().strip()],
        "termination_hours": 2,
    }
    return str(ask(project, "POST", f"/executors/{node['id']}/rent", body)["pod_id"])


def test_a_late_pod_whose_place_is_taken_is_shown_and_given_back(box: Project) -> None:
    late = appears_late(box, "fleet.box[0]")
    planned = box.run("plan", "--detailed-exitcode", "--json", expect=2).json
    assert [(row["address"], row["will"].split()[:2]) for row in planned["open"]] == [
        ("fleet.box[0]", ["give", "back"])
    ]
    assert [(row["address"], row["action"]) for row in planned["actions"]] == [("fleet.box[0]", "destroy")]
    assert planned["cost"]["before_per_hour_usd"] > planned["cost"]["after_per_hour_usd"]
    assert "give back pod lp-" in box.run("plan", expect=0).out
    box.apply()
    assert late not in {row["id"] for row in box.ledger("pod", open_only=True)}
    assert pod_id(box) in {row["id"] for row in box.ledger("pod", open_only=True)}
    box.run("plan", "--detailed-exitcode", expect=0)


def test_a_late_pod_that_is_wanted_is_adopted_instead_of_renting_another(box: Project) -> None:
    box.write(BOX.replace("  box:\n", "  box:\n    nodes: 2\n"))
    late = appears_late(box, "fleet.box[1]")
    box.run("plan", "--out", "two.plan", "--detailed-exitcode", expect=2)
    shown = box.run("show", "two.plan", expect=0).out
    assert "adopt pod lp-" in shown
    assert "→ fleet.box[1]" in shown
    box.run("apply", "two.plan", expect=0)
    assert pod_id(box, "fleet.box[1]") == late
    assert len(box.ledger("pod")) == 2
    box.run("plan", "--detailed-exitcode", expect=0)
    box.destroy()
    assert box.ledger(open_only=True) == []


def test_a_destroy_takes_a_late_pod_along_at_once(box: Project) -> None:
    box.write(BOX.replace("  box:\n", "  box:\n    nodes: 2\n"))
    appears_late(box, "fleet.box[1]")
    box.destroy()
    assert box.ledger(open_only=True) == []


# --- an open extension ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["before POST /pods/*/schedule-removal #1", "answered POST /pods/*/schedule-removal #1"])
def test_an_apply_settles_an_extension_by_what_the_server_has(box: Project, at: str) -> None:
    def recorded() -> datetime:
        return datetime.fromisoformat(box.resources("pod")["fleet.box[0]"]["attributes"]["removal_at"])

    before, took = recorded(), at.startswith("answered")
    assert box.crash("extend", "fleet.box[0]", "1h", at=at).code == -9
    shown = box.run("plan", expect=0).out
    assert "look whether it has the end that was asked for" in shown
    assert "by hand" not in shown
    box.apply()
    given = timedelta(hours=1) if took else timedelta(0)
    assert abs(recorded() - before - given) < timedelta(seconds=2)
    assert box.state()["open"] == []
    (pod,) = [pod for pod in box.sim.world()["pods"] if pod["id"] == pod_id(box)]
    assert abs(datetime.fromisoformat(pod["removal_scheduled_at"]) - recorded()) < timedelta(seconds=2)
    box.run("plan", "--detailed-exitcode", expect=0)
    if took:
        assert "extended to" in box.run("plan", expect=0).err


# --- what others use -----------------------------------------------------------------------------------------


def test_a_destroy_gives_up_at_once_what_a_foreign_pod_uses(box: Project) -> None:
    """With the default patience of 15 minutes; what the state does not own it does not wait for."""
    pod = pod_id(box)
    box.run("state", "rm", "fleet.box", expect=0)
    tries = len([line for line in sent(box) if line.startswith("DELETE /templates")])
    done = box.destroy(expect=3)
    assert f"({pod}) uses it, and this state does not own that" in done.out + done.err
    rows = {row["address"]: row["status"] for row in box.state()["resources"]}
    assert list(rows.values()) == ["deleting"]
    assert len([line for line in sent(box) if line.startswith("DELETE /templates")]) == tries + 1
    ask(box, "DELETE", f"/pods/{pod}")
    box.destroy()
    assert box.ledger(open_only=True) == []


# --- what is no drift, and what did not take -----------------------------------------------------------------


def test_e3_what_the_server_fills_in_is_no_difference(project: Project) -> None:
    made = here(project)
    made.write(
        "version: 1\nproject: demo\nvolumes: {data: {}}\n"
        "templates: {t: {image: ubuntu, ports: [8000, 22], env: {B: '2', A: '1'}}}\n"
        "fleets: {box: {resources: {gpu: {count: 1}}, max_price: 3.00, template: t, ttl: 2h}}\n"
    )
    made.apply()
    asked = sent(made)
    made.run("plan", "--detailed-exitcode", expect=0)
    made.run("plan", "--refresh-only", "--detailed-exitcode", expect=0)
    made.apply()
    assert sent(made) == asked


def test_b6_a_refused_update_changes_nothing_here_and_is_planned_again(box: Project) -> None:
    box.write(BOX.replace("mine", "ours"))
    forbidden = {"do": "answer", "status": 403}
    box.sim.fault(forbidden, match={"method": "PUT", "path": "/volumes/*", "account": box.account, "times": 1})
    box.apply(expect=3)
    assert box.resources("volume")["volume.data"]["attributes"]["description"] == "mine"
    shown = box.run("plan", "--detailed-exitcode", expect=2).out
    assert "description: mine -> ours" in shown
    box.apply()
    box.run("plan", "--detailed-exitcode", expect=0)


# --- status ----------------------------------------------------------------------------------------------------


def rows_of(project: Project) -> tuple[dict[str, Any], Any]:
    shown = project.run("status", "--json", expect=0).json
    return {row["address"]: row for row in shown["pods"]}, shown["total_per_hour_usd"]


def test_status_says_what_a_plan_says_of_dead_pods_and_gives_them_no_price(project: Project) -> None:
    box = here(project)
    box.write(BOX.replace("  box:\n", "  box:\n    nodes: 3\n"))
    box.apply()
    one, two = pod_id(box, "fleet.box[0]"), pod_id(box, "fleet.box[1]")
    box.sim.control("POST", "/faults", {"effect": {"do": "break", "pod": one}})
    ask(box, "DELETE", f"/pods/{two}")
    box.sim.control("POST", "/advance", {"seconds": 300})

    rows, total = rows_of(box)
    assert [rows[f"fleet.box[{number}]"]["status"] for number in range(3)] == ["broken", "gone", "ready"]
    assert rows["fleet.box[0]"]["drift"] == ["the server says BROKEN: its provider has closed it"]
    assert rows["fleet.box[1]"]["drift"] != []
    assert rows["fleet.box[0]"]["price_per_hour_usd"] == rows["fleet.box[1]"]["price_per_hour_usd"] == 0
    assert total == rows["fleet.box[2]"]["price_per_hour_usd"] > 0


def test_status_shows_what_a_killed_apply_has_rented(project: Project) -> None:
    project.write(BOX)
    assert project.crash("apply", "--auto-approve", at="answered POST /executors/*/rent #1").code == -9
    rows, total = rows_of(project)
    (pod,) = project.ledger("pod")
    row = rows["fleet.box[0]"]
    assert (row["id"], row["status"], row["gpu_count"]) == (pod["id"], "pending", 1)
    assert total == row["price_per_hour_usd"] == pod["price_per_hour_usd"] > 0
    assert row["drift"] == ["its rent has no recorded outcome: apply settles it"]
    project.apply()
    rows, again = rows_of(project)
    assert (again, rows["fleet.box[0]"]["drift"]) == (total, [])


def test_status_warns_of_a_rent_that_may_still_come_to_be_a_pod(project: Project) -> None:
    project.write(BOX)
    assert project.crash("apply", "--auto-approve", at="before POST /executors/*/rent #1").code == -9
    told = project.run("status", expect=0)
    assert told.out == "No pods.\n"
    assert (
        "fleet.box[0]: a rent has no recorded outcome, and no pod of its name is listed yet: it may cost up to $"
        in (told.err)
    ), told


def test_status_takes_ends_within_the_tolerance_for_the_same_and_shows_others_readably(box: Project) -> None:
    end = datetime.fromisoformat(box.resources("pod")["fleet.box[0]"]["attributes"]["removal_at"])
    for minutes, drifts in ((2, 0), (60, 1)):
        later = (end + timedelta(minutes=minutes)).replace(microsecond=0)
        ask(box, "POST", f"/pods/{pod_id(box)}/schedule-removal", {"removal_scheduled_at": later.isoformat()})
        drift = rows_of(box)[0]["fleet.box[0]"]["drift"]
        assert len(drift) == drifts, drift
    assert drift == [f"end: {end:%Y-%m-%d %H:%M}Z -> {later:%Y-%m-%d %H:%M}Z"]


def test_an_allowance_and_a_target_that_match_nothing_are_errors_and_say_what_there_is(box: Project) -> None:
    for flag in ("--allow-destroy", "--target"):
        refused = box.run("plan", flag, "fleet.q", expect=1).err
        assert f"{flag} fleet.q matches nothing" in refused
        assert "fleet.box" in refused
    box.run("plan", "--allow-destroy", "fleet.box", "--allow-destroy", "2", "--allow-destroy", "all", expect=0)
    assert "did you mean fleet.box?" in box.run("hostfile", "fleet.bx", expect=1).err
    assert "there are: fleet.box" in box.run("hostfile", "fleet.zz", expect=1).err


def test_quiet_says_nothing_when_all_goes_well(project: Project) -> None:
    box = here(project)
    box.write(BOX)
    done = box.run("apply", "--auto-approve", "-q", expect=0)
    assert (done.out, done.err) == ("", "")
    assert "fleet.box[0]" in box.run("plan", "-q", "--replace", "fleet.box[0]", expect=0).out


def test_a_server_that_is_down_for_a_moment_is_waited_for_and_that_is_said_once(box: Project) -> None:
    def down() -> None:
        match = {"method": "GET", "path": "/pods", "account": box.account, "times": 2}
        box.sim.fault({"do": "answer", "status": 503}, match=match)

    down()
    told = box.run("status", expect=0)
    assert told.err.count("The server answers 503, trying again.") == 1
    for quiet in ("-q", "--json"):
        down()
        assert "503" not in box.run("status", quiet, expect=0).err


def test_a_refused_key_is_named_by_where_it_came_from(box: Project) -> None:
    other = replace(box, more={"LIUM_API_KEY": "sk_nobodys"})
    refused = other.run("status", expect=1).err
    assert "LIUM_API_KEY" in refused
    assert "lium-plan doctor" in refused
    assert "X-API-KEY" not in refused


def test_a_server_that_is_not_there_comes_with_what_to_look_at(box: Project) -> None:
    nowhere = replace(box, more={"LIUM_BASE_URL": "http://127.0.0.1:9/api"})
    assert "LIUM_BASE_URL" in nowhere.run("status", expect=1).err.partition("hint:")[2]
