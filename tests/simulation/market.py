"""A hostile market: nodes are taken, prices double, spot pods are reclaimed, pods come back dearer than agreed.

    python -m tests.simulation.market [--from N] [--count N] [--jobs N]     many
    python -m tests.simulation.market --seed N                              one, with its history

A seed is drawn into a `Tale`: a manifest with ceilings, a small market, and runs with everything at once going wrong.
`tests.support.world_market` looks at the wire and at the ledger whether money kept to its ceilings. In the end the
market calms down, and a destroy must leave nothing and tell what was spent.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from lium_plan.requests import ApplyRequest, PlanRequest
from lium_plan.sim.rows import Node
from lium_plan.sim.settings import Settings as ServerSettings
from tests.simulation.many import say, spread
from tests.support.world import Ran, World
from tests.support.world_machines import Behaviour
from tests.support.world_market import Terms, Watch
from tests.support.world_opening import run_world

MODELS = {"a": "RTX 4090", "b": "RTX 3090"}
MOST_NODES = 8
"""Of each model."""
MOST_DESTROYS = 6
RENT = {"method": "POST", "path": "executors/*/rent"}
CALM_S = 700.0
"""After so long nothing that was late is still to come."""


@dataclass(frozen=True, slots=True)
class Fleet:
    name: str
    nodes: str
    gpus: int
    max_price_usd: Decimal | None
    spot_policy: str
    placement: str
    retry: str
    ttl_hours: int
    bootstrap: bool
    first_new: bool

    def written(self) -> str:
        lines = [f"  {self.name}:", f"    nodes: {self.nodes}"]
        gpu = MODELS[self.name].replace(" ", "")
        lines.append(f"    resources: {{gpu: '{gpu}:{self.gpus}'}}")
        if self.max_price_usd is not None:
            lines.append(f"    max_price: {self.max_price_usd}")
        lines += [f"    spot_policy: {self.spot_policy}", f"    placement: {self.placement}", "    image: ubuntu:22.04"]
        lines.append(f"    ttl: {self.ttl_hours}h")
        if self.retry:
            lines.append(f"    retry: {{on_events: [{self.retry}], duration: 3m}}")
        if self.bootstrap:
            lines.append("    bootstrap: {commands: [make ready], timeout: 10m}")
        if self.first_new:
            lines.append("    lifecycle: {create_before_destroy: true}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Run:
    command: str
    faults: tuple[Mapping[str, object], ...] = ()
    kill_after_s: float | None = None
    interrupt_after_s: tuple[float, ...] = ()
    strict: bool = False
    replaced: tuple[str, ...] = ()
    then_s: float = 0.0

    @property
    def disturbed(self) -> bool:
        return self.kill_after_s is not None or bool(self.interrupt_after_s)


@dataclass(frozen=True, slots=True)
class Tale:
    seed: int
    fleets: tuple[Fleet, ...]
    limit_usd: Decimal | None
    server: Mapping[str, object]
    nodes: Mapping[str, tuple[tuple[int, int, Decimal, str], ...]]
    """Of each model: GPUs, those that others have, USD per GPU and hour, tier."""
    runs: tuple[Run, ...]
    setup_s: float

    @property
    def manifest(self) -> str:
        policy = "" if self.limit_usd is None else f"policy: {{max_hourly_cost: {self.limit_usd}}}\n"
        return f"version: 1\nproject: hostile\n{policy}fleets:\n" + "".join(fleet.written() for fleet in self.fleets)


@dataclass(frozen=True, slots=True)
class Verdict:
    tale: Tale
    broken: tuple[str, ...]
    log: tuple[str, ...]
    rents: int
    substitutions: int
    given_back: int
    reclaimed: int
    refused: int


# --- drawing ---------------------------------------------------------------------------------------------------------


def draw(seed: int) -> Tale:
    chance = random.Random(f"market/{seed}")
    fleets = tuple(_draw_fleet(name, chance) for name in ("a", "b")[: chance.choice((1, 2, 2))])
    scarce = chance.random() < 0.35
    nodes = {
        MODELS[fleet.name]: tuple(_draw_node(chance, scarce=scarce) for _ in range(chance.randint(3, MOST_NODES)))
        for fleet in fleets
    }
    runs = tuple(_draw_run(fleets, chance, first=number == 0) for number in range(chance.randint(2, 4)))
    return Tale(
        seed, fleets, _draw_limit(fleets, chance), _draw_server(chance), nodes, runs, chance.choice((1, 30, 200))
    )


def _draw_limit(fleets: Sequence[Fleet], chance: random.Random) -> Decimal | None:
    """About what the fleets may cost: sometimes too little, at times just enough, often none."""
    whole = sum(
        int(fleet.nodes.rpartition("..")[2]) * (fleet.max_price_usd or Decimal("0.40") * fleet.gpus) for fleet in fleets
    )
    share = chance.choice((None, None, 0.6, 0.8, 0.9, 1.0, 1.1, 1.4))
    return None if share is None else (whole * Decimal(str(share))).quantize(Decimal("0.01"))


def _draw_fleet(name: str, chance: random.Random) -> Fleet:
    nodes = chance.choice(("1", "2", "3", "4", "5", "1..4"))
    return Fleet(
        name,
        nodes,
        chance.choice((1, 1, 1, 2)),
        chance.choice((None, None, Decimal("0.50"), Decimal("0.80"), Decimal("1.50"))),
        chance.choice(("auto", "auto", "auto", "spot", "on-demand")),
        chance.choice(("any", "any", "spread", "pack")),
        chance.choice(("", "no-capacity", "interruption", "no-capacity, interruption", "no-capacity, interruption")),
        chance.choice((2, 6)),
        chance.random() < 0.6,
        chance.random() < 0.15,
    )


def _draw_node(chance: random.Random, *, scarce: bool) -> tuple[int, int, Decimal, str]:
    gpus = chance.choice((1, 2, 2, 4))
    others = gpus if chance.random() < (0.6 if scarce else 0.1) else 0
    return gpus, others, Decimal(chance.randint(20, 60)) / 100, chance.choice(("secure", "spot"))


def _draw_server(chance: random.Random) -> dict[str, object]:
    settings: dict[str, object] = {
        "latency_seconds": chance.choice((0.02, 0.1, 0.4, 0.9)),
        "balance_usd": 5000,
        "list_lag_seconds": chance.choice((0, 0, 0, 2, 8)),
        "feed_refresh_seconds": chance.choice((0, 20, 60, 60)),
        "market": chance.choice(("calm", "lively")),
    }
    if chance.random() < 0.15:
        settings["rents_per_minute"] = 2
    if chance.random() < 0.1:
        settings["pod_state_conflict_while_creating"] = True
    if chance.random() < 0.1:
        settings["no_rent_idempotency"] = True
    if chance.random() < 0.1:
        settings["events_forbidden"] = True
    return settings


def _draw_run(fleets: Sequence[Fleet], chance: random.Random, *, first: bool) -> Run:
    faults = tuple(_draw_fault(fleets, chance) for _ in range(chance.randint(2, 7)))
    command = "destroy" if not first and chance.random() < 0.15 else "apply"
    kill = round(chance.uniform(0.5, 150), 2) if chance.random() < 0.25 else None
    interrupt = (round(chance.uniform(0.5, 150), 2),) if kill is None and chance.random() < 0.1 else ()
    replaced = (f"fleet.{chance.choice(fleets).name}[0]",) if not first and chance.random() < 0.35 else ()
    strict = chance.random() < 0.1
    return Run(command, faults, kill, interrupt, strict, replaced, chance.choice((0.0, 3.0, 90.0, 1200.0)))


def _draw_fault(fleets: Sequence[Fleet], chance: random.Random) -> Mapping[str, object]:
    kinds = (
        (5, _price_moves),
        (4, _node_taken),
        (4, _node_freed),
        (4, _comes_back_dearer),
        (4, _reclaimed),
        (2, _answer_lost),
        (2, _rent_slow),
        (2, _limited),
        (2, _reading_fails),
        (2, _does_not_go),
        (1, _otherwise_twisted),
    )
    found = chance.choices([kind for _, kind in kinds], weights=[weight for weight, _ in kinds])[0]
    return found(fleets, chance)


def _price_moves(fleets: Sequence[Fleet], chance: random.Random) -> Mapping[str, object]:
    effect: dict[str, object] = {"do": "price", "node": _some_nodes(chance), "factor": chance.choice((2, 2, 1.06, 0.5))}
    if chance.random() < 0.25:
        effect["announced_seconds"] = chance.choice((20, 300, 3000))
    what = chance.random()
    if what < 0.25:
        return {"effect": effect, **RENT, "after": chance.randint(0, 2), "where": "after"}
    if what < 0.6:  # between the plan and the first rents
        return {"effect": effect, "method": "POST", "path": "templates", "where": "after"}
    return {"effect": effect, "at": round(chance.uniform(0, 90), 1)}


def _some_nodes(chance: random.Random) -> str:
    """`*`, or one of the furnished ones, by its number."""
    return chance.choice(("*", "#0", "#1", "#2", "#3"))


def _node_taken(fleets: Sequence[Fleet], chance: random.Random) -> Mapping[str, object]:
    if chance.random() < 0.6:
        return {"effect": {"do": "take_node"}, **RENT, "after": chance.randint(0, 3), "times": chance.randint(1, 3)}
    return {"effect": {"do": "take_node", "node": _some_nodes(chance)}, "at": round(chance.uniform(0, 60), 1)}


def _node_freed(fleets: Sequence[Fleet], chance: random.Random) -> Mapping[str, object]:
    return {"effect": {"do": "free_node", "node": _some_nodes(chance)}, "at": round(chance.uniform(0.5, 400), 1)}


def _comes_back_dearer(fleets: Sequence[Fleet], chance: random.Random) -> Mapping[str, object]:
    effect = {"do": "twist", "twist": {"price_factor": chance.choice((1.02, 1.09, 1.2, 2, 2, 8))}}
    return {"effect": effect, **RENT, "after": chance.randint(0, 3), "times": chance.randint(1, 4)}


def _reclaimed(fleets: Sequence[Fleet], chance: random.Random) -> Mapping[str, object]:
    pod = f"*-{chance.choice(fleets).name}-{chance.choice(('0', '1', '*'))}"
    effect: dict[str, object] = {"do": chance.choice(("reclaim", "reclaim", "reclaim", "break")), "pod": pod}
    return {"effect": effect, "at": round(chance.uniform(5, 240), 1)}


def _answer_lost(fleets: Sequence[Fleet], chance: random.Random) -> Mapping[str, object]:
    effect = {"do": "lose_reply", "where": chance.choice(("before", "inside", "after", "after", "unrecorded"))}
    return {"effect": effect, **RENT, "after": chance.randint(0, 3)}


def _rent_slow(fleets: Sequence[Fleet], chance: random.Random) -> Mapping[str, object]:
    effect = {"do": "delay", "seconds": chance.choice((3, 10, 25, 40)), "where": chance.choice(("before", "after"))}
    return {"effect": effect, **RENT, "after": chance.randint(0, 3)}


def _limited(fleets: Sequence[Fleet], chance: random.Random) -> Mapping[str, object]:
    headers = {"Retry-After": str(chance.choice((1, 30, 60)))}
    effect = {"do": "answer", "status": 429, "headers": headers}
    return {"effect": effect, **RENT, "after": chance.randint(0, 3), "times": chance.randint(1, 3)}


def _reading_fails(fleets: Sequence[Fleet], chance: random.Random) -> Mapping[str, object]:
    effect: dict[str, object] = chance.choice(
        (
            {"do": "answer", "status": 500},
            {"do": "answer", "status": 200, "text": "[{"},
            {"do": "delay", "seconds": 12},
            {"do": "lose_reply", "where": "after"},
        )
    )
    path = chance.choice(("executors", "executors", "public/v1/nodes", "pods"))
    return {
        "effect": effect,
        "method": "GET",
        "path": path,
        "after": chance.randint(1, 8),
        "times": chance.randint(1, 4),
    }


def _does_not_go(fleets: Sequence[Fleet], chance: random.Random) -> Mapping[str, object]:
    if chance.random() < 0.3:
        return {"effect": {"do": "twist", "twist": {"stuck_delete": True}}, **RENT, "after": chance.randint(0, 2)}
    effect = {"do": "answer", "status": chance.choice((409, 500)), "where": "before"}
    return {"effect": effect, "method": "DELETE", "path": "pods/*", "times": chance.choice((1, 3, 8))}


def _otherwise_twisted(fleets: Sequence[Fleet], chance: random.Random) -> Mapping[str, object]:
    twist: dict[str, object] = chance.choice(
        (
            {"gpu_count": 3},
            {"create_seconds": 400},
            {"hide_seconds": 20},
            {"fails": "no space left on device"},
            {"ssh": "silent"},
        )
    )
    return {"effect": {"do": "twist", "twist": twist}, **RENT, "after": chance.randint(0, 3)}


# --- telling ---------------------------------------------------------------------------------------------------------


def tell(tale: Tale) -> Verdict:
    async def story(world: World) -> Verdict:
        _furnish(world, tale)
        terms = {fleet.name: Terms(fleet.max_price_usd, fleet.ttl_hours) for fleet in tale.fleets}
        watch = Watch(world, terms)
        for run in tale.runs:
            await _run(world, watch, tale, run)
        await _peace(world, watch)
        server = world.lium.world
        return Verdict(
            tale,
            tuple(world.broken),
            tuple(world.log),
            watch.rents,
            watch.substitutions,
            watch.given_back,
            sum(event.reason == "spot_reclaimed" for event in server.events),
            sum(row.path.endswith("/rent") and (row.status or 0) >= 400 for row in server.requests),
        )

    return run_world(
        tale.seed,
        story,
        manifest=tale.manifest,
        expected=(),
        server=ServerSettings.model_validate(tale.server),
        behaviours=(Behaviour("make ready", tale.setup_s),),
    )


def _furnish(world: World, tale: Tale) -> None:
    """A small market: the nodes of the tale, and everything else taken."""
    nodes = world.lium.world.nodes
    for node in tuple(nodes):
        nodes.put(replace(node, others=node.gpu_count))
    for model, rows in tale.nodes.items():
        for node, (gpus, others, price, tier) in zip(_of(world, model), rows, strict=False):
            free = {"gpu_count": gpus, "others": min(others, gpus), "price_per_gpu": price, "tier": tier}
            nodes.put(replace(node, min_rentable=1, **free))
    world.prices.update((node.id, node.price_per_gpu) for node in nodes)


async def _run(world: World, watch: Watch, tale: Tale, run: Run) -> None:
    for fault in run.faults:
        world.log.append(f"            fault {json.dumps(fault)}")
        _set(world, fault)
    watch.begins(limit_usd=tale.limit_usd, strict=run.strict)
    ran = await world.run(
        run.command,
        request=PlanRequest(replace=_standing(world, run.replaced)),
        kill_after_s=run.kill_after_s,
        interrupt_after_s=run.interrupt_after_s,
        options=ApplyRequest(strict_offers=run.strict, wait_timeout_s=300),
        approve=watch.confirmed,
    )
    watch.ended(ran, disturbed=run.disturbed or ran.code in (7, 8, None))
    await world.pass_time(run.then_s)


def _standing(world: World, addresses: Sequence[str]) -> tuple[str, ...]:
    """Only what there is can be replaced."""
    state = world.state()
    return tuple(address for address in addresses if state is not None and address in state.records)


def _set(world: World, fault: Mapping[str, object]) -> None:
    spec = dict(fault)
    effect = dict(spec.pop("effect"))  # type: ignore[call-overload]
    node = effect.get("node")
    if not isinstance(node, str):
        world.fault(effect, **spec)  # type: ignore[arg-type]
        return
    for model in MODELS.values():
        wanted = _of(world, model)[:MOST_NODES]
        for item in wanted if node == "*" else [wanted[int(node[1:]) % len(wanted)]]:
            world.fault({**effect, "node": item.id}, **spec)  # type: ignore[arg-type]


def _of(world: World, model: str) -> list[Node]:
    return [node for node in world.lium.world.nodes if node.gpu_model == model]


async def _peace(world: World, watch: Watch) -> None:
    """Everything that was late has come; a destroy leaves nothing."""
    world.clear_faults()
    world.configure(market="calm", events_forbidden=False, list_lag_seconds=0, no_rent_idempotency=False)
    world.configure(pod_state_conflict_while_creating=False, rents_per_minute=0)
    await world.pass_time(CALM_S)
    world.clear_faults()
    world.fault({"do": "unstick", "pod": "*"})
    world.restore_market()
    await world.pass_time(120.0)
    ran: Ran | None = None
    for _ in range(MOST_DESTROYS):
        watch.begins(limit_usd=None)
        ran = await world.run("destroy", approve=watch.confirmed)
        watch.ended(ran, disturbed=False)
        if ran.code == 0:
            break
        await world.pass_time(25 * 3600.0 if ran.code == 8 else CALM_S)
    else:
        assert ran is not None
        world.broken.append(f"O4: {MOST_DESTROYS} runs did not destroy it: {ran.words}")
    if world.open_charges():
        world.broken.append(f"O5: destroyed, and there is still {[charge.name for charge in world.open_charges()]}")
    asked = [row.path for row in world.lium.world.requests if row.method == "DELETE"]
    # A lively market may take somebody else's pod as well; we must not have.
    world.broken += [
        f"O5: {item} is not ours, and was deleted" for item in world.foreign if any(item in p for p in asked)
    ]


def told(verdict: Verdict) -> str:
    lines = [f"seed {verdict.tale.seed}: {len(verdict.broken)} broken"]
    lines += [f"  BROKEN {text}" for text in verdict.broken]
    lines += [f"  {line}" for line in verdict.tale.manifest.splitlines()]
    lines += [f"  server {json.dumps(verdict.tale.server)}"]
    lines += [f"  {run}" for run in verdict.tale.runs]
    lines += ["  history:", *(f"    {line}" for line in verdict.log)]
    lines.append(f"  again: python -m tests.simulation.market --seed {verdict.tale.seed}")
    return "\n".join(lines)


# --- many of them ----------------------------------------------------------------------------------------------------


def _one(seed: int) -> Verdict:
    return tell(draw(seed))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.market")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        verdict = _one(chosen.seed)
        say(told(verdict))
        return 1 if verdict.broken else 0
    bad = 0
    sums = dict.fromkeys(("rents", "refused", "substitutions", "given_back", "reclaimed"), 0)
    seeds = range(chosen.first, chosen.first + chosen.count)
    for number, verdict in enumerate(spread(_one, seeds, processes=chosen.jobs), 1):
        for name in sums:
            sums[name] += getattr(verdict, name)
        if verdict.broken:
            bad += 1
            say(told(verdict))
        if number % 100 == 0:
            say(f"… {number} of {chosen.count} seeds, {bad} bad")
    words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sums.items())
    say(f"{chosen.count} seeds of a hostile market: {words}; {bad} seeds broke a promise")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
