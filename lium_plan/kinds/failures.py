"""From the client's errors to what a user reads, and the two shapes that most effects have: make one, delete one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, error
from lium_plan.kinds.protocol import (
    ActionFailed,
    Cancelled,
    Json,
    OpenEffect,
    Outcome,
    Record,
    Run,
    Settlement,
)
from lium_plan.lium.errors import (
    AuthError,
    BudgetError,
    InsufficientBalanceError,
    LiumError,
    NotFoundError,
    PermissionError_,
    Refusal,
    classify_refusal,
)
from lium_plan.lium.models import Deletion

T = TypeVar("T")

RETRY_S = 10.0
"""Between two tries of a delete that the server refuses for now (contract §2.7.3, §2.9.6)."""
CREATE_ATTEMPTS = 3


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
    post: Callable[[], Awaitable[T]],
    made: Callable[[T], Record],
    replaces: Record | None,
    settle: Callable[[OpenEffect], Awaitable[Settlement]],
) -> None:
    """Create something once: begin, POST, done. A lost answer is settled, and only *not done* is tried again."""

    async def send(effect: OpenEffect) -> Settlement:
        try:
            record = made(await post())
        except LiumError as failure:
            if classify_refusal(failure) is not Refusal.UNKNOWN:
                run.ledger.failed(effect, str(failure))
                raise ActionFailed(diagnose(failure, address, "create")) from failure
            return await settle(effect)
        run.ledger.done(effect, record, *deposed(replaces))
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


def deposed(record: Record | None) -> tuple[Record, ...]:
    """The old record beside its replacement: still ours, deleted later in this run or by the next one."""
    return () if record is None else (replace(record, deposed=True),)


async def delete(
    run: Run,
    record: Record,
    *,
    send_delete: Callable[[], Awaitable[Deletion]],
    still_there: Callable[[], Awaitable[bool]],
    forget: Callable[[], None] | None = None,
) -> None:
    """Delete something that goes at once when nothing refers to it, waiting out refusals until the deadline.

    What refuses to go stays in state as `deleting`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + run.wait_timeout_s
    last: LiumError | None = None

    async def send(effect: OpenEffect) -> bool:
        nonlocal last
        try:
            await send_delete()
        except NotFoundError:
            pass
        except (AuthError, PermissionError_) as failure:
            run.ledger.failed(effect, str(failure))
            raise ActionFailed(diagnose(failure, record.address, "delete")) from failure
        except LiumError as failure:
            last = failure
            if await still_there():
                run.ledger.failed(effect, str(failure))
                return False
        run.ledger.done(effect, removed=(record.key,))
        return True

    while True:
        if await run.effect(record.address, "delete", {"id": record.id, "key": record.key}, send):
            if forget is not None:
                forget()
            return
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
        run.phase(record.address, "waiting to be deleted", reason=str(last))
        await pause(run, RETRY_S)


def begun_inputs(effect: OpenEffect) -> dict[str, Json]:
    """The redacted inputs that a begin carries, for the record of what is found later."""
    inputs = effect.data.get("inputs")
    return dict(inputs) if isinstance(inputs, Mapping) else {}


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
