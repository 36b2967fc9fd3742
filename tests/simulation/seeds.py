"""Random histories: faults at the wire, machines that fail, kills and interrupts, over several runs; then peace.

    python -m tests.simulation.seeds [--from N] [--count N] [--jobs N]      many
    python -m tests.simulation.seeds --seed N                               one, with its history
    python -m tests.simulation.seeds --seed N --keep 0,3,4                  a shortened one

A seed is drawn into a `Tale` (server settings, machines, and a list of items), which is then told in a world. In the
end all faults stop, what was late arrives, and plain runs must bring everything right: apply to 0, an idle apply,
destroy to 0 and an empty ledger. A tale that breaks an oracle is shortened by leaving out items as long as it still
breaks one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lium_plan.requests import ApplyRequest
from lium_plan.sim.settings import Settings as ServerSettings
from tests.simulation.faults import draw_fault
from tests.simulation.many import say, spread
from tests.support.world import ACCOUNT, Broken, Ran, World
from tests.support.world_machines import Behaviour
from tests.support.world_opening import run_world
from tests.support.world_oracles import agrees, all_done, foreign_untouched, no_secrets

RENT_SETTLES_S = 700.0
"""Longer than anything that is late, and than the server's lock on a key."""
A_DAY_S = 25 * 3600.0
"""The server forgets its idempotency keys, and the client its duty to ask by them."""
MOST_RUNS = 8
BALANCE_USD = 5000
NODES = 10
"""On offer, beside those that are sure to fit: few, since each look at the market reads them all."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A run that competes with another one for the lock."""

    command: str
    after_s: float
    lock_timeout_s: float
    crash_at: int | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that is done to the world: exactly one field is set."""

    fault: Mapping[str, object] | None = None
    pause_s: float | None = None
    run: str | None = None
    crash_at: int | None = None
    interrupt_after_s: tuple[float, ...] = ()
    destroy_new: bool = False
    disk: tuple[str, int] | None = None
    """(`sync`, which one fails), or (`full`, after how many bytes), for as long as the run lasts."""
    beside: Beside | None = None
    """A second run, begun while this one may still hold the lock."""

    def __str__(self) -> str:
        if self.fault is not None:
            return f"fault {json.dumps(self.fault)}"
        if self.pause_s is not None:
            return f"pause {self.pause_s:g} s"
        more = f" killed at point {self.crash_at}" if self.crash_at else ""
        more += f" interrupted after {self.interrupt_after_s} s" if self.interrupt_after_s else ""
        more += " --on-failure destroy-new" if self.destroy_new else ""
        more += f" with a disk that fails: {self.disk}" if self.disk is not None else ""
        more += f" beside {self.beside}" if self.beside is not None else ""
        return f"{self.run}{more}"


@dataclass(frozen=True, slots=True)
class Tale:
    seed: int
    server: Mapping[str, object]
    behaviours: tuple[Behaviour, ...]
    items: tuple[Item, ...]

    def only(self, kept: Sequence[int]) -> Tale:
        return replace(self, items=tuple(self.items[index] for index in kept))


@dataclass(frozen=True, slots=True)
class Verdict:
    tale: Tale
    broken: tuple[str, ...]
    log: tuple[str, ...]
    codes: tuple[int | None, ...]


# --- drawing ---------------------------------------------------------------------------------------------------------


def draw(seed: int) -> Tale:
    chance = random.Random(f"tale/{seed}")
    items: list[Item] = []
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4))):
        items.append(Item(fault=draw_fault(chance)))
    for _ in range(chance.randint(1, 4)):
        items.append(_draw_run(chance))
        if chance.random() < 0.35:
            items.append(Item(fault=draw_fault(chance)))
        if chance.random() < 0.6:
            items.append(Item(pause_s=chance.choice((0.5, 3, 12, 45, 130, 400, 1500, 14400))))
    return Tale(seed, _draw_server(chance), _draw_behaviours(chance), tuple(items))


def _draw_run(chance: random.Random) -> Item:
    command = "destroy" if chance.random() < 0.25 else "apply"
    beside = _draw_beside(chance) if chance.random() < 0.08 else None
    what = chance.random()
    if what < 0.55:
        most = chance.choice((60, 250, 900, 1500))
        return Item(run=command, crash_at=chance.randint(1, most), beside=beside)
    if what < 0.7:
        first = round(chance.uniform(0.05, chance.choice((3, 15, 60))), 2)
        more = (round(first + chance.uniform(0.1, 9), 2),) if chance.random() < 0.3 else ()
        return Item(run=command, interrupt_after_s=(first, *more), beside=beside)
    if what < 0.8:
        trouble = ("sync", chance.randint(1, 60)) if chance.random() < 0.5 else ("full", chance.randint(0, 60_000))
        return Item(run=command, disk=trouble)
    return Item(run=command, destroy_new=command == "apply" and chance.random() < 0.2, beside=beside)


def _draw_beside(chance: random.Random) -> Beside:
    command = "destroy" if chance.random() < 0.3 else "apply"
    after_s = round(chance.uniform(0, 60), 2)
    crash_at = chance.randint(1, 400) if chance.random() < 0.3 else None
    return Beside(command, after_s, chance.choice((0, 0, 5, 900)), crash_at)


def _draw_server(chance: random.Random) -> dict[str, object]:
    settings: dict[str, object] = {
        "latency_seconds": chance.choice((0.0, 0.02, 0.1, 0.4)),
        "balance_usd": BALANCE_USD,
        "list_lag_seconds": chance.choice((0, 0, 0, 2, 8)),
        # Mostly short: a second that is waited costs a list, and lists cost most of the time that a seed takes.
        "create_seconds": chance.choice((1, 3, 8, None)),
        "delete_seconds": chance.choice((1, 3, 8, None)),
        "ssh_delay_seconds": chance.choice((0, 1, None)),
    }
    for name, share in (
        ("events_forbidden", 0.08),
        ("no_rent_idempotency", 0.08),
        ("pod_state_conflict_while_creating", 0.08),
        ("normalise_templates", 0.1),
    ):
        if chance.random() < share:
            settings[name] = True
    if chance.random() < 0.15:
        settings["shared_limiter"] = chance.choice(("count", "refuse"))
    if chance.random() < 0.1:
        settings["rents_per_minute"] = 2
    return settings


def _draw_behaviours(chance: random.Random) -> tuple[Behaviour, ...]:
    found = []
    if chance.random() < 0.15:
        found.append(Behaviour("setup.sh", chance.uniform(0, 20), 1, b"no\n", times=1))
    if chance.random() < 0.1:
        found.append(Behaviour("train.sh", chance.uniform(0, 40), 3, b"no\n", times=1))
    if chance.random() < 0.1:
        found.append(Behaviour("setup.sh", 400.0, times=1))
    found.append(Behaviour("setup.sh", round(chance.uniform(0.1, 30), 2)))
    found.append(Behaviour("train.sh", round(chance.uniform(0.1, 90), 2)))
    return tuple(found)


# --- telling ---------------------------------------------------------------------------------------------------------


def tell(tale: Tale) -> Verdict:
    async def story(world: World) -> Verdict:
        for item in tale.items:
            await _do(world, item)
        await _peace(world)
        codes = tuple(ran.code for ran in world.runs)
        return Verdict(tale, tuple(world.broken), tuple(world.log), codes)

    server = ServerSettings.model_validate(tale.server)
    return run_world(tale.seed, story, server=server, behaviours=tale.behaviours, nodes=NODES)


async def _do(world: World, item: Item) -> None:
    if item.fault is not None:
        spec = dict(item.fault)
        effect = spec.pop("effect")
        world.log.append(f"            {item}")
        world.fault(effect, **spec)  # type: ignore[arg-type]
    elif item.pause_s is not None:
        await world.pass_time(item.pause_s)
    elif item.run is not None:
        second = None
        if item.beside is not None:
            second = asyncio.create_task(_run_beside(world, item.beside))
        if item.disk is not None:
            world.disk.begin_trouble(*item.disk)
        await world.run(
            item.run,
            crash_at=item.crash_at,
            interrupt_after_s=item.interrupt_after_s,
            options=ApplyRequest(destroy_new_on_failure=item.destroy_new),
        )
        world.disk.end_trouble()
        if second is not None:
            await second


async def _run_beside(world: World, beside: Beside) -> None:
    await asyncio.sleep(beside.after_s)
    await world.run(
        beside.command,
        crash_at=beside.crash_at,
        options=ApplyRequest(lock_timeout_s=beside.lock_timeout_s),
    )


async def _peace(world: World) -> None:
    """Nothing goes wrong any more, and what was late has come: now everything must come right."""
    world.clear_faults()
    world.configure(
        events_forbidden=False,
        list_lag_seconds=0,
        no_rent_idempotency=False,
        pod_state_conflict_while_creating=False,
        rents_per_minute=0,
    )
    await world.pass_time(RENT_SETTLES_S)
    world.clear_faults()
    world.fault({"do": "unstick", "pod": "*"})
    world.fault({"do": "ssh", "pod": "*", "mode": "none"})
    world.fault({"do": "detail_ok", "pod": "*"})
    world.fault({"do": "balance", "account": ACCOUNT, "usd": BALANCE_USD})
    world.restore_market()
    world.accept_host_keys()
    world.log.append(f"{world.clock:10.2f} s  peace")
    await world.pass_time(120.0)
    if not await _until_done(world, "apply"):
        return
    _judge(world, all_done)
    sent = world.changes()
    idle = await world.apply()
    if idle.code != 0 or world.changes() != sent:
        world.broken.append(f"O4: the apply after a good one was not idle: {idle.words}")
    if not await _until_done(world, "destroy"):
        return
    _judge(world, foreign_untouched)
    _judge(world, no_secrets)
    if world.seed % 4:
        return
    sent = world.changes()
    again = await world.destroy()
    if again.code != 0 or world.changes() != sent:
        world.broken.append(f"O5: destroying what is destroyed: {again.words}")


async def _until_done(world: World, command: str) -> bool:
    ran: Ran | None = None
    for _ in range(MOST_RUNS):
        ran = await world.run(command)
        if ran.code == 0:
            _judge(world, partial(agrees, ran=ran))
            return True
        # What can't be known now can be known when the server has forgotten the key.
        await world.pass_time(A_DAY_S if ran.code == 8 else RENT_SETTLES_S)
    assert ran is not None
    world.broken.append(f"O4: {MOST_RUNS} runs did not bring it right: {ran.words}")
    return False


def _judge(world: World, check: object) -> None:
    try:
        check(world)  # type: ignore[operator]
    except Broken as problem:
        world.broken.append(str(problem))


# --- shortening ------------------------------------------------------------------------------------------------------


def shortened(verdict: Verdict, *, tries: int = 40) -> tuple[Verdict, list[int]]:
    """The same break with fewer items: those are left out, one after the other, without which it still breaks."""
    kept = list(range(len(verdict.tale.items)))
    wanted = {text[:3] for text in verdict.broken}
    best = verdict
    index = len(kept) - 1
    while index >= 0 and tries > 0:
        fewer = kept[:index] + kept[index + 1 :]
        found = tell(verdict.tale.only(fewer))
        tries -= 1
        if wanted & {text[:3] for text in found.broken}:
            kept, best = fewer, found
        index -= 1
    return best, kept


def told(verdict: Verdict, kept: Sequence[int]) -> str:
    tale = verdict.tale
    lines = [f"seed {tale.seed}: {len(verdict.broken)} oracle(s) broken"]
    lines += [f"  BROKEN {text}" for text in verdict.broken]
    lines += [f"  server {json.dumps(tale.server)}"]
    lines += [f"  machine {behaviour}" for behaviour in tale.behaviours]
    lines += [f"  {item}" for item in tale.items]
    lines += ["  history:"]
    lines += [f"    {line}" for line in verdict.log]
    keep = ",".join(map(str, kept))
    lines.append(f"  again: python -m tests.simulation.seeds --seed {tale.seed} --keep '{keep}'")
    return "\n".join(lines)


# --- many of them ----------------------------------------------------------------------------------------------------


def _one(seed: int) -> Verdict:
    return tell(draw(seed))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.seeds")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--keep", help="indices of the items to keep, with commas")
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--no-shorten", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        tale = draw(chosen.seed)
        kept = list(range(len(tale.items)))
        if chosen.keep is not None:
            kept = [int(part) for part in chosen.keep.split(",") if part]
        verdict = tell(tale.only(kept))
        say(told(verdict, kept))
        return 1 if verdict.broken else 0
    bad = runs = kills = 0
    seeds = range(chosen.first, chosen.first + chosen.count)
    for number, verdict in enumerate(spread(_one, seeds, processes=chosen.jobs), 1):
        runs += len(verdict.codes)
        kills += verdict.codes.count(None)
        if verdict.broken:
            bad += 1
            kept = list(range(len(verdict.tale.items)))
            if not chosen.no_shorten:
                verdict, kept = shortened(verdict)
            say(told(verdict, kept))
        if number % 100 == 0:
            say(f"… {number} of {chosen.count} seeds, {bad} bad")
    say(f"{chosen.count} seeds: {runs} runs, {kills} of them killed; {bad} seeds broke an oracle")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
