"""Who owes what: charges, balances and budgets (contract §2.4.3, §9.2.15, §14, §15).

A pod is charged from the rent request to the delete request, PENDING included. Creations that fail or are cancelled
and pods that the provider breaks are credited. Amounts are exact; only the wire rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from lium_plan.sim.records import BudgetRefusal, TimerKind
from lium_plan.sim.refusal import Refusal
from lium_plan.sim.rows import ApiKey, Charge, Pod
from lium_plan.sim.world import World

FLOOR_HOURS = Decimal("0.25")
"""The balance must exceed this many hours of all open pods and the new one."""

_MICROS_PER_HOUR = Decimal(3_600_000_000)
_MICRO = timedelta(microseconds=1)


def hours(since: datetime, until: datetime) -> Decimal:
    return Decimal(max(0, (until - since) // timedelta(microseconds=1))) / _MICROS_PER_HOUR


def amount(world: World, charge: Charge, *, until: datetime | None = None) -> Decimal:
    """What a charge comes to by `until` (by now when it is open)."""
    if charge.credited:
        return Decimal(0)
    end = charge.until or world.now
    if until is not None:
        end = min(end, until)
    return charge.price_per_hour * hours(charge.since, end)


def open_charge(
    world: World,
    *,
    kind: str,
    object_id: str,
    name: str,
    account_id: str,
    key_id: str | None,
) -> Charge:
    """Note in the ledger that an object without an hourly price exists."""
    return world.charges.put(
        Charge(
            f"c{world.next_serial()}",
            kind,
            object_id,
            name,
            account_id,
            key_id,
            None,
            None,
            Decimal(0),
            world.now,
        )
    )


def charge_pod(world: World, pod: Pod, price_per_hour: Decimal) -> Charge:
    charge = world.charges.put(
        Charge(
            f"c{world.next_serial()}",
            "pod",
            pod.id,
            pod.name,
            pod.account_id,
            pod.key_id,
            pod.node_id,
            pod.gpu_count,
            price_per_hour,
            world.now,
        )
    )
    watch(world, pod.account_id)
    return charge


def close(world: World, object_id: str, *, credit: bool = False) -> None:
    """End the open charge of an object; `credit` gives back everything ever charged for it."""
    for charge in world.charges.where("object", object_id):
        if charge.until is None:
            closed = world.charges.put(replace(charge, until=world.now, credited=credit))
            cost = amount(world, closed)
            if cost:
                account = world.accounts[charge.account_id]
                world.accounts.change(account.id, balance_usd=account.balance_usd - cost)
        elif credit and not charge.credited:
            account = world.accounts[charge.account_id]
            world.accounts.change(account.id, balance_usd=account.balance_usd + amount(world, charge))
            world.charges.change(charge.id, credited=True)
        if charge.price_per_hour:
            watch(world, charge.account_id)


def reprice(world: World, pod: Pod, price_per_hour: Decimal) -> None:
    """From now on the pod costs `price_per_hour`: a new price segment."""
    if any(charge.until is None for charge in world.charges.where("object", pod.id)):
        close(world, pod.id)
        charge_pod(world, pod, price_per_hour)
    world.pods.change(pod.id, price_per_hour=price_per_hour, updated_at=world.now)


def open_charges(world: World, account_id: str) -> tuple[Charge, ...]:
    return world.charges.where("open", account_id)


def balance(world: World, account_id: str) -> Decimal:
    # Asked for at each of thousands of rents, over all that came before: divided once.
    now = world.now
    running = (charge.price_per_hour * ((now - charge.since) // _MICRO) for charge in open_charges(world, account_id))
    return world.accounts[account_id].balance_usd - sum(running, Decimal(0)) / _MICROS_PER_HOUR


def set_balance(world: World, account_id: str, usd: Decimal) -> None:
    account = world.accounts[account_id]
    world.accounts.change(account_id, balance_usd=account.balance_usd + usd - balance(world, account_id))
    watch(world, account_id)


def floor(world: World, account_id: str, price_per_hour: Decimal) -> Decimal:
    """What the balance must exceed before a rent at this price."""
    running = sum((charge.price_per_hour for charge in open_charges(world, account_id)), Decimal(0))
    return FLOOR_HOURS * (price_per_hour + running)


def check_balance(world: World, account_id: str, price_per_hour: Decimal) -> None:
    """Raises Refusal 403 `insufficient_balance` (contract §2.4.3)."""
    needed = floor(world, account_id, price_per_hour)
    have = balance(world, account_id)
    if have <= needed:
        raise Refusal(
            403,
            "insufficient_balance",
            f"Insufficient balance. Renting this node requires at least ${needed:.4f} (15 minutes of runtime). "
            f"Your balance is ${have:.2f}",
            hint="Top up your account, or remove pods that you no longer need.",
        )


def spent(world: World, key: ApiKey, *, since: datetime | None) -> Decimal:
    """What pods rented with the key cost, in all or from `since` on."""
    total = Decimal(0)
    for charge in world.charges.where("account", key.account_id):
        if charge.key_id == key.id:
            total += amount(world, charge)
            if since is not None and charge.since < since:
                total -= amount(world, charge, until=since)
    return total


def _budgets(world: World, key: ApiKey) -> Iterator[tuple[str, Decimal, datetime | None]]:
    """The key's budgets: window, amount, and since when it counts."""
    day = world.now.replace(hour=0, minute=0, second=0, microsecond=0)
    windows = (
        ("daily", key.daily_budget_usd, day),
        ("monthly", key.monthly_budget_usd, day.replace(day=1)),
        ("max", key.max_budget_usd, None),
    )
    for window, budget, since in windows:
        if budget is not None:
            yield window, budget, since


def is_spent(world: World, key: ApiKey) -> bool:
    return any(spent(world, key, since=since) >= budget for _, budget, since in _budgets(world, key))


def watch(world: World, account_id: str) -> None:
    """Have the world look again when, at the present rate, a budget or the balance will be used up."""
    for timer in world.timers.where("subject", (TimerKind.MONEY_ENDS, account_id)):
        world.timers.drop(timer.id)
    lasts = tuple(_lasting(world, account_id))
    if lasts:
        world.schedule(world.now + min(lasts), TimerKind.MONEY_ENDS, account_id)


def _lasting(world: World, account_id: str) -> Iterator[timedelta]:
    """How long each thing that can run out still lasts while nothing changes."""
    if not (world.settings.empty_balance_removes_pods or world.settings.spent_budget_removes_pods):
        return
    running = [charge for charge in open_charges(world, account_id) if charge.price_per_hour]
    if not running:
        return
    if world.settings.empty_balance_removes_pods:
        yield _lasts(balance(world, account_id), running)
    if world.settings.spent_budget_removes_pods:
        for key in world.keys.where("account", account_id):
            rented = [charge for charge in running if charge.key_id == key.id]
            if rented:
                for _, budget, since in _budgets(world, key):
                    yield _lasts(budget - spent(world, key, since=since), rented)


_LONGEST = timedelta(days=365)


def _lasts(usd: Decimal, charges: Iterable[Charge]) -> timedelta:
    per_hour = sum((charge.price_per_hour for charge in charges), Decimal(0))
    if usd <= 0:
        return timedelta(0)
    micros = usd / per_hour * _MICROS_PER_HOUR
    return min(_LONGEST, timedelta(microseconds=int(micros) + 1)) if micros < 10**15 else _LONGEST


def check_budget(world: World, key: ApiKey, price_per_hour: Decimal, *, route: str) -> None:
    """Raises Refusal 402 when a budget of the key doesn't hold 15 more minutes at this price."""
    for window, budget, since in _budgets(world, key):
        so_far = spent(world, key, since=since)
        if so_far + FLOOR_HOURS * price_per_hour <= budget:
            continue
        world.budget_refusals.put(
            BudgetRefusal(world.new_id(), key.id, world.now, window, route, price_per_hour, budget, so_far)
        )
        message = f"{window} budget reached"
        raise Refusal(
            402,
            "API_KEY_BUDGET_EXCEEDED",
            message,
            data={
                "message": message,
                "window": window,
                "budget_usd": float(budget),
                "spent_usd": float(round(so_far, 5)),
                "api_key_id": key.id,
            },
        )
