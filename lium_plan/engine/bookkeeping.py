"""What a plan changes in the state alone, before anything is sent: moves and imports.

Owns the order that keeps every crash harmless: whatever names a moved address does so before the record moves, so that
the next plan, which finds some moved and some not, sees the same thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from lium_plan.addresses import Address, parse
from lium_plan.kinds.pod.deposing import deposed
from lium_plan.kinds.protocol import Json, Verb
from lium_plan.kinds.registry import kind
from lium_plan.planning.moving import relinked
from lium_plan.planning.observed import Found
from lium_plan.planning.plan import Action
from lium_plan.state.journal import JournaledLedger


def is_bookkeeping(action: Action) -> bool:
    """Whether an action is one of these; there may be another one at the same address, for later."""
    return action.source is not None


def keep_books(actions: Iterable[Action], found: Mapping[Address, Found], ledger: JournaledLedger) -> None:
    """Carry these actions out. `found`: what the imports named, by address. Raises `Failure`."""
    moves = {parse(str(action.source)): action.address for action in actions if action.verb is Verb.MOVE}
    _move(moves, ledger)
    for action in actions:
        if action.verb is not Verb.ADOPT:
            continue
        left = ledger.record_by_key(str(action.source))
        if left is not None and left.deposed:
            successor = ledger.record(left.address)
            if successor is not None:
                beside = deposed(successor, ledger.record_by_key(f"{successor.address}.bootstrap"))
                ledger.put(beside)
                ledger.tell(beside.key, "depose", f"done: {action.reason}")
            ledger.reinstate(left.key)
            continue
        if left is not None:
            ledger.put(replace(left, status="ready"))
            ledger.tell(left.key, "reinstate", f"done: {action.reason}")
            continue
        item = found.get(action.address)
        if item is not None and item.record is not None:
            ledger.put(item.record)
            ledger.tell(item.record.key, "adopt", f"done: {_taken_over(action)}")
            ledger.reclaim(str(item.record.id))


def _taken_over(action: Action) -> str:
    """What is otherwise now, or where it comes from."""
    changes = (f"{change.path}: {_shown(change.before)} -> {_shown(change.after)}" for change in action.changes)
    return ", ".join(changes) or action.reason or "imported"


def _shown(value: Json) -> str:
    return "(none)" if value is None else str(value)


def _move(moves: Mapping[Address, Address], ledger: JournaledLedger) -> None:
    if not moves:
        return
    for record in tuple(ledger.records().values()):
        ledger.put(relinked(record, lambda address: moves.get(address, address)))
    for source, target in moves.items():
        completion = ledger.state.completions.get(str(source))
        if completion is not None:
            ledger.complete(target, completion)
            ledger.uncomplete(source)
    for record in tuple(ledger.records().values()):  # first: a pod that was to be replaced never stands alone
        if record.deposed and record.kind == "pod" and record.address in moves:
            ledger.move(record.key, moves[record.address])
    for source, target in _free_first(moves, frozenset(ledger.records())):
        ledger.move(str(source), target)


def _free_first(moves: Mapping[Address, Address], taken: frozenset[str]) -> Iterable[tuple[Address, Address]]:
    """The moves of records, so that each goes onto an address that another one has left before."""
    # What runs on a pod goes before the pod: some of it moves only because its pod does.
    order = sorted(moves, key=lambda source: not kind(source.kind).hosted)
    waiting = {source: moves[source] for source in order if str(source) in taken}
    while waiting:
        free = {source: target for source, target in waiting.items() if target not in waiting}
        if not free:  # a circle of names, which `moved` entries can't make
            raise ValueError(f"these would all go onto each other: {', '.join(map(str, waiting))}")
        yield from free.items()
        for source in free:
            del waiting[source]
