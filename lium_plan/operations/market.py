"""`offers`: what can be rented now, filtered as a fleet would; needs no key."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from lium_plan.answers import OffersAnswer, OffersQuery
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error, warning
from lium_plan.kinds.pod.offers import ANY, Feed, Requirement, Tier
from lium_plan.kinds.pod.spec import requirement_of as fleet_requirement
from lium_plan.manifest.expand import expand
from lium_plan.operations.connecting import api_failures, connect
from lium_plan.operations.observing import load_feed
from lium_plan.operations.validating import load_manifest
from lium_plan.planning.exclusions import explain
from lium_plan.planning.exclusions import summary as why_nothing
from lium_plan.requests import Sources
from lium_plan.settings import Settings

EVERYTHING = Requirement((), 0, tiers=(Tier.SECURE, Tier.SPOT))
"""No constraint; a count of 0 stands for any."""


async def list_offers(settings: Settings, query: OffersQuery) -> OffersAnswer:
    """Raises `Failure` for a filter that makes no sense, or when the market can't be read."""
    wanted = requirement_of(settings, query)
    async with connect(settings, key_needed=False) as connection:
        with api_failures("read the market"):
            feed = await load_feed(connection.client)
    return answer(feed, wanted, named=query.fleet)


def answer(feed: Feed, wanted: Requirement, *, named: str | None) -> OffersAnswer:
    """The offers that fit, and how many each constraint leaves out."""
    fitting = []
    left_out: Counter[str] = Counter()
    for offer in feed.offers:
        asked = wanted if wanted.gpu_count else replace(wanted, gpu_count=offer.gpu_count)
        faults = asked.violations(offer)
        left_out.update(faults)
        if not faults:
            fitting.append(offer)
    diagnostics: tuple[Diagnostic, ...] = ()
    if not fitting and feed.offers:
        asked = wanted if wanted.gpu_count else replace(wanted, gpu_count=1)
        why = why_nothing(explain(asked, feed.offers))
        diagnostics = (
            warning("no-offer", f"nothing on offer fits: {why}", address=f"fleet.{named}" if named else None),
        )
    return OffersAnswer(
        feed.generated_at, feed.nodes, tuple(fitting), feed.skipped, tuple(left_out.most_common()), diagnostics
    )


def requirement_of(settings: Settings, query: OffersQuery) -> Requirement:
    """The fleet's constraints, narrowed by the other filters. Raises `Failure`."""
    base = EVERYTHING if query.fleet is None else _fleet(settings, query)
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
        "max_price": query.max_price_usd,
        "min_download": query.min_download,
        "nvlink": query.nvlink or None,
        "reliable": query.reliable or None,
        "min_cuda": query.min_cuda,
    }
    try:
        return fleet_requirement(FleetBlock.model_validate(_without_none(written)))
    except ValidationError as wrong:
        findings = [
            error("bad-filter", f"--{str(fault['loc'][-1]).replace('_', '-')}: {fault['msg']}")
            for fault in wrong.errors()
        ]
        raise Failure(ExitCode.USAGE, findings) from wrong


def _without_none(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


def _fleet(settings: Settings, query: OffersQuery) -> Requirement:
    manifest = load_manifest(settings, query.sources or Sources())
    desired = expand(manifest, stack=settings.stack)
    for resource in desired.resources.values():
        if resource.kind == "pod" and resource.address.name == query.fleet:
            found: Requirement = resource.spec.requirement
            return found
    known = ", ".join(sorted(desired.fleets)) or "none"
    raise Failure(
        ExitCode.ERROR,
        (error("no-such-fleet", f"there is no fleet {query.fleet} with members", hint=f"fleets: {known}"),),
    )
