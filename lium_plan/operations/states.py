"""What the state says, and what people do to it by hand. Offline; reading takes no lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from lium_plan.answers import Pulled, Pushed, Repaired
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, Severity, error, warning
from lium_plan.operations.outside import REAL, Outside, open_local_store
from lium_plan.planning.plan import OutputValue
from lium_plan.settings import Settings
from lium_plan.state import codec, edits
from lium_plan.state.edits import Edit
from lium_plan.state.events import AuditEvent
from lium_plan.state.local import stacks_in
from lium_plan.state.lock import Hold
from lium_plan.state.model import State, check
from lium_plan.state.repair import Salvage

HIGHEST_PUSHED = codec.LARGEST_NUMBER - 10**12
"""The next changes count on from there, and must have room."""
LARGEST_JUMP = 10**6
"""What an edit may raise a number by without `--force`: numbers only grow, so a slip of the hand would stay."""


def load_state(settings: Settings) -> State:
    """Raises `Failure` (1) when nothing was ever applied, or the files can't be read."""
    return require_state(settings, open_local_store(settings).load().state)


def require_state(settings: Settings, state: State | None) -> State:
    if state is None:
        raise Failure(
            ExitCode.ERROR,
            (
                error(
                    "no-state",
                    f"stack {settings.stack} has no state in {settings.state_dir}: nothing was applied there yet",
                    hint=other_stacks(settings) or "`lium-plan apply` makes it; --stack and --state choose another one",
                ),
            ),
        )
    return state


def other_stacks(settings: Settings) -> str | None:
    """A hint that names the other stacks of the state's directory; None when there are none."""
    others = [name for name in stacks_in(settings.state_dir) if name != settings.stack]
    return f"stacks there: {', '.join(others)}; to choose one: --stack {others[0]}" if others else None


def outputs(settings: Settings) -> Mapping[str, OutputValue]:
    """The outputs as the last apply left them."""
    return {name: OutputValue(value, unknown=value is None) for name, value in load_state(settings).outputs.items()}


def events(settings: Settings) -> tuple[AuditEvent, ...]:
    """The audit log, oldest first."""
    return open_local_store(settings).events()


# --- mv, rm --------------------------------------------------------------------------------------------------


async def move(settings: Settings, source: str, target: str, *, dry_run: bool, lock_timeout_s: float = 0) -> Edit:
    """Give a resource, or a whole fleet or task, another address. Raises `Failure`."""
    if dry_run:
        return edits.move(load_state(settings), source, target)
    from lium_plan.operations.editing import editing

    async with editing(settings, "state mv", lock_timeout_s=lock_timeout_s) as opened:
        edit = edits.move(opened.state, source, target)
        opened.ledger.take(edit.facts)
    return edit


async def release(settings: Settings, addresses: Sequence[str], *, dry_run: bool, lock_timeout_s: float = 0) -> Edit:
    """Give resources up: they stay on the account, listed as released. Raises `Failure`."""
    if dry_run:
        return edits.release(load_state(settings), addresses, now=REAL.now())
    from lium_plan.operations.editing import editing

    async with editing(settings, "state rm", lock_timeout_s=lock_timeout_s) as opened:
        edit = edits.release(opened.state, addresses, now=REAL.now())
        opened.ledger.take(edit.facts)
    return edit


# --- pull, push ----------------------------------------------------------------------------------------------


def pull(settings: Settings) -> Pulled:
    """The state with its journal as one snapshot; of files that can't be read the newest copy that can.

    Raises `Failure` (1) when there is no state, or no copy of it can be read.
    """
    store = open_local_store(settings)
    try:
        return Pulled(codec.encode_snapshot(load_state(settings)), ())
    except codec.Unreadable as fault:
        found = store.newest_readable()
        if found is None:
            raise
        path, state = found
        message = f"{path} is what follows: serial {state.serial}, without what was done after it"
        told = (
            replace(fault.diagnostic, severity=Severity.WARNING, hint=None),
            warning("older-copy", message, hint="`lium-plan state repair` may save more"),
        )
        return Pulled(codec.encode_snapshot(state), told)


async def push(
    settings: Settings, data: bytes, *, name: str, force: bool, dry_run: bool, lock_timeout_s: float = 0
) -> Pushed:
    """Put a snapshot in place of the state, edited or not. What was there is kept, and named.

    Raises `Failure`: 1 for what is no sound snapshot of this stack, or when the state there can't be read; 6 without
    `force` for another lineage, an older serial or one far off, and for what would be forgotten.
    """
    pushed = _decoded(data, name)
    if max(pushed.serial, pushed.sequence) > HIGHEST_PUSHED:
        message = f"{name}: `serial` and `sequence` can be {HIGHEST_PUSHED} at most"
        raise Failure(ExitCode.ERROR, (error("state-shape", message),))
    if pushed.stack != settings.stack:
        message = f"{name} is the state of stack {pushed.stack}, not of {settings.stack}"
        raise Failure(ExitCode.ERROR, (error("state-stack", message, hint=f"--stack {pushed.stack}"),))
    store = open_local_store(settings)
    edited = _edited(data, name)
    if dry_run:
        told = _pushed(_there(settings, force=force), pushed, force=force, edited=bool(edited))[1]
        return replace(told, notes=(*edited, *told.notes))
    from lium_plan.operations.editing import owner_of, told_of

    owner = owner_of("state push")
    with await store.lock(owner, timeout_s=lock_timeout_s):
        there = _there(settings, force=force)
        state, told = _pushed(there, pushed, force=force, edited=bool(edited))
        if not told.changed:
            return told
        kept = store.replace(state, told_of("push", owner, there, state))
        return replace(told, kept=kept, notes=(*edited, *told.notes))


def _decoded(data: bytes, name: str) -> State:
    """What is wrong is in the file that was named, and the state there is as sound as it was. Raises `Failure` (1)."""
    try:
        pushed = codec.decode_snapshot(data, file=name, edited=True)
    except codec.Unreadable as fault:
        unsound: Sequence[Diagnostic] = fault.diagnostics
    else:
        unsound = [item for item in check(pushed) if item.severity is Severity.ERROR]
        if not unsound:
            return pushed
    hint = f"nothing was changed: mend {name}, or push another copy"
    raise Failure(ExitCode.ERROR, [replace(item, hint=hint) for item in unsound])


def _edited(data: bytes, name: str) -> tuple[Diagnostic, ...]:
    """What is written is guarded anew, so nobody would find out later."""
    if codec.is_as_written(data):
        return ()
    message = f"{name} was edited, or comes from an older lium-plan: no checksum vouches for it, it is taken as it is"
    return (warning("state-edited", message),)


def _there(settings: Settings, *, force: bool) -> State | None:
    """The state that would be replaced; with `force` an unreadable one counts as none (it is set aside)."""
    try:
        return open_local_store(settings).load().state
    except codec.Unreadable:
        if force:
            return None
        raise


def _pushed(there: State | None, pushed: State, *, force: bool, edited: bool) -> tuple[State, Pushed]:
    if there == pushed:
        return pushed, Pushed(pushed.serial, False)
    same = there is not None and there.lineage == pushed.lineage
    refusals = tuple(_why_not(there, pushed)) if there is not None else ()
    refusals += tuple(_jumps(there if same else None, pushed)) if edited else ()
    if refusals and not force:
        raise Failure(ExitCode.UNSAFE, refusals)
    notes = tuple(replace(item, severity=Severity.WARNING, hint=None) for item in refusals)
    if there is None:
        return pushed, Pushed(pushed.serial, True, notes=notes)
    # Serials and journal numbers only grow: a saved plan, and the audit log, must not meet one twice.
    state = replace(
        pushed,
        serial=max(pushed.serial, there.serial + 1) if same else pushed.serial,
        sequence=max(pushed.sequence, there.sequence) if same else pushed.sequence,
    )
    return state, Pushed(state.serial, True, notes=notes)


def _jumps(there: State | None, pushed: State) -> Iterator[Diagnostic]:
    """Numbers that no run has come to. What `pull` wrote has them as they are."""
    for name in ("serial", "sequence"):
        before, after = 0 if there is None else getattr(there, name), getattr(pushed, name)
        if after > before + LARGEST_JUMP:
            message = f"its `{name}` jumps from {before} to {after}, and no later change brings it back"
            yield error("far-serial", message, hint=f"an edit raises `serial` by one, to {before + 1}")


def _why_not(there: State, pushed: State) -> list[Diagnostic]:
    hint = "--force puts it in place all the same; what is there now is kept beside it"
    if there.lineage != pushed.lineage:
        message = f"it has another lineage ({pushed.lineage[:8]}…) than the state that is there ({there.lineage[:8]}…)"
        return [error("other-lineage", message, hint=hint)]
    found = []
    if pushed.serial <= there.serial:
        message = f"its serial {pushed.serial} does not follow {there.serial}, that of the state that is there"
        found.append(error("old-serial", message, hint=f"pull again, and raise `serial`; or {hint}"))
    forgotten = _ids(there) - _ids(pushed)
    if forgotten or there.open.keys() - pushed.open.keys():
        names = ", ".join(sorted(forgotten)) or "effects without a recorded outcome"
        found.append(error("would-forget", f"it does not know {names}, which the state that is there does", hint=hint))
    return found


def _ids(state: State) -> set[str]:
    owned = {record.id for record in state.records.values() if record.id is not None and record.kind not in _HOSTED}
    return owned | {item.id for item in state.released}


_HOSTED = ("bootstrap", "task")


# --- repair --------------------------------------------------------------------------------------------------


async def repair(settings: Settings, *, dry_run: bool, lock_timeout_s: float = 0) -> Repaired:
    """Save what can be saved of a state that can't be read, beside the files as they are. Raises `Failure`."""
    store = open_local_store(settings)
    if dry_run:
        return _repaired(settings, store.salvage())
    from lium_plan.operations.editing import owner_of, told_of

    owner = owner_of("state repair")
    with await store.lock(owner, timeout_s=lock_timeout_s):
        saved = store.salvage()
        told = _repaired(settings, saved)
        if saved.state is None or not saved.findings:
            return told
        return replace(told, kept=store.replace(saved.state, told_of("repair", owner, None, saved.state)))


def _repaired(settings: Settings, saved: Salvage) -> Repaired:
    if saved.state is None and not saved.findings:
        require_state(settings, None)
    if saved.state is None:
        hint = "`lium-plan state recover` builds a state from what the account shows"
        lost = error("repair-impossible", "no snapshot can be read in any way: nothing was changed", hint=hint)
        raise Failure(ExitCode.ERROR, (*saved.findings, lost))
    # What made it unreadable is mended now; an error is only what is lost.
    findings = tuple(
        item if item.code.startswith("repair-") else replace(item, severity=Severity.WARNING) for item in saved.findings
    )
    return Repaired(len(saved.state.records), len(saved.state.released), saved.state.serial, findings)


# --- lock, unlock --------------------------------------------------------------------------------------------


async def lock(settings: Settings, *, reason: str, ttl_s: float | None, outside: Outside = REAL) -> Hold:
    """Lock by hand until it is lifted or `ttl_s` is over. Raises `Failure` (5) when the lock is held."""
    from lium_plan.operations.editing import owner_of

    store = outside.open_store(settings)
    owner = owner_of("state lock", outside)
    with await store.lock(owner, timeout_s=0):
        until = None if ttl_s is None else owner.since + timedelta(seconds=ttl_s)
        hold = Hold(f"{owner.who}@{owner.host}", reason, owner.since, until)
        store.hold(hold)
    return hold


async def unlock(settings: Settings) -> bool:
    """Lift a lock set by hand; False when there was none. Raises `Failure` (5) for the lock of a process, which no
    command can lift: it frees itself."""
    store = open_local_store(settings)
    if store.unhold():
        return True
    if not settings.state_dir.is_dir():
        return False
    from lium_plan.operations.editing import owner_of

    (await store.lock(owner_of("state unlock"), timeout_s=0)).release()
    return False
