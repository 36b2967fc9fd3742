"""What can be written into a journal: numbered entries, each carrying one fact.

Owns the vocabulary. Refuses to know how a fact changes a state (`model.replay`), how it is spelt on disk (`codec`) or
what it means to a kind: `op` and `data` are the driver's own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from lium_plan.addresses import Address
from lium_plan.kinds.protocol import Json, Record


@dataclass(frozen=True, slots=True)
class Released:
    """A remote object that we made and gave up: it stays and costs; the proof of a destruction leaves it out."""

    kind: str
    id: str
    name: str
    since: datetime
    price_per_hour_usd: str | None = None
    """What it cost when it was given up; None for what is not billed by the hour."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A pod name settled as not rented. A pod that appears under it before `until` is ours."""

    name: str
    address: Address
    until: datetime


@dataclass(frozen=True, slots=True)
class Completion:
    """A task that took its fleet with it when it ended: what is left of it."""

    content: str
    """Hash of what was run; another hash is another task."""
    exit_code: int
    at: datetime


# --- facts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The first thing a run writes, if it writes anything. Changes no resource, so it raises no serial."""

    who: str
    """`user@host`."""
    command: str


@dataclass(frozen=True, slots=True)
class Began:
    """The intent of an effect. Its entry's number names the effect."""

    address: Address
    op: str
    data: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """The effect happened: these records are now ours, the records with `removed` keys are gone."""

    of: int
    records: tuple[Record, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The effect certainly did not happen."""

    of: int
    reason: str


@dataclass(frozen=True, slots=True)
class Put:
    """Facts learnt about a record without an effect of ours."""

    record: Record


@dataclass(frozen=True, slots=True)
class Removed:
    """A record is forgotten without a call: it went with its pod, or was found gone."""

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class Moved:
    """The record at `key` (and what depends on it, and its open effects) now lives at `to`."""

    key: str
    to: Address


@dataclass(frozen=True, slots=True)
class Release:
    """The record with `key` leaves the state and joins the released; `key` None: it was in no record."""

    released: Released
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A released object is no longer listed as such: taken back by an import, or gone."""

    id: str


@dataclass(frozen=True, slots=True)
class Watch:
    watched: Watched


@dataclass(frozen=True, slots=True)
class Unwatch:
    """The name's time is over, or its pod appeared and was dealt with."""

    name: str


@dataclass(frozen=True, slots=True)
class Completed:
    address: Address
    completion: Completion


@dataclass(frozen=True, slots=True)
class Uncompleted:
    """The task changed, is to be run again, or was destroyed."""

    address: Address


@dataclass(frozen=True, slots=True)
class OutputsSet:
    """The values of the manifest's outputs after an apply; what is sensitive is never among them."""

    values: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bound:
    """Whose account this state belongs to."""

    account_id: str | None
    workspace_id: str | None


@dataclass(frozen=True, slots=True)
class Renamed:
    """The manifest's project changed its name and the user said so."""

    project: str


@dataclass(frozen=True, slots=True)
class Told:
    """For the audit log: something about the record with `key` that no other fact says. Changes nothing itself."""

    key: str
    action: str
    result: str


Fact = (
    RunStarted
    | Began
    | Ended
    | Failed
    | Put
    | Removed
    | Moved
    | Release
    | Reclaim
    | Watch
    | Unwatch
    | Completed
    | Uncompleted
    | OutputsSet
    | Bound
    | Renamed
    | Told
)

FACTS: Mapping[str, type[Fact]] = {
    "run": RunStarted,
    "begin": Began,
    "done": Ended,
    "failed": Failed,
    "put": Put,
    "removed": Removed,
    "moved": Moved,
    "released": Release,
    "reclaimed": Reclaim,
    "watch": Watch,
    "unwatch": Unwatch,
    "completed": Completed,
    "uncompleted": Uncompleted,
    "outputs": OutputsSet,
    "bound": Bound,
    "renamed": Renamed,
    "told": Told,
}
"""The word that stands for each fact in a journal line."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One journal line. Numbers grow by one and never repeat within a lineage."""

    number: int
    at: datetime
    run: str
    fact: Fact
