"""Orphans: what the account bills that no state knows, over all stacks of a state directory.

Owns the three words: *lost* carries the lineage of a state that lies there and is in none of them; *other lineage*
carries our mark and no such state lies there; *foreign* carries none. Deletes lost things, others by their id alone,
volumes by their id alone, foreign ones never. Refuses to judge while any state there can't be read.

The account is read before the states: what a running apply makes meanwhile is in its journal before it can be listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from lium_plan.addresses import Address, AddressError, parse
from lium_plan.answers import Deleted, Orphan, Orphans
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error, warning
from lium_plan.kinds.holdings import HELD, Held, Holdings, load_holdings
from lium_plan.kinds.protocol import Json
from lium_plan.lium.errors import LiumError, NotFoundError, PermissionError_
from lium_plan.marks import scope_mark
from lium_plan.money import rate
from lium_plan.operations.connecting import Connection, api_failures, connect
from lium_plan.operations.editing import open_ledger, owner_of
from lium_plan.operations.known import Known, load_known
from lium_plan.operations.outside import REAL, Outside
from lium_plan.settings import Settings
from lium_plan.state.journal import JournaledLedger
from lium_plan.state.model import State
from lium_plan.together import together
from lium_plan.views.orphans_view import delete_spared

LOOK_EVERY_S = 2.0
AGAIN_EVERY_S = 10.0
"""Between two tries of a delete that the server refuses for now."""


# --- looking -------------------------------------------------------------------------------------------------


async def list_orphans(settings: Settings, *, outside: Outside = REAL) -> Orphans:
    """Raises `Failure` without a key, when a list fails, a state can't be read, or all belong to another account."""
    load_known(settings, outside)  # what can't be read is said before anything is asked
    async with connect(settings, outside=outside) as connection:
        found, _ = await _look(settings, connection, outside)
    return found


async def _look(settings: Settings, connection: Connection, outside: Outside) -> tuple[Orphans, Mapping[str, Held]]:
    with api_failures("look at the account"):
        me = await connection.client.me()
        holdings = _open(connection, me.id)
        lists = await together(*(item.everything() for item in holdings.values()))
    held = [item for items in lists for item in items if not item.leaving]
    known = load_known(settings, outside)
    diagnostics = tuple(_of_other_accounts(known, me.id))
    rows: dict[str, list[Orphan]] = {"lost": [], "other_lineage": [], "foreign": []}
    for item in held:
        if item.id in known.ids or (item.lineage_mark is not None and item.name in known.names):
            continue
        word, orphan = _judge(item, known)
        rows[word].append(orphan)
    found = Orphans(tuple(rows["lost"]), tuple(rows["other_lineage"]), tuple(rows["foreign"]), (), diagnostics)
    return found, {item.id: item for item in held}


def _open(connection: Connection, account_id: str) -> Mapping[str, Holdings]:
    return {name: load_holdings(name, connection.client, account_id) for name in HELD}


def _judge(item: Held, known: Known) -> tuple[str, Orphan]:
    owner = known.by_mark(item.lineage_mark) if item.lineage_mark is not None else None
    if owner is None:
        # Another lineage of a stack that lies here: its name can be told by the other half of the mark.
        owner_scope = next(
            (state for state in known.states.values() if scope_mark(state.project, state.stack) == item.scope_mark),
            None,
        )
        word = "foreign" if item.lineage_mark is None else "other_lineage"
        return word, _orphan(item, owner_scope if item.scope_mark is not None else None)
    return "lost", _orphan(item, owner)


def _orphan(item: Held, owner: State | None) -> Orphan:
    return Orphan(
        item.kind,
        item.id,
        item.name,
        None if owner is None else owner.project,
        None if owner is None else owner.stack,
        item.price_per_hour_usd,
        item.since,
    )


def _of_other_accounts(known: Known, account_id: str) -> Iterator[Diagnostic]:
    """Raises `Failure` (1) when the key can see the things of no state here: "nothing is lost" would mean nothing."""
    others = {stack: state for stack, state in known.states.items() if state.account_id not in (None, account_id)}
    if others and len(others) == len(known.states):
        stack, state = next(iter(others.items()))
        message = f"the state of stack {stack} belongs to account {state.account_id}, and the key to {account_id}"
        hint = "use that account's key, or another --state"
        raise Failure(ExitCode.ERROR, (error("other-account", message, hint=hint),))
    for stack, state in others.items():
        yield warning("other-account", f"stack {stack} belongs to account {state.account_id}: this key can't see it")


# --- deleting ------------------------------------------------------------------------------------------------


async def delete_orphans(
    settings: Settings,
    ids: Sequence[str] = (),
    *,
    wait_timeout_s: float = 900,
    lock_timeout_s: float = 0,
    outside: Outside = REAL,
) -> Orphans:
    """Delete what is lost but for volumes, or exactly the things with these ids. What is not deleted is still listed.

    Raises `Failure`, and nothing is deleted: 1 for an id that the account does not have, 6 for one that is foreign or
    in a state, 5 when the lock of a stack that lost it is held.
    """
    load_known(settings, outside)
    async with connect(settings, outside=outside) as connection, AsyncExitStack() as stack:
        found, _ = await _look(settings, connection, outside)
        chosen = _chosen(found, ids, load_known(settings, outside))
        ledgers = await _locked(settings, chosen, stack, lock_timeout_s, outside, connection)
        # Under the locks nobody can take up anything that is about to go.
        found, held = await _look(settings, connection, outside)
        chosen = [item for item in _chosen(found, ids, load_known(settings, outside), again=True) if item.id in held]
        deleter = _Deleter(connection, held, ledgers, wait_timeout_s)
        done = await deleter.delete(chosen)
        left, _ = await _look(settings, connection, outside)
        for ledger in ledgers.values():
            ledger.compact()
    gone = {item.orphan.id for item in done if item.gone}
    after = Orphans(
        tuple(item for item in left.lost if item.id not in gone),
        tuple(item for item in left.other_lineage if item.id not in gone),
        left.foreign,
        tuple(done),
        (*left.diagnostics, *deleter.diagnostics),
    )
    return after if ids or not after.spared else replace(after, diagnostics=(*after.diagnostics, _not_deleted(after)))


def _not_deleted(found: Orphans) -> Diagnostic:
    names = ", ".join(f"{item.name} ({item.id})" for item in found.spared)
    what = f"volume {names} was" if len(found.spared) == 1 else f"volumes {names} were"
    return warning(
        "volume-kept", f"{what} not deleted: what holds data goes by its id alone", hint=delete_spared(found)
    )


def _chosen(found: Orphans, ids: Sequence[str], known: Known, *, again: bool = False) -> list[Orphan]:
    if not ids:
        return [item for item in found.lost if item not in found.spared]
    by_id = {item.id: item for item in (*found.lost, *found.other_lineage)}
    foreign = {item.id: item for item in found.foreign}
    problems: list[Diagnostic] = []
    codes: list[ExitCode] = []
    for id in ids:
        if id in by_id or (again and id not in foreign and id not in known.ids):
            continue
        code, problem = _why_not(id, foreign, known)
        codes.append(code)
        problems.append(problem)
    if problems:
        raise Failure(max(codes), problems)
    return [by_id[id] for id in dict.fromkeys(ids) if id in by_id]


def _why_not(id: str, foreign: Mapping[str, Orphan], known: Known) -> tuple[ExitCode, Diagnostic]:
    if id in foreign:
        message = f"{foreign[id].kind} {foreign[id].name} ({id}) carries no mark of ours: it is not ours to delete"
        return ExitCode.UNSAFE, error("foreign", message, hint="delete it in the web console, if it is yours")
    for stack, state in known.states.items():
        record = next((item for item in state.records.values() if item.id == id), None)
        if record is not None:
            message = f"{id} is {record.key} of stack {stack}: no orphan"
            hint = f"lium-plan --stack {stack} destroy --target '{record.address}'"
            return ExitCode.UNSAFE, error("in-state", message, hint=hint)
    if id in known.ids:
        message = f"{id} was released, or is in use by an effect without a recorded outcome: no orphan"
        hint = "`lium-plan show` says which; `lium-plan import ADDRESS ID` takes a released one back"
        return ExitCode.UNSAFE, error("in-state", message, hint=hint)
    return ExitCode.ERROR, error("no-such-id", f"the account has nothing with the id {id}")


async def _locked(
    settings: Settings,
    chosen: Iterable[Orphan],
    stack: AsyncExitStack,
    timeout_s: float,
    outside: Outside,
    connection: Connection,
) -> Mapping[str, JournaledLedger]:
    """A ledger, under its lock, for each stack that lost something: its audit log says what became of it."""
    ledgers: dict[str, JournaledLedger] = {}
    for name in sorted({item.stack for item in chosen if item.stack is not None}):
        store = outside.open_store(replace(settings, stack=name))
        owner = owner_of("orphans --delete", outside)
        stack.enter_context(await store.lock(owner, timeout_s=timeout_s))
        state = store.load().state
        if state is not None:
            ledgers[name] = open_ledger(store, state, owner, born=True, now=connection.client.server_time)
    return ledgers


class _Deleter:
    """Deletes one kind after the other: a template goes only when no pod's row refers to it any more."""

    def __init__(
        self, connection: Connection, held: Mapping[str, Held], ledgers: Mapping[str, JournaledLedger], wait_s: float
    ) -> None:
        self._connection = connection
        self._held = held
        self._ledgers = ledgers
        self._deadline = asyncio.get_running_loop().time() + wait_s
        self.diagnostics: list[Diagnostic] = []

    async def delete(self, chosen: Sequence[Orphan]) -> list[Deleted]:
        holdings = _open(self._connection, "")
        done: list[Deleted] = []
        for kind in HELD:
            items = [item for item in chosen if item.kind == kind]
            done += await asyncio.gather(*(self._delete_one(item, holdings[kind]) for item in items))
        return done

    async def _delete_one(self, item: Orphan, holdings: Holdings) -> Deleted:
        ledger = self._ledgers.get(item.stack or "")
        data: dict[str, Json] = {"id": item.id, "name": item.name, "lost": True}
        if item.price_per_hour_usd is not None:
            data["price_per_hour_usd"] = str(item.price_per_hour_usd)
        effect = None if ledger is None else ledger.begin(_address(self._held[item.id]), "delete", data)
        why = await self._until_gone(item, holdings)
        if ledger is not None and effect is not None:
            ledger.done(effect) if why is None else ledger.failed(effect, why)
        if why is not None:
            price = f", and costs {rate(item.price_per_hour_usd)}" if item.price_per_hour_usd else ""
            message = f"{item.kind} {item.name} ({item.id}) is still there{price}: {why}"
            self.diagnostics.append(error("still-there", message, hint="run the same command again"))
            return Deleted(item, False)
        removed_at, total = await self._bill(item)
        return Deleted(item, True, removed_at, total)

    async def _until_gone(self, item: Orphan, holdings: Holdings) -> str | None:
        """None once it is gone from a good list; else why it isn't."""
        loop = asyncio.get_running_loop()
        asked_at, why = -AGAIN_EVERY_S, "it is still listed"
        while True:
            try:
                if loop.time() - asked_at >= AGAIN_EVERY_S or asked_at < 0:
                    asked_at = loop.time()
                    await holdings.delete(item.id)
            except NotFoundError:
                pass
            except PermissionError_ as failure:
                return str(failure)
            except LiumError as failure:
                why = str(failure)
            try:
                if not await self._listed(item):
                    return None
            except LiumError as failure:
                why = str(failure)
            if loop.time() + LOOK_EVERY_S > self._deadline:
                return why
            await asyncio.sleep(LOOK_EVERY_S)

    async def _listed(self, item: Orphan) -> bool:
        client = self._connection.client
        if item.kind == "pod":
            if any(pod.id == item.id for pod in await client.pods()):
                return True
            try:
                await client.pod(item.id)
            except NotFoundError:
                return False
            return True
        if item.kind == "volume":
            return any(volume.id == item.id for volume in await client.volumes())
        return any(template.id == item.id for template in await client.templates())

    async def _bill(self, item: Orphan) -> tuple[datetime | None, Decimal | None]:
        if item.kind != "pod":
            return None, None
        try:
            statement = await self._connection.client.statement(item.id)
        except LiumError:
            return None, None  # it is gone; what it cost can still be seen in the web console
        return statement.removed_at, statement.total_usd


def _address(held: Held) -> Address:
    """An address for the audit log. What is lost has none any more: its name's readable part comes closest."""
    name, _, member = (held.tail or "").rpartition("-")
    try:
        return (
            parse(f"fleet.{name}[{member}]") if held.kind == "pod" else parse(f"{held.kind}.{held.tail or held.name}")
        )
    except AddressError:
        return Address.of("fleet", "lost", "0") if held.kind == "pod" else Address.of(held.kind, "lost")
