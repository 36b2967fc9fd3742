"""The audit log: who did what to which resource, in which run, at what price, and how it ended.

Made by pure functions from journal entries, and from the two states where one is put in place of the other, so it can't
say anything that those don't. A line per ended effect, and for what else changes something; what is only learnt about a
resource (status, host, ports) is no news. The lines outlive snapshots.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation

from lium_plan.addresses import Address
from lium_plan.kinds.protocol import Json, OpenEffect, Record
from lium_plan.marks import lineage_mark
from lium_plan.state.entries import (
    Completed,
    Ended,
    Entry,
    Failed,
    Moved,
    Release,
    Removed,
    RunStarted,
    Told,
)
from lium_plan.state.model import Fold, State
from lium_plan.state.shape import shape_of


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One line of the log. `number` is that of the journal entry it comes from, within `lineage`."""

    number: int
    lineage: str
    """The lineage's mark."""
    at: datetime
    run: str
    who: str
    address: str
    action: str
    """The effect's own word (`rent`, `delete`, …), or `update`, `adopt`, `forget`, `release`, `move`, `complete`, and
    `push`, `recover`, `repair` of the whole state."""
    id: str | None
    price_per_hour_usd: str | None
    result: str
    """`done`, `failed: <reason>`, `open`, or why something was forgotten."""


_SHAPE = shape_of(AuditEvent)


class Trail:
    """What happened from `base` on: entries go in one by one, so that no single step has to tell a whole run."""

    def __init__(self, base: State, entries: Iterable[Entry] = ()) -> None:
        """Raises `ReplayError`, like `take`, for entries that don't follow."""
        self._fold = Fold(base)
        self._mark = lineage_mark(base.lineage)
        self._who: dict[str, str] = {}
        self.told: list[AuditEvent] = []
        for entry in entries:
            self.take(entry)

    @property
    def sequence(self) -> int:
        """The number of the last entry taken, or the base's."""
        return self._fold.sequence

    @property
    def open(self) -> Mapping[int, OpenEffect]:
        """The effects without an end so far; a view."""
        return self._fold.open

    def take(self, entry: Entry) -> None:
        if isinstance(entry.fact, RunStarted):
            self._who[entry.run] = entry.fact.who
        told = _event(self._fold, entry)
        self._fold.apply(entry)
        if told is not None:
            self.told.append(self._line(entry, *told))

    def still_open(self) -> Iterator[AuditEvent]:
        """A line for each effect without an end."""
        for effect in self._fold.state.open.values():
            yield self._line(effect, effect.address, effect.op, None, "open")

    def _line(
        self, of: Entry | OpenEffect, address: Address, action: str, record: Record | None, result: str
    ) -> AuditEvent:
        id = None if record is None else record.id
        who = self._who.get(of.run, "")
        return AuditEvent(of.number, self._mark, of.at, of.run, who, str(address), action, id, _price(record), result)


_Told = tuple[Address, str, Record | None, str]


def _event(fold: Fold, entry: Entry) -> _Told | None:
    """Address, action, record and result; asked before the entry is applied, while what it removes is still there."""
    match entry.fact:
        case Ended(of=number, records=records, removed=removed):
            effect = fold.effect(number)
            if effect is None:
                return None
            subject = _subject(fold, effect, records, removed)
            return effect.address, effect.op, subject, _how_it_ended(subject)
        case Failed(of=number, reason=reason):
            effect = fold.effect(number)
            if effect is None:
                return None
            return effect.address, effect.op, _subject(fold, effect, (), ()), f"failed: {reason}"
        case Removed(key=key, why=why):
            record = fold.by_key(key)
            return None if record is None else (record.address, "forget", record, why)
        case Moved(key=key, to=to):
            record = fold.by_key(key)
            return to, "move", record, f"done: was {key}"
        case Release(released=released, key=key):
            record = None if key is None else fold.by_key(key)
            return None if record is None else (record.address, "release", record, f"done: {released.id} stays")
        case Told(key=key, action=action, result=result):
            record = fold.by_key(key)
            return None if record is None else (record.address, action, record, result)
        case Completed(address=address, completion=completion):
            return address, "complete", fold.record(address), f"done: exit code {completion.exit_code}"
    return None


def _subject(fold: Fold, effect: OpenEffect, records: tuple[Record, ...], removed: tuple[str, ...]) -> Record | None:
    """The record that an effect was about: made by it, else removed by it, else there already."""
    about = effect.data.get("id")
    if isinstance(about, str):
        # What a replacement leaves has the address of its successor: its id tells them apart.
        known = (*records, *(record for key in removed if (record := fold.by_key(key)) is not None))
        held = fold.holders(effect.address.kind, about)
        if found := next((record for record in (*known, *held) if record.id == about), None):
            return found
    made = (record for record in records if record.address == effect.address and not record.deposed)
    gone = (record for key in removed if (record := fold.by_key(key)) is not None and record.address == effect.address)
    found = next(made, None) or next(gone, None) or fold.record(effect.address)
    if isinstance(about, str) and (found is None or found.id != about):
        # Something that no record holds, such as a lost pod that was deleted; what stands at its address is another.
        facts: dict[str, Json] = {"price_per_hour_usd": effect.data.get("price_per_hour_usd")}
        return Record(effect.address, about, "", attributes=facts)
    return found


def _how_it_ended(record: Record | None) -> str:
    """What was carried out on a pod has an end of its own: `failed: exit code 3`."""
    ending = record.attributes.get("ending") if record is not None and record.status == "failed" else None
    if record is None or ending is None:
        return "done"
    return f"failed: exit code {record.attributes.get('exit_code')}" if ending == "exit" else f"failed: {ending}"


def _price(record: Record | None) -> str | None:
    if record is None:
        return None
    value = record.attributes.get("price_per_hour_usd")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return format(Decimal(str(value)), "f")
    except InvalidOperation:
        return None


def events_of_replacement(
    before: State | None, after: State, *, at: datetime, run: str, who: str, action: str
) -> Iterator[AuditEvent]:
    """A state put in place of another by hand (`push`, `recover`, `repair`): that it was, and what went and came so.

    `before` None: what was there could not be read, so nobody can say what differs.
    """
    mark = lineage_mark(after.lineage)

    def event(address: str, word: str, record: Record | None, result: str) -> AuditEvent:
        id = None if record is None else record.id
        return AuditEvent(after.sequence, mark, at, run, who, address, word, id, _price(record), result)

    was = "one that can't be read" if before is None else f"serial {before.serial}" if before.records else "nothing"
    yield event("state", action, None, f"done: serial {after.serial} in place of {was}")
    if before is None:
        return
    there, now = _owned(before), _owned(after)
    for id in sorted(there.keys() - now.keys()):
        yield event(str(there[id].address), "forget", there[id], f"by state {action}")
    for id in sorted(now.keys() - there.keys()):
        yield event(str(now[id].address), "adopt", now[id], f"done: by state {action}")


def _owned(state: State) -> dict[str, Record]:
    """What lies on the account, by id."""
    return {record.id: record for record in state.records.values() if record.id is not None and record.kind in _REMOTE}


_REMOTE = ("volume", "credential", "template", "pod")


def encode_event(event: AuditEvent) -> bytes:
    return json.dumps(_SHAPE.encode(event), separators=(",", ":")).encode("ascii") + b"\n"


def decode_events(data: bytes) -> tuple[tuple[AuditEvent, ...], int]:
    """The events in a log, and where the last whole line ends. Lines that can't be read are left out.

    The log proves nothing and no command acts on it, so a damaged line must not hide the others.
    """
    used = data.rfind(b"\n") + 1
    found = []
    for line in data[:used].split(b"\n"):
        try:
            members: Mapping[str, object] = json.loads(line)
            found.append(_SHAPE.decode(members, ()))  # type: ignore[arg-type]
        except (ValueError, RecursionError):
            continue
    return tuple(found), used
