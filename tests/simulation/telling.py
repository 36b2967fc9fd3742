"""What the cases share: a world with a small manifest in which no oracle may be broken."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence

from lium_plan.kinds.protocol import Record
from lium_plan.sim.settings import Settings as ServerSettings
from tests.simulation.manifests import fleet, tails
from tests.support.world import Ran, World
from tests.support.world_machines import Behaviour
from tests.support.world_opening import run_world
from tests.support.world_oracles import agrees, all_done
from tests.support.world_process import Point

RENT = {"method": "POST", "path": "executors/*/rent"}
SEED = 11


def told(
    story: Callable[[World], Awaitable[None]],
    *,
    nodes: int = 1,
    manifest: str | None = None,
    expected: Sequence[str] | None = None,
    behaviours: tuple[Behaviour, ...] = (),
    server: ServerSettings | None = None,
) -> None:
    """Tell it in a world with one fleet `a` of `nodes`, or with `manifest`; nothing may be broken in the end."""

    async def whole(world: World) -> None:
        await story(world)
        assert not world.broken, "\n".join([*world.broken, *world.log])

    run_world(
        SEED,
        whole,
        manifest=manifest if manifest is not None else fleet(nodes),
        expected=tails(nodes) if expected is None else expected,
        behaviours=behaviours,
        server=server,
    )


async def mended(world: World) -> None:
    """One plain apply makes it right, and the next has nothing to do."""
    ran = await world.apply()
    assert ran.code == 0, ran.words
    all_done(world)
    agrees(world, ran)
    before = world.changes()
    assert (await world.apply()).code == 0
    assert world.changes() == before


async def emptied(world: World) -> Ran:
    """One plain destroy leaves nothing of ours."""
    ran = await world.destroy()
    assert ran.code == 0, ran.words
    assert world.open_charges() == ()
    return ran


def rents(world: World) -> list[str]:
    """The pod names that rents were sent for, in order; planted ones left out."""
    rows = (row for row in world.lium.world.requests if row.method == "POST" and row.path.endswith("/rent"))
    return [name for row in rows if row.body and (name := json.loads(row.body)["pod_name"]).startswith("lp-")]


def pods(world: World) -> list[str]:
    """The ids of all that are billed."""
    return [charge.object_id for charge in world.open_charges("pod")]


def open_ops(world: World) -> list[str]:
    state = world.state()
    assert state is not None
    return [effect.op for effect in state.open.values()]


def watched(world: World) -> list[str]:
    """The names of rents that may still turn up."""
    state = world.state()
    assert state is not None
    return [item.name for item in state.watched]


def record(world: World, key: str = "fleet.a[0]") -> Record:
    state = world.state()
    assert state is not None
    return state.records[key]


def find_point(site: str, phase: str, nth: int, *, nodes: int = 1) -> Point:
    """Where an undisturbed apply of a fleet of `nodes` passes this site for the n-th time."""

    async def story(world: World) -> Point:
        ran = await world.apply(recording=True)
        found = [point for point, _ in ran.points if (point.site, point.phase) == (site, phase)]
        return found[nth - 1]

    return run_world(SEED, story, manifest=fleet(nodes), expected=tails(nodes))
