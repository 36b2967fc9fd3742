"""The market during a run, in virtual time, on a scripted feed: fresh prices, ceilings kept, nobody on others' GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

import pytest

from bench.placement import feed_of, slices
from lium_plan.addresses import Address, parse
from lium_plan.diagnostics import error
from lium_plan.engine.commitments import Commitments, Holding
from lium_plan.engine.market import Desk, Limits
from lium_plan.kinds.pod.offers import Feed, Offer, Requirement
from lium_plan.kinds.protocol import ActionFailed, Claim
from lium_plan.planning.placement import Need, ceiling_of, place
from tests.support.virtual import run_virtual

NOBODY: frozenset[str] = frozenset()


def market(*rows: str) -> Feed:
    """`n1 1-4 2.00`: a node, the counts that it can be ordered in, USD per GPU and hour."""
    offers: list[Offer] = []
    for row in rows:
        node, counts, price = row.split()
        low, _, high = counts.partition("-")
        offers.extend(slices(node, "H100", range(int(low), int(high or low) + 1), Decimal(price)))
    return feed_of(offers)


def member(index: int, fleet: str = "a") -> Address:
    return parse(f"fleet.{fleet}[{index}]")


class Scene:
    """A run of `count` members of one fleet over a feed that the test changes as it goes."""

    def __init__(
        self,
        feed: Feed,
        count: int,
        *,
        gpus: int = 1,
        placement: str = "any",
        limit: str | None = None,
        strict: bool = False,
        holdings: Sequence[Holding] = (),
        open_rents: Mapping[Address, Decimal] | None = None,
    ) -> None:
        self.feed = feed
        self.read_at: list[float] = []
        self.takes_s = 0.0
        self.holdings = list(holdings)
        self.wanted = Requirement(("h100",), gpus)
        needs = [Need(member(index), self.wanted, "a", placement) for index in range(count)]
        placed = place(needs, feed)
        self.planned = {address: found.offer for address, found in placed.items() if found.offer is not None}
        self.ceilings = {address: ceiling_of(self.wanted, offer) for address, offer in self.planned.items()}
        self.desk = Desk(
            self.load,
            needs={need.address: need for need in needs},
            renting=[need.address for need in needs],
            planned=self.planned,
            ceilings=self.ceilings,
            commitments=Commitments(self.changes, lambda: open_rents or {}),
            limits=Limits(None if limit is None else Decimal(limit), strict),
        )

    def changes(self) -> Iterator[tuple[str, Holding | None]]:
        yield from ((str(number), None) for number in range(10))
        yield from ((str(number), holding) for number, holding in enumerate(self.holdings))

    async def load(self) -> Feed:
        self.read_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.takes_s)
        return self.feed

    async def claim(self, index: int, *refused: str, planned: bool = True) -> Claim:
        address = member(index)
        return await self.desk.claim(
            address,
            self.wanted,
            planned=self.planned.get(address) if planned and not refused else None,
            ceiling_per_hour_usd=self.ceilings.get(address),
            refused=frozenset(refused),
        )


def virtual(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    async def body() -> None:
        await test()

    def run() -> None:
        run_virtual(body())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@virtual
async def test_a_reading_serves_for_a_minute_and_no_longer() -> None:
    scene = Scene(market("n1 1-8 2.00"), 4)
    for index, wait_s in enumerate((0, 59, 2, 1)):
        await asyncio.sleep(wait_s)
        await scene.claim(index)
    assert scene.read_at == [0, 61]


@virtual
async def test_the_age_counts_from_before_the_question() -> None:
    scene = Scene(market("n1 1-8 2.00"), 2)
    scene.takes_s = 40
    await scene.claim(0)
    await asyncio.sleep(21)
    assert not scene.desk.allows_now(Claim(member(0), scene.planned[member(0)], Decimal(3)))
    await scene.claim(1)
    assert scene.read_at == [0, 61]


@virtual
async def test_many_ask_at_once_and_the_feed_is_read_once() -> None:
    scene = Scene(market("n1 1-8 2.00"), 8)
    scene.takes_s = 3
    claims = await asyncio.gather(*(scene.claim(index) for index in range(8)))
    assert scene.read_at == [0]
    assert {claim.offer.node_id for claim in claims} == {"n1"}


@virtual
async def test_a_price_beyond_the_ceiling_is_not_taken() -> None:
    scene = Scene(market("n1 1 2.00", "n2 1 2.10", "n3 1 2.50"), 1)
    scene.feed = market("n1 1 2.21", "n2 1 2.15", "n3 1 2.50")
    assert (await scene.claim(0)).offer.node_id == "n2"
    scene = Scene(market("n1 1 2.00"), 1)
    scene.feed = market("n1 1 2.20")
    assert (await scene.claim(0)).offer.price_per_hour_usd == Decimal("2.20")
    scene = Scene(market("n1 1 2.00"), 1)
    scene.feed = market("n1 1 2.20001")
    with pytest.raises(ActionFailed, match=r"its ceiling \$2\.20 excludes 1 of 1; max_price \$2\.21 would"):
        await scene.claim(0)


@virtual
async def test_who_has_what_would_have_fitted_is_said_first() -> None:
    scene = Scene(market("n1 1 2.00", "n2 1 2.00"), 3)
    for index in (0, 1):
        await scene.claim(index)
    with pytest.raises(ActionFailed) as caught:
        await scene.claim(2)
    said = caught.value.diagnostic.message
    start = "nothing to rent: only 2 such nodes are on the market, and fleet.a[0], fleet.a[1] have them"
    assert said.startswith(start), said


@virtual
async def test_after_a_refusal_everybody_who_waits_is_placed_anew() -> None:
    """The first takes what the second would have had only if that leaves the second something."""
    scene = Scene(market("n1 1 2.00", "n2 1 2.00", "n3 1 2.10"), 2)
    first = await scene.claim(0)
    assert first.offer.node_id == "n1"
    scene.desk.release(member(0))
    again = await scene.claim(0, "n1")
    other = await scene.claim(1)
    assert {again.offer.node_id, other.offer.node_id} == {"n2", "n3"}


@virtual
async def test_the_ceilings_of_those_who_wait_bind_when_they_are_placed_anew() -> None:
    feed = market("n1 1 1.00", "n2 1 1.05", "n3 1 2.00")
    scene = Scene(feed, 3)
    assert scene.ceilings[member(0)] == Decimal("1.10")
    assert scene.ceilings[member(2)] == Decimal("2.20")
    scene.feed = market("n2 1 1.05", "n3 1 2.00", "n4 1 1.90")
    claims = [await scene.claim(0, "n1")]
    with pytest.raises(ActionFailed, match=r"nothing (else )?to rent"):
        await scene.claim(1)
    claims.append(await scene.claim(2))
    assert [claim.offer.node_id for claim in claims] == ["n2", "n3"]
    assert all(claim.offer.price_per_hour_usd <= claim.ceiling_per_hour_usd for claim in claims)


@virtual
async def test_the_gpus_of_a_node_are_not_handed_out_twice() -> None:
    scene = Scene(market("n1 1-4 1.00", "n2 1-4 1.05"), 4, gpus=2)
    taken = [(await scene.claim(index)).offer.node_id for index in range(4)]
    assert sorted(taken) == ["n1", "n1", "n2", "n2"]
    scene.desk.release(member(3))
    await asyncio.sleep(10)
    # Read anew, and the server's snapshot is older than the rents: it still shows all as free.
    scene.desk.release(member(3))
    assert (await scene.claim(3, planned=False)).offer.node_id == taken[3]
    with pytest.raises(ActionFailed, match=r"nothing (else )?to rent"):
        await scene.claim(4)


@virtual
async def test_a_reading_that_shows_what_was_taken_is_believed() -> None:
    scene = Scene(market("n1 1-8 1.00"), 4, gpus=2)
    await asyncio.sleep(30)
    for index in range(3):
        await scene.claim(index)
        scene.desk.rented(member(index), Decimal(2))
    await asyncio.sleep(61 - 0)
    scene.feed = market("n1 1-2 1.00")
    assert (await scene.claim(3)).offer.gpu_count == 2


@virtual
async def test_an_old_snapshot_is_not_believed() -> None:
    scene = Scene(market("n1 1-8 1.00", "n2 1-2 1.05"), 5, gpus=2)
    for index in range(4):
        await scene.claim(index)
    await asyncio.sleep(6)
    assert (await scene.claim(4, "n3")).offer.node_id == "n2"  # read again: n1 is still shown as free


@virtual
async def test_spread_members_don_t_meet_after_a_substitution() -> None:
    scene = Scene(market("n1 1-4 1.00", "n2 1-4 1.01", "n3 1-4 1.02"), 2, placement="spread")
    scene.holdings = [Holding(member(7), Decimal(1), "n3")]
    assert (await scene.claim(0)).offer.node_id == "n1"
    scene.desk.release(member(0))
    first = (await scene.claim(0, "n1")).offer.node_id
    assert first == "n2"  # nobody else may sit on n3, where a living member is, and n1 refused
    assert (await scene.claim(1)).offer.node_id == "n1"


@virtual
async def test_strict_offers_take_no_other() -> None:
    scene = Scene(market("n1 1 2.00", "n2 1 2.00"), 1, strict=True)
    await scene.claim(0)
    scene.desk.release(member(0))
    for refused, planned in ((("n1",), False), (("n1",), True)):
        with pytest.raises(ActionFailed, match="--strict-offers") as failure:
            await scene.claim(0, *refused, planned=planned)
        assert failure.value.diagnostic.code == "strict-offers"
    assert (await scene.claim(0, planned=False)).offer.node_id == "n1"  # asked again later, while `retry` lasts


# --- money ---------------------------------------------------------------------------------------------------


@virtual
async def test_ceilings_in_flight_are_reserved_against_the_limit() -> None:
    scene = Scene(market("n1 1-8 2.00"), 3, limit="6.50")
    await scene.claim(0)
    await scene.claim(1)
    with pytest.raises(ActionFailed, match=r"may cost up to \$2.20.*\$4.40.*limit of \$6.50"):
        await scene.claim(2)
    scene.desk.rented(member(0), Decimal("2.00"))  # a listing showed the price; its reserve is no longer needed
    scene.desk.rented(member(1), Decimal("2.00"))
    assert (await scene.claim(2)).ceiling_per_hour_usd == Decimal("2.20")


@virtual
async def test_what_runs_and_what_is_unknown_count() -> None:
    running = Holding(member(9), Decimal("3.00"), "n9")
    deposed = Holding(member(0), Decimal("1.00"), "n8", deposed=True)
    lost = {member(8): Decimal("0.40")}
    assert await claims_within("6.60", running, deposed, open_rents=lost)
    assert not await claims_within("6.59", running, deposed, open_rents=lost)


async def claims_within(limit: str, *holdings: Holding, open_rents: Mapping[Address, Decimal]) -> bool:
    scene = Scene(market("n1 1 2.00"), 1, limit=limit, holdings=holdings, open_rents=open_rents)
    try:
        await scene.claim(0)
    except ActionFailed as failure:
        if failure.diagnostic.code == "max-hourly-cost":
            return False
        raise
    return True


@virtual
async def test_what_is_replaced_goes_first_and_does_not_count_beside_its_successor() -> None:
    old = Holding(member(0), Decimal("5.00"), "n9")
    assert await claims_within("2.20", old, open_rents={})


@virtual
async def test_releasing_what_was_deposed_leaves_its_successor_counted() -> None:
    scene = Scene(market("n1 1-8 2.00"), 2, limit="4.00")
    await scene.claim(0)
    scene.desk.rented(member(0), Decimal("2.00"))
    scene.holdings = [Holding(member(0), Decimal("2.00"), "n1")]
    scene.desk.release(member(0))  # the old pod at the same address is gone
    with pytest.raises(ActionFailed, match="limit of"):
        await scene.claim(1)


@virtual
async def test_the_last_look_minds_age_price_presence_and_limit() -> None:
    scene = Scene(market("n1 1 2.00"), 1, limit="2.20")
    claim = await scene.claim(0)
    assert scene.desk.allows_now(claim)
    assert await scene.desk.still_allowed(claim)
    await asyncio.sleep(60.5)
    assert not scene.desk.allows_now(claim)  # too old to rely on
    assert await scene.desk.still_allowed(claim)  # reads it again
    assert scene.desk.allows_now(claim)
    scene.holdings = [Holding(member(5), Decimal("0.01"))]
    assert not scene.desk.allows_now(claim)
    scene.holdings = []
    for changed in (market("n1 1 2.20001"), market("n2 1 1.00")):
        await asyncio.sleep(61)
        scene.feed = changed
        assert not await scene.desk.still_allowed(claim)
    dearer = replace(claim, ceiling_per_hour_usd=Decimal("2.00"))
    await asyncio.sleep(61)
    scene.feed = market("n1 1 2.00")
    assert await scene.desk.still_allowed(dearer)


@virtual
async def test_what_is_to_be_replaced_is_billed_until_it_has_gone() -> None:
    """Its successor is claimed before it is deleted, and others look at the limit meanwhile."""
    scene = Scene(market("n1 1-8 2.00"), 2, limit="7.00")
    scene.holdings = [Holding(member(0), Decimal("5.00"), "n9")]
    await scene.claim(0)
    with pytest.raises(ActionFailed, match=r"\$5.00/h of the limit"):
        await scene.claim(1)
    scene.holdings = []
    await scene.claim(1)


@virtual
async def test_what_came_back_dearer_counts_at_what_it_costs() -> None:
    scene = Scene(market("n1 1-8 2.00"), 2, limit="8.00")
    await scene.claim(0)
    scene.desk.rented(member(0), Decimal("18.00"))
    with pytest.raises(ActionFailed, match=r"\$18.00/h of the limit"):
        await scene.claim(1)


@virtual
async def test_a_price_that_rises_while_the_pod_runs_counts() -> None:
    scene = Scene(market("n1 1-8 2.00"), 2, limit="6.00")
    await scene.claim(0)
    scene.desk.rented(member(0), Decimal("2.00"))
    scene.holdings = [Holding(member(0), Decimal("4.00"), "n1")]
    with pytest.raises(ActionFailed, match=r"\$4.00/h of the limit"):
        await scene.claim(1)


@virtual
async def test_a_reading_under_way_is_waited_for() -> None:
    """Its answers are here already, and show another price: nothing is sent by the one before."""
    scene = Scene(market("n1 1 2.00", "n2 1 2.00"), 2)
    claim = await scene.claim(0)
    await asyncio.sleep(6)
    scene.takes_s = 3
    scene.feed = market("n1 1 9.00", "n2 1 2.00")
    other = asyncio.create_task(scene.claim(1, "n2"))
    await asyncio.sleep(1)
    assert not scene.desk.allows_now(claim)
    assert not await scene.desk.still_allowed(claim)
    with pytest.raises(ActionFailed):
        await other


@virtual
async def test_the_ceiling_of_the_first_offer_does_not_climb_with_the_next_ones() -> None:
    scene = Scene(market("n9 8 1.00"), 1)
    assert member(0) not in scene.ceilings, "the plan had no offer for it"
    scene.feed = market("n1 1 1.00", "n2 1 1.05", "n3 1 1.15")
    await asyncio.sleep(61)
    first = await scene.claim(0)
    assert first.ceiling_per_hour_usd == Decimal("1.10000")
    scene.desk.release(member(0))
    second = await scene.claim(0, "n1")
    assert (second.offer.node_id, second.ceiling_per_hour_usd) == ("n2", Decimal("1.10000"))
    scene.desk.release(member(0))
    with pytest.raises(ActionFailed, match=r"nothing (else )?to rent"):
        await scene.claim(0, "n1", "n2")


@virtual
async def test_a_rise_that_was_announced_since_the_plan_is_left_alone() -> None:
    scene = Scene(market("n1 1 2.00", "n2 1 2.10"), 1)
    claim = await scene.claim(0)
    scene.desk.release(member(0))
    risen = [replace(o, pending_price_per_hour_usd=Decimal(4)) if o.node_id == "n1" else o for o in scene.feed.offers]
    scene.feed = replace(scene.feed, offers=tuple(risen))
    await asyncio.sleep(61)
    assert not await scene.desk.still_allowed(claim)
    assert (await scene.claim(0)).offer.node_id == "n2"


@virtual
async def test_a_market_that_can_not_be_read_allows_nothing() -> None:
    scene = Scene(market("n1 1 2.00"), 1)
    claim = await scene.claim(0)

    async def fails() -> Feed:
        raise ActionFailed(error("api-error", "500"))

    scene.desk._load_feed = fails
    await asyncio.sleep(61)
    assert not await scene.desk.still_allowed(claim)
    with pytest.raises(ActionFailed, match="500"):
        await scene.claim(0)
