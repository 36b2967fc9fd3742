"""A state that was lost, or put back to an earlier day: nothing is rented twice, and nothing is called gone that runs."""

from __future__ import annotations

import shutil

from tests.support.projects import Project

FLEET = """\
version: 1
project: lost
fleets:
  a:
    nodes: {nodes}
    resources: {{gpu: {{count: 1}}}}
    max_price: 2.00
    image: ubuntu:22.04
    ttl: 2h
"""


def with_an_older_state(project: Project) -> str:
    """Two pods run, and the state knows the first of them alone; the id of the other."""
    project.write(FLEET.format(nodes=1))
    project.apply()
    older = project.folder / "older"
    shutil.copytree(project.folder / "state", older)
    (known,) = (record["id"] for record in project.resources("pod").values())
    project.write(FLEET.format(nodes=2))
    project.apply()
    shutil.rmtree(project.folder / "state")
    shutil.copytree(older, project.folder / "state")
    (lost,) = {row["id"] for row in project.ledger("pod", open_only=True)} - {known}
    return str(lost)


def test_what_the_state_has_forgotten_is_not_rented_again(project: Project) -> None:
    lost = with_an_older_state(project)
    for command in (["plan"], ["apply", "--auto-approve"]):
        refused = project.run(*command, expect=6)
        assert "does not know 1 of the pods that it has rented" in refused.err, refused
    assert len(project.ledger("pod", open_only=True)) == 2
    project.run("import", "fleet.a[1]", lost, expect=0)
    project.run("plan", "--detailed-exitcode", expect=0)
    project.destroy()
    assert project.ledger("pod", open_only=True) == []


def test_a_destroy_does_not_call_gone_what_it_did_not_know(project: Project) -> None:
    lost = with_an_older_state(project)
    done = project.destroy("--wait-timeout", "3s", expect=3)
    assert "nothing of it is billed" not in done.out
    assert "1 more that it does not know costs $" in done.out, done
    assert [row["id"] for row in project.ledger("pod", open_only=True)] == [lost]
    project.run("orphans", "--delete", expect=0)
    project.destroy()
    assert project.ledger(open_only=True) == []


def test_without_a_state_pods_of_the_project_are_not_passed_over(project: Project) -> None:
    project.write(FLEET.format(nodes=1))
    nothing = project.destroy()
    assert "nothing to destroy" in nothing.err
    project.apply()
    (project.folder / "state").rename(project.folder / "away")
    refused = project.destroy(expect=6)
    assert "there is no state here, and 1 pod runs for project lost" in refused.err, refused
    assert len(project.ledger("pod", open_only=True)) == 1
    (project.folder / "away").rename(project.folder / "state")
    project.destroy()
    assert project.ledger(open_only=True) == []


def test_without_state_and_project_it_says_what_it_has_not_looked_at(project: Project) -> None:
    nameless = project.destroy()
    assert "the account was not looked at" in nameless.err
    assert "nothing to destroy" in nameless.err
    project.write("version: 1\nproject: lost\nvariables: {token: {}}\n")
    unread = project.destroy()
    assert "no manifest names the project: the variable 'token' has no value" in unread.err, unread
