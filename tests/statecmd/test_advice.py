"""What people are told to type next: as it has to be typed, with the options that say which stack it is about."""

from __future__ import annotations

import asyncio
import io
import shlex
from contextlib import redirect_stderr
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

from lium_plan.addresses import parse
from lium_plan.cli.perform import Performance
from lium_plan.cli.session import GlobalOptions, Session
from lium_plan.engine.events import ActionResult, Event, EventType, Proof, ResultKind, RunReport
from lium_plan.kinds.protocol import Marked, Verb
from lium_plan.operations.reporting import following
from lium_plan.operations.session import Outcome
from lium_plan.requests import PlanRequest
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


def test_every_option_that_says_which_stack_is_in_every_command() -> None:
    session = Session(GlobalOptions(chdir="a b", stack="dev", state="file:s", sim=True))
    where = "--chdir 'a b' --stack dev --state file:s --sim"
    assert session.typed("`lium-plan apply`, or lium-plan state rm X") == (
        f"`lium-plan {where} apply`, or lium-plan {where} state rm X"
    )
    assert session.typed("lium-plan --stack prod apply") == (
        "lium-plan --chdir 'a b' --state file:s --sim --stack prod apply"
    )
    assert session.typed("written by a newer lium-plan (format 9)") == "written by a newer lium-plan (format 9)"
    assert Session().typed("lium-plan --stack prod apply") == "lium-plan --stack prod apply"


def test_what_goes_on_after_an_interrupt_is_looked_at_with_the_same_options() -> None:
    address = parse("task.slow[0]")
    note = f"goes on on its pod: lium-plan logs -f '{address}'"
    at = datetime(2026, 1, 1, tzinfo=UTC)
    event = Event(EventType.APPLY_SKIPPED, at, 1, address=address, message=f"interrupted: {note}")
    result = ActionResult(address, Verb.RUN, ResultKind.INTERRUPTED, 1.0, note=note)
    values = {"as_json": False, "json_into": None}
    session = Session(GlobalOptions(sim=True))
    performance = Performance(session, PlanRequest(), values)

    async def taken() -> None:
        performance.progress.take(event)

    with redirect_stderr(io.StringIO()) as err:
        asyncio.run(taken())
    assert "lium-plan --sim logs -f" in err.getvalue()
    advised = performance._advised(RunReport("r", (result,), Decimal(0), 0))
    assert advised.results[0].note == f"goes on on its pod: lium-plan --sim logs -f '{address}'"


def test_a_damaged_state_is_saved_with_the_same_options(desk: Desk) -> None:
    desk.fill(*FLEET, stack="dev")
    (desk.folder / "state" / "dev.json").write_text("")
    refused = desk.run("--stack", "dev", "show", expect=1).err
    assert "the file is empty" in refused
    for verb in ("repair", "recover", "pull"):
        assert f"`lium-plan --stack dev state {verb}`" in refused


def test_a_broken_file_that_is_pushed_is_the_one_to_mend(desk: Desk) -> None:
    desk.fill(*FLEET)
    (desk.folder / "snap.json").write_text("{")
    refused = desk.run("state", "push", "snap.json", expect=1).err
    assert "mend snap.json" in refused
    assert "state repair" not in refused


def test_init_names_its_plan_with_the_options_that_were_given(desk: Desk) -> None:
    (desk.folder / "a").mkdir()
    said = desk.run("--chdir", "a", "--stack", "dev", "init", "b c").err
    assert "Next: lium-plan --chdir 'a/b c' --stack dev plan --sim\n" in said
    assert (desk.folder / "a" / "b c" / "lium.yaml").exists()


def test_a_destroy_that_may_not_ask_names_the_plan_of_a_destroy(project: Project) -> None:
    lab = here(project)
    lab.write("version: 1\nproject: lab\nvolumes: {a: {}}\n")
    lab.run("apply", "--auto-approve", expect=0)
    refused = lab.run("destroy", "--stack", "default", expect=1).err
    assert "lium-plan --stack default plan --destroy --out FILE" in refused
    lab.write("version: 1\nproject: lab\nvolumes: {a: {}, b: {}}\n")
    assert (
        "There is nothing to do for what was selected"
        in lab.run("plan", "--target", "volume.b", "--exclude", "volume.b", expect=0).out
    )


def test_the_command_that_goes_on_with_what_a_run_left(desk: Desk) -> None:
    desk.fill(*FLEET)
    settings = Session().settings()
    full, nothing = desk.state(), replace(desk.state(), records={})
    elsewhere = Outcome(others=(Marked("pod", "p9", "lp-1", "aaaaaa", "bbbbbb"),))
    left = Proof("data", "v9", False)
    for outcome, state, strays, words in (
        (Outcome(), full, (left,), "destroy"),
        (Outcome(), nothing, (left,), "orphans --delete --id v9"),
        (elsewhere, full, (), "destroy"),
        (elsewhere, nothing, (), "orphans"),
    ):
        assert following(settings, outcome, state, strays, destroying=True) == words
    (desk.folder / "state").rename(desk.folder / "moved")
    assert following(settings, Outcome(), full, (), destroying=False) == "state recover"
