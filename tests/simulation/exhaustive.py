"""A crash at every point of an apply and of a destroy of the quickstart's three pods, each followed by plain re-runs.

    python -m tests.simulation.exhaustive [--command NAME] [--point N] [--every N] [--jobs N]

Without `--point` all points are tried (or every N-th); with it the one, with its history. Two points between which
nothing that outlives a process changed (no byte on the disk, no request, no time) are the same crash: the first of them
is run and all of them are counted.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lium_plan.diagnostics import ExitCode
from tests.simulation.many import say, spread
from tests.support.world import Broken, Ran, World
from tests.support.world_opening import run_world
from tests.support.world_oracles import agrees, all_done, foreign_untouched, no_secrets
from tests.support.world_process import Point, Version

COMMANDS = ("apply", "destroy", "recovery", "change", "trouble")
"""`recovery` is the apply that follows one which was killed with rents in flight, `change` one of a changed manifest
on what is there, `trouble` a first one among lost answers, refusals and a pod that is taken away."""
IN_FLIGHT = ("POST /executors/*/rent", "on its way", 3)
SEED = 1
CHANGES = (
    ("nodes: 2", "nodes: 1"),
    ("limsim/torch:2.4", "limsim/torch:2.5"),
    ("volume: datasets\n    ttl: 12h", "volume: datasets\n    ttl: 24h"),
    ("what outlives the machines", "what still outlives the machines"),
    ("max_duration: 10m", "max_duration: 11m"),
)
RENT = {"method": "POST", "path": "executors/*/rent"}
TROUBLE: tuple[tuple[Mapping[str, object], Mapping[str, object]], ...] = (
    ({"do": "lose_reply", "where": "after"}, {**RENT, "after": 0}),
    ({"do": "lose_reply", "where": "before"}, {**RENT, "after": 1}),
    ({"do": "take_node"}, {**RENT, "after": 2}),
    ({"do": "answer", "status": 429, "headers": {"Retry-After": "1"}}, {**RENT, "after": 3}),
    ({"do": "answer", "status": 500, "where": "after"}, {"method": "POST", "path": "templates"}),
    ({"do": "lose_reply", "where": "after"}, {"method": "POST", "path": "volumes"}),
    ({"do": "lose_reply", "where": "after"}, {"method": "POST", "path": "docker-credentials"}),
    ({"do": "reclaim", "pod": "*-trainers-1"}, {"at": 35.2}),
    ({"do": "ssh", "pod": "*-trainers-0", "mode": "drop"}, {"at": 40.2}),
    ({"do": "answer", "status": 502}, {"method": "GET", "path": "pods", "after": 3, "times": 3}),
)


@dataclass(frozen=True, slots=True)
class Class:
    """Points that are the same crash."""

    command: str
    first: Point
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one crash."""

    command: str
    then: str
    point: Point | None
    broken: tuple[str, ...]
    log: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.command}, killed at {self.point}, then {self.then}:"]
        lines += [f"  BROKEN {text}" for text in self.broken]
        lines += [f"  {line}" for line in self.log]
        number = self.point.number if self.point is not None else "?"
        then = self.then
        if self.point is not None and self.point.site.startswith("disk: "):
            then = self.point.site.removeprefix("disk: ")
        again = f"python -m tests.simulation.exhaustive --command {self.command} --then {then} --point {number}"
        return "\n".join([*lines, f"  again: {again}"])


def passed(command: str, *, seed: int = SEED) -> tuple[tuple[Point, Version], ...]:
    """Every point of a run that is not killed."""

    async def story(world: World) -> tuple[tuple[Point, Version], ...]:
        verb = await _begin(world, command)
        ran = await world.run(verb, recording=True)
        # What was lost to a machine that went is another run's, and is said.
        assert ran.code == (ExitCode.PARTIAL if command == "trouble" else ExitCode.OK), ran.words
        assert not world.broken, world.broken
        return ran.points

    return run_world(seed, story)


def classes(command: str, points: Iterable[tuple[Point, Version]]) -> list[Class]:
    """Points by what the world is at them."""
    found: dict[object, list[Point]] = defaultdict(list)
    for point, version in points:
        # A torn write, and a write that power loss takes back, leave something else behind than the point before.
        apart = point.number if point.phase in ("torn", "unsynced") else None
        found[(version, apart)].append(point)
    return [Class(command, same[0], tuple(same)) for same in found.values()]


async def _begin(world: World, command: str) -> str:
    """What comes before the run that is broken, and what that run is."""
    if command == "destroy":
        await world.apply()
    elif command == "recovery":
        killed = await world.apply(crash_on=IN_FLIGHT)
        assert killed.code is None
    elif command == "change":
        await world.apply()
        _change(world)
    elif command == "trouble":
        for effect, match in TROUBLE:
            world.fault(effect, **match)
    return "destroy" if command == "destroy" else "apply"


def _change(world: World) -> None:
    """Somebody edits the manifest."""
    written = (world.folder / "project" / "lium.yaml").read_text()
    for before, after in CHANGES:
        assert before in written, before
        written = written.replace(before, after)
    world.write("lium.yaml", written)
    world.expected = frozenset(("trainers-0", "store-0"))


def try_crash(command: str, number: int, *, then: str, seed: int = SEED) -> Outcome:
    """Kill a run at one point, run `then` plainly, and judge what there is."""

    async def story(world: World) -> Outcome:
        verb = await _begin(world, command)
        killed = await world.run(verb, crash_at=number)
        world.clear_faults()
        await _mended(world, then)
        return Outcome(command, then, killed.died_at, tuple(world.broken), tuple(world.log))

    return run_world(seed, story)


async def _mended(world: World, then: str) -> None:
    """One plain re-run makes it right, the next one has nothing to do, and destroying leaves nothing.

    `changed`: an apply, once somebody has edited the manifest.
    """
    if then == "changed":
        _change(world)
    verb = "destroy" if then == "destroy" else "apply"
    again = await world.run(verb)
    _judge(world, again)
    if verb == "apply":
        before, sent = world.files(), world.changes()
        second = await world.apply()
        if second.code != 0 or world.changes() != sent or _durable(world.files()) != _durable(before):
            world.broken.append(f"O4: the apply after it was not idle: {second.words}")
        gone = await world.destroy()
        _judge(world, gone)


def _judge(world: World, ran: Ran) -> None:
    if ran.code != 0:
        world.broken.append(f"O4: {ran.words}")
        return
    checks = [lambda: agrees(world, ran), lambda: foreign_untouched(world), lambda: no_secrets(world)]
    if ran.command == "apply":
        checks.append(lambda: all_done(world))
    for check in checks:
        try:
            check()
        except Broken as problem:
            world.broken.append(str(problem))


def _durable(files: dict[str, bytes]) -> dict[str, bytes]:
    """Without what every run leaves behind by itself."""
    return {name: data for name, data in files.items() if not name.endswith(".lock")}


def try_disk(command: str, trouble: str, number: int, *, seed: int = SEED) -> Outcome:
    """A disk that fails under a run: `sync` number N fails, or it is `full` after N bytes. Then it is well again.

    The run ends by itself, nothing is unknown meanwhile, and one plain re-run mends what is left to do.
    """

    async def story(world: World) -> Outcome:
        verb = await _begin(world, command)
        world.disk.begin_trouble(trouble, number)
        await world.run(verb)
        world.disk.end_trouble()
        world.clear_faults()
        await _mended(world, verb)
        return Outcome(
            command, command, Point(number, f"disk: {trouble}", "fails"), tuple(world.broken), tuple(world.log)
        )

    return run_world(seed, story)


# --- many of them ----------------------------------------------------------------------------------------------------


def jobs_of(groups: Sequence[Class], *, every: int = 1) -> list[tuple[str, int, str]]:
    """(command, point, then); a crashed apply is followed by another apply, every third time by a destroy, and the
    first apply of all by one of a changed manifest too."""
    jobs = []
    for index, group in enumerate(groups):
        if index % every == 0:
            again = "destroy" if group.command == "destroy" else "apply"
            jobs.append((group.command, group.first.number, again))
            if again == "apply" and index % (3 * every) == 0:
                jobs.append((group.command, group.first.number, "destroy"))
            if group.command == "apply":
                jobs.append((group.command, group.first.number, "changed"))
    return jobs


def _one(job: tuple[str, int, str]) -> Outcome:
    command, number, then = job
    if then in ("sync", "full"):
        return try_disk(command, then, number)
    return try_crash(command, number, then=then)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.exhaustive")
    parser.add_argument("--command", choices=COMMANDS)
    parser.add_argument("--then", choices=("apply", "destroy", "changed", "sync", "full"))
    parser.add_argument("--point", type=int)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args(arguments)
    if chosen.point is not None:
        command = chosen.command or "apply"
        again = "destroy" if command == "destroy" else "apply"
        outcome = _one((command, chosen.point, chosen.then or again))
        say(outcome)
        return 1 if outcome.broken else 0
    groups: list[Class] = []
    points: list[Point] = []
    troubles: list[tuple[str, int, str]] = []
    for command in (chosen.command,) if chosen.command else COMMANDS:
        found = passed(command)
        points += [point for point, _ in found]
        groups += classes(command, found)
        syncs = sum(point.site.startswith("sync of") and point.phase == "after" for point, _ in found)
        troubles += [(command, number, "sync") for number in range(1, syncs + 1, chosen.every)]
        troubles += [(command, number, "full") for number in range(0, 60_000, 997 * chosen.every)]
    jobs = [*jobs_of(groups, every=chosen.every), *troubles]
    bad = 0
    for number, outcome in enumerate(spread(_one, jobs, processes=chosen.jobs, at_once=4), 1):
        if outcome.broken:
            bad += 1
            say(outcome)
        if number % 50 == 0:
            say(f"… {number} of {len(jobs)} crashes, {bad} bad")
    say(summary(points, groups, jobs))
    say(f"{bad} of {len(jobs)} crashes were not mended by one plain re-run")
    return 1 if bad else 0


def summary(points: Sequence[Point], groups: Sequence[Class], jobs: Sequence[object]) -> str:
    sites = {point.site for point in points}
    pairs = {(point.site, point.phase) for point in points}
    return (
        f"{len(points)} points at {len(sites)} sites, {len(pairs)} distinct (site, phase) pairs; "
        f"{len(groups)} different crashes; {len(jobs)} runs"
    )


if __name__ == "__main__":
    sys.exit(main())
