"""One local Lium: a world, its clock, the machines behind it, and where it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lium_plan.sim import containers, faults, livelihood, misfortune
from lium_plan.sim.clock import Clock
from lium_plan.sim.history import HANDLERS
from lium_plan.sim.machines import Machines
from lium_plan.sim.podrows import PodRows
from lium_plan.sim.rows import ContainerState
from lium_plan.sim.runtime import Runtime
from lium_plan.sim.seeding import DEFAULT_NODES, FeedFile, seed_from_feed, seed_nodes, seed_templates
from lium_plan.sim.settings import Settings
from lium_plan.sim.store import FileStore, NoStore, Store
from lium_plan.sim.world import World


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a new world is made of. A world loaded from a file has its own."""

    seed: int = 1
    nodes: int = DEFAULT_NODES
    settings: Settings = field(default_factory=lambda: Settings())
    feed: Mapping[str, object] | None = None
    """A saved answer of the public feed; its rows become the nodes."""
    scenario: Sequence[faults.FaultSpec] = ()


def populate(world: World, beginning: Beginning) -> None:
    """Raises pydantic's ValidationError for a feed that is none."""
    seed_templates(world)
    if beginning.feed is None:
        seed_nodes(world, beginning.nodes)
    else:
        rows = FeedFile.model_validate(beginning.feed).nodes
        given = beginning.feed["nodes"]
        seed_from_feed(world, rows, given if isinstance(given, list) else [])
    faults.apply_settings(world, beginning.settings)
    for spec in beginning.scenario:
        faults.add(world, spec)


class Simulator:
    """Open it in a running event loop: `async with Simulator(…) as simulator`, then talk to `build_app(simulator)`."""

    def __init__(
        self,
        beginning: Beginning,
        *,
        clock: Clock,
        runtime: Runtime,
        store: FileStore | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.beginning = beginning
        self.clock = clock
        self.runtime = runtime
        self.say = say
        self.world = World(seed=beginning.seed, now=clock.now(), settings=beginning.settings, handlers=HANDLERS)
        self.pod_rows = PodRows()
        self._store: Store = store or NoStore()
        self._unkept = False
        self.resumed = False
        if store is not None and store.has_world:
            speed = beginning.settings.speed
            store.load(self.world)
            self.world.settings = self.world.settings.model_copy(update={"speed": speed})
            self.clock.push(self.world.clock_shift_s - self.clock.shift_s)
            self.resumed = True
        else:
            populate(self.world, beginning)
        if store is not None:
            store.begin(self.world)
        self.machines = Machines(self.world, runtime, clock, advance=self.advance, commit=self.commit, say=say)

    async def __aenter__(self) -> Simulator:
        if self.resumed:
            self.advance()
            containers.restart_containers(self.world)
        self.machines.start()
        self.machines.kick()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.machines.close()
        self.commit()
        self._store.close()
        await self.runtime.close()

    def advance(self) -> None:
        """Bring the world to the present."""
        self.world.advance(self.clock.now())

    def commit(self) -> bool:
        """What happened is on disk when this is true. Otherwise the next call tries again, and nothing may be told."""
        try:
            self._store.flush(self.world)
        except OSError as problem:
            if not self._unkept:
                self.say(f"cannot write the world's file: {problem.strerror}; until that works, the answer is 500")
            self._unkept = True
            return False
        if self._unkept:
            self.say("the world's file is written again")
        self._unkept = False
        return True

    async def jump(self, seconds: float) -> None:
        """Push the world's time forward, from one due moment to the next, letting the machines follow each time."""
        left = seconds
        while True:
            due = self.world.next_due()
            until_due = left if due is None else (due - self.clock.now()).total_seconds()
            step = min(left, max(0.0, until_due))
            self.clock.push(step)
            left -= step
            self.world.clock_shift_s = self.clock.shift_s
            self.advance()
            self.commit()
            self.machines.kick()
            await self.machines.settle()
            if left <= 0:
                return
            await asyncio.sleep(0)  # a long jump has many moments: let others in between

    async def reset(self) -> None:
        """A new world from the same beginning; every container is stopped."""
        for pod in self.world.pods:
            if pod.container is not ContainerState.NONE:
                misfortune.vanish(self.world, pod)
        for volume in self.world.volumes:
            containers.forget_volume(self.world, volume.id)
        self.machines.kick()
        await self.machines.settle()
        self.world.wipe()
        self.world.started_at = self.world.now
        populate(self.world, self.beginning)
        livelihood.begin(self.world)
        self.commit()
