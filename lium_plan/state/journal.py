"""The ledger that drivers write to: every fact is durable before the call returns, and the state follows it.

Owns numbers, times and the run's own entry. Refuses to begin what it could not write down, and to end what is not
open: that is a defect in the caller, not a matter of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from lium_plan.addresses import Address
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
from lium_plan.state.model import Fold, State
from lium_plan.state.store import Store
from lium_plan.state.values import freeze_mapping, freeze_record


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Which run writes. Recorded with its first entry, and not at all when it has nothing to write."""

    id: str
    who: str
    command: str


class JournaledLedger:
    """A `kinds.protocol.Ledger` over a store whose lock is held.

    `state` is what was loaded, or a new one with `born=False`: then the first entry writes its first snapshot, so that
    a run without changes leaves no file. `heard` is told of every entry once it is durable. `now` dates the entries;
    watched names are let go once `wall`, another clock, agrees that their time is over: one alone may jump.
    Every method that writes raises `Failure` when the entry could not be written; the state is then as before.
    """

    def __init__(
        self,
        store: Store,
        state: State,
        *,
        run: RunIdentity,
        now: Callable[[], datetime],
        wall: Callable[[], datetime] | None = None,
        born: bool = True,
        heard: Callable[[Entry], None] | None = None,
    ) -> None:
        self._store = store
        self._fold = Fold(state)
        self._run = run
        self._now = now
        self._wall = wall
        self._born = born
        self._announced = False
        self._heard = heard

    @property
    def state(self) -> State:
        """What state and journal say now."""
        return self._fold.state

    @property
    def born(self) -> bool:
        """Whether a snapshot exists: false while a new state has had nothing to remember."""
        return self._born

    @property
    def salt(self) -> bytes:
        return self._fold.salt

    def record(self, address: Address) -> Record | None:
        return self._fold.record(address)

    def record_by_key(self, key: str) -> Record | None:
        return self._fold.by_key(key)

    def holders(self, kind: str, id: str) -> tuple[Record, ...]:
        """See `Ledger.holders`."""
        return self._fold.holders(kind, id)

    def records(self) -> Mapping[str, Record]:
        """See `Ledger.records`; a view, so walk a copy when writing meanwhile."""
        return self._fold.records

    @property
    def open(self) -> Mapping[int, OpenEffect]:
        """What is open now; a view, like `records`."""
        return self._fold.open

    @property
    def touched(self) -> Sequence[str]:
        """Keys of the rows that were written or dropped in this run, in order, with repetitions; it only grows."""
        return self._fold.touched

    # --- effects ---------------------------------------------------------------------------------------------

    def begin(self, address: Address, op: str, data: Mapping[str, Json]) -> OpenEffect:
        """See `Ledger.begin`."""
        number = self._write(Began(address, op, freeze_mapping(data)))
        effect = self._fold.effect(number)
        assert effect is not None
        return effect

    def done(self, effect: OpenEffect, *records: Record, removed: Sequence[str] = ()) -> None:
        """See `Ledger.done`. Raises `ValueError` for an effect that is not open."""
        self._require_open(effect)
        self._write(Ended(effect.number, tuple(freeze_record(record) for record in records), tuple(removed)))

    def failed(self, effect: OpenEffect, reason: str) -> None:
        """See `Ledger.failed`. Raises `ValueError` for an effect that is not open."""
        self._require_open(effect)
        self._write(Failed(effect.number, reason))

    def _require_open(self, effect: OpenEffect) -> None:
        if self._fold.effect(effect.number) is None:
            raise ValueError(f"effect {effect.number} ({effect.op} {effect.address}) is not open")

    # --- facts; what is known already is not written again ---------------------------------------------------

    def put(self, record: Record) -> None:
        """See `Ledger.put`."""
        frozen = freeze_record(record)
        if self._fold.by_key(frozen.key) != frozen:
            self._write(Put(frozen))

    def remove(self, key: str, why: str) -> None:
        """Forget a record without a call: it went with its pod, or good reads say that it is gone."""
        if self._fold.by_key(key) is not None:
            self._write(Removed(key, why))

    def move(self, key: str, to: Address) -> None:
        """Give a record another address. Raises `ValueError` when there is none, or the address is taken."""
        record = self._fold.by_key(key)
        if record is None or (self._fold.record(to) is not None and not record.deposed):
            raise ValueError(f"{key} can't become {to}")
        self._write(Moved(key, to))

    def reinstate(self, key: str) -> None:
        """See `Ledger.reinstate`. Raises `ValueError` when there is no such record, or its address is taken."""
        record = self._fold.by_key(key)
        if record is None or not record.deposed or self._fold.record(record.address) is not None:
            raise ValueError(f"{key} can't be reinstated")
        effect = self.begin(record.address, "reinstate", {"id": record.id})
        self.done(effect, replace(record, deposed=False))

    def release(self, released: Released, *, key: str | None = None) -> None:
        """Give up a remote object that stays; its record, if it has one, goes."""
        self._write(Release(released, key))

    def reclaim(self, id: str) -> None:
        """Take an object off the list of released ones."""
        if any(item.id == id for item in self.state.released):
            self._write(Reclaim(id))

    def watch(self, name: str, address: Address, until: datetime) -> None:
        """See `Ledger.watch`."""
        self._write(Watch(Watched(name, address, until)))

    def unwatch(self, name: str) -> None:
        """The pod appeared and was dealt with. Names whose time is over go by themselves (`compact`)."""
        if any(item.name == name for item in self.state.watched):
            self._write(Unwatch(name))

    def complete(self, address: Address, completion: Completion) -> None:
        """Keep a task's completion beyond its pod."""
        if self.state.completions.get(str(address)) != completion:
            self._write(Completed(address, completion))

    def uncomplete(self, address: Address) -> None:
        """The task changed, is run again, or was destroyed."""
        if str(address) in self.state.completions:
            self._write(Uncompleted(address))

    def set_outputs(self, values: Mapping[str, Json]) -> None:
        """Keep the outputs' values for `output`."""
        frozen = freeze_mapping(values)
        if self.state.outputs != frozen:
            self._write(OutputsSet(frozen))

    def bind(self, account_id: str | None, workspace_id: str | None) -> None:
        """Record whose account this state belongs to."""
        if (self.state.account_id, self.state.workspace_id) != (account_id, workspace_id):
            self._write(Bound(account_id, workspace_id))

    def rename(self, project: str) -> None:
        if self.state.project != project:
            self._write(Renamed(project))

    def tell(self, key: str, action: str, result: str) -> None:
        """See `Ledger.tell`."""
        self._write(Told(key, action, result))

    def take(self, facts: Iterable[Fact]) -> None:
        """Write facts that were worked out beforehand (`edits`), one after the other."""
        for fact in facts:
            self._write(fact)

    # --- snapshots -------------------------------------------------------------------------------------------

    def compact(self) -> State:
        """Write a snapshot, if there is anything that the last one lacks. Raises `Failure`; nothing is lost then."""
        if self._announced and self._wall is not None:
            now = min(self._now(), self._wall())
            for item in self.state.watched:
                if item.until <= now:
                    self._write(Unwatch(item.name))
        if self._born:
            self._store.compact(self.state)
            # The audit log names who ran it from the entries between two snapshots.
            self._announced = False
        return self.state

    def _write(self, fact: Fact) -> int:
        if not self._born:
            self._store.compact(self._fold.state)
            self._born = True
        facts: tuple[Fact, ...] = (fact,)
        if not self._announced:
            facts = (RunStarted(self._run.who, self._run.command), fact)
        first, at = self._fold.sequence + 1, self._now()
        entries = tuple(Entry(first + index, at, self._run.id, item) for index, item in enumerate(facts))
        self._store.append(entries)
        self._announced = True
        for entry in entries:
            self._fold.apply(entry)
            if self._heard is not None:
                self._heard(entry)
        return entries[-1].number
