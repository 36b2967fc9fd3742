"""State: what we believe we own, as a value, and how journal entries change it.

Owns the meaning of every entry (`Fold`, `replay`) and of a sound state (`check`). Pure: no file, no clock, no chance.
Refuses entries that can't follow from the state they are applied to: a journal that doesn't fit is not guessed at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from types import MappingProxyType

from lium_plan.addresses import Address, AddressError, parse
from lium_plan.diagnostics import Diagnostic, error, warning
from lium_plan.kinds.protocol import Json, OpenEffect, Record
from lium_plan.state.entries import (
    Began,
    Bound,
    Completed,
    Completion,
    Ended,
    Entry,
    Fact,
    Failed,
    Moved,
    OutputsSet,
    Put,
    Reclaim,
    Release,
    Released,
    Removed,
    Renamed,
    RunStarted,
    Told,
    Uncompleted,
    Unwatch,
    Watch,
    Watched,
)
from lium_plan.state.values import freeze_mapping, freeze_record

SOLE_KINDS = ("volume", "credential", "pod")
"""Kinds whose remote id stands at one address only. Equal templates of one state share theirs, and what runs on a
pod may carry the pod's."""


@dataclass(frozen=True, slots=True)
class State:
    """One stack of one project. `serial` counts changes, `sequence` journal entries; both only grow."""

    project: str
    stack: str
    lineage: str
    """A UUID4; ownership of remote things is decided by it."""
    serial: int
    sequence: int
    """The number of the last journal entry that is contained."""
    account_id: str | None
    workspace_id: str | None
    salt: bytes
    """32 random bytes that key the hashes standing in for secrets."""
    records: Mapping[str, Record] = field(default_factory=dict)
    """By `Record.key`."""
    open: Mapping[int, OpenEffect] = field(default_factory=dict)
    """By the number of the begin."""
    released: tuple[Released, ...] = ()
    watched: tuple[Watched, ...] = ()
    outputs: Mapping[str, Json] = field(default_factory=dict)
    """As the last apply left them."""
    completions: Mapping[str, Completion] = field(default_factory=dict)
    """By task address."""

    def record(self, address: Address) -> Record | None:
        """The living record at an address; deposed ones are in `deposed()`."""
        return self.records.get(str(address))

    def deposed(self) -> Iterator[Record]:
        return (record for record in self.records.values() if record.deposed)


def new_state(project: str, stack: str, *, lineage: str, salt: bytes) -> State:
    """A state that owns nothing. `lineage` (a UUID4) and `salt` (32 random bytes) come from the caller."""
    return State(project, stack, lineage, 0, 0, None, None, salt)


class ReplayError(ValueError):
    """An entry that doesn't follow from what came before it."""

    def __init__(self, number: int, message: str) -> None:
        self.number = number
        super().__init__(message)


def replay(state: State, entries: Iterable[Entry]) -> State:
    """The state after `entries`; those it already contains are skipped. Raises `ReplayError`."""
    fold = Fold(state)
    for entry in entries:
        if entry.number > state.sequence:
            fold.apply(entry)
    return fold.state


class _Index:
    """Where to find rows by something else than their keys."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.keys: defaultdict[Address, set[str]] = defaultdict(set)
        self.dependents: defaultdict[Address, set[str]] = defaultdict(set)
        """Keys by what they depend on."""
        self.holders: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        """Keys by kind and id; templates are shared, and nothing else should be."""
        for record in records:
            self.link(record)

    def link(self, record: Record) -> None:
        for keys in self._of(record):
            keys.add(record.key)

    def unlink(self, record: Record) -> None:
        for keys in self._of(record):
            keys.discard(record.key)

    def _of(self, record: Record) -> Iterator[set[str]]:
        yield self.keys[record.address]
        for dependency in record.depends_on:
            yield self.dependents[dependency]
        if record.id is not None:
            yield self.holders[record.kind, record.id]


class Fold:
    """A state in the making: the one place where an entry's meaning is written down.

    Mutable, so that a run over thousands of resources costs O(1) an entry; `state` is the value so far.
    """

    def __init__(self, state: State) -> None:
        self._base = state
        self._serial = state.serial
        self._sequence = state.sequence
        self._records = dict(state.records)
        self._open = dict(state.open)
        self._released = {item.id: item for item in state.released}
        self._watched = {item.name: item for item in state.watched}
        self._outputs = state.outputs
        self._completions = dict(state.completions)
        self._index: _Index | None = None
        self.touched: list[str] = []
        """Keys of the rows that were written or dropped since the beginning, in order."""
        self._frozen: State | None = state

    @property
    def state(self) -> State:
        if self._frozen is None:
            self._frozen = replace(
                self._base,
                serial=self._serial,
                sequence=self._sequence,
                records=dict(sorted(self._records.items())),
                open=dict(sorted(self._open.items())),
                released=tuple(self._released[key] for key in sorted(self._released)),
                watched=tuple(self._watched[key] for key in sorted(self._watched)),
                outputs=self._outputs,
                completions=dict(sorted(self._completions.items())),
            )
        return self._frozen

    @property
    def sequence(self) -> int:
        return self._sequence

    @property
    def salt(self) -> bytes:
        return self._base.salt

    def record(self, address: Address) -> Record | None:
        return self._records.get(str(address))

    def by_key(self, key: str) -> Record | None:
        return self._records.get(key)

    def holders(self, kind: str, id: str) -> tuple[Record, ...]:
        """The records of one remote thing."""
        return tuple(self._records[key] for key in sorted(self._indexed().holders[kind, id]))

    @property
    def records(self) -> Mapping[str, Record]:
        """All of them by key, as they are now: a view that changes with the fold."""
        return MappingProxyType(self._records)

    @property
    def open(self) -> Mapping[int, OpenEffect]:
        """What is open now, by number: a view that changes with the fold."""
        return MappingProxyType(self._open)

    def effect(self, number: int) -> OpenEffect | None:
        return self._open.get(number)

    def apply(self, entry: Entry) -> None:
        """Take one entry in. On `ReplayError` nothing of it was taken."""
        if entry.number != self._sequence + 1:
            raise ReplayError(
                entry.number,
                f"entry {entry.number} follows entry {self._sequence}: what lies between them is missing",
            )
        changed = self._take(entry.fact, entry)
        self._sequence = entry.number
        self._serial += changed
        self._frozen = None

    # --- one method a fact; True when it changed the state ---------------------------------------------------

    @singledispatchmethod
    def _take(self, fact: Fact, entry: Entry) -> bool:
        raise ReplayError(entry.number, f"entry {entry.number} holds an unknown fact {type(fact).__name__}")

    @_take.register
    def _(self, fact: RunStarted, entry: Entry) -> bool:
        return False

    @_take.register
    def _(self, fact: Began, entry: Entry) -> bool:
        data = freeze_mapping(fact.data)
        self._open[entry.number] = OpenEffect(entry.number, fact.address, fact.op, entry.at, entry.run, data)
        return True

    @_take.register
    def _(self, fact: Ended, entry: Entry) -> bool:
        self._end(fact.of, entry)
        for key in fact.removed:
            self._drop(key)
        for record in fact.records:
            self._put(record)
        return True

    @_take.register
    def _(self, fact: Failed, entry: Entry) -> bool:
        self._end(fact.of, entry)
        return True

    @_take.register
    def _(self, fact: Put, entry: Entry) -> bool:
        return self._put(fact.record)

    @_take.register
    def _(self, fact: Removed, entry: Entry) -> bool:
        return self._drop(fact.key)

    @_take.register
    def _(self, fact: Moved, entry: Entry) -> bool:
        record = self._records.get(fact.key)
        if record is None:
            raise ReplayError(entry.number, f"entry {entry.number} moves {fact.key}, which is not in the state")
        moved = replace(record, address=fact.to)
        if moved.key in self._records:
            raise ReplayError(entry.number, f"entry {entry.number} moves {fact.key} onto {moved.key}, which is taken")
        old = record.address
        self._forget_key(record)
        self._store(moved)
        if not record.deposed:
            self._rewire(old, fact.to)
            for number, effect in self._open.items():
                if effect.address == old:
                    self._open[number] = replace(effect, address=fact.to)
        return True

    @_take.register
    def _(self, fact: Release, entry: Entry) -> bool:
        if fact.key is not None:
            self._drop(fact.key)
        self._released[fact.released.id] = fact.released
        return True

    @_take.register
    def _(self, fact: Reclaim, entry: Entry) -> bool:
        return self._released.pop(fact.id, None) is not None

    @_take.register
    def _(self, fact: Watch, entry: Entry) -> bool:
        before = self._watched.get(fact.watched.name)
        self._watched[fact.watched.name] = fact.watched
        return before != fact.watched

    @_take.register
    def _(self, fact: Unwatch, entry: Entry) -> bool:
        return self._watched.pop(fact.name, None) is not None

    @_take.register
    def _(self, fact: Completed, entry: Entry) -> bool:
        before = self._completions.get(str(fact.address))
        self._completions[str(fact.address)] = fact.completion
        return before != fact.completion

    @_take.register
    def _(self, fact: Uncompleted, entry: Entry) -> bool:
        return self._completions.pop(str(fact.address), None) is not None

    @_take.register
    def _(self, fact: OutputsSet, entry: Entry) -> bool:
        before, self._outputs = self._outputs, freeze_mapping(fact.values)
        return before != self._outputs

    @_take.register
    def _(self, fact: Bound, entry: Entry) -> bool:
        before = self._base
        self._base = replace(before, account_id=fact.account_id, workspace_id=fact.workspace_id)
        return before != self._base

    @_take.register
    def _(self, fact: Renamed, entry: Entry) -> bool:
        before = self._base
        self._base = replace(before, project=fact.project)
        return before != self._base

    @_take.register
    def _(self, fact: Told, entry: Entry) -> bool:
        return False

    # --- records and who depends on them ---------------------------------------------------------------------

    def _end(self, number: int, entry: Entry) -> None:
        if self._open.pop(number, None) is None:
            raise ReplayError(entry.number, f"entry {entry.number} ends effect {number}, which is not open")

    def _put(self, record: Record) -> bool:
        record = freeze_record(record)
        if self._records.get(record.key) == record:
            return False
        given_up = self._released.get(record.id) if record.id is not None else None
        if given_up is not None and given_up.kind == record.kind:
            del self._released[given_up.id]  # taken back: an equal template under its old name, say
        # One remote thing is one row: what is deposed leaves its address, what is reinstated leaves the deposed.
        if record.id is not None:
            other = replace(record, deposed=not record.deposed).key
            twin = self._records.get(other)
            if twin is not None and twin.id == record.id:
                self._forget_key(twin)
        replaced = self._records.get(record.key)
        if replaced is not None:
            self._forget_key(replaced)
        self._store(record)
        return True

    def _drop(self, key: str) -> bool:
        record = self._records.get(key)
        if record is None:
            return False
        self._forget_key(record)
        index = self._indexed()
        # A dependency orders destruction; on something that is gone it would only dangle.
        if not index.keys[record.address]:
            for dependent in tuple(index.dependents[record.address]):
                row = self._records[dependent]
                kept = tuple(item for item in row.depends_on if item != record.address)
                self._forget_key(row)
                self._store(replace(row, depends_on=kept))
        return True

    def _rewire(self, old: Address, new: Address) -> None:
        for key in tuple(self._indexed().dependents[old]):
            row = self._records[key]
            self._forget_key(row)
            needs = tuple(new if item == old else item for item in row.depends_on)
            self._store(replace(row, depends_on=needs, inputs=_readdressed(row.inputs, old, new)))

    def _indexed(self) -> _Index:
        """Built when first needed: reading a state needs none."""
        if self._index is None:
            self._index = _Index(self._records.values())
        return self._index

    def _store(self, record: Record) -> None:
        self._records[record.key] = record
        self.touched.append(record.key)
        if self._index is not None:
            self._index.link(record)

    def _forget_key(self, record: Record) -> None:
        del self._records[record.key]
        self.touched.append(record.key)
        if self._index is not None:
            self._index.unlink(record)


def _readdressed(inputs: Mapping[str, Json], old: Address, new: Address) -> Mapping[str, Json]:
    """Inputs that name what moved (`template: template.old`) name it where it is now: nothing shows as changed."""
    return {
        key: str(new)
        if key == old.kind and value == str(old)
        else _readdressed(value, old, new)
        if isinstance(value, Mapping)
        else value
        for key, value in inputs.items()
    }


def check(state: State) -> tuple[Diagnostic, ...]:
    """What is unsound in a state. Errors must stop every command that acts on it; warnings only cost order."""
    return (*_check_keys(state), *_check_ids(state), *_check_dependencies(state))


_CURE = "run `lium-plan state repair` to see what it would mend"


def _is_known(address: Address) -> bool:
    try:
        return parse(str(address)) == address
    except AddressError:
        return False


def _check_keys(state: State) -> Iterator[Diagnostic]:
    for key, record in state.records.items():
        if not _is_known(record.address):
            yield error("unknown-kind", f"{record.address} is of no kind that this version knows", hint=_CURE)
        elif record.key != key:
            yield error("state-key", f"the record of {record.key} is stored as {key}", address=key, hint=_CURE)
        if record.deposed and record.id is None:
            yield error("state-key", f"{key} is deposed and has no id", address=str(record.address), hint=_CURE)


def _check_ids(state: State) -> Iterator[Diagnostic]:
    seen: dict[tuple[str, str], str] = {}
    for key, record in state.records.items():
        if record.id is None or not _is_known(record.address) or record.kind not in SOLE_KINDS:
            continue
        first = seen.setdefault((record.kind, record.id), key)
        if first != key:
            yield error(
                "duplicate-id",
                f"{first} and {key} both hold {record.id}: destroying one would destroy the other",
                address=str(record.address),
                hint=_CURE,
            )


def _check_dependencies(state: State) -> Iterator[Diagnostic]:
    present = {record.address for record in state.records.values()}
    for key, record in state.records.items():
        for dependency in record.depends_on:
            if dependency not in present:
                yield warning(
                    "dangling-dependency",
                    f"{key} depends on {dependency}, which is not in the state",
                    address=str(record.address),
                    hint=_CURE,
                )
