"""What reading commands ask and get: questions to the market and answers about it, pods, and the set-up.

Plain values whose fields are those of the commands' JSON documents. Fetches nothing, formats nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from lium_plan.diagnostics import Diagnostic

if TYPE_CHECKING:
    from lium_plan.kinds.holdings import Stanza
    from lium_plan.kinds.pod.offers import Offer, Skipped
    from lium_plan.kinds.protocol import Change, Record
    from lium_plan.requests import Sources


@dataclass(frozen=True, slots=True)
class OffersQuery:
    """The filters of `offers`, as written by the user: `None` and empty mean no constraint.

    `gpu`, `cpu`, `memory`, `disk`, `min_download` use the manifest's spelling (`H100:80GB:8`, `8..32`, `500Mbps`).
    """

    gpu: str | None = None
    cpu: str | None = None
    memory: str | None = None
    disk: str | None = None
    regions: tuple[str, ...] = ()
    spot_policy: str | None = None
    max_price_usd: Decimal | None = None
    """Per pod and hour."""
    min_download: str | None = None
    nvlink: bool = False
    reliable: bool = False
    min_cuda: Decimal | None = None
    fleet: str | None = None
    """Take the constraints of this fleet of the manifest; the other filters narrow them."""
    sources: Sources | None = None
    """The manifest, only with `fleet`."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One constraint, and what it keeps away."""

    constraint: str
    """In the manifest's words."""
    wanted: str
    """Its value, as one would write it."""
    excluded: int
    considered: int
    nearest: Offer | None
    """The cheapest offer that it alone keeps away."""
    cure: str
    """What to write instead to get that one."""
    sentence: str


@dataclass(frozen=True, slots=True)
class OffersAnswer:
    """What can be rented. `exclusions`: how many offers each constraint left out, most first."""

    generated_at: datetime
    nodes: int
    offers: tuple[Offer, ...]
    """Cheapest first."""
    skipped: tuple[Skipped, ...]
    exclusions: tuple[tuple[str, int], ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    """What a fleet's constraints, or the filters, cost."""
    members: tuple[tuple[str, Offer | None], ...] = ()
    """Only with `fleet`: the address of each member, and what it would get."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What `nvidia-smi` on a pod says, over all its GPUs."""

    utilisation_percent: int
    memory_used_mib: int
    memory_total_mib: int


@dataclass(frozen=True, slots=True)
class PodStatus:
    """One pod of the stack, as it is now."""

    address: str
    id: str
    name: str
    phase: str
    """The server's word, e.g. `RUNNING`."""
    status: str
    """Of pending, ready, bootstrap-failed, failed, broken, deposed, deleting, unreachable, expired, gone, unknown."""
    age_s: float
    price_per_hour_usd: Decimal
    """0 for what is not billed (any more)."""
    spent_usd: Decimal
    ttl_left_s: float | None
    """None: it has no time to live."""
    drift: tuple[str, ...]
    node_id: str
    gpu: str
    gpu_count: int
    use: GpuUse | None = None
    """Only with `--gpu`, and when the pod answered."""


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    pods: tuple[PodStatus, ...]
    total_per_hour_usd: Decimal
    total_spent_usd: Decimal
    diagnostics: tuple[Diagnostic, ...] = ()
    tasks: tuple[TaskStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task of the stack, as the state knows it, or as its pod says it is (`probed`)."""

    address: str
    status: str
    """Ours: pending, running, completed, failed, timed-out, unknown."""
    exit_code: int | None
    started_at: datetime | None
    ended_at: datetime | None
    log: str | None
    probed: bool = False
    last_lines: tuple[str, ...] = ()
    """Of one that did not end well: the end of what it wrote, without secrets."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod's SSH is, with the key and the pinned host key that go with it."""

    address: str
    fleet: str
    member: str
    pod_id: str
    user: str
    host: str
    port: int
    key_path: Path
    known_hosts: Path
    """The file of pins for this pod alone."""
    pinned: bool
    """Whether it has been logged in to, so that its host key is known."""
    gpu: str
    gpu_count: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """What was known of a task or bootstrap when its log had been shown."""

    status: str
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `doctor`. `ok` None: it could not be established (no key, no connection)."""

    name: str
    ok: bool | None
    detail: str
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class Pulled:
    """A snapshot's bytes, and what is to be said about them."""

    snapshot: bytes
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class Pushed:
    """`changed` False: the very same state is there already. `kept`: the names that what was there has now."""

    serial: int
    changed: bool
    kept: tuple[str, ...] = ()
    notes: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repaired state holds. Without findings it was sound, and nothing was written."""

    records: int
    released: int
    serial: int
    findings: tuple[Diagnostic, ...]
    """Warnings say what was mended, errors what is lost."""
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Orphan:
    """Something on the account that no state holds; project and stack where the marks tell them."""

    kind: str
    id: str
    name: str
    project: str | None
    stack: str | None
    price_per_hour_usd: Decimal | None
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Deleted:
    """What became of an orphan that was to be deleted; the figures are the server's own."""

    orphan: Orphan
    gone: bool
    removed_at: datetime | None = None
    total_usd: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Orphans:
    """`lost`: of a lineage that lies here; `other_lineage`: our mark, no such state here; `foreign`: no mark."""

    lost: tuple[Orphan, ...]
    other_lineage: tuple[Orphan, ...]
    foreign: tuple[Orphan, ...]
    deleted: tuple[Deleted, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def spared(self) -> tuple[Orphan, ...]:
        """The lost that hold data: they go by their ids alone."""
        return tuple(item for item in self.lost if item.kind == "volume")


@dataclass(frozen=True, slots=True)
class Imported:
    """What came under management. `stanza` None: the manifest declares it already; `change` None: nothing differs."""

    address: str
    record: Record
    name: str
    price_per_hour_usd: Decimal | None
    stanza: Stanza | None
    change: Change | None
    account_id: str
    workspace_id: str | None
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """A record of a recovered state."""

    key: str
    kind: str
    id: str
    status: str
    price_per_hour_usd: Decimal | None


@dataclass(frozen=True, slots=True)
class Recovered:
    """A state built anew. `left`: ours by its mark, and at no address; `kept`: the names that unreadable files got."""

    lineage: str
    taken: tuple[Taken, ...]
    left: tuple[Orphan, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Extended:
    """A pod that lives longer; `more_usd` is what the extra time costs if it is used up."""

    address: str
    before: datetime
    until: datetime
    more_usd: Decimal
    diagnostics: tuple[Diagnostic, ...] = ()


# --- graph ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GraphAnswer:
    """What a manifest declares, and what waits for what."""

    nodes: tuple[tuple[str, str], ...]
    """Address, and what it is in a few words; in the order of addresses."""
    edges: tuple[tuple[str, str], ...]
    """What comes first, and what waits for it."""
    diagnostics: tuple[Diagnostic, ...] = ()
