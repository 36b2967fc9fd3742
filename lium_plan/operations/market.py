"""`offers`: what can be rented now, filtered as a fleet would; needs no key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.answers import LeftOut, OffersAnswer, OffersQuery
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, counted, error, warning
from lium_plan.kinds.pod.offers import ANY, Feed, Offer, Requirement, Tier
from lium_plan.kinds.pod.spec import requirement_of as fleet_requirement
from lium_plan.kinds.registry import kind
from lium_plan.kinds.values import PlainFloat
from lium_plan.manifest.expand import expand
from lium_plan.operations.connecting import api_failures, connect
from lium_plan.operations.observing import load_feed
from lium_plan.operations.validating import load_manifest
from lium_plan.planning.exclusions import RISING, TAKEN, Exclusion, explain
from lium_plan.planning.exclusions import summary as why_nothing
from lium_plan.planning.placement import Need, Placed, place
from lium_plan.planning.rents import placement_of, ttl_s
from lium_plan.requests import Sources
from lium_plan.settings import Settings

EVERYTHING = Requirement((), 0, tiers=(Tier.SECURE, Tier.SPOT))


async def list_offers(settings: Settings, query: OffersQuery) -> OffersAnswer:
    """Raises `Failure` for a filter that makes no sense, or when the market can't be read."""
    members = _members(settings, query)
    wanted = asked_for(query, members[0].requirement if members else EVERYTHING)
    async with connect(settings, key_needed=False) as connection:
        with api_failures("read the market"):
            feed = await load_feed(connection.client)
        now = connection.client.server_time()
    needs = [
        replace(need, requirement=wanted, until=None if ttl is None else now + timedelta(seconds=ttl))
        for need, ttl in ((member.need, member.ttl_s) for member in members)
    ]
    return answer(feed, wanted, needs=needs)


def answer(feed: Feed, wanted: Requirement, *, needs: Sequence[Need] = ()) -> OffersAnswer:
    """The offers that fit, what each constraint leaves out, and what the members of a fleet would get."""
    fitting = tuple(offer for offer in feed.offers if wanted.fits(offer))
    left_out: Counter[str] = Counter()
    for offer in feed.offers:
        left_out.update(wanted.violations(offer))
    why = explain(wanted, feed.offers) if feed.offers else ()
    placed = place(needs, feed) if needs else {}
    return OffersAnswer(
        feed.generated_at,
        feed.nodes,
        fitting,
        feed.skipped,
        tuple(left_out.most_common()),
        tuple(_missing(feed, fitting, placed)),
        tuple(_left_out(why, fitting)),
        tuple((str(address), found.offer) for address, found in placed.items()),
    )


def _missing(feed: Feed, fitting: Sequence[Offer], placed: Mapping[Address, Placed]) -> Iterator[Diagnostic]:
    lacking = [(address, found) for address, found in placed.items() if found.offer is None]
    if lacking:
        address, found = lacking[0]
        yield warning(
            "no-offer",
            f"nothing for {len(lacking)} of {counted(len(placed), 'member')}: {why_nothing(found.exclusions)}",
            address=f"fleet.{address.name}",
        )
    elif not fitting and feed.offers:
        yield warning("no-offer", "nothing on offer fits")  # what is left out, and by what, is in the answer


def _left_out(why: Iterable[Exclusion], fitting: Sequence[Offer]) -> Iterator[LeftOut]:
    """What to loosen. While something fits, other GPUs are not what was asked for, nor are dearer offers news."""
    cheapest = min((offer.price_per_hour_usd for offer in fitting), default=None)
    for item in why:
        if item.constraint in (TAKEN, RISING) or (fitting and item.constraint in ("gpu", "gpu count")):
            continue
        nearest = item.nearest
        if cheapest is not None and nearest is not None and (item.others or nearest.price_per_hour_usd >= cheapest):
            item, nearest = replace(item, nearest=None, cure=""), None
        yield LeftOut(
            item.constraint, item.wanted, item.excluded, item.considered, nearest, item.cure, sentence=str(item)
        )


def asked_for(query: OffersQuery, base: Requirement = EVERYTHING) -> Requirement:
    """A fleet's constraints, narrowed by the other filters. Raises `Failure` (64) for one that makes no sense."""
    asked = _filters(query)
    given = {
        "gpus": asked.gpus,
        "gpu_count": asked.gpu_count if query.gpu is not None else 0,
        "gpu_memory": None if asked.gpu_memory == ANY else asked.gpu_memory,
        "cpu": None if asked.cpu == ANY else asked.cpu,
        "memory": None if asked.memory == ANY else asked.memory,
        "disk": None if asked.disk == ANY else asked.disk,
        "regions": asked.regions,
        "tiers": asked.tiers if query.spot_policy is not None else (),
        "max_price_usd": asked.max_price_usd,
        "min_download_mbps": asked.min_download_mbps,
        "nvlink": asked.nvlink,
        "reliable": asked.reliable,
        "min_cuda": asked.min_cuda,
    }
    return replace(base, **{name: value for name, value in given.items() if value})  # type: ignore[arg-type]


def _filters(query: OffersQuery) -> Requirement:
    """The filters read as a fleet would write them, so that both mean the same. Raises `Failure` (64)."""
    from pydantic import ValidationError

    from lium_plan.kinds.pod.block import FleetBlock

    written = {
        "image": "any",
        "resources": {"gpu": query.gpu or "1", "cpu": query.cpu, "memory": query.memory, "disk": query.disk},
        "regions": list(query.regions),
        "spot_policy": query.spot_policy,
        "max_price": _written(query.max_price_usd),
        "min_download": query.min_download,
        "nvlink": query.nvlink or None,
        "reliable": query.reliable or None,
        "min_cuda": _written(query.min_cuda),
    }
    try:
        return fleet_requirement(FleetBlock.model_validate(_without_none(written)))
    except ValidationError as wrong:
        findings = [error("bad-filter", f"--{_flag(fault['loc'])}: {fault['msg']}") for fault in wrong.errors()]
        raise Failure(ExitCode.USAGE, findings) from wrong


def _flag(place: Sequence[int | str]) -> str:
    """The option that gave what stands at this place of the fleet: `gpu` for `resources.gpu.name`."""
    outer = place[1] if place[0] == "resources" and len(place) > 1 else place[0]
    return "region" if outer == "regions" else str(outer).replace("_", "-")


def _written(number: Decimal | None) -> PlainFloat | None:
    """As the manifest's reader gives a number."""
    return None if number is None else PlainFloat(f"{number:f}")


def _without_none(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


@dataclass(frozen=True, slots=True)
class _Member:
    need: Need
    requirement: Requirement
    ttl_s: int | None


def _members(settings: Settings, query: OffersQuery) -> tuple[_Member, ...]:
    """The members of the fleet that was named. Raises `Failure`."""
    if query.fleet is None:
        return ()
    manifest = load_manifest(settings, query.sources or Sources())
    desired = expand(manifest, stack=settings.stack)
    found = []
    for resource in desired.resources.values():
        wanted = kind(resource.kind).requirement(resource.spec)
        if wanted is not None and resource.address.name == query.fleet:
            need = Need(resource.address, wanted, query.fleet, placement_of(resource))
            found.append(_Member(need, wanted, ttl_s(resource)))
    if found:
        return tuple(found)
    known = ", ".join(sorted(desired.fleets)) or "none"
    raise Failure(
        ExitCode.ERROR,
        (error("no-such-fleet", f"there is no fleet {query.fleet} with members", hint=f"fleets: {known}"),),
    )
