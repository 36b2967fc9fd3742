"""What can be saved of a state that strict reading refuses (`lium-plan state repair`).

Owns a lenient reading of the same bytes, with a finding for everything that it mends, gives up or can't know. Pure, and
writes nothing: `Store.replace` puts the result in place and keeps the originals. Refuses to forget an id: a record that
can't stay becomes *released*, so that what it costs is still listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from lium_plan.diagnostics import Diagnostic, Position, Severity, error, warning
from lium_plan.kinds.protocol import Json, Record
from lium_plan.state import codec
from lium_plan.state.entries import Ended, Entry, Fact, Failed, Put, Released, Removed
from lium_plan.state.journalfile import parse_journal
from lium_plan.state.model import SOLE_KINDS, Fold, ReplayError, State, check, replay
from lium_plan.state.shape import ShapeError, shape_of

_ORPHANS = "run `lium-plan orphans` afterwards: it lists what the account bills and this state lacks"
_RECORD = shape_of(Record)
_STRING_OR_COMMA = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])')


@dataclass(frozen=True, slots=True)
class Salvage:
    """What was saved, and what is to be said about it. Without findings the state is sound as it is."""

    state: State | None
    """None: no snapshot could be read in any way; `state recover` is left."""
    findings: tuple[Diagnostic, ...]
    """Warnings say what was mended, errors what is lost."""


def salvage(
    snapshots: Sequence[tuple[str, bytes]], journal: tuple[str, bytes], *, stack: str, now: datetime
) -> Salvage:
    """Save what can be saved. `snapshots` (file name and content) are the current one, then earlier ones."""
    findings: list[Diagnostic] = []
    base: State | None = None
    for index, (name, data) in enumerate(snapshots):
        base = _read_snapshot(data, file=name, now=now, findings=findings)
        if findings and findings[-1].code == "state-format" and index == 0:
            # Not damage: a newer version knows what this one doesn't. An older snapshot would undo its work.
            return Salvage(None, tuple(findings))
        if base is not None:
            if findings:
                findings.extend(_other_ids(base, snapshots[index + 1 :]))
            if index:
                message = f"{name} was taken instead: what was done after it is known only as far as the journal tells"
                findings.append(error("repair-older", message, hint=_ORPHANS))
            break
    file, lines = journal
    if base is None:
        for _, entry in _read_lines(lines, None, file, findings):
            findings.extend(_named(entry, file))
        return Salvage(None, tuple(findings))
    state = _replay(base, lines, file, findings)
    state = _mend(replace(state, stack=stack) if _renamed(state, stack, findings) else state, findings)
    if findings:
        # Saved plans looked at something else.
        state = replace(state, serial=state.serial + 1)
    return Salvage(state, tuple(findings))


def _replay(base: State, data: bytes, file: str, findings: list[Diagnostic]) -> State:
    """Strictly where that is possible; leniently, and saying why, where it is not."""
    try:
        return replay(base, parse_journal(data, base.lineage, file=file).entries)
    except codec.Unreadable as fault:
        findings.append(replace(fault.diagnostic, hint=None))
    except ReplayError as fault:
        findings.append(warning("journal-replay", f"{file}: {fault}"))
    lines = tuple(_read_lines(data, base.lineage, file, findings))
    return _replay_leniently(base, lines, file, findings)


def _renamed(state: State, stack: str, findings: list[Diagnostic]) -> bool:
    if state.stack != stack:
        findings.append(warning("repair-stack", f"the state says it is stack {state.stack}; it becomes {stack}"))
    return state.stack != stack


# --- snapshots -----------------------------------------------------------------------------------------------


def _other_ids(state: State, earlier: Sequence[tuple[str, bytes]]) -> Iterator[Diagnostic]:
    """Ids in a changed snapshot that the newest sound one before it had otherwise: replaced since then, or damaged."""
    for name, data in earlier:
        try:
            before = codec.decode_snapshot(data, file=name)
        except codec.Unreadable:
            continue
        for key, row in state.records.items():
            old = before.records.get(key)
            if old is not None and old.id not in (None, row.id):
                message = f"{key} is {row.id} now and was {old.id} in {name}: which is right can't be known from here"
                yield error("repair-id", message, address=str(row.address), hint=_ORPHANS)
        return


def _read_snapshot(data: bytes, *, file: str, now: datetime, findings: list[Diagnostic]) -> State | None:
    try:
        return codec.decode_snapshot(data, file=file)
    except codec.Unreadable as fault:
        findings.append(replace(fault.diagnostic, hint=None))
    if findings[-1].code == "state-format":
        return None
    if findings[-1].code == "state-checksum":
        findings.append(warning("repair-edited", f"{file}: it is taken as it is now", hint=_ORPHANS))
        return codec.decode_snapshot(data, file=file, edited=True)
    text = data.rstrip(b"\0").decode("utf-8", errors="replace").removeprefix("\ufeff")
    text = _STRING_OR_COMMA.sub(lambda match: "" if match[0] == "," else match[0], text)
    try:
        members = codec.parse_document(text, file)
    except codec.Unreadable:
        return None
    if not isinstance(members, Mapping) or not isinstance(members.get("records"), Mapping):
        return None
    rows, given_up = _read_records(members["records"], file=file, now=now, findings=findings)
    try:
        rest = {name: value for name, value in members.items() if name not in ("format", "checksum")}
        state = codec.decode_members({**rest, "records": {}})
    except (ShapeError, codec.Unreadable):
        return None
    known = {item.id for item in state.released}
    released = (*state.released, *(item for item in given_up if item.id not in known))
    return replace(state, records=rows, released=tuple(sorted(released, key=lambda item: item.id)))


def _read_records(
    members: Json, *, file: str, now: datetime, findings: list[Diagnostic]
) -> tuple[Mapping[str, Record], tuple[Released, ...]]:
    """Records by their true keys, and what could not stay one."""
    assert isinstance(members, Mapping)
    rows: dict[str, Record] = {}
    given_up: dict[str, Released] = {}
    for key, value in members.items():
        try:
            row: Record = _RECORD.decode(value, ("records", key))
            if row.key not in rows:
                rows[row.key] = row
                continue
            reason = f"its address is taken by another record of {row.key}"
        except ShapeError as fault:
            reason = str(fault)
        id = value.get("id") if isinstance(value, Mapping) else None
        if isinstance(id, str):
            given_up[id] = Released(key.partition(".")[0], id, key, now)
            message = f"{file}: {key} can't stay a record ({reason}); it becomes released, with its id {id}"
            findings.append(warning("repair-released", message))
        else:
            findings.append(error("repair-lost", f"{file}: {key} can't stay a record ({reason}) and has no id"))
    return dict(sorted(rows.items())), tuple(given_up.values())


# --- journal -------------------------------------------------------------------------------------------------


def _read_lines(data: bytes, lineage: str | None, file: str, findings: list[Diagnostic]) -> Iterator[tuple[int, Entry]]:
    """Whole lines with their line numbers, in the order of their entries' numbers."""
    found: dict[int, tuple[int, Entry]] = {}
    *lines, _ = data.split(b"\n")  # what follows the last line end was never acknowledged
    for number, line in enumerate(lines, 1):
        try:
            entry = codec.decode_entry(
                line.removesuffix(b"\r").removeprefix(b"\xef\xbb\xbf"), lineage, file=file, number=number
            )
        except codec.Unreadable as fault:
            message = f"a line is given up: {fault.diagnostic.message}"
            hint = "if it began a rent, `lium-plan orphans` shows the pod under its name"
            findings.append(error("repair-line", message, position=Position(file, number, 1), hint=hint))
            continue
        found.setdefault(entry.number, (number, entry))
    yield from (found[number] for number in sorted(found))


def _replay_leniently(base: State, lines: Sequence[tuple[int, Entry]], file: str, findings: list[Diagnostic]) -> State:
    fold = Fold(base)
    for line, entry in lines:
        if entry.number <= fold.sequence:
            continue
        if entry.number > fold.sequence + 1:
            message = f"entries {fold.sequence + 1} to {entry.number - 1} are lost"
            findings.append(error("repair-gap", message, position=Position(file, line, 1), hint=_ORPHANS))
        for fact in _facts(fold, entry.fact):
            # One entry may stand for several facts; they share its number.
            fold = Fold(replace(fold.state, sequence=entry.number - 1)) if fold.sequence != entry.number - 1 else fold
            try:
                fold.apply(replace(entry, fact=fact))
            except ReplayError as fault:
                findings.append(error("repair-entry", str(fault), position=Position(file, line, 1)))
    return fold.state


def _facts(fold: Fold, fact: Fact) -> tuple[Fact, ...]:
    """What an entry still says when the begin that it ends is lost."""
    if isinstance(fact, Ended | Failed) and fold.effect(fact.of) is None:
        if isinstance(fact, Failed):
            return ()
        why = f"ended effect {fact.of}"
        return (*(Removed(key, why) for key in fact.removed), *(Put(record) for record in fact.records))
    return (fact,)


def _named(entry: Entry, file: str) -> Iterator[Diagnostic]:
    """The ids in an entry that can't be applied to anything."""
    rows = entry.fact.records if isinstance(entry.fact, Ended) else ()
    rows = (entry.fact.record,) if isinstance(entry.fact, Put) else rows
    for row in rows:
        if row.id is not None:
            yield warning("repair-seen", f"{file}: {row.address} was {row.id}", address=str(row.address))


# --- soundness -----------------------------------------------------------------------------------------------


def _mend(state: State, findings: list[Diagnostic]) -> State:
    """A state that `check` has no word to say about."""
    rows = dict(state.records)
    # Whatever it finds is mended below, so nothing of it is lost.
    findings.extend(replace(item, severity=Severity.WARNING, hint=None) for item in check(state))
    seen: dict[tuple[str, str], str] = {}
    for key, row in tuple(rows.items()):
        if row.deposed and row.id is None:
            del rows[key]
            findings.append(warning("repair-dropped", f"{key} is dropped: it has no id, so there is nothing of it"))
        if row.id is None or row.kind not in SOLE_KINDS:
            continue
        first = seen.setdefault((row.kind, row.id), key)
        if first != key:
            del rows[key]
            findings.append(warning("repair-duplicate", f"{key} is dropped: {first} keeps {row.id}"))
    present = {row.address for row in rows.values()}
    for key, row in tuple(rows.items()):
        needs = tuple(item for item in row.depends_on if item in present)
        if needs != row.depends_on:
            rows[key] = replace(row, depends_on=needs)
            findings.append(warning("repair-dependency", f"{key} no longer depends on what is not in the state"))
    return replace(state, records=rows)
