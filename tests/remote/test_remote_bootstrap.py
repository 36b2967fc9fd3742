"""Bootstraps on pods of the local Lium, by the real command: what is sent and run, how each ending is told apart."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import pytest
from remote_looks import BOOT, bootstrap_of, failed, has_written, log_of, nothing_to_do, pod_of, seen_on, with_env

from tests.support.projects import Project, stop
from tests.support.sims import until

Fleet = Callable[..., Project]
# PID 1 of a pod may reap nothing: a zombie has ended.
ENDED = "grep -qs '^State:[[:space:]]*[RSDTI]' /proc/$(cat ~/pid)/status || echo gone"
CANARY = "hf_canary-5f1e/ä"


# --- files, environment, commands ----------------------------------------------------------------------------


def test_files_directories_and_templates_arrive_with_their_modes(fleet_of: Fleet) -> None:
    project = fleet_of(
        """\
      files:
        - {source: run.sh, target: work/run.sh, mode: "0750"}
        - {source: conf, target: work/conf}
        - {source: hosts.tpl, target: work/hosts, template: true, mode: "0600"}
      env: {TOKEN: "${{ env.TOKEN }}", WHO: "${{ member.name }}"}
      commands:
        - echo "$WHO $TOKEN $(pwd)"; sh ~/work/run.sh
"""
    )
    (project.folder / "conf" / "deep").mkdir(parents=True)
    project.write("#!/bin/sh\necho $0 ran\n", "run.sh")
    project.write("a\n", "conf/a.txt")
    project.write("#!/bin/sh\n", "conf/deep/b.sh")
    (project.folder / "conf" / "deep" / "b.sh").chmod(0o755)
    (project.folder / "conf" / ".hidden").write_bytes(bytes(range(256)) * 3000)
    project.write("me ${{ member.name }} at ${{ fleet.x[0].host }} with ${{ env.TOKEN }} not $HOME\n", "hosts.tpl")
    project = with_env(project, TOKEN=CANARY)

    project.apply()

    modes = seen_on(project, "cd ~/work; stat -c '%a %n' run.sh conf/a.txt conf/deep/b.sh hosts; wc -c <conf/.hidden")
    assert modes.splitlines() == ["750 run.sh", "644 conf/a.txt", "755 conf/deep/b.sh", "600 hosts", "768000"]
    assert seen_on(project, "cat ~/work/hosts") == f"me 0 at 127.0.0.1 with {CANARY} not $HOME\n"
    log = log_of(project)
    assert "0 *** /" in log, "the image's own working directory"
    assert "run.sh ran" in log
    assert_no_secret(project)
    nothing_to_do(project)

    # Only what changed is sent again: an untouched file keeps its inode.
    before = seen_on(project, "cd ~/work; stat -c '%i' run.sh conf/a.txt hosts").split()
    project.write("changed\n", "conf/a.txt")
    project.apply()
    after = seen_on(project, "cd ~/work; stat -c '%i' run.sh conf/a.txt hosts").split()
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]
    assert seen_on(project, "cat ~/work/conf/a.txt") == "changed\n"


def assert_no_secret(project: Project, secret: str = CANARY) -> None:
    for path in (project.folder / "state").rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def test_a_missing_source_or_one_that_leads_elsewhere_is_a_finding(fleet_of: Fleet) -> None:
    project = fleet_of(
        "      files: [{source: conf, target: c}, {source: no/such, target: d}]\n      commands: [true]\n"
    )
    (project.folder / "conf").mkdir()
    (project.folder / "conf" / "away").symlink_to("/etc")
    done = project.run("validate", expect=1)
    assert "link to a directory" in done.err
    assert "no/such" in done.err
    assert "lium.yaml:9:" in done.err or "lium.yaml:" in done.err


def test_a_file_that_changed_after_the_plan_is_not_sent(fleet_of: Fleet) -> None:
    project = fleet_of("      files: [{source: a.txt, target: a.txt}]\n      commands: [true]\n")
    project.write("reviewed\n", "a.txt")
    project.run("plan", "--out", "p.json", expect=0)
    project.write("slipped in\n", "a.txt")
    done = project.run("apply", "p.json")
    assert done.code in (3, 4), done
    assert "chang" in done.err + done.out


# --- run: once | changed | always ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "after_nothing", "after_change"), [("once", 1, 1), ("changed", 1, 2), ("always", 2, 3)]
)
def test_run_says_when_a_pod_is_set_up_again(fleet_of: Fleet, run: str, after_nothing: int, after_change: int) -> None:
    text = "      env: {{V: '{}'}}\n      commands: ['echo run >> ~/runs']\n      run: {}\n"
    project = fleet_of(text.format(1, run))
    project.apply()
    nothing_to_do(project)
    project.apply()
    assert len(seen_on(project, "cat ~/runs").splitlines()) == after_nothing
    project = fleet_of(text.format(2, run))
    project.apply()
    assert len(seen_on(project, "cat ~/runs").splitlines()) == after_change


# --- endings -------------------------------------------------------------------------------------------------


def test_a_failed_script_is_told_with_its_code_lines_and_log_and_retried_from_there(fleet_of: Fleet) -> None:
    project = fleet_of(
        """\
      commands:
        - echo one >> ~/trace
        - echo two >> ~/trace; echo some words; test -e ~/flag || exit 42
        - echo three >> ~/trace
"""
    )
    message = failed(project.apply("--json", expect=3), BOOT, "bootstrap-failed")
    assert "exit status 42 in command 2 of 3: echo two >> ~/trace; echo some words; test -e" in message
    assert "some words" in message
    assert f"{BOOT}.log" in message
    row = bootstrap_of(project)
    assert (row["status"], row["attributes"]["exit_code"], row["attributes"]["commands_done"]) == ("failed", 42, 1)
    assert pod_of(project)["status"] == "bootstrap-failed"
    assert len(project.ledger("pod", open_only=True)) == 1

    project.on_pod(pod_of(project), "touch ~/flag")
    planned = project.run("plan", expect=0)
    assert "failed with exit code 42" in planned.out
    project.apply()
    assert seen_on(project, "cat ~/trace").split() == ["one", "two", "two", "three"]
    assert len(project.ledger("pod")) == 1, "a retry rents nothing"
    nothing_to_do(project)


def test_what_the_shell_holds_is_not_lost_to_a_retry(fleet_of: Fleet) -> None:
    project = fleet_of(
        """\
      commands:
        - cd ~; mkdir -p sub; cd sub; NAME=kept; export NAME
        - echo "$NAME $(basename $(pwd))" >> ~/trace; test -e ~/flag
"""
    )
    project.apply(expect=3)
    project.on_pod(pod_of(project), "touch ~/flag")
    project.apply()
    assert seen_on(project, "cat ~/trace").splitlines() == ["kept sub", "kept sub"]


def test_commands_that_take_too_long_are_ended(fleet_of: Fleet) -> None:
    project = fleet_of("      commands: ['echo begun; sleep 600 & echo $! > ~/pid; wait']\n      timeout: 3s\n")
    message = failed(project.apply("--json", expect=3), BOOT, "bootstrap-timeout")
    assert "3 s" in message
    assert "begun" in message
    assert bootstrap_of(project)["attributes"]["ending"] == "timeout"
    until(lambda: "gone" in seen_on(project, ENDED), what="the script's end")


def test_g1_an_interrupt_marks_it_and_the_next_apply_finishes(fleet_of: Fleet) -> None:
    project = fleet_of("      commands: ['echo x >> ~/trace', 'test -e ~/flag || sleep 600']\n")
    process = project.start("apply", "--auto-approve")
    until(lambda: has_written(project, "~/trace"), process, what="the bootstrap's commands")
    process.send_signal(signal.SIGINT)
    assert stop(process, within_s=10).code == 7
    row = bootstrap_of(project)
    assert (row["status"], row["attributes"]["ending"]) == ("failed", "interrupted")
    assert pod_of(project)["status"] == "bootstrap-failed"
    project.on_pod(pod_of(project), "touch ~/flag")
    project.apply()
    assert seen_on(project, "cat ~/trace").split() == ["x"]
    assert bootstrap_of(project)["status"] == "ready"


def test_g2_a_lost_connection_is_a_failure_that_says_so(fleet_of: Fleet) -> None:
    project = fleet_of("      commands: ['echo x >> ~/trace; test -e ~/flag || sleep 600']\n      timeout: 1m\n")
    process = project.start("apply", "--auto-approve", "--json")
    until(lambda: has_written(project, "~/trace"), process, what="the bootstrap's commands")
    project.sim.fault({"do": "ssh", "mode": "drop", "pod": pod_of(project)["id"], "seconds": 1})
    done = stop(process, within_s=60)
    assert done.code == 3, done
    assert "connection was lost" in failed(done, BOOT, "bootstrap-connection")
    project.on_pod(pod_of(project), "touch ~/flag")
    project.apply()
    assert bootstrap_of(project)["status"] == "ready"
    assert len(project.ledger("pod")) == 1


def test_g3_a_pod_that_is_not_ready_to_be_talked_to_is_waited_for(fleet_of: Fleet) -> None:
    project = fleet_of("      commands: ['true']\n      run: always\n")
    project.apply()
    fault = {"do": "ssh", "pod": pod_of(project)["id"]}
    for mode, stage in (("refuse", "ssh: port"), ("reset", "ssh: banner"), ("auth", "ssh: login")):
        project.sim.fault({**fault, "mode": mode})
        process = project.start("apply", "--auto-approve", "--json")
        assert process.stdout is not None
        assert any(f'"{stage}"' in line for line in process.stdout), mode
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)  # it goes on trying
        project.sim.fault({**fault, "mode": "none"})
        assert stop(process, within_s=30).code == 0
    assert bootstrap_of(project)["status"] == "ready"
    assert len(project.ledger("pod")) == 1


def test_g5_a_host_that_falls_silent_is_given_up_in_time(fleet_of: Fleet) -> None:
    project = fleet_of("      commands: ['echo x >> ~/trace; sleep 600']\n      timeout: 12s\n")
    process = project.start("apply", "--auto-approve", "--json")
    until(lambda: has_written(project, "~/trace"), process, what="the bootstrap's commands")
    project.sim.fault({"do": "ssh", "mode": "hang", "pod": pod_of(project)["id"]})
    done = stop(process, within_s=40)
    assert done.code == 3, done
    assert "12 s" in failed(done, BOOT, "bootstrap-timeout")


def test_g7_another_host_key_is_refused_unless_the_pods_history_explains_it(fleet_of: Fleet) -> None:
    """Each pod has its own pin, so that another pod at a recycled address is no surprise; within one life it is."""
    project = fleet_of("      commands: ['true']\n      run: always\n")
    project.apply()
    project.sim.fault({"do": "host_key", "pod": pod_of(project)["id"]})
    message = failed(project.apply("--json", expect=3), BOOT, "bootstrap-connection")
    assert "shows the host key" in message
    assert len(project.ledger("pod")) == 1


def test_a_pod_deleted_by_hand_is_told_apart_and_not_rented_again(fleet_of: Fleet) -> None:
    project = fleet_of(
        "      commands: ['echo x >> ~/trace; sleep 600']\n",
        more="    retry: {on_events: [interruption], duration: 10m}\n",
    )
    process = project.start("apply", "--auto-approve", "--json")
    until(lambda: has_written(project, "~/trace"), process, what="the bootstrap's commands")
    delete_by_hand(project, pod_of(project)["id"])
    done = stop(process, within_s=60)
    assert done.code == 3, done
    assert "it was deleted" in failed(done, BOOT, "pod-gone")
    assert project.ledger("pod", open_only=True) == []
    assert len(project.ledger("pod")) == 1


def delete_by_hand(project: Project, pod_id: str) -> None:
    import httpx

    headers = {"X-API-Key": project.environ["LIUM_API_KEY"]}
    answer = httpx.delete(f"{project.sim.base_url}/pods/{pod_id}", headers=headers)
    assert answer.status_code < 300, answer.text


# --- readiness -----------------------------------------------------------------------------------------------


def test_ready_is_a_port_or_a_command_that_answers_in_the_end(fleet_of: Fleet) -> None:
    serve = "(sleep 2; exec python3 -m http.server 8123) >/dev/null 2>&1 &"
    project = fleet_of(f"      commands: ['{serve}']\n      ready: {{port: 8123}}\n      timeout: 1m\n")
    project.apply()
    assert "200" in seen_on(
        project, "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8123\").status)'"
    )
    project = fleet_of("      commands: ['(sleep 2; touch ~/up) &']\n      ready: {command: test -e ~/up}\n")
    project.apply()
    assert bootstrap_of(project)["status"] == "ready"


def test_what_never_gets_ready_is_kept_or_given_back_as_written(fleet_of: Fleet) -> None:
    text = "      commands: ['true']\n      ready: {{command: 'echo not yet; false'}}\n      timeout: 3s\n{}"
    project = fleet_of(text.format(""))
    message = failed(project.apply("--json", expect=3), BOOT, "bootstrap-unready")
    assert "not ready after 3 s" in message
    assert "not yet" in message
    assert len(project.ledger("pod", open_only=True)) == 1

    project = fleet_of(text.format("      on_failure: delete\n"))
    project.apply(expect=3)
    assert project.ledger("pod", open_only=True) == []
    assert project.resources("pod") == {}
    assert project.resources("bootstrap") == {}


# --- several members -----------------------------------------------------------------------------------------

MEMBERS = "    nodes: {}\n"


def test_a_canary_goes_first_and_its_failure_stops_the_others(fleet_of: Fleet) -> None:
    commands = "date +%s%N > ~/at; sleep 1; date +%s%N > ~/end; test ${{{{ member.index }}}} != {}"
    text = f"      commands: ['{commands}']\n      canary: first\n"
    project = fleet_of(text.format(9), more=MEMBERS.format(3))
    project.apply()
    first = int(seen_on(project, "cat ~/end", "0"))
    assert all(int(seen_on(project, "cat ~/at", member)) > first for member in ("1", "2"))
    project.destroy()

    project = fleet_of(text.format(0), more=MEMBERS.format(3))
    done = project.apply(expect=3)
    assert "because of fleet.x[0].bootstrap" in done.out
    assert seen_on(project, "cat ~/at", "1") == ""


def test_more_failures_than_allowed_stop_the_rest(fleet_of: Fleet) -> None:
    project = fleet_of("      commands: ['exit 1']\n      max_failures: 1\n", more=MEMBERS.format(4))
    done = project.apply("--json", "--parallelism", "1", expect=3)
    assert len(project.ledger("pod", open_only=True)) == 4, "they are kept for people to look at"
    codes = [
        event["diagnostic"]["code"]
        for event in done.lines
        if event["type"] == "apply_errored" and event["address"].endswith(".bootstrap")
    ]
    assert sorted(codes) == ["bootstrap-failed", "bootstrap-failed", "max-failures", "max-failures"]
