"""Importing: what exists on the account and is to be managed here from now on (`imports`).

Owns when something may be taken over. What was found, and the record that would hold it, is in `Observed.imports`; the
comparison that follows says what would be changed about it. Refuses what is not there, what this state has already,
pods that don't run, and what is somebody else's. An import changes the state alone. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error, warning
from lium_plan.kinds.desired import Desired, Import
from lium_plan.kinds.protocol import Record
from lium_plan.planning.observed import Found, Holder, Observed
from lium_plan.planning.situation import listing_key
from lium_plan.state.model import State

READY = "ready"


def pending_imports(imports: Iterable[Import], records: Mapping[str, Record]) -> tuple[Import, ...]:
    """Those that are not done yet: an address that the state has needs nothing, and its entry may stay."""
    return tuple(entry for entry in imports if str(entry.address) not in records)


def imported(desired: Desired, state: State | None, observed: Observed) -> Mapping[Address, Found]:
    """What this plan takes over, as plans list it. Raises `Failure` (1) with everything that can't be taken over."""
    records = state.records if state is not None else {}
    found: dict[Address, Found] = {}
    problems: list[Diagnostic] = []
    owners = {record.id: record.key for record in records.values() if record.id is not None}
    waiting = pending_imports(desired.imports, records)
    for entry in sorted(waiting, key=lambda item: listing_key(item.address)):
        if entry.address not in desired.resources:
            continue  # a member that nobody wants at the moment
        other = observed.imports.get(entry.address)
        why = _why_not(entry, other, owners)
        if why is not None or other is None:
            problems.append(_refused(entry, why or "it was not looked for"))
            continue
        owners[entry.id] = str(entry.address)
        found[entry.address] = other
    if problems:
        raise Failure(ExitCode.ERROR, problems)
    return found


def with_imports(state: State, observed: Observed, found: Mapping[Address, Found]) -> tuple[State, Observed]:
    """State and observations as they are once these are imported."""
    if not found:
        return state, observed
    records = {item.record.key: item.record for item in found.values() if item.record is not None}
    ids = {(record.kind, record.id) for record in records.values()}
    seen = {item.record.key: item.observation for item in found.values() if item.record is not None}
    return (
        replace(state, records={**state.records, **records}),
        replace(
            observed,
            observations={**observed.observations, **seen} if observed.refreshed else observed.observations,
            others=tuple(other for other in observed.others if (other.kind, other.id) not in ids),
            released=tuple(other for other in observed.released if (other.kind, other.id) not in ids),
        ),
    )


def idle_imports(desired: Desired, state: State | None) -> Iterator[Diagnostic]:
    """Entries that are not done, of members that a counted fleet does not want at the moment."""
    for entry in pending_imports(desired.imports, state.records if state is not None else {}):
        if entry.address not in desired.resources:
            yield warning(
                "not-imported",
                f"{entry.id} is not imported: the fleet has enough members without it",
                address=str(entry.address),
                position=entry.position,
                hint="raise its `nodes`, or take the entry out",
            )


def _why_not(entry: Import, other: Found | None, owners: Mapping[str, str]) -> str | None:
    if entry.id in owners:
        return f"this state has it already, as {owners[entry.id]}; `moved` gives it another address"
    if other is None or other.record is None:
        return f"the account has no {entry.address.kind} of this id"
    if entry.address.kind == "pod" and other.record.status != READY:
        return f"the pod is {other.observation.status}, and only one that runs can be imported"
    return None


def _refused(entry: Import, why: str) -> Diagnostic:
    return error(
        "import-refused",
        f"{entry.id} can't be imported: {why}",
        address=str(entry.address),
        position=entry.position,
        hint="correct the id, or take the entry out of `imports`: then a new one is made",
    )


# --- whose it is ---------------------------------------------------------------------------------------------


def not_ours(imports: Iterable[Import], found: Mapping[Address, Found], *, allow_foreign: bool) -> Iterator[Diagnostic]:
    """Why not to take over what is somebody else's, as errors: two states must not manage one thing."""
    for entry in imports:
        item = found.get(entry.address)
        if item is None:
            continue
        if item.holder is not None:
            yield replace(held_by(entry.id, item.holder), address=str(entry.address), position=entry.position)
        elif item.lineage_mark is not None and not allow_foreign:
            yield replace(foreign(entry.id, item.lineage_mark), address=str(entry.address), position=entry.position)


def taken_from_others(found: Mapping[Address, Found]) -> Iterator[Diagnostic]:
    """Warnings, of what is taken over although it carries another state's mark."""
    for address, item in found.items():
        if item.lineage_mark is not None:
            yield warning(
                "other-lineage",
                f"what is imported carries the mark of another state ({item.lineage_mark})",
                address=str(address),
                hint="make sure that nobody uses that state any more: it would manage the same thing",
            )


def held_by(what: str, holder: Holder) -> Diagnostic:
    if holder.address is None:
        message = f"{what} may be stack {holder.stack}'s, where a creation has no settled outcome"
        return error("in-state", message, hint=f"settle it there first: lium-plan --stack {holder.stack} apply")
    release = f"lium-plan --stack {holder.stack} state rm '{holder.address}'"
    message = f"{what} is in stack {holder.stack} already, as {holder.address}"
    return error("in-state", message, hint=f"release it there first: {release}")


def foreign(what: str, mark: str) -> Diagnostic:
    hint = "if that state is lost: lium-plan state recover, or --allow-foreign-lineage for this one thing"
    return error("foreign-lineage", f"{what} carries the mark of another state, {mark}", hint=hint)
