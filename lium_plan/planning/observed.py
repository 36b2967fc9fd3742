"""Observed: what the API showed when it was asked, as a value. Built by `operations` from the kinds' surveys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.kinds.pod.offers import Feed
from lium_plan.kinds.protocol import Marked, Observation, Record


@dataclass(frozen=True, slots=True)
class Pace:
    """A limit of the server: at most `count` requests in any `period_s` seconds."""

    count: int
    period_s: float


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has something already."""

    stack: str
    address: Address | None
    """None: an effect there has no recorded outcome, or its name is being watched."""


@dataclass(frozen=True, slots=True)
class Found:
    """What an `imports` entry names, as the account shows it."""

    record: Record | None
    """The row that the state would have for it; None: there is no such thing."""
    observation: Observation
    lineage_mark: str | None = None
    """Of the state that made it, where its name says so and no state lies here that has this mark."""
    holder: Holder | None = None
    """Another stack of the same directory that has it."""


@dataclass(frozen=True, slots=True)
class Late:
    """A pod that is ours by its name, though no record has its id."""

    name: str
    record: Record
    """The row that the state gets for it; deposed where its address has another one."""
    observation: Observation
    since: datetime
    why: str
    """How that came about: `which …`."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One look at the account and at the market."""

    at: datetime
    """The server's time of the look."""
    server: str
    """Base URL."""
    account_id: str | None = None
    """None: the key could not tell, or no key was needed."""
    workspace_id: str | None = None
    balance_usd: Decimal | None = None
    """None: unknown, or the account is exempt from the balance rule (contract §2.4.3)."""
    observations: Mapping[str, Observation] = field(default_factory=dict)
    """By record key; a record that is missing here was not looked at."""
    others: tuple[Marked, ...] = ()
    """What no record holds, and was not released."""
    released: tuple[Marked, ...] = ()
    """What this state has released and is still there."""
    late: tuple[Late, ...] = ()
    """What appeared under names that are watched, or that records have."""
    feed: Feed | None = None
    """None: the market was not read, because nothing could need it."""
    open_pods_price_usd: Decimal | None = None
    """USD per hour of every open pod of the account, ours or not; None: not looked at."""
    spent_usd: Decimal | None = None
    """What this stack has cost since its state was born, from the server's statements; None: not looked at."""
    paces: Mapping[str, tuple[Pace, ...]] = field(default_factory=dict)
    """Limits on creating, by kind."""
    created_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """How many seconds ago the account created what still counts in them, by kind."""
    imports: Mapping[Address, Found] = field(default_factory=dict)
    """What was looked for because of `imports`; those that are done are not looked for."""
    refreshed: bool = True
    """False with `--no-refresh`: the records are taken at their word."""

    def of(self, record: Record) -> Observation | None:
        return self.observations.get(record.key)


def wait_s(count: int, paces: tuple[Pace, ...], created_s: Iterable[float] = ()) -> float:
    """How long the limits alone make `count` requests take, after those of so many seconds ago."""
    times = sorted(-ago for ago in created_s)
    moment = 0.0
    for _ in range(count):
        freed = (times[-pace.count] + pace.period_s for pace in paces if len(times) >= pace.count)
        moment = max((moment, *freed))
        times.append(moment)
    return moment
