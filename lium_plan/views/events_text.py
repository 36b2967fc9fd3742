"""A run for people without a terminal to redraw: a line per change of phase, a heartbeat, and the closing table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic
from lium_plan.engine.events import ActionResult, Event, EventType, ResultKind, RunReport
from lium_plan.kinds.protocol import Verb
from lium_plan.money import amount, rate
from lium_plan.views.board import Board, RowState, without_steps
from lium_plan.views.columns import columns
from lium_plan.views.diagnostics_text import diagnostic_text
from lium_plan.views.paint import PLAIN, Paint, first_line, one_line
from lium_plan.views.plan_text import SYMBOLS
from lium_plan.views.proof_text import proof_text
from lium_plan.views.times import clock, duration
from lium_plan.views.values import KNOWN_AFTER_APPLY, SENSITIVE, full_value_words

PAST = {
    Verb.CREATE: "created",
    Verb.UPDATE: "changed",
    Verb.REBOOT: "rebooted",
    Verb.REPLACE: "replaced",
    Verb.DESTROY: "destroyed",
    Verb.RUN: "ran",
    Verb.ADOPT: "adopted",
    Verb.FORGET: "forgotten",
    Verb.MOVE: "moved",
}
_LISTED = 30
_PLACE = re.compile(
    r"\b(?:fleet|task)\.[a-z0-9-]+\[[a-z0-9-]+\](?:\.bootstrap)?"
    r"|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r"|(?<![\w.])[\w.-]+\.[\w.-]*:[0-9]{1,5}\b|\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b|\bport [0-9]{1,5}\b"
)
"""What may differ between two words for one cause: address, id, host and port."""


def event_text(event: Event, board: Board, paint: Paint = PLAIN) -> str:
    """One line, or nothing for events that the plan or the closing table shows. Call after `board.take(event)`."""
    at = paint("dim", clock(event.at))
    address = str(event.address) if event.address is not None else ""
    match event.type:
        case EventType.APPLY_START | EventType.PHASE if event.address is not None:
            row = board.row(event.address)
            symbol = SYMBOLS[row.verb] if row is not None and row.verb is not None else " "
            words = one_line(without_steps(event.phase or event.message or "started"))
            return f"{at} {symbol} {address}: {words}\n"
        case EventType.APPLY_COMPLETE:
            row = board.row(event.address) if event.address is not None else None
            elapsed = event.details.get("elapsed_s")
            seconds = elapsed if isinstance(elapsed, int | float) else row.seconds(event.at) if row is not None else 0
            took = f" after {duration(seconds)}" if row is not None else ""
            word = PAST[event.verb] if event.verb is not None else "done"
            price = f"  {rate(event.price_per_hour_usd)}" if event.price_per_hour_usd is not None else ""
            return f"{at} {paint('green', '✓')} {address}: {word}{took}{price}\n"
        case EventType.APPLY_ERRORED:
            cause = event.message or (event.diagnostic.message if event.diagnostic else "failed")
            return f"{at} {paint('bold red', '✗')} {address}: {first_line(cause)}\n"
        case EventType.APPLY_SKIPPED:
            return f"{at} {paint('yellow', '·')} {address}: {_why_skipped(event)}\n"
        case EventType.SUBSTITUTION:
            node = one_line(str(event.details.get("to_node_id", "another node")))
            price = f" at {rate(event.price_per_hour_usd)}" if event.price_per_hour_usd is not None else ""
            return f"{at} {paint('yellow', '!')} {address}: takes node {node}{price} instead\n"
        case _:
            return ""


def _why_skipped(event: Event) -> str:
    message = one_line(event.message or "")
    if message.startswith("interrupted"):
        return message
    return f"skipped: {message.removeprefix('skipped: ')}" if message else "skipped"


def heartbeat_text(board: Board, now: datetime, paint: Paint = PLAIN) -> str:
    """`10:42:37Z … 2 of 9 done, 3 working: fleet.a[0] pulling image (1m 20s), …  $3.98/h, $0.07 so far`."""
    working = board.working()
    shown = [f"{row.address} {one_line(row.phase)} ({duration(row.seconds(now))})" for row in working[:3]]
    more = f", and {len(working) - 3} more" if len(working) > 3 else ""
    names = f": {', '.join(shown)}{more}" if shown else ""
    done = board.count(RowState.DONE)
    cost = f"; {rate(board.per_hour_usd())}, {amount(board.spent_usd(now))} so far" if board.per_hour_usd() else ""
    return paint("dim", f"{clock(now)} … {done} of {len(board)} done, {len(working)} working{names}{cost}") + "\n"


# --- the end ---------------------------------------------------------------------------------------------------


def report_text(report: RunReport, paint: Paint = PLAIN) -> str:
    """Done, failed, skipped, unknown; the proof; what runs and costs now; what to type next."""
    parts = [_results(report.results, paint), _causes(report.results, paint)]
    if report.proofs:
        parts.append(proof_text(report.proofs, paint))
    parts.append(_closing(report, paint))
    return "\n".join(part for part in parts if part)


def _results(results: Iterable[ActionResult], paint: Paint) -> str:
    """A table; of many that went well only the number."""
    items = tuple(results)
    if not items:
        return ""
    good = [item for item in items if item.kind is ResultKind.DONE]
    others = [item for item in items if item.kind is not ResultKind.DONE]
    rows = [_result_row(item) for item in others]
    rows += [_result_row(item) for item in good] if len(good) <= _LISTED else [_folded_row(good)]
    order = sorted(range(len(rows)), key=lambda index: rows[index][0] == "done")
    shown = [rows[index] for index in order]
    return columns(("RESULT", "WHAT", "", "TIME", "WHY"), shown, right=(3,), paint=paint, wrap=True)


def _folded_row(good: list[ActionResult]) -> tuple[str, str, str, str, str]:
    return ("done", f"{len(good)} actions", "", duration(max(item.seconds for item in good)), "")


def _result_row(item: ActionResult) -> tuple[str, str, str, str, str]:
    """Of what failed the cause is told below, once for all that it stopped."""
    took = duration(item.seconds) if item.kind is not ResultKind.SKIPPED else ""
    word = PAST[item.verb] if item.kind is ResultKind.DONE else item.verb.value
    why = one_line(item.note, 100)
    if item.kind is ResultKind.SKIPPED:
        why = f"because of {item.because}" if item.because is not None else "the run had ended"
    return (item.kind.value, str(item.address), word, took, why)


def _causes(results: Iterable[ActionResult], paint: Paint) -> str:
    """Each cause once, in full, with every address that it stopped."""
    causes: dict[tuple[str, str], tuple[Diagnostic, list[Address]]] = {}
    for item in results:
        if item.cause is not None:
            # Members of a fleet fail alike; only where they are differs.
            key = (item.cause.code, _PLACE.sub("…", item.cause.message))
            causes.setdefault(key, (item.cause, []))[1].append(item.address)
    return "".join(
        diagnostic_text(cause, paint) + (_also(addresses, cause) if len(addresses) > 1 else "")
        for cause, addresses in causes.values()
    )


def _also(addresses: list[Address], cause: Diagnostic) -> str:
    names = [str(address) for address in addresses if str(address) != cause.address]
    more = f", and {len(names) - 8} more" if len(names) > 8 else ""
    word = "also for" if cause.address else "for"
    return f"  {word}: {', '.join(names[:8])}{more}\n" if names else ""


def _closing(report: RunReport, paint: Paint) -> str:
    pods = report.running_pods
    if pods:
        noun = "pod runs" if pods == 1 else "pods run"
        running = f"{pods} {noun} now, {paint('bold', rate(report.running_per_hour_usd))}."
    elif report.running_per_hour_usd:
        running = f"No pod runs, and {rate(report.running_per_hour_usd)} is still billed."
    elif report.open_effects or report.strays:
        running = "Nothing that the state knows runs."
    elif report.released or report.elsewhere:
        running = f"Nothing of stack {report.stack} runs."
    else:
        running = f"Nothing of stack {report.stack} runs, nothing of it is billed."
    lines = [running]
    if report.released:
        noun = "released pod costs" if report.released == 1 else "released pods cost"
        unseen = "" if report.released_seen else ", unless ended meanwhile"
        lines.append(f"{report.released} {noun} {rate(report.released_per_hour_usd)}{unseen}.")
    if report.elsewhere:
        noun = "pod runs" if report.elsewhere == 1 else "pods run"
        lines.append(f"{report.elsewhere} {noun} under another state, at {rate(report.elsewhere_per_hour_usd)}.")
    if report.strays:
        verb = "costs" if report.strays == 1 else "cost"
        lines.append(f"{report.strays} more that it does not know {verb} {rate(report.strays_per_hour_usd)}.")
    if report.open_effects:
        lines.append(_unsettled(report))
    if report.next_command:
        lines.append(f"Next: {paint('bold', report.next_command)}")
    return "".join(f"{line}\n" for line in lines)


def _unsettled(report: RunReport) -> str:
    """What may be billed beside what is known."""
    many = report.open_effects != 1
    count = f"{report.open_effects} requests have" if many else "1 request has"
    if not report.open_per_hour_usd:
        return f"{count} no known outcome yet; the next run settles {'them' if many else 'it'}."
    more = f"up to {rate(report.open_per_hour_usd)} more may be billed until the next run settles"
    return f"{count} no known outcome yet: {more} {'them' if many else 'it'}."


def outputs_text(outputs: Mapping[str, object]) -> str:
    """`NAME = value` lines from `{NAME: {value, sensitive, unknown}}`."""
    width = max((len(name) for name in outputs), default=0)
    lines = []
    for name, row in outputs.items():
        if not isinstance(row, Mapping):
            continue
        if row.get("unknown"):
            words = KNOWN_AFTER_APPLY
        else:
            words = SENSITIVE if row.get("sensitive") else full_value_words(row.get("value"))
        lines.append(f"{name:<{width}} = {words}\n")
    return "".join(lines)
