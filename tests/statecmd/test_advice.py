"""What people are told to type next: as it has to be typed, with the options that say which stack it is about."""

from __future__ import annotations

import shlex
from dataclasses import replace

from tests.statecmd.commands import FLEET, Desk, here
from tests.support.projects import Project

MANIFEST = """\
version: 1
project: lab
variables:
  word: {type: string}
  token: {type: string, sensitive: true}
fleets:
  box: {resources: {gpu: {count: 1}}, max_price: 3.00, image: 'ubuntu:22.04', ttl: 2h}
  other: {resources: {gpu: {count: 1}}, max_price: 3.00, image: 'ubuntu:22.04', ttl: 2h}
tasks:
  bad: {fleet: box, commands: ['exit 3']}
  serve: {fleet: box, wait: started, env: {TOKEN: "${{ var.token }}"}, commands: ['echo ${{ var.word }}; sleep 60']}
"""


def test_the_next_command_is_about_the_same_things(project: Project) -> None:
    lab = here(project)
    lab.write(MANIFEST, "lab.yaml")
    state = f"file:{lab.folder}/my state"
    where = ("--stack", "dev", "--state", state)
    given = ("-f", "lab.yaml", "--target", "task.bad", "--target", "task.serve", "--exclude", "fleet.other")
    secret = "tok-canary-4711"
    variables = ("--var", "word=two words", "--var", f"token={secret}")
    done = lab.run("apply", "--auto-approve", *where, *given, *variables, expect=3)
    assert f"Next: LIUM_PLAN_VAR_token=… lium-plan {shlex.join(where)} apply {shlex.join(given)} " in done.out
    assert "--var 'word=two words'\n" in done.out
    assert secret not in done.out + done.err

    # A log is read though the manifest can't be: why its secrets are not hidden is told.
    lab.write(MANIFEST)
    logs = project.run("logs", *where, "task.serve", expect=0)
    assert logs.out.endswith("two words\n")
    assert "not masked" in logs.err
    assert "the variable 'token' has no value" in logs.err
    assert "LIUM_PLAN_VAR_NAME" in logs.err
    known = replace(project, more={"LIUM_PLAN_VAR_token": secret, "LIUM_PLAN_VAR_word": "two words"})
    assert known.run("logs", *where, "task.serve", expect=0).err == "task.serve: running\n"
    changed = replace(project, more={"LIUM_PLAN_VAR_token": "tok-new-4712", "LIUM_PLAN_VAR_word": "two words"})
    assert "secrets in this output may show" in changed.run("logs", *where, "task.serve", expect=0).err

    lab.run("state", "rm", "fleet.box", *where, expect=0)
    done = lab.run("destroy", "--auto-approve", "--wait-timeout", "0s", *where, "--var", f"token={secret}", expect=3)
    assert f"Next: lium-plan {shlex.join(where)} destroy\n" in done.out


def test_hints_name_commands_with_the_options_that_were_given(desk: Desk) -> None:
    desk.fill(*FLEET, stack="dev")
    locked = desk.run("--stack", "dev", "state", "lock")
    assert "until `lium-plan --stack dev state unlock`" in locked.err + locked.out
    for given in (("--stack", "dev"), ("--chdir", ".", "--stack", "dev")):
        refused = desk.run("state", "rm", "fleet.workers", *given, expect=5)
        assert f"`lium-plan {shlex.join(given)} state unlock`" in refused.err
        desk.run("state", "list", *given)


def test_the_stacks_that_are_there_are_named(desk: Desk) -> None:
    desk.fill(*FLEET, stack="prod")
    desk.fill(*FLEET, stack="dev")
    for command in ("status", "show", "state list", "output", "logs task.train[0]", "ssh fleet.workers[0]"):
        refused = desk.run(*command.split(), expect=1)
        assert "stack default has no state" in refused.err
        assert "stacks there: dev, prod; to choose one: --stack dev" in refused.err, command
