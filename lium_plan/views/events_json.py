"""Events as JSON lines: `apply --json` and `destroy --json`.

Owns the promise that a stream begins with `version` and ends with a `change_summary` that has the exit code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lium_plan import __version__
from lium_plan.diagnostics import Diagnostic
from lium_plan.engine.events import Event, EventType, ResultKind, RunReport
from lium_plan.views.diagnostics_json import diagnostic_json
from lium_plan.views.documents import FORMAT_VERSION, Document
from lium_plan.views.money import number
from lium_plan.views.times import stamp


def event_json(event: Event) -> Document:
    """Fields that an event doesn't have are left out; what only its type has stands beside the common ones."""
    row: Document = {"type": event.type.value, "at": stamp(event.at), "seq": event.seq}
    if event.address is not None:
        row["address"] = str(event.address)
    if event.verb is not None:
        row["action"] = event.verb.value
    if event.phase is not None:
        row["phase"] = event.phase
    if event.price_per_hour_usd is not None:
        row["price_per_hour_usd"] = number(event.price_per_hour_usd)
    if event.message is not None:
        row["message"] = event.message
    if event.diagnostic is not None:
        row["diagnostic"] = diagnostic_json(event.diagnostic)
    return {**{key: plain(value) for key, value in event.details.items()}, **row}


def ending_json(command: str, stack: str, exit_code: int, report: RunReport | None) -> Document:
    """How a run ended, for `--notify`. Without a report nothing was done: what runs is not known then, and null."""
    return {
        "format_version": FORMAT_VERSION,
        "command": command,
        "stack": stack,
        "run": None if report is None else report.run,
        "exit_code": int(exit_code),
        "running_pods": None if report is None else report.running_pods,
        "running_per_hour_usd": None if report is None else number(report.running_per_hour_usd),
        **{
            end.value: None if report is None else sum(result.kind is end for result in report.results)
            for end in ResultKind
        },
    }


def plain(value: Any) -> Any:
    """Tuples and read-only mappings as what `json` writes."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@dataclass(slots=True)
class EventStream:
    """Completes a stream: whatever the run's events were, `version` comes first and the exit code last."""

    seq: int = 0
    opened: bool = False
    ended: bool = False
    told: set[Diagnostic] = field(default_factory=set)
    """What events carried, so that the end doesn't say it again."""

    def lines(self, event: Event) -> list[Document]:
        """What to write for this event, in order."""
        if event.diagnostic is not None:
            self.told.add(event.diagnostic)
        before = [] if self.opened or event.type is EventType.VERSION else [self._version(event.at)]
        details = (
            {"format_version": FORMAT_VERSION, "lium_plan": __version__} if event.type is EventType.VERSION else {}
        )
        self.opened = True
        self.seq = max(self.seq + 1, event.seq)
        self.ended = event.type is EventType.CHANGE_SUMMARY and "exit_code" in event.details
        return [*before, {**details, **event_json(event), "seq": self.seq}]

    def closing(self, at: datetime, exit_code: int, diagnostics: Sequence[Diagnostic] = ()) -> list[Document]:
        """What is still missing at the end: findings that no event carried, and the exit code."""
        lines = [] if self.opened else [self._version(at)]
        self.opened = True
        fresh = [item for item in dict.fromkeys(diagnostics) if item not in self.told]
        lines += [self._next("diagnostic", at, {"diagnostic": diagnostic_json(item)}) for item in fresh]
        if not self.ended or fresh:
            lines.append(self._next("change_summary", at, {"exit_code": exit_code}))
        self.ended = True
        return lines

    def _version(self, at: datetime) -> Document:
        return self._next("version", at, {"format_version": FORMAT_VERSION, "lium_plan": __version__})

    def _next(self, name: str, at: datetime, more: Document) -> Document:
        self.seq += 1
        return {"type": name, "at": stamp(at), "seq": self.seq, **more}
