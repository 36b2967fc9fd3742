"""What documents and messages say of a state, without a server."""

from __future__ import annotations

import json

import pytest

from tests.statecmd.commands import FLEET, Desk, pod, record


def test_an_output_that_nothing_is_known_of_yet_is_unknown_everywhere(desk: Desk) -> None:
    with desk.writing() as ledger:
        ledger.set_outputs({"host": None, "price": 0.29})
    known = {"value": 0.29, "sensitive": False, "unknown": False}
    unknown = {"value": None, "sensitive": False, "unknown": True}
    for command in ("output", "show"):
        assert desk.run(command, "--json").json["outputs"] == {"host": unknown, "price": known}
    assert "host  = (known after apply)\n" in desk.run("output").out
    assert "is known only after an apply" in desk.run("output", "host", expect=1).err
    assert desk.run("output", "price").out == "0.29\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("logs fleet.workers[1]", "the state has a pod at fleet.workers[1], but no bootstrap or task"),
        ("hostfile task.train", "the state has a task at task.train, but no pod"),
        ("ssh volume.data", "the state has a volume at volume.data, but no pod or bootstrap or task"),
        ("logs task.trian", "task.trian is not in the state\n  hint: did you mean task.train"),
        ("hostfile fleet.worker", "fleet.worker is not in the state"),
    ],
)
def test_what_is_there_is_not_said_to_be_missing(desk: Desk, command: str, words: str) -> None:
    desk.fill(*FLEET)
    assert words in desk.run(*command.split(), expect=1).err


@pytest.mark.parametrize("given", [("--stack", "BAD name"), ("--state", "s3://x/y"), ("--state", "/tmp/zz")])
def test_global_options_that_mean_nothing_are_bad_usage(desk: Desk, given: tuple[str, str]) -> None:
    for command in ("show", "plan", "apply"):
        desk.run(command, *given, expect=64)


def test_a_saved_plan_that_cannot_be_read_has_the_shape_of_a_plan(desk: Desk) -> None:
    desk.write("nonsense", "bad.plan")
    shown, planned = desk.run("show", "bad.plan", "--json", expect=1), desk.run("plan", "--json", expect=1)
    assert list(shown.json) == list(planned.json)
    assert (shown.json["errored"], shown.json["diagnostics"][0]["severity"]) == (True, "error")


def test_the_events_of_a_run_that_never_began_count_from_one(desk: Desk) -> None:
    refused = desk.run("apply", "--json", "--auto-approve", expect=1).out
    rows = [json.loads(line) for line in refused.splitlines()]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0]["type"] == "version"


def test_numbers_of_a_pod_are_numbers(desk: Desk) -> None:
    desk.fill(record("template.base", "t1"), pod("fleet.a[0]", "p0", cuda="12.8", download_mbps="4395.4"))
    facts = desk.run("state", "show", "fleet.a[0]", "--json").json["attributes"]
    assert (facts["cuda"], facts["download_mbps"], facts["price_per_hour_usd"]) == (12.8, 4395.4, 0.5)
