"""Why the market has nothing for a fleet, in terms of what was written. Pure.

For each constraint: how many of the offers in question it excludes, and the cheapest one that it alone keeps away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.kinds.pod.offers import Bounds, Offer, Requirement, preference
from lium_plan.money import most, price, rate

TAKEN = "capacity"
"""Stands for offers that fit, and that other members of the same plan take."""
RISING = "announced price"
"""Stands for offers whose price is going to rise beyond the ceiling."""
SHOWN = 4


@dataclass(frozen=True, slots=True)
class Exclusion:
    """One constraint and the offers that it rules out."""

    constraint: str
    """In the manifest's words."""
    wanted: str
    excluded: int
    considered: int
    """Offers with the right GPU and count; all where there are none, and where that is the constraint."""
    nearest: Offer | None = None
    """The cheapest offer that it alone rules out; else the one that the fewest others rule out too."""
    cure: str = ""
    """What to write instead to get `nearest`."""
    others: tuple[str, ...] = ()
    """The other constraints that rule `nearest` out; the cure loosens them too."""
    takers: tuple[Address, ...] = ()
    """Who has what is `TAKEN`, as far as they are of the same plan."""

    def __str__(self) -> str:
        if self.constraint == TAKEN:
            return _taken_words(self.excluded, self.takers)
        text = (
            f"{self.constraint}{f' {self.wanted}' if self.wanted else ''} excludes {self.excluded} of {self.considered}"
        )
        if self.nearest is None:
            return text
        # With other constraints loosened too, what those alone keep away may be cheaper still.
        which = "one" if self.others else "the cheapest"
        return f"{text}; {self.cure} would give {which} at {rate(self.nearest.price_per_hour_usd)}"


def _taken_words(nodes: int, takers: Sequence[Address]) -> str:
    """`only 2 such nodes are on the market, and fleet.a[0], fleet.a[1] have them`."""
    names = ", ".join(map(str, takers[:SHOWN])) + (f" and {len(takers) - SHOWN} more" if takers[SHOWN:] else "")
    have = "has" if len(takers) == 1 else "have"
    only = "1 such node is" if nodes == 1 else f"{nodes} such nodes are"
    return f"only {only} on the market, and {names or 'other members'} {have} {'it' if nodes == 1 else 'them'}"


def explain(
    requirement: Requirement, offers: Sequence[Offer], *, fitting: Sequence[Offer] = (), takers: Sequence[Address] = ()
) -> tuple[Exclusion, ...]:
    """What others take, then the constraints that exclude something, those first whose lifting alone would help, then
    by how many; another GPU model comes last.

    `fitting` are offers that meet all of them, one of each node, and that other members (`takers`) take; what else
    meets them is about to rise.
    """
    faults = [(offer, requirement.violations(offer)) for offer in sorted(offers, key=preference)]
    considered = [(offer, names) for offer, names in faults if not {"gpu", "gpu count"} & set(names)] or faults
    excluded: dict[str, int] = {}
    nearest: dict[str, tuple[Offer, tuple[str, ...]]] = {}
    for _, names in considered:
        for name in names:
            excluded[name] = excluded.get(name, 0) + 1
    for offer, names in faults:
        if len(names) == 1:
            nearest.setdefault(names[0], (offer, names))
            excluded.setdefault(names[0], sum(names[0] in others for _, others in faults))
    for offer, names in sorted(considered, key=lambda item: len(item[1])):
        for name in names:
            nearest.setdefault(name, (offer, names))
    found = []
    for name, count in excluded.items():
        among = considered if any(name in names for _, names in considered) else faults
        found.append(_exclusion(requirement, name, count, len(among), *nearest[name]))
    had = {offer.node_id for offer in fitting}
    rising = sum(not names and offer.node_id not in had for offer, names in considered)
    if fitting:
        found.append(Exclusion(TAKEN, "", len(fitting), len(considered), takers=tuple(takers)))
    if rising:
        found.append(Exclusion(RISING, "", rising, len(considered)))
    return tuple(sorted(found, key=_rank))


def _exclusion(
    requirement: Requirement, name: str, excluded: int, considered: int, nearest: Offer, names: Sequence[str]
) -> Exclusion:
    others = tuple(other for other in names if other != name)
    how = cure(requirement, name, nearest)
    if others:
        how += " with " + " and ".join(f"{other} {cure(requirement, other, nearest)}" for other in others)
    return Exclusion(name, wanted(requirement, name), excluded, considered, nearest, how, others)


def _rank(item: Exclusion) -> tuple[bool, bool, bool, bool, bool, int, str]:
    taken, count = item.constraint == TAKEN, item.constraint == "gpu count"
    no_cure = item.nearest is None
    return (not taken, _other_model(item), no_cure, bool(item.others), count, -item.excluded, item.constraint)


def _other_model(item: Exclusion) -> bool:
    """Whether its cure is another GPU model than was asked for: another wish rather than a looser one."""
    return "gpu" in (item.constraint, *item.others)


def summary(exclusions: Sequence[Exclusion]) -> str:
    """All that a person needs to choose what to give up, on one line."""
    if not exclusions:
        return "nothing is on offer at all"
    # What asks for another GPU model is named only when nothing else helps.
    same = [item for item in exclusions if not _other_model(item)]
    shown = same if any(item.constraint == TAKEN or item.nearest is not None for item in same) else exclusions
    return "; ".join(str(item) for item in shown[:SHOWN])


def wanted(requirement: Requirement, constraint: str) -> str:
    """The constraint's value as one would write it."""
    texts: Mapping[str, Callable[[], str]] = {
        "gpu": lambda: ",".join(name.upper() for name in requirement.gpus),
        "gpu memory": lambda: _size(requirement.gpu_memory),
        "gpu count": lambda: str(requirement.gpu_count),
        "cpu": lambda: str(requirement.cpu),
        "memory": lambda: _size(requirement.memory),
        "disk": lambda: _size(requirement.disk),
        "regions": lambda: ",".join(requirement.regions),
        "spot_policy": lambda: _policy(requirement),
        "max_price": lambda: "" if requirement.max_price_usd is None else price(requirement.max_price_usd),
        "min_download": lambda: f"{requirement.min_download_mbps:f}Mbps",
        "min_cuda": lambda: f"{requirement.min_cuda:f}",
    }
    text = texts.get(constraint)
    return "" if text is None else text()


def cure(requirement: Requirement, constraint: str, offer: Offer | None) -> str:
    """What to write instead, so that the offer would fit."""
    if offer is None:
        return ""
    texts: Mapping[str, Callable[[Offer], str]] = {
        "gpu": lambda offer: offer.gpu,
        "gpu memory": lambda offer: f"{offer.gpu_memory_gib}GB",
        "gpu count": lambda offer: str(offer.gpu_count),
        "cpu": lambda offer: _reaching(requirement.cpu, offer.cpu, ""),
        "memory": lambda offer: _reaching(requirement.memory, offer.memory_gib, "GB"),
        "disk": lambda offer: _reaching(requirement.disk, offer.disk_gb, "GB"),
        "regions": lambda offer: offer.location,
        "spot_policy": lambda offer: "auto",
        "max_price": lambda offer: _affording(requirement.max_price_usd, offer.price_per_hour_usd),
        "min_download": lambda offer: _told(offer.download_mbps, "Mbps"),
        "min_cuda": lambda offer: _told(offer.cuda, ""),
        "node_ids": lambda offer: offer.node_id,
        "exclude_nodes": lambda offer: f"not excluding {offer.node_id}",
    }
    text = texts.get(constraint)
    return "leaving it out" if text is None else text(offer)


def _reaching(bounds: Bounds, value: int, unit: str) -> str:
    """The range, opened as far as it takes to hold `value`."""
    low, high = bounds.minimum, bounds.maximum
    if low is not None and low == high:  # one figure is seldom meant to the gigabyte: rather that, or more
        return f"{min(low, Decimal(value)).normalize():f}{unit}.."
    if high is not None and value > high:
        return f"{'' if low is None else f'{low.normalize():f}{unit}'}..{value}{unit}"
    return f"{value}{unit}..{'' if high is None else f'{high.normalize():f}{unit}'}"


def _affording(limit: Decimal | None, usd: Decimal) -> str:
    """The price, so that it can be told from the limit that excludes it, and never less."""
    return most(usd) if limit is None else most(usd, limit)


def _told(value: Decimal | None, unit: str) -> str:
    """What an offer has; one that does not tell fits no bound."""
    return "leaving it out" if value is None else f"{value.normalize():f}{unit}"


def _size(bounds: Bounds) -> str:
    low = "" if bounds.minimum is None else f"{bounds.minimum.normalize():f}GB"
    high = "" if bounds.maximum is None else f"{bounds.maximum.normalize():f}GB"
    return low if low == high else f"{low}..{high}"


def _policy(requirement: Requirement) -> str:
    tiers = {str(tier) for tier in requirement.tiers}
    return {frozenset({"secure"}): "on-demand", frozenset({"spot"}): "spot"}.get(frozenset(tiers), "auto")
