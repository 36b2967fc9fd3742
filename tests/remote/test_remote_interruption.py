"""A pod that is taken away in the middle of work is an interruption, not a failure of the work (case G13)."""

from __future__ import annotations

from collections.abc import Callable

from remote_looks import (
    BOOT,
    TASK,
    bootstrap_of,
    failed,
    has_written,
    log_of,
    nothing_to_do,
    pod_of,
    reclaim,
    seen_on,
    task_of,
)

from tests.support.projects import Done, Project, stop
from tests.support.sims import until

Fleet = Callable[..., Project]
RETRY = "    retry: {on_events: [interruption], duration: 10m}\n"


def started(project: Project, *more: str) -> Callable[[], Done]:
    process = project.start("apply", "--auto-approve", "--json", *more)
    until(lambda: has_written(project, "~/trace"), process, what="the commands on the pod")
    return lambda: stop(process, within_s=120)


def test_g13_a_reclaimed_pod_is_rented_again_and_set_up_without_a_second_question(fleet_of: Fleet) -> None:
    commands = "      commands: ['hostname >> ~/trace', 'sleep ${{ member.index }}8; echo end >> ~/trace']\n"
    project = fleet_of(commands, more=f"    nodes: 2\n{RETRY}", tasks="  t: {fleet: x, commands: [hostname]}\n")
    end = started(project)
    until(lambda: has_written(project, "~/trace", "1"), what="the commands on the second pod")
    first, other = pod_of(project, "1"), pod_of(project, "0")
    reclaim(project, first["id"])
    done = end()
    assert done.code == 0, done

    second = pod_of(project, "1")
    assert second["id"] != first["id"]
    assert pod_of(project, "0")["id"] == other["id"], "everything else went on"
    assert second["attributes"]["price_per_hour_usd"] <= first["attributes"]["ceiling_per_hour_usd"]
    assert seen_on(project, "cat ~/trace", "1").split()[-1] == "end"
    assert bootstrap_of(project, "fleet.x[1].bootstrap")["attributes"]["pod_id"] == second["id"]
    assert {task_of(project, f"task.t[{member}]")["status"] for member in "01"} == {"completed"}
    assert len(project.ledger("pod")) == 3
    assert len(project.ledger("pod", open_only=True)) == 2
    nothing_to_do(project)


def test_without_retry_it_is_told_and_the_next_apply_rents_again(fleet_of: Fleet) -> None:
    project = fleet_of("      commands: ['hostname > ~/trace; sleep 20']\n")
    end = started(project)
    reclaim(project, pod_of(project)["id"])
    done = end()
    assert done.code == 3, done
    message = failed(done, BOOT, "interruption")
    assert "taken away (spot_reclaimed)" in message
    assert project.ledger("pod", open_only=True) == []
    fleet_of("      commands: ['hostname > ~/trace']\n")
    project.apply()
    assert bootstrap_of(project)["status"] == "ready"
    assert len(project.ledger("pod")) == 2


def test_g13_a_script_error_is_not_retried(fleet_of: Fleet) -> None:
    project = fleet_of("      commands: ['echo x >> ~/trace; exit 7']\n", more=RETRY)
    failed(project.apply("--json", expect=3), BOOT, "bootstrap-failed")
    assert seen_on(project, "cat ~/trace") == "x\n"
    assert len(project.ledger("pod")) == 1


def test_a_market_dearer_than_what_was_confirmed_keeps_nothing(fleet_of: Fleet) -> None:
    """The ceiling of the first rent (its offer and a tenth) holds for the second one too, whatever the market says.

    The feed may still show the old price: what then comes back dearer is given back at once and never set up.
    """
    project = fleet_of("      commands: ['hostname > ~/trace; sleep 600']\n", more=RETRY.replace("10m", "15s"))
    manifest = (project.folder / "lium.yaml").read_text().replace("    max_price: 2.00\n", "")
    project.write(manifest)
    end = started(project)
    ceiling = pod_of(project)["attributes"]["ceiling_per_hour_usd"]
    with_prices_times(project, 3.0)
    try:
        reclaim(project, pod_of(project)["id"])
        done = end()
    finally:
        with_prices_times(project, 1 / 3.0)
    assert done.code == 3, done
    assert project.ledger("pod", open_only=True) == []
    dear = [row for row in project.ledger("pod") if row["price_per_hour_usd"] > ceiling]
    assert sum(row["amount_usd"] for row in dear) < 0.01


def with_prices_times(project: Project, factor: float) -> None:
    project.sim.fault({"do": "price", "node": "*", "factor": factor})


def test_a_pod_reclaimed_under_a_task_is_set_up_again_and_the_task_starts_anew(fleet_of: Fleet) -> None:
    tasks = "  t: {fleet: x, commands: ['echo begun; hostname > ~/trace; sleep 15; echo finished']}\n"
    project = fleet_of("      commands: ['echo ok > ~/boot']\n", more=RETRY, tasks=tasks)
    end = started(project)
    first = pod_of(project)
    reclaim(project, first["id"])
    done = end()
    assert done.code == 0, done
    assert pod_of(project)["id"] != first["id"]
    assert task_of(project)["status"] == "completed"
    assert task_of(project)["attributes"]["pod_id"] == pod_of(project)["id"]
    assert seen_on(project, "cat ~/boot") == "ok\n"
    assert log_of(project, TASK).splitlines()[1:] == ["begun", "finished"], "the log is that of the second attempt"
    nothing_to_do(project)
