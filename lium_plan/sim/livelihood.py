"""What a market does by itself when it is lively: others rent and leave, prices move, spot pods are reclaimed,
machines fail. All of it from the world's dice, so that a seed replays it."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from lium_plan.sim import lifecycle, market, misfortune, money
from lium_plan.sim.records import Timer, TimerKind
from lium_plan.sim.rows import Node, NodeState, PodStatus
from lium_plan.sim.settings import Market
from lium_plan.sim.twist import Twist
from lium_plan.sim.world import World

TICK_S = 20.0
"""Not divided by the speed: other people keep their own pace."""
NEVER_SSH_SHARE = 0.016
"""Share of pods that never show a banner (contract §7.5)."""
RECLAIM_PER_HOUR = 0.04
BREAK_PER_HOUR = 0.004


FLAKY_FAILURE_SHARE = 0.3
"""Share of creations that fail on a node known for failed rents, in a lively market."""


def temper(world: World, node: Node, twist: Twist) -> Twist:
    """A rent's outcome as settings and market have it, where the faults at hand don't say otherwise."""
    settings = world.settings
    lively = settings.market is Market.LIVELY
    delay = settings.ssh_delay_seconds
    if delay is None:
        delay = world.dice.spread(4.0, sigma=0.5, low=1.0, high=30.0)
    never = world.dice.chance(max(settings.ssh_never_share, NEVER_SSH_SHARE if lively else 0.0))
    fails = lively and node.frequent_rent_failures and world.dice.chance(FLAKY_FAILURE_SHARE)
    ordinary = Twist(
        ssh_delay_seconds=delay,
        ssh="silent" if never else None,
        fails="Container creation failed due to node did not answer" if fails else None,
        hide_seconds=settings.list_lag_seconds,
        volume_mount_fails=settings.volume_mount_fails,
    )
    return ordinary.merged(twist)


def begin(world: World) -> None:
    """Let the market live, if it is to; nothing happens when it already does."""
    if world.settings.market is Market.LIVELY and all(timer.kind is not TimerKind.MARKET for timer in world.timers):
        _schedule_tick(world)


def _schedule_tick(world: World) -> None:
    world.schedule(world.now + timedelta(seconds=TICK_S), TimerKind.MARKET, "market")


def on_market(world: World, timer: Timer) -> None:
    if world.settings.market is not Market.LIVELY:
        return
    nodes = tuple(world.nodes)
    throw = world.dice.throw()
    for node in throw.sample(nodes, min(len(nodes), 3)):
        _others(world, world.nodes[node.id], throw.randint(-2, 2))
    if nodes and throw.random() < 0.15:
        _reprice(world, throw.choice(nodes).id, Decimal(str(round(throw.uniform(0.93, 1.08), 3))))
    if nodes and throw.random() < 0.05:
        _stumble(world, throw.choice(nodes).id)
    _trouble(world, throw)
    _schedule_tick(world)


def _others(world: World, node: Node, change: int) -> None:
    """Somebody else takes or gives back GPUs, in slices the node allows."""
    if node.min_rentable == node.gpu_count:
        change = node.gpu_count if change > 1 else -node.gpu_count if change < 0 else 0
    free = market.available(world, node)
    if change > free:
        return
    others = max(0, min(node.gpu_count, node.others + change))
    if others != node.others:
        world.nodes.put(replace(node, others=others))


def _reprice(world: World, node_id: str, factor: Decimal) -> None:
    node = world.nodes[node_id]
    set_price(world, node, (node.price_per_gpu * factor).quantize(Decimal("0.01")))


def _stumble(world: World, node_id: str) -> None:
    node = world.nodes[node_id]
    if node.state is NodeState.OK:
        world.nodes.put(replace(node, state=NodeState.OFFLINE, frequent_rent_failures=True))
    elif node.state is NodeState.OFFLINE:
        world.nodes.put(replace(node, state=NodeState.OK))


def _trouble(world: World, throw: random.Random) -> None:
    share = TICK_S / 3600
    nodes = world.nodes.by_id
    for pod in world.pods.where("alive", True):
        if pod.status is not PodStatus.RUNNING:
            continue
        if nodes[pod.node_id].tier == "spot" and throw.random() < RECLAIM_PER_HOUR * share:
            misfortune.reclaim(world, pod)
        elif throw.random() < BREAK_PER_HOUR * share:
            misfortune.break_pod(world, pod)


def set_price(world: World, node: Node, per_gpu: Decimal) -> None:
    """A new price for new rents; running pods keep theirs."""
    world.nodes.put(replace(node, price_per_gpu=max(Decimal("0.01"), per_gpu)))


def announce_price(world: World, node: Node, per_gpu: Decimal, at: datetime) -> None:
    """The price changes at `at`, for running pods too (contract §2.4.5)."""
    world.nodes.put(replace(node, pending_price=per_gpu, pending_price_at=at))
    world.schedule(max(at, world.now + timedelta(microseconds=1)), TimerKind.PRICE_CHANGE, node.id)


def on_price_change(world: World, timer: Timer) -> None:
    node = world.nodes.get(timer.ref)
    if node is None or node.pending_price is None or node.pending_price_at is None:
        return
    if node.pending_price_at > world.now:
        return
    node = world.nodes.put(replace(node, price_per_gpu=node.pending_price, pending_price=None, pending_price_at=None))
    for pod in world.pods.where("node", node.id):
        if lifecycle.is_in_use(pod):
            money.reprice(world, pod, market.price_for(node, pod.gpu_count))
