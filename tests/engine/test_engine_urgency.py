"""Who goes first through a rate limit: what the longest work waits for, from the plan to the server's own requests."""

from __future__ import annotations

import json

from tests.support.world import World
from tests.support.world_machines import Behaviour
from tests.support.world_opening import run_world

MANIFEST = """
version: 1
project: urgent
templates:
  a: {image: "limsim/a:1"}
  b: {image: "limsim/b:1"}
  c: {image: "limsim/c:1"}
fleets:
  a: {resources: {gpu: "RTX4090:1"}, max_price: 1.00, template: a, ttl: 12h}
  b: {resources: {gpu: "RTX4090:1"}, max_price: 1.00, template: b, ttl: 12h, bootstrap: {commands: [b], timeout: 5m}}
  c: {resources: {gpu: "RTX4090:1"}, max_price: 1.00, template: c, ttl: 12h, bootstrap: {commands: [c], timeout: 50m}}
"""


def test_the_template_with_the_most_behind_it_is_made_first() -> None:
    async def story(world: World) -> tuple[list[str], int]:
        ran = await world.apply()
        assert ran.code == 0, ran.words
        asked = [row for row in world.lium.world.requests if row.path == "/templates"]
        made = [json.loads(row.body or "")["docker_image"] for row in asked if row.method == "POST"]
        return made, sum(row.method == "GET" for row in asked)

    made, looks = run_world(
        3, story, manifest=MANIFEST, expected=("a-0", "b-0", "c-0"), behaviours=(Behaviour("c", 100.0),), foreign=False
    )
    assert made == ["limsim/c:1", "limsim/b:1", "limsim/a:1"]
    assert looks == 1, "one list for all who look at the same moment"
