"""A run's events: plain lines, JSON lines, the live table, the closing table, the proof."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from rich.console import Console
from view_samples import AT, report

from lium_plan.addresses import parse
from lium_plan.diagnostics import error
from lium_plan.engine.events import ActionResult, Event, EventType, ResultKind, RunReport
from lium_plan.kinds.protocol import Verb
from lium_plan.views.board import Board, RowState, stage
from lium_plan.views.events_json import EventStream, event_json
from lium_plan.views.events_live import live_table
from lium_plan.views.events_text import event_text, heartbeat_text, outputs_text, report_text
from lium_plan.views.paint import Paint
from lium_plan.views.plan_markdown import report_markdown

GOLDEN = Path(__file__).parent / "golden"
POD = parse("fleet.a[0]")


def event(
    type: EventType, after_s: float = 0, *, phase: str | None = None, price: str | None = None, verb: Verb | None = None
) -> Event:
    return Event(
        type,
        AT + timedelta(seconds=after_s),
        int(after_s),
        address=POD,
        verb=verb,
        phase=phase,
        price_per_hour_usd=None if price is None else Decimal(price),
    )


CREATION = (
    event(EventType.PLANNED_CHANGE, 0, price="1.99", verb=Verb.CREATE),
    event(EventType.APPLY_START, 1, verb=Verb.CREATE),
    event(EventType.PHASE, 2, phase="renting 1/3"),
    event(EventType.PHASE, 10, phase="pulling image ~40 s", price="1.80"),
    event(EventType.PHASE, 11, phase="pulling image ~39 s", price="1.80"),
    event(EventType.PHASE, 40, phase="ssh: port", price="1.80"),
    event(EventType.PHASE, 41, phase="ssh: banner", price="1.80"),
    event(EventType.APPLY_COMPLETE, 46, price="1.80", verb=Verb.CREATE),
)


def lines(events: tuple[Event, ...]) -> str:
    board = Board()
    return "".join(event_text(item, board) for item in events if board.take(item))


def test_one_line_a_stage() -> None:
    assert lines(CREATION) == (
        "10:41:08Z + fleet.a[0]: started\n"
        "10:41:09Z + fleet.a[0]: renting 1/3\n"
        "10:41:17Z + fleet.a[0]: pulling image ~40 s\n"
        "10:41:47Z + fleet.a[0]: ssh\n"
        "10:41:53Z ✓ fleet.a[0]: created after 45s  $1.80/h\n"
    )


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("pulling image ~40 s", "pulling image"),
        ("ssh: banner", "ssh"),
        ("bootstrap 1/2", "bootstrap 1/2"),
        ("giving it back: it has 2 GPUs, 1 ordered", "giving it back: it has 2 GPUs, 1 ordered"),
    ],
)
def test_stage(phase: str, expected: str) -> None:
    assert stage(phase) == expected


def test_a_line_says_why_a_pod_is_given_back() -> None:
    shown = lines((event(EventType.PHASE, 2, phase="giving it back: it has 2 GPUs, 1 ordered"),))
    assert shown == "10:41:09Z   fleet.a[0]: giving it back: it has 2 GPUs, 1 ordered\n"


def test_failures_skips_and_substitutions_say_why() -> None:
    board = Board()
    failed = replace(event(EventType.APPLY_ERRORED), message="no balance\nat all")
    assert event_text(failed, board) == "10:41:07Z ✗ fleet.a[0]: no balance\n"
    skipped = replace(event(EventType.APPLY_SKIPPED), message="fleet.b[0] failed")
    assert event_text(skipped, board) == "10:41:07Z · fleet.a[0]: skipped: fleet.b[0] failed\n"
    other = replace(event(EventType.SUBSTITUTION, price="2"), details={"to_node_id": "n-2"})
    assert event_text(other, board) == "10:41:07Z ! fleet.a[0]: takes node n-2 at $2.00/h instead\n"


def test_dollars_run_from_the_real_price_not_from_the_plan() -> None:
    board = Board()
    for item in CREATION[:3]:
        board.take(item)
    assert board.spent_usd(AT + timedelta(hours=1)) == 0
    for item in CREATION[3:]:
        board.take(item)
    assert board.spent_usd(AT + timedelta(seconds=10, hours=1)) == Decimal("1.80")
    assert board.per_hour_usd() == Decimal("1.80")


def test_a_destroyed_pod_stops_costing() -> None:
    board = Board()
    board.take(event(EventType.APPLY_START, 0, price="3.60", verb=Verb.DESTROY))
    board.take(event(EventType.APPLY_COMPLETE, 100, verb=Verb.DESTROY))
    assert board.spent_usd(AT + timedelta(hours=9)) == Decimal("0.1")
    assert board.per_hour_usd() == 0
    assert board.count(RowState.DONE) == 1


def test_heartbeat() -> None:
    board = Board()
    for item in CREATION[:4]:
        board.take(item)
    assert heartbeat_text(board, AT + timedelta(seconds=70)) == (
        "10:42:17Z … 0 of 1 done, 1 working: fleet.a[0] pulling image ~40 s (1m 09s); $1.80/h, $0.0300 so far\n"
    )


def test_live_table_fits_and_shows_what_matters() -> None:
    board = Board()
    for number in range(50):
        address = parse(f"fleet.a[{number}]")
        board.take(replace(event(EventType.APPLY_START, verb=Verb.CREATE, price="1"), address=address))
    board.take(replace(event(EventType.APPLY_ERRORED, 3), address=parse("fleet.a[49]")))
    screen = io.StringIO()
    Console(file=screen, width=80, height=20).print(live_table(board, AT + timedelta(seconds=36), width=80, height=20))
    shown = screen.getvalue().splitlines()
    assert len(shown) <= 20
    assert any("fleet.a[49]" in line and "failed" in line for line in shown)
    assert "… and 34 more" in screen.getvalue()
    assert "$50.00/h" in shown[-1]
    assert "$0.50" in shown[-1]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_live_table_keeps_its_figures_whatever_the_addresses(width: int) -> None:
    board = Board()
    long = parse("fleet.a-name-that-goes-on-and-on-xyz[12].bootstrap")
    start = event(EventType.APPLY_START, price="123.45678", verb=Verb.RUN, phase="starting container ~12 s")
    board.take(replace(start, address=long))
    screen = io.StringIO()
    later = AT + timedelta(hours=20)
    Console(file=screen, width=width, height=20).print(live_table(board, later, width=width, height=20))
    row = screen.getvalue().splitlines()[1]
    assert len(row) <= width
    assert "[12].bootstrap" in row or width < 80
    assert row.split()[-3:] == ["00m", "$123.46/h", "$2469.14"]


def live_row(address: str, phase: str, width: int) -> str:
    board = Board()
    start = event(EventType.APPLY_START, price="123.45678", verb=Verb.CREATE, phase=phase)
    board.take(replace(start, address=parse(address)))
    screen = io.StringIO()
    later = AT + timedelta(hours=20)
    Console(file=screen, width=width, height=20).print(live_table(board, later, width=width, height=20))
    return screen.getvalue().splitlines()[1]


def test_live_table_says_how_long_it_still_takes_beside_long_addresses() -> None:
    long = "fleet.a-name-that-goes-on-and-on-xyz[12]"
    assert "starting container ~12 s" in live_row(long, "starting container ~12 s", 80)
    assert "… ~1 min 30 s" in live_row(long, "pulling a very big image for you ~1 min 30 s", 80)
    assert "[12]" in live_row(long, "pulling a very big image for you ~1 min 30 s", 80)


def test_on_80_columns_a_reason_is_broken_at_spaces() -> None:
    why = "its pod was rebooted, and the commands have changed since the last time that it ran"
    for address in ("fleet.a[0]", "fleet.inference-of-the-big-model-eu-1[0].bootstrap"):
        done = ActionResult(parse(address), Verb.RUN, ResultKind.DONE, 1, note=why)
        text = report_text(RunReport("r", (done,), Decimal(0), 0), Paint(False, 80)).partition("\n\n")[0]
        assert max(map(len, text.splitlines())) <= 80
        assert " ".join(text.split()).endswith(why)
        assert text.splitlines()[1].startswith(f"done    {address}")


def test_live_table_cuts_no_phase_while_there_is_room() -> None:
    board = Board()
    phase = "waiting for a node of this kind, 12 s"
    board.take(event(EventType.APPLY_START, verb=Verb.CREATE, phase=phase))
    screen = io.StringIO()
    Console(file=screen, width=80, height=20).print(live_table(board, AT, width=80, height=20))
    assert phase in screen.getvalue()


def test_members_that_fail_alike_share_one_cause_in_the_end() -> None:
    def failed(number: int) -> ActionResult:
        address = parse(f"fleet.a[{number}]")
        cause = error(
            "bootstrap", "exit status 2\nIts last lines:\nno such file\nbye", address=str(address), hint=f"{number}.log"
        )
        return ActionResult(address, Verb.CREATE, ResultKind.FAILED, 1, cause=cause)

    text = report_text(RunReport("r", (failed(0), failed(1), failed(2)), Decimal(0), 0))
    assert text.count("no such file") == 1
    assert "error: fleet.a[0]: exit status 2\n    Its last lines:\n    no such file\n    bye\n  hint: 0.log\n" in text
    assert "  also for: fleet.a[1], fleet.a[2]\n" in text
    assert text.count("exit status 2") == 1
    assert "failed  fleet.a[0]  create  1.0s\n" in text


def test_causes_that_differ_only_in_where_are_one() -> None:
    def failed(number: int) -> ActionResult:
        address = parse(f"fleet.a[{number}]")
        node = f"0b6f2a7e-4c1d-4e0f-9a3b-2d5e6f70819{number}"
        why = f"{address}: node {node}, 203.0.113.{number} port 4000{number} (h{number}.example.org:220{number}): no answer"
        return ActionResult(address, Verb.CREATE, ResultKind.FAILED, 1, cause=error("ssh", why, address=str(address)))

    text = report_text(RunReport("r", (failed(0), failed(1), failed(2)), Decimal(0), 0))
    assert text.count("no answer") == 1
    assert "  also for: fleet.a[1], fleet.a[2]\n" in text
    other = replace(failed(3), cause=error("ssh", "login refused", address="fleet.a[3]"))
    assert "login refused" in report_text(RunReport("r", (failed(0), other), Decimal(0), 0))


def test_what_an_interrupted_action_left_is_said() -> None:
    left = "rented, not set up yet, $0.20/h"
    result = ActionResult(POD, Verb.CREATE, ResultKind.INTERRUPTED, 3, note=left)
    assert left in report_text(RunReport("r", (result,), Decimal("0.2"), 1))
    skipped = replace(event(EventType.APPLY_SKIPPED), message=f"interrupted: {left}")
    assert event_text(skipped, Board()) == f"10:41:07Z · fleet.a[0]: interrupted: {left}\n"


def test_line_and_table_give_one_time_and_the_table_says_why() -> None:
    board = Board()
    board.take(event(EventType.PHASE, 0, phase="taken away: looking for another", verb=Verb.REPLACE))
    done = replace(event(EventType.APPLY_COMPLETE, 17, verb=Verb.REPLACE), details={"elapsed_s": 2.1})
    board.take(done)
    assert "replaced after 2.1s" in event_text(done, board)
    why = "reclaimed by its provider at 10:41:07"
    result = ActionResult(POD, Verb.REPLACE, ResultKind.DONE, 2.1, note=why)
    assert f"replaced  2.1s  {why}" in report_text(RunReport("r", (result,), Decimal("0.2"), 1))


def test_what_runs_without_an_action_is_in_the_sums() -> None:
    board = Board()
    board.take(Event(EventType.CHANGE_SUMMARY, AT, 1, details={"run": 1, "untouched_per_hour_usd": 3.6}))
    board.take(event(EventType.APPLY_START, 1, phase="running", verb=Verb.ADOPT))
    assert board.per_hour_usd() == Decimal("3.6")
    assert board.spent_usd(AT + timedelta(seconds=100)) == Decimal("0.1")
    assert "$3.60/h, $0.10" in heartbeat_text(board, AT + timedelta(seconds=100))


def test_closing_table() -> None:
    assert report_text(report()) == (GOLDEN / "report.txt").read_text(encoding="utf-8")


def test_of_many_good_results_only_the_number_is_shown() -> None:
    results = tuple(ActionResult(parse(f"fleet.a[{n}]"), Verb.CREATE, ResultKind.DONE, n) for n in range(40))
    text = report_text(RunReport("r", results, Decimal(40), 40))
    assert "40 actions" in text
    assert "fleet.a[" not in text


def test_nothing_runs() -> None:
    nothing = RunReport("r", (), Decimal(0), 0, stack="dev")
    assert report_text(nothing) == "Nothing of stack dev runs, nothing of it is billed.\n"
    left = replace(nothing, released=2, released_per_hour_usd=Decimal("1.5"))
    assert report_text(left) == "Nothing of stack dev runs.\n2 released pods cost $1.50/h.\n"
    assert "$1.50/h, unless ended meanwhile." in report_text(replace(left, released_seen=False))
    running = replace(left, running_pods=1, running_per_hour_usd=Decimal(1), released=1)
    assert "1 pod runs now, $1.00/h.\n1 released pod costs $1.50/h.\n" in report_text(running)
    assert "still billed" in report_text(RunReport("r", (), Decimal(1), 0))


def test_markdown_of_a_run_names_the_exit_code() -> None:
    assert report_markdown(report()).startswith("### ⚠️ Ended with exit code 8\n")


def test_outputs() -> None:
    rows = {
        "host": {"value": "203.0.113.4", "sensitive": False, "unknown": False},
        "all": {"value": ["a", "b"], "sensitive": False, "unknown": False},
        "token": {"value": None, "sensitive": True, "unknown": False},
        "later": {"value": None, "sensitive": False, "unknown": True},
    }
    assert outputs_text(rows) == (
        'host  = 203.0.113.4\nall   = ["a", "b"]\ntoken = (sensitive)\nlater = (known after apply)\n'
    )


def test_an_event_as_json_has_only_what_it_has() -> None:
    row = event_json(replace(CREATION[3], details={"attempt": 2, "hosts": ("a",)}))
    assert row == {
        "attempt": 2,
        "hosts": ["a"],
        "type": "phase",
        "at": "2026-09-10T10:41:17Z",
        "seq": 10,
        "address": "fleet.a[0]",
        "phase": "pulling image ~40 s",
        "price_per_hour_usd": 1.8,
    }
    assert json.dumps(row)


def test_details_cannot_overwrite_what_every_event_has() -> None:
    assert event_json(replace(CREATION[0], details={"type": "x", "seq": -1}))["type"] == "planned_change"


def test_a_stream_begins_with_version_and_ends_with_the_exit_code() -> None:
    stream = EventStream()
    rows = [row for item in CREATION for row in stream.lines(item)]
    rows += stream.closing(AT, 3, (error("x", "y"),))
    assert [rows[0]["type"], rows[-2]["type"], rows[-1]["type"]] == ["version", "diagnostic", "change_summary"]
    assert rows[0]["format_version"] == "1.0"
    assert rows[-1]["exit_code"] == 3
    numbers = [row["seq"] for row in rows]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == len(numbers)


def test_a_stream_that_has_its_end_gets_no_second_one() -> None:
    stream = EventStream()
    stream.lines(Event(EventType.VERSION, AT, 0))
    stream.lines(Event(EventType.CHANGE_SUMMARY, AT, 1, details={"exit_code": 0}))
    assert stream.closing(AT, 0) == []


def test_a_finding_that_an_event_carried_is_not_told_again() -> None:
    finding = error("x", "y")
    stream = EventStream()
    stream.lines(Event(EventType.DIAGNOSTIC, AT, 1, diagnostic=finding))
    assert [row["type"] for row in stream.closing(AT, 1, (finding,))] == ["change_summary"]
