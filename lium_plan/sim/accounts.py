"""Accounts, their keys, and what a key may see and do (contract §1.2, §2.15.3)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from decimal import Decimal

from lium_plan.sim.refusal import Refusal
from lium_plan.sim.rows import Account, ApiKey, Pod, Scope
from lium_plan.sim.world import World

PREFIX = "sk_sim_"
DEFAULT_KEY = "sk_sim_local"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `key` is the account's first one for a session, which may do everything."""

    account: Account
    key: ApiKey
    session: bool = False

    def has(self, scope: Scope) -> bool:
        return self.session or scope in self.key.scopes

    def need(self, *scopes: Scope) -> None:
        """Raises Refusal 403 unless the key has one of `scopes`; the message names the first."""
        if not any(self.has(scope) for scope in scopes):
            raise Refusal(
                403,
                "api_key_scope",
                f"API key '{self.key.name}' does not have the '{scopes[0]}' scope",
            )

    def sees(self, pod: Pod) -> bool:
        if pod.account_id != self.account.id:
            return False
        return self.session or not self.key.own_pods_only or pod.key_id == self.key.id

    def may_change(self, pod: Pod) -> None:
        """`manage` is for every pod of the account, `rent` for those this key rented."""
        if self.has(Scope.MANAGE) or (self.has(Scope.RENT) and pod.key_id == self.key.id):
            return
        self.need(Scope.MANAGE)


def _stable_id(*parts: str) -> str:
    """The same account has the same ids in every world, whoever comes first."""
    digest = hashlib.sha256("/".join(parts).encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


def open_account(world: World, name: str) -> ApiKey:
    """The account called `name` with its default key, made when it isn't there."""
    secret = PREFIX + name
    for key in world.keys.where("secret", secret):
        return key
    account = world.accounts.put(
        Account(
            id=_stable_id("account", name),
            name=name,
            balance_usd=Decimal(str(world.settings.balance_usd)),
            workspace_id=_stable_id("workspace", name),
            workspace_name=f"{name}'s workspace",
            opened_at=world.now,
        )
    )
    return world.keys.put(ApiKey(_stable_id("key", name), account.id, "default", secret, world.now))


def find_caller(world: World, secret: str | None) -> Caller | None:
    """Whose key this is; None for a missing, unknown, revoked or expired one."""
    if not secret:
        return None
    for key in world.keys.where("secret", secret):
        dead = key.deleted_at is not None or not key.is_active
        if dead or (key.expires_at is not None and key.expires_at <= world.now):
            return None
        return Caller(world.accounts[key.account_id], key)
    if secret.startswith(PREFIX) and _NAME.match(secret[len(PREFIX) :]):
        key = open_account(world, secret[len(PREFIX) :])
        return Caller(world.accounts[key.account_id], key)
    return None


TOKEN_PREFIX = "sim-session."


def find_session(world: World, token: str) -> Caller | None:
    """Whose session this is; tokens are `sim-session.NAME`, as `POST /users/login` gives them."""
    name = token.removeprefix(TOKEN_PREFIX)
    if not token.startswith(TOKEN_PREFIX) or not _NAME.match(name):
        return None
    key = open_account(world, name)
    return Caller(world.accounts[key.account_id], key, session=True)


def account_named(world: World, name: str) -> Account:
    return world.accounts[open_account(world, name).account_id]
