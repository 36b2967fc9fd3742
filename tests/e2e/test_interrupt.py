"""Signals in the middle of an apply: it ends within ten seconds with exit 7 and a saved state, and a destroy leaves
nothing (design: cancelling; cases G1, O1, O5).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest

from tests.support.manifests import HANGING, PAIR
from tests.support.nursery import Started
from tests.support.projects import Done, Project, stop
from tests.support.sims import until

WITHIN_S = 10.0
AT_ONCE_S = 4.0
"""Less than the answers that are under way are waited for."""
RENT = "/executors/*/rent"


@contextmanager
def applying(project: Project) -> Iterator[Started]:
    """An apply that runs; killed if the test leaves it running."""
    with project.start("apply", "--auto-approve") as process:
        try:
            yield process
        finally:
            process.kill()


def slow_creation(project: Project) -> None:
    """Pods of this account take longer to be created than any test waits."""
    slow = {"do": "twist", "twist": {"create_seconds": 3600}}
    project.sim.fault(slow, match={"method": "POST", "path": RENT, "account": project.account, "times": None})


def rents(project: Project) -> list[int | None]:
    return [row["status"] for row in project.sim.requests(project.account, "POST", RENT)]


def creating_for(project: Project, process: Started, *, simulated_s: float) -> None:
    """Return when both pods have been billed, and created, for so many of the server's seconds."""
    until(lambda: rents(project) == [200, 200], process, what="two rents")
    deadline = monotonic() + simulated_s / project.sim.speed
    until(lambda: monotonic() >= deadline, process, what="the pods to be created for a while")


def heard(process: Started, word: str) -> None:
    """Read what the command says until it says this."""
    assert process.stderr is not None
    assert any(word in line for line in process.stderr), f"it ended without saying {word}"


def gone_for_good(project: Project) -> None:
    """Destroy, and see that every bill has an end."""
    project.destroy()
    assert project.ledger(open_only=True) == []
    assert [row for row in project.ledger() if row["to"] is None] == []
    assert project.state()["resources"] == []


def assert_saved(project: Project, done: Done) -> None:
    """The state knows what is billed, and the last lines say what runs, what it costs and what to type."""
    assert done.code == 7, done
    state = project.state()
    known = {row["id"] for row in state["resources"] if row["kind"] == "pod"}
    assert known == {row["id"] for row in project.ledger("pod", open_only=True)}
    assert state["open"] == []
    assert "2 pods run now" in done.out, done
    assert "/h" in done.out
    assert "lium-plan apply" in done.out


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_pods_are_created(project: Project, number: signal.Signals) -> None:
    project.write(PAIR)
    slow_creation(project)
    with applying(project) as process:
        creating_for(project, process, simulated_s=30)
        process.send_signal(number)
        done = stop(process, within_s=WITHIN_S)
    assert_saved(project, done)
    assert done.out.count("rented, not set up yet, $") == 2
    assert "Interrupted: starting nothing new, waiting for 2 answers; again to stop at once." in done.err
    gone_for_good(project)


@pytest.mark.timeout(120)
def test_while_a_command_hangs(project: Project) -> None:
    project.write(HANGING)
    log = project.folder / "state" / "logs" / "default" / "fleet.workers[0].bootstrap.log"
    with applying(project) as process:
        until(lambda: log.exists() and "begun" in log.read_text(), process, what="the bootstrap to begin")
        process.send_signal(signal.SIGINT)
        done = stop(process, within_s=WITHIN_S)
    assert_saved(project, done)
    bootstraps = project.resources("bootstrap")
    assert "ready" not in {row["status"] for row in bootstraps.values()}
    assert project.run("plan", "--detailed-exitcode").code == 2
    gone_for_good(project)


@pytest.mark.timeout(120)
def test_a_second_signal_leaves_what_was_open_in_the_journal(project: Project) -> None:
    """The answers to the rents are held back for longer than anybody waits."""
    project.write(PAIR)
    late = {"do": "delay", "seconds": 20, "where": "after"}
    project.sim.fault(late, match={"method": "POST", "path": RENT, "account": project.account, "times": 2})
    with applying(project) as process:
        until(lambda: len(project.ledger("pod", open_only=True)) == 2, process, what="two rents")
        process.send_signal(signal.SIGINT)
        heard(process, "Interrupted")
        process.send_signal(signal.SIGINT)
        done = stop(process, within_s=AT_ONCE_S)
    assert done.code == 7, done
    assert "2 requests have no known outcome yet: up to $4.00/h" in done.out, done
    billed = {row["name"] for row in project.ledger("pod", open_only=True)}
    assert {item["entry"]["data"]["pod_name"] for item in project.state()["open"]} == billed
    gone_for_good(project)


@pytest.mark.timeout(120)
def test_an_answer_that_never_comes_does_not_hold_up_the_first(project: Project) -> None:
    project.write(PAIR)
    late = {"do": "delay", "seconds": 20, "where": "after"}
    project.sim.fault(late, match={"method": "POST", "path": RENT, "account": project.account, "times": 1})
    with applying(project) as process:
        until(lambda: len(project.ledger("pod", open_only=True)) == 2, process, what="two rents")
        process.send_signal(signal.SIGTERM)
        done = stop(process, within_s=WITHIN_S)
    assert done.code == 7, done
    state = project.state()
    known = {row["attributes"]["pod_name"] for row in state["resources"] if row["kind"] == "pod"}
    opened = {item["entry"]["data"]["pod_name"] for item in state["open"]}
    assert known | opened == {row["name"] for row in project.ledger("pod", open_only=True)}
    assert opened
    assert "no known outcome yet: up to $" in done.out, done
    gone_for_good(project)


@pytest.mark.timeout(120)
def test_before_anything_was_sent_nothing_is_kept(project: Project) -> None:
    """Planning takes its time here: the signal comes while only GETs have gone out."""
    project.write(PAIR)
    late = {"do": "delay", "seconds": 20}
    project.sim.fault(late, match={"method": "GET", "path": "/pods", "account": project.account})
    with applying(project) as process:
        until(lambda: project.sim.requests(project.account, "GET", "/pods") != [], process, what="a request")
        process.send_signal(signal.SIGINT)
        done = stop(process, within_s=WITHIN_S)
    assert done.code == 7, done
    assert project.ledger() == []


@pytest.mark.timeout(120)
def test_a_destroy_is_interrupted_and_goes_on(project: Project) -> None:
    project.write(PAIR)
    project.apply()
    stuck = {"do": "stick", "pod": project.resources("pod")["fleet.workers[1]"]["id"]}
    project.sim.fault(stuck)
    with project.start("destroy", "--auto-approve") as process:
        until(lambda: len(project.sim.requests(project.account, "DELETE")) >= 2, process, what="two deletes")
        process.send_signal(signal.SIGINT)
        done = stop(process, within_s=WITHIN_S)
    assert done.code == 7, done
    assert "fleet.workers[1]" in project.resources("pod")
    project.sim.fault({**stuck, "do": "unstick"})
    gone_for_good(project)
