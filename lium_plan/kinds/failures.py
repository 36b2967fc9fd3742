"""From the client's errors to what a user reads, and the two shapes that most effects have: make one, delete one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
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
    MalformedAnswerError,
    PermissionError_,
    RateLimitedError,
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
LISTS_LAG_S = 20.0
"""What was made so lately may be missing from a list, and be there all the same."""
LOOK_EVERY_S = 5.0
WAIT_TOLD_S = 10.0
"""Shorter waits for a limit are no news."""
RIGHTLESS = (AuthError, PermissionError_)
"""What the key may not do, it may not do later either."""


def diagnose(failure: LiumError, address: Address, doing: str) -> Diagnostic:
    """What went wrong while `doing`, with the cure where there is a known one."""
    return error(_code(failure), f"{doing}: {failure}", address=str(address), hint=failure.hint or _cure(failure))


def _code(failure: LiumError) -> str:
    if isinstance(failure, BudgetError):
        return "key-budget"
    if isinstance(failure, InsufficientBalanceError):
        return "insufficient-balance"
    if isinstance(failure, RIGHTLESS):
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


def limited_for_good(address: Address, doing: str, patience_s: float, failure: LiumError) -> ActionFailed:
    """Nothing was made: the limit that `failure` tells of has let nothing through for `patience_s`."""
    message = f"{doing}: the server's limit has let nothing through for {patience_s / 60:.0f} min: {failure}"
    return ActionFailed(error("rate-limited", message, address=str(address), hint="run the same command again later"))


async def make(
    run: Run,
    address: Address,
    *,
    data: Mapping[str, Json],
    post: Callable[[Begin], Awaitable[T]],
    made: Callable[[T], Record],
    replaces: Record | None,
    settle: Callable[[OpenEffect, bool], Awaitable[Settlement]],
    patience_s: float,
) -> None:
    """Create something once: begin, POST, done. A lost answer is settled, and only *not done* is tried again.

    A refusal is believed, and checked by one look: a server may refuse what it has done. Where nobody can look, its
    outcome is unknown; but a key that may not look either was refused for good. After a 429 it is sent again, for
    `patience_s`.

    `post` begins when its request may leave, or finds that none is needed. `settle`, told whether it was refused, ends
    what it finds with `record_made`, so that what is replaced stays ours.
    """
    if replaces is not None and replaces.id is not None:
        data = {**data, "replaces": replaces.id}

    async def send(begin: Begin) -> tuple[Settlement, LiumError | None]:
        try:
            record = made(await post(begin))
        except LiumError as failure:
            if begin.effect is None:
                return Settlement(Outcome.NOT_DONE, failure.reason), failure
            return await looked_for(begin.effect, failure), failure
        record_made(begin.effect or begin(), record, run)
        return Settlement(Outcome.DONE, "created"), None

    async def looked_for(effect: OpenEffect, failure: LiumError) -> Settlement:
        refusal = classify_refusal(failure)
        if refusal is Refusal.NOT_SENT:
            run.ledger.failed(effect, failure.reason)
            return Settlement(Outcome.NOT_DONE, failure.reason)
        try:
            return await settle(effect, refusal is not Refusal.UNKNOWN)
        except LiumError as blind:
            if isinstance(blind, RIGHTLESS) and isinstance(failure, RIGHTLESS):
                run.ledger.failed(effect, failure.reason)
                return Settlement(Outcome.NOT_DONE, failure.reason)
            message = f"create: {data.get('name') or 'what it made'} can't be looked for: {blind}"
            raise unknown_outcome(address, message) from blind

    loop = asyncio.get_running_loop()
    limited_since: float | None = None
    unanswered = 0
    while unanswered < CREATE_ATTEMPTS:
        settlement, failure = await run.effect(address, "create", data, send)
        if settlement.outcome is Outcome.DONE:
            return
        if settlement.outcome is Outcome.UNKNOWN:
            raise unknown_outcome(address, settlement.message)
        if isinstance(failure, RateLimitedError):
            limited_since = loop.time() if limited_since is None else limited_since
            if loop.time() - limited_since < patience_s:
                continue
            raise limited_for_good(address, "create", patience_s, failure) from failure
        if failure is not None and classify_refusal(failure) not in (Refusal.UNKNOWN, Refusal.NOT_SENT):
            raise ActionFailed(diagnose(failure, address, "create")) from failure
        unanswered += 1
    raise ActionFailed(
        error(
            "api-error",
            f"create: no answer from the server in {CREATE_ATTEMPTS} attempts: {settlement.message}",
            address=str(address),
        )
    )


def tell_wait(run: Run, address: Address, now: Callable[[], datetime]) -> Callable[[float], None]:
    """For a creation's `on_wait`: a phase that says until when the server's limit keeps it."""

    def tell(wait_s: float) -> None:
        if wait_s >= WAIT_TOLD_S:
            run.phase(address, f"waits for the server's limit, until {now() + timedelta(seconds=wait_s):%H:%M:%S}Z")

    return tell


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


def borne_out(row: L, before: Collection[str], *, is_ours: bool = True) -> L:
    """A creation's answer, unless it names something that was listed before, or that is not what was asked for.

    Then it raises `MalformedAnswerError`, and lists say what was made.
    """
    if row.id in before or not is_ours:
        raise MalformedAnswerError(200, message=f"the server's answer can't be used: {row.id} is not what was created")
    return row


async def listed_by_id(
    look: Callable[[], Awaitable[Iterable[L]]], records: Iterable[Record], now: Callable[[], datetime]
) -> dict[str, L]:
    """A list's rows by id, asked for again while it lacks what was made a moment ago: lists lag (contract §4.3).

    What a list lacks after that is gone.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + LISTS_LAG_S  # whatever the server's clock does
    while True:
        listed = {row.id: row for row in await look()}
        missing = any(record.id not in listed and _is_young(record, now()) for record in records)
        if not missing or loop.time() >= until:
            return listed
        await asyncio.sleep(LOOK_EVERY_S)


def _is_young(record: Record, now: datetime) -> bool:
    made_at = record.attributes.get(MADE_AT)
    return isinstance(made_at, str) and now - datetime.fromisoformat(made_at) < timedelta(seconds=LISTS_LAG_S)


async def look_for(
    effect: OpenEffect,
    look: Callable[[], Awaitable[list[T]]],
    now: Callable[[], datetime],
    run: Run,
    *,
    refused: bool = False,
) -> list[T]:
    """What a lost request may have created, by looking until it shows; empty when it was not carried out in time.

    One good look will do for a request that was refused. Raises `LiumError` when the last look of that time failed, and
    at once when the key may not look.
    """
    loop = asyncio.get_running_loop()
    # In this run it left just now, however long it had to wait after a 429. The server's clock may stand still or jump.
    age_s = 0.0 if effect.run == run.id else max((now() - effect.at).total_seconds(), 0.0)
    until = loop.time() + NOT_CREATED_AFTER_S - age_s
    while True:
        try:
            seen = await look()
        except RIGHTLESS:
            raise
        except LiumError:
            if loop.time() >= until:
                raise
        else:
            if seen or refused or loop.time() >= until:
                return seen
        await pause(run, LOOK_EVERY_S)


async def delete(
    run: Run,
    record: Record,
    *,
    send_delete: Callable[[], Awaitable[Deletion]],
    still_there: Callable[[], Awaitable[bool]],
    foreign_user: Callable[[], Awaitable[str | None]] | None = None,
    spared: Callable[[], str | None] = lambda: None,
) -> None:
    """Delete something that goes at once when nothing refers to it, waiting out refusals and outages, in time.

    What refuses to go stays in state as `deleting`. `foreign_user` names who uses it and is not ours to end: no wait
    helps then. `spared`, asked right before each request, says why it is to stay after all; then its record goes.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + run.wait_timeout_s
    last: LiumError | None = None

    async def send(begin: Begin) -> bool:
        nonlocal last
        why = spared()
        if why is not None:
            run.ledger.remove(record.key, why)
            return True
        effect = begin()
        try:
            await send_delete()
        except RIGHTLESS as failure:
            run.ledger.failed(effect, failure.reason)
            raise ActionFailed(diagnose(failure, record.address, "delete")) from failure
        except LiumError as failure:
            last = failure
        # Whatever it answered, a list decides: what has no mark would never be found again.
        try:
            there = await still_there()
        except RIGHTLESS:
            raise
        except LiumError as failure:  # for all that is known it is there: a DELETE may be sent twice
            there, last = True, failure
        if there:
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
