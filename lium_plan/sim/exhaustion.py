"""What the platform does when there is nothing left to pay with: pods go as if a schedule had ended them (contract
§2.15.3, U18). `money` knows when that will be."""

from __future__ import annotations

from collections.abc import Iterable

from lium_plan.sim import lifecycle, money
from lium_plan.sim.records import Timer
from lium_plan.sim.rows import Pod
from lium_plan.sim.world import World


def on_money_ends(world: World, timer: Timer) -> None:
    """A moment at which some budget or the balance may have run out. It looks anew: much may have changed."""
    account_id = timer.ref
    pods = world.pods.where("account", account_id)
    if world.settings.empty_balance_removes_pods and money.balance(world, account_id) <= 0:
        _remove(world, pods, reason="balance_empty")
    if world.settings.spent_budget_removes_pods:
        for key in world.keys.where("account", account_id):
            if money.is_spent(world, key):
                _remove(world, (pod for pod in pods if pod.key_id == key.id), reason="budget_reached")
    money.watch(world, account_id)


def _remove(world: World, pods: Iterable[Pod], *, reason: str) -> None:
    for pod in pods:
        if lifecycle.is_in_use(world.pods[pod.id]):
            lifecycle.request_removal(world, pod, reason=reason)
