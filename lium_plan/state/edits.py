"""What people change in a state by hand: `state mv` and `state rm`, as facts for the journal.

Pure: looks at a state and says which entries make it so, or why not. Refuses what would lose an id, and what an open
effect still refers to: its outcome is settled first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from lium_plan.addresses import Address, AddressError, parse, parse_pattern, suggestion
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error, warning
from lium_plan.kinds.protocol import Record
from lium_plan.money import rate
from lium_plan.state.entries import (
    Completed,
    Fact,
    Failed,
    Moved,
    Release,
    Released,
    Removed,
    Uncompleted,
    Unwatch,
    Watch,
)
from lium_plan.state.model import State

MAKING = ("rent", "create")
"""Effects that may have made something whose id is not known yet."""
_SETTLE = "`lium-plan apply` settles it first"


@dataclass(frozen=True, slots=True)
class Edit:
    """Entries to write, what they come to in words (a line each), and what is to be said beside."""

    facts: tuple[Fact, ...]
    lines: tuple[str, ...]
    notes: tuple[Diagnostic, ...] = ()


# --- mv ------------------------------------------------------------------------------------------------------


def move(state: State, source: str, target: str) -> Edit:
    """Give what stands at `source` (an address, or a whole `fleet.NAME` or `task.NAME`) another address.

    Bootstraps go with their pods, and everything that depends on what moves goes on depending on it. Raises `Failure`:
    64 for what is no address or of another kind, 1 when nothing is there or the target is taken.
    """
    renamed = _renaming(source, target)
    moving = [record for record in state.records.values() if renamed(record.address) is not None]
    if not moving:
        raise Failure(ExitCode.ERROR, (_not_there(state, source),))
    goals = {record.key: _new_address(renamed, record) for record in moving}
    _refuse_open(state, (*(record.address for record in moving), *goals.values()))
    leaving = {record.key for record in moving}
    for record in moving:
        key = replace(record, address=goals[record.key]).key
        if key in state.records and key not in leaving:
            raise Failure(ExitCode.ERROR, (error("address-taken", f"{key} is taken", address=key, hint=_FREE),))
    # A pod before what runs on it, so that dependencies follow.
    ordered = sorted(moving, key=lambda record: (record.address.part is not None, record.address))
    facts: list[Fact] = [Moved(record.key, goals[record.key]) for record in ordered]
    facts += _with_them(state, renamed)
    return Edit(tuple(facts), tuple(f"{record.key} -> {goals[record.key]}" for record in ordered))


_FREE = "move that one away first, or release it: lium-plan state rm ADDRESS"
_Renaming = Callable[[Address], Address | None]


def _renaming(source: str, target: str) -> _Renaming:
    """Where an address goes; None: it stays."""
    try:
        old, new = _place(source), _place(target)
    except AddressError as fault:
        raise Failure(ExitCode.USAGE, (error("bad-address", str(fault)),)) from None
    if old.head != new.head or (old.member is None) != (new.member is None):
        message = f"{source} can't become {target}: both must be of one kind, and both with or both without a member"
        raise Failure(ExitCode.USAGE, (error("bad-move", message),))
    if old.part or new.part:
        message = "a bootstrap goes with its pod: move the pod, e.g. fleet.old[0] to fleet.new[0]"
        raise Failure(ExitCode.USAGE, (error("bad-move", message),))
    if old == new:
        raise Failure(ExitCode.USAGE, (error("bad-move", f"{source} is where it is"),))

    def renamed(address: Address) -> Address | None:
        if (address.head, address.name) != (old.head, old.name):
            return None
        if old.member is None:
            return Address.of(new.head, new.name, address.member, address.part)
        return Address.of(new.head, new.name, new.member, address.part) if address.member == old.member else None

    return renamed


def _place(text: str) -> Address:
    """An address, or the group of all members of a fleet or task. Raises `AddressError`."""
    if text.startswith(("fleet.", "task.")) and "[" not in text:
        one = parse(f"{text}[0]")
        return Address.of(one.head, one.name)
    return parse(text)


def _new_address(renamed: _Renaming, record: Record) -> Address:
    found = renamed(record.address)
    assert found is not None
    return found


def _with_them(state: State, renamed: _Renaming) -> Iterator[Fact]:
    """Names that are watched for an address, and completions of tasks that are gone with their fleets."""
    for watched in state.watched:
        new = renamed(watched.address)
        if new is not None:
            yield Watch(replace(watched, address=new))
    for text, completion in state.completions.items():
        new = renamed(parse(text))
        if new is not None:
            yield Uncompleted(parse(text))
            yield Completed(new, completion)


def _refuse_open(state: State, addresses: Iterable[Address]) -> None:
    concerned = set(addresses)
    found = [effect for effect in state.open.values() if effect.address in concerned]
    if found:
        raise Failure(
            ExitCode.ERROR,
            tuple(
                error(
                    "effect-open",
                    f"{effect.op} of {effect.at:%Y-%m-%d %H:%M}Z has no recorded outcome",
                    address=str(effect.address),
                    hint=_SETTLE,
                )
                for effect in found
            ),
        )


# --- rm ------------------------------------------------------------------------------------------------------


def release(state: State, texts: Sequence[str], *, now: datetime) -> Edit:
    """Give up what stands at these addresses, patterns or keys: it stays on the account and becomes *released*.

    What runs on a pod is forgotten with it. An open effect on what is released is given up too, unless it may have made
    something whose id nobody knows. Raises `Failure`: 64 for what is no address, 1 when nothing is there.
    """
    chosen: dict[str, Record] = {}
    for text in texts:
        found = _matching(state, text)
        if not found:
            raise Failure(ExitCode.ERROR, (_not_there(state, text),))
        chosen.update(found)
    chosen.update(_running_on(state, chosen))
    facts: list[Fact] = []
    lines: list[str] = []
    for effect in _given_up(state, chosen):
        facts.append(Failed(effect, "given up with state rm"))
    hosted_first = sorted(chosen.values(), key=lambda record: (not _is_hosted(record), record.address))
    for record in hosted_first:
        fact, line = _release_one(state, record, chosen, now)
        facts.append(fact)
        lines.append(line)
    facts += [Unwatch(item.name) for item in state.watched if _names(chosen, item.name)]
    return Edit(tuple(facts), tuple(lines), tuple(_still_used(state, chosen)))


def _matching(state: State, text: str) -> dict[str, Record]:
    if text in state.records:
        wanted = state.records[text]
        host = wanted.address if wanted.kind == "pod" and not wanted.deposed else None
        return {
            key: record
            for key, record in state.records.items()
            if key == text or (host is not None and record.address.host == host)
        }
    try:
        pattern = parse_pattern(text)
    except AddressError as fault:
        raise Failure(ExitCode.USAGE, (error("bad-address", str(fault)),)) from None
    return {key: record for key, record in state.records.items() if pattern.matches(record.address)}


def _running_on(state: State, chosen: dict[str, Record]) -> dict[str, Record]:
    """Bootstraps and tasks of the pods that are released."""
    pods = {record.id for record in chosen.values() if record.kind == "pod"}
    return {
        key: record
        for key, record in state.records.items()
        if _is_hosted(record) and record.attributes.get("pod_id") in pods
    }


def _is_hosted(record: Record) -> bool:
    return record.kind in ("bootstrap", "task")


def _given_up(state: State, chosen: dict[str, Record]) -> Iterator[int]:
    ids = {record.id for record in chosen.values() if record.id is not None}
    addresses = {record.address for record in chosen.values()}
    for number, effect in state.open.items():
        about = effect.data.get("id")
        if effect.op in MAKING and effect.address in addresses:
            _refuse_open(state, (effect.address,))
        elif about in ids or (about is None and effect.address in addresses):
            yield number


def _release_one(state: State, record: Record, chosen: dict[str, Record], now: datetime) -> tuple[Fact, str]:
    if record.id is None or _is_hosted(record):
        return Removed(record.key, "released with state rm"), f"{record.key}: forgotten"
    if any(
        other.id == record.id and key not in chosen and other.kind == record.kind
        for key, other in state.records.items()
    ):
        return Removed(record.key, "another address keeps it"), f"{record.key}: another address keeps {record.id}"
    price = record.attributes.get("price_per_hour_usd")
    released = Released(record.kind, record.id, _name_of(record), now, None if price is None else str(price))
    cost = "" if price is None else f", costs {rate(Decimal(str(price)))}"
    return Release(released, record.key), f"{record.key}: released ({record.kind} {record.id}{cost})"


def _name_of(record: Record) -> str:
    for key in ("pod_name", "remote_name", "name"):
        name = record.attributes.get(key)
        if isinstance(name, str) and name:
            return name
    return str(record.address)


def _names(chosen: dict[str, Record], name: str) -> bool:
    return any(record.attributes.get("pod_name") == name for record in chosen.values())


def _still_used(state: State, chosen: dict[str, Record]) -> Iterator[Diagnostic]:
    gone = {record.address for record in chosen.values() if not record.deposed}
    for key, record in state.records.items():
        lost = [address for address in record.depends_on if address in gone]
        if lost and key not in chosen:
            names = ", ".join(str(address) for address in lost)
            yield warning("still-used", f"it uses {names}, which is no longer in the state", address=key)
    for key, record in chosen.items():
        kept = [str(address) for address in record.depends_on if address not in gone]
        if kept and not _is_hosted(record):
            message = f"it goes on using {', '.join(kept)}, which can't be deleted as long as it does"
            hint = f"if that is to stay too: lium-plan state rm {' '.join(kept)}"
            yield warning("still-used", message, address=key, hint=hint)


def _not_there(state: State, text: str) -> Diagnostic:
    hint = suggestion(text, (record.address for record in state.records.values())) or "it holds nothing"
    return error("not-in-state", f"{text} is not in the state", hint=hint)
