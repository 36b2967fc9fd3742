"""One run at a time: the second says who holds the state; a killed owner holds up nobody; looking is always free
(cases C1, C2, C7).
"""

from __future__ import annotations

import os
import socket

import pytest

from tests.e2e.test_interrupt import applying, creating_for, slow_creation
from tests.support.manifests import PAIR
from tests.support.projects import Project

READING = (
    ("validate",),
    ("show",),
    ("show", "--json"),
    ("state", "list"),
    ("output",),
    ("status", "--json"),
    ("events", "--json"),
    ("offers", "--limit", "1"),
    ("plan",),
)


@pytest.mark.timeout(180)
def test_while_one_runs_others_look_and_wait(project: Project) -> None:
    project.write(PAIR)
    slow_creation(project)
    with applying(project) as owner:
        creating_for(project, owner, simulated_s=0)

        second = project.apply(expect=5)
        for word in (str(owner.pid), socket.gethostname(), "lium-plan apply", "is running", "--lock-timeout"):
            assert word in second.err, (word, second)
        assert str(owner.pid) in project.destroy("--lock-timeout", "1s", expect=5).err
        last = project.run("apply", "--auto-approve", "--json", expect=5).lines[-1]
        assert (last["type"], last["exit_code"]) == ("change_summary", 5)
        for command in READING:
            project.run(*command, expect=0)

        assert owner.poll() is None
        assert len(project.ledger("pod")) == 2
        owner.kill()
        owner.wait()

    listed = project.run("state", "list", expect=0).out.split()
    assert {"fleet.workers[0]", "fleet.workers[1]"} <= set(listed)
    project.destroy()
    assert project.ledger(open_only=True) == []


@pytest.mark.timeout(120)
def test_a_failed_run_leaves_no_lock(project: Project) -> None:
    project.write(PAIR.replace("max_price: 2.00", "max_price: 0.01"))
    project.apply(expect=3)
    project.write(PAIR.replace("ttl: 2h", "ttl: 2x"))
    project.apply(expect=1)
    project.write(PAIR)
    refused = {"do": "answer", "status": 401}
    project.sim.fault(refused, match={"path": "/users/me", "account": project.account})
    assert project.run("apply", "--auto-approve").code == 1
    project.apply()
    project.destroy()


@pytest.mark.timeout(120)
def test_a_record_of_a_dead_process_is_no_lock(project: Project) -> None:
    project.write(PAIR)
    project.apply()
    lock = project.folder / "state" / "default.lock"
    lock.write_text(
        f'{{"who": "ann", "host": "{socket.gethostname()}", "pid": {os.getpid()}, "process_started": null, '
        '"since": "2026-01-01T00:00:00Z", "command": "lium-plan apply", "run": "0123456789ab"}'
    )
    project.destroy()
    assert project.ledger(open_only=True) == []
