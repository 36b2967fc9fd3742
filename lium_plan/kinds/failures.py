"""From the client's errors to what a user reads, and the two shapes that most effects have: make one, delete one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from lium_plan.addresses import Address, parse
from lium_plan.diagnostics import Diagnostic, error
from lium_plan.kinds.protocol import (
    ActionFailed,
    Begin,
    Cancelled,
    Json,
    OpenEffect,
    Outcome,
    Record,
    Run,
    Settlement,
)
from lium_plan.lium.client import LiumClient
from lium_plan.lium.errors import (
    AuthError,
    BudgetError,
    InsufficientBalanceError,
    LiumError,
    PermissionError_,
    Refusal,
    classify_refusal,
)
from lium_plan.lium.models import Deletion, Pod

T = TypeVar("T")

RETRY_S = 10.0
"""Between two tries of a delete that the server refuses for now (contract §2.7.3, §2.9.6)."""
CREATE_ATTEMPTS = 3
NOT_CREATED_AFTER_S = 60.0
"""A request to create something whose answer was lost may still be carried out for so long."""
MADE_AT = "made_at"
"""The attribute that says when its request left."""
LISTS_LAG = timedelta(seconds=20)
"""What was made so lately may be missing from a list, and be there all the same."""
LOOK_EVERY_S = 5.0


def diagnose(failure: LiumError, address: Address, doing: str) -> Diagnostic:
    """What went wrong while `doing`, with the cure where there is a known one."""
    return error(_code(failure), f"{doing}: {failure}", address=str(address), hint=failure.hint or _cure(failure))


def _code(failure: LiumError) -> str:
    if isinstance(failure, BudgetError):
        return "key-budget"
    if isinstance(failure, InsufficientBalanceError):
        return "insufficient-balance"
    if isinstance(failure, AuthError | PermissionError_):
        return "permission"
    return (failure.code or "api-error").lower().replace("_", "-")


def _cure(failure: LiumError) -> str | None:
    if isinstance(failure, BudgetError):
        return "the API key's own budget is used up: raise it, or use another key"
    if isinstance(failure, InsufficientBalanceError):
        return "top up the account: a rent needs 15 minutes of every open pod's price in hand"
    if isinstance(failure, AuthError):
        return "check LIUM_API_KEY with `lium-plan doctor`"
    if isinstance(failure, PermissionError_):
        return "the key needs the scopes read, rent and manage"
    return None


def unknown_outcome(address: Address, message: str) -> ActionFailed:
    """An effect that stays open: a human must look."""
    return ActionFailed(
        error("unknown-outcome", message, address=str(address), hint="look at the account, then run apply again"),
        unknown=True,
    )


async def make(
    run: Run,
    address: Address,
    *,
    data: Mapping[str, Json],
    post: Callable[[Begin], Awaitable[T]],
    made: Callable[[T], Record],
    replaces: Record | None,
    settle: Callable[[OpenEffect, bool], Awaitable[Settlement]],
) -> None:
    """Create something once: begin, POST, done. A lost answer is settled, and only *not done* is tried again.

    A refusal is believed, and checked by one look: a server may refuse what it has done, though not for want of rights.

    `post` begins when its request may leave, or finds that none is needed. `settle`, told whether it was refused, ends
    what it finds with `record_made`, so that what is replaced stays ours.
    """
    if replaces is not None and replaces.id is not None:
        data = {**data, "replaces": replaces.id}

    async def send(begin: Begin) -> Settlement:
        try:
            record = made(await post(begin))
        except LiumError as failure:
            refused = classify_refusal(failure) is not Refusal.UNKNOWN
            settlement = Settlement(Outcome.NOT_DONE, failure.reason)
            if begin.effect is not None and isinstance(failure, AuthError | PermissionError_):
                run.ledger.failed(begin.effect, failure.reason)
            elif begin.effect is not None:
                settlement = await settle(begin.effect, refused)
            if refused and settlement.outcome is Outcome.NOT_DONE:
                raise ActionFailed(diagnose(failure, address, "create")) from failure
            return settlement
        record_made(begin.effect or begin(), record, run)
        return Settlement(Outcome.DONE, "created")

    for _ in range(CREATE_ATTEMPTS):
        settlement = await run.effect(address, "create", data, send)
        if settlement.outcome is Outcome.DONE:
            return
        if settlement.outcome is Outcome.UNKNOWN:
            raise unknown_outcome(address, settlement.message)
    raise ActionFailed(
        error("api-error", f"create: no answer from the server in {CREATE_ATTEMPTS} attempts", address=str(address))
    )


def record_made(effect: OpenEffect, record: Record, run: Run) -> None:
    """What an effect of `make` created is known, and what it replaces stays beside it: still ours, deleted later in
    this run or by the next one."""
    record = replace(record, attributes={**record.attributes, MADE_AT: effect.at.isoformat()})
    old = run.ledger.record(record.address)
    if old is None or old.id == record.id or old.id != effect.data.get("replaces"):
        run.ledger.done(effect, record)
    else:
        run.ledger.done(effect, record, replace(old, deposed=True))


class Listed(Protocol):
    """A row of a list."""

    @property
    def id(self) -> str: ...


L = TypeVar("L", bound=Listed)


async def listed_by_id(
    look: Callable[[], Awaitable[Iterable[L]]], records: Iterable[Record], now: Callable[[], datetime]
) -> dict[str, L]:
    """A list's rows by id, asked for again while it lacks what was made a moment ago: lists lag (contract §4.3).

    What a list lacks after that is gone.
    """
    while True:
        listed = {row.id: row for row in await look()}
        if not any(record.id not in listed and _is_young(record, now()) for record in records):
            return listed
        await asyncio.sleep(LOOK_EVERY_S)


def _is_young(record: Record, now: datetime) -> bool:
    made_at = record.attributes.get(MADE_AT)
    return isinstance(made_at, str) and now - datetime.fromisoformat(made_at) < LISTS_LAG


async def look_for(
    effect: OpenEffect,
    look: Callable[[], Awaitable[list[T]]],
    now: Callable[[], datetime],
    run: Run,
    *,
    refused: bool = False,
) -> list[T]:
    """What a lost request may have created, by looking until it shows; empty when it was not carried out in time.

    Once, for a request that was refused.
    """
    if refused:
        return await look()
    # In this run it left just now, however long it had to wait after a 429.
    until = (now() if effect.run == run.id else effect.at) + timedelta(seconds=NOT_CREATED_AFTER_S)
    while not (seen := await look()) and now() < until:
        await pause(run, LOOK_EVERY_S)
    return seen


async def delete(
    run: Run,
    record: Record,
    *,
    send_delete: Callable[[], Awaitable[Deletion]],
    still_there: Callable[[], Awaitable[bool]],
    foreign_user: Callable[[], Awaitable[str | None]] | None = None,
) -> None:
    """Delete something that goes at once when nothing refers to it, waiting out refusals until the deadline.

    What refuses to go stays in state as `deleting`. `foreign_user` names who uses it and is not ours to end: no wait
    helps then.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + run.wait_timeout_s
    last: LiumError | None = None

    async def send(begin: Begin) -> bool:
        nonlocal last
        effect = begin()
        try:
            await send_delete()
        except (AuthError, PermissionError_) as failure:
            run.ledger.failed(effect, failure.reason)
            raise ActionFailed(diagnose(failure, record.address, "delete")) from failure
        except LiumError as failure:
            last = failure
        # Whatever it answered, a list decides: what has no mark would never be found again.
        if await still_there():
            run.ledger.failed(effect, "it is still listed" if last is None else last.reason)
            return False
        run.ledger.done(effect, removed=(record.key,))
        return True

    while True:
        if await run.effect(record.address, "delete", {"id": record.id, "key": record.key}, send):
            return
        user = await foreign_user() if foreign_user is not None else None
        if user is not None:
            run.ledger.put(replace(record, status="deleting"))
            raise ActionFailed(_used_by(user, record))
        if loop.time() + RETRY_S > deadline:
            run.ledger.put(replace(record, status="deleting"))
            why = str(last) if last is not None else "it is still listed"
            raise ActionFailed(
                error(
                    "delete-refused",
                    f"delete: the server still refuses after {run.wait_timeout_s:.0f} s: {why}",
                    address=str(record.address),
                    hint="it stays in state; run the same command again later",
                )
            )
        run.phase(record.address, "waiting to be deleted", reason=str(last or "it is still listed"))
        await pause(run, RETRY_S)


def _used_by(user: str, record: Record) -> Diagnostic:
    return error(
        "in-use",
        f"delete: {user} uses it, and this state does not own that",
        address=str(record.address),
        hint=f"it stays in state; destroy again once that is gone, or give it up: lium-plan state rm '{record.key}'",
    )


async def foreign_pod(client: LiumClient, run: Run, uses: Callable[[Pod], bool]) -> str | None:
    """A pod that uses something, is not on its way out, and is in no record: `pod NAME (ID)`; None also when nobody
    can tell now."""
    try:
        pods = await client.pods(hosts=False)
    except LiumError:
        return None
    ours = {record.id for record in run.ledger.records().values()}
    found = (pod for pod in pods if uses(pod) and pod.id not in ours and pod.status != "DELETING")
    return next((f"pod {pod.name} ({pod.id})" for pod in found), None)


def begun_inputs(effect: OpenEffect) -> dict[str, Json]:
    """The redacted inputs that a begin carries, for the record of what is found later."""
    inputs = effect.data.get("inputs")
    return dict(inputs) if isinstance(inputs, Mapping) else {}


def begun_depends_on(effect: OpenEffect) -> tuple[Address, ...]:
    """What a begin's resource needs, for the same record."""
    written = effect.data.get("depends_on")
    return tuple(parse(str(item)) for item in written) if isinstance(written, list | tuple) else ()


async def pause(run: Run, seconds: float) -> None:
    """Sleep, unless the run is being interrupted."""
    if run.interrupted:
        raise Cancelled
    await asyncio.sleep(seconds)
    if run.interrupted:
        raise Cancelled


async def settle_delete(run: Run, effect: OpenEffect, *, still_there: bool) -> Settlement:
    """An open delete is settled by looking: what is still there is deleted again by the plan that follows."""
    if still_there:
        run.ledger.failed(effect, "still there")
        return Settlement(Outcome.NOT_DONE, "it is still there")
    run.ledger.done(effect, removed=(str(effect.data.get("key") or effect.address),))
    return Settlement(Outcome.DONE, "it is gone")
