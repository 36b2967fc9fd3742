"""A plan that keeps to the limit can be carried out: its rents wait until what it deletes has made room for them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from lium_plan.diagnostics import ExitCode
from lium_plan.requests import ApplyRequest, PlanRequest
from tests.simulation.manifests import HEAD, fleet
from tests.simulation.telling import emptied, rents, told
from tests.support.world import Ran, World

LIMIT = Decimal("1.00")
"""Three of the fleets' pods run below it, and no fourth is rented beside them."""
BESIDE = "    lifecycle: {create_before_destroy: true}\n"


def fleets(**members: int) -> str:
    """Fleets of so many members each."""
    alike = fleet(9).removeprefix(f"{HEAD}fleets:\n").replace("max_price: 1.00", "max_price: 0.35")
    blocks = (alike.replace("  a:", f"  {name}:").replace("9", f"{nodes}", 1) for name, nodes in members.items())
    return f"{HEAD}fleets:\n{''.join(blocks)}"


def price(world: World) -> Decimal:
    """USD per hour of all that runs."""
    return sum((charge.price_per_hour for charge in world.open_charges("pod")), Decimal(0))


def most(world: World) -> Decimal:
    """USD per hour of all that ever ran at the same time."""
    charges = [charge for charge in world.lium.world.charges if charge.kind == "pod" and charge.name.startswith("lp-")]
    sums = (
        sum(
            (
                other.price_per_hour
                for other in charges
                if other.since <= charge.since and (other.until is None or other.until > charge.since)
            ),
            Decimal(0),
        )
        for charge in charges
    )
    return max(sums, default=Decimal(0))


def within(limit_usd: Decimal, **more: object) -> PlanRequest:
    return PlanRequest(max_hourly_cost_usd=limit_usd, allow_destroy=("all",), **more)  # type: ignore[arg-type]


def phases(ran: Ran) -> list[str]:
    return [event.phase for event in ran.events if event.phase and "waiting for room" in event.phase]


@pytest.mark.parametrize("parallelism", [0, 1])
def test_rents_wait_for_what_goes_and_never_exceed_the_limit(parallelism: int) -> None:
    """One that waits takes no place: what it waits for could not begin."""

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.write("lium.yaml", fleets(b=2))
        assert LIMIT * 3 / 4 < price(world) < LIMIT
        ran = await world.apply(request=within(LIMIT), options=ApplyRequest(parallelism=parallelism))
        assert ran.code == 0, ran.words
        assert most(world) <= LIMIT
        if not parallelism:
            assert "waiting for room under --max-hourly-cost: 3 pods to be deleted" in phases(ran)
        await emptied(world)

    told(story, manifest=fleets(a=3), expected=("b-0", "b-1"))


def test_of_two_halves_the_first_waits_for_others_and_never_for_its_own_second() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.write("lium.yaml", fleets(b=2) + BESIDE)
        limit = price(world) + Decimal("0.10")
        ran = await world.apply(request=within(limit, replace=("fleet.b[*]",)))
        assert ran.code == 0, ran.words
        assert phases(ran)
        assert most(world) <= limit
        assert len(rents(world)) == 7
        await emptied(world)

    told(story, manifest=fleets(a=3, b=2) + BESIDE, expected=("a-0", "a-1", "a-2", "b-0", "b-1"))


def test_the_limit_refuses_once_nothing_is_left_that_could_make_room() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.write("lium.yaml", fleets(b=2))
        world.fault({"do": "answer", "status": 409}, method="DELETE", path="pods/*", times=None)
        ran = await world.apply(request=within(LIMIT), options=ApplyRequest(wait_timeout_s=60))
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "max-hourly-cost" in ran.words
        assert ran.report is not None
        refused = {str(item.cause.hint) for item in ran.report.results if item.cause and item.address.name == "b"}
        assert refused == {"raise --max-hourly-cost, or lower the fleet's max_price"}
        assert len(rents(world)) == 3
        world.clear_faults()
        await emptied(world)

    told(story, manifest=fleets(a=3), expected=("b-0", "b-1"))


def test_an_interrupt_ends_the_wait_for_room() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.write("lium.yaml", fleets(b=2))
        world.fault({"do": "stick", "pod": "*-a-*"})
        began = world.clock
        ran = await world.apply(request=within(LIMIT), interrupt_after_s=(120,))
        assert ran.code == ExitCode.INTERRUPTED, ran.words
        assert phases(ran)
        assert world.clock - began < 130
        assert len(rents(world)) == 3
        world.fault({"do": "unstick", "pod": "*"})
        await world.pass_time(5)
        await emptied(world)

    told(story, manifest=fleets(a=3), expected=("b-0", "b-1"))
