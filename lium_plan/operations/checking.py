"""`doctor`: key, scopes, balance, SSH key, clock, server features; each a line, with the cure."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime
from decimal import Decimal
from typing import TypeVar

from lium_plan.answers import Check
from lium_plan.diagnostics import Failure, counted
from lium_plan.lium.client import LiumClient
from lium_plan.lium.errors import LiumError, ScopeError
from lium_plan.money import amount
from lium_plan.operations.connecting import connect
from lium_plan.operations.outside import open_local_store
from lium_plan.settings import Settings
from lium_plan.ssh.errors import KeyUnusable
from lium_plan.ssh.keys import require_usable

CLOCK_TOLERANCE_S = 60.0
NEEDED_FEATURES = ("rent_idempotency",)

T = TypeVar("T")


async def doctor(settings: Settings) -> tuple[Check, ...]:
    """Never raises for what is wrong: that is what the lines are for."""
    checks = [_key(settings), await _ssh_key(settings), _state(settings)]
    try:
        async with connect(settings, key_needed=False) as connection:
            checks += await _server(settings, connection.client)
    except Failure as failure:
        checks += [Check("server", False, item.message, item.hint) for item in failure.diagnostics]
    return tuple(checks)


def _key(settings: Settings) -> Check:
    try:
        settings.require_key()
    except Failure as failure:
        return Check("key", False, failure.diagnostics[0].message, failure.diagnostics[0].hint)
    return Check("key", True, f"found in {settings.provenance.get('api_key', 'the settings')}")


async def _ssh_key(settings: Settings) -> Check:
    try:
        path = settings.require_ssh_key()
        await require_usable(path)
    except Failure as failure:
        return Check("ssh-key", False, failure.diagnostics[0].message, failure.diagnostics[0].hint)
    except KeyUnusable as failure:
        return Check("ssh-key", False, f"{failure.path} can't be used: {failure.reason}", failure.hint)
    return Check("ssh-key", True, str(path))


def _state(settings: Settings) -> Check:
    try:
        store = open_local_store(settings)
        loaded = store.load()
        store.require_writable()
    except Failure as failure:
        return Check("state", False, failure.diagnostics[0].message, failure.diagnostics[0].hint)
    if loaded.state is None:
        return Check("state", True, f"none yet in {settings.state_dir} for stack {settings.stack}")
    opened = len(loaded.state.open)
    detail = f"{counted(len(loaded.state.records), 'resource')}, serial {loaded.state.serial}"
    if opened:
        return Check(
            "state",
            False,
            f"{detail}; {counted(opened, 'effect')} without a recorded outcome",
            "run `lium-plan apply`: it settles them",
        )
    return Check("state", True, detail)


async def _server(settings: Settings, client: LiumClient) -> list[Check]:
    version = await _tried(client.version())
    if isinstance(version, LiumError):
        return [Check("server", False, f"{settings.base_url}: {version}", "check the address and the network")]
    checks = [Check("server", True, settings.base_url), _clock(client)]
    missing = [name for name in NEEDED_FEATURES if name not in version.features]
    checks.append(
        Check(
            "features",
            not missing,
            ", ".join(sorted(version.features)) or "none",
            "without rent_idempotency a lost answer to a rent takes 6 minutes to settle" if missing else None,
        )
    )
    if settings.api_key:
        checks += await _account(client)
    return checks


def _clock(client: LiumClient) -> Check:
    off_s = (client.server_time() - datetime.now(UTC)).total_seconds()
    return Check(
        "clock",
        abs(off_s) <= CLOCK_TOLERANCE_S,
        f"{abs(off_s):.0f} s {'behind' if off_s > 0 else 'ahead of'} the server" if abs(off_s) >= 1 else "in step",
        None
        if abs(off_s) <= CLOCK_TOLERANCE_S
        else "set this machine's clock; times to live are reckoned by the server's",
    )


async def _account(client: LiumClient) -> list[Check]:
    me = await _tried(client.me())
    if isinstance(me, LiumError):
        cure = "the key needs the read scope" if isinstance(me, ScopeError) else "make a new key in the web console"
        return [Check("account", False, str(me), cure)]
    checks = [
        Check(
            "account", True, f"{me.name or me.id}" + (f"; workspace: {me.workspace_name}" if me.workspace_name else "")
        )
    ]
    checks.append(_balance(me.balance_usd))
    events = await _tried(client.events(limit=1))
    refused = isinstance(events, ScopeError)
    checks.append(
        Check(
            "scope-read",
            not refused,
            "events can be read" if not refused else str(events),
            "give the key `read`" if refused else None,
        )
    )
    checks.append(Check("scope-rent", None, "only a rent can tell", "the key needs the scopes rent and manage"))
    return checks


def _balance(balance: Decimal | None) -> Check:
    if balance is None:
        return Check("balance", None, "not shown to this key")
    return Check("balance", balance > 0, amount(balance), None if balance > 0 else "top up the account")


async def _tried(call: Awaitable[T]) -> T | LiumError:
    try:
        return await call
    except LiumError as failure:
        return failure
