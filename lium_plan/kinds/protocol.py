"""The protocol of a kind, in two halves.

A kind of resource is three small modules: `block` (what is written: a pydantic model), `spec` (what it means,
how it is compared and what it needs: pure, a `Kind`) and `driver` (what is done about it: I/O, a `Driver`, loaded
when first used).
Planner, engine, state and views speak to kinds only through this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, Position
from lium_plan.expressions import Reference, Text

if TYPE_CHECKING:
    from lium_plan.kinds.pod.offers import Feed, Offer, Requirement

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""A JSON value. Secrets stand in it as `{"$sensitive": <keyed hash>}`, values not known yet as
`{"$unknown": <expression>}`."""


class Verb(StrEnum):
    """What an action does; the values are those of the plan's JSON."""

    CREATE = "create"
    UPDATE = "update"
    REBOOT = "reboot"
    REPLACE = "replace"
    DESTROY = "destroy"
    RUN = "run"
    ADOPT = "adopt"
    FORGET = "forget"
    MOVE = "move"


class Presence(StrEnum):
    """What a good list said about one record. Unreachable is never read as absent."""

    PRESENT = "present"
    ABSENT = "absent"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    prevent_destroy: bool = False
    ignore_changes: tuple[str, ...] = ()
    create_before_destroy: bool = False


@dataclass(frozen=True, slots=True)
class Resource:
    """One desired thing at one address. `spec` is the frozen dataclass of its kind."""

    address: Address
    spec: Any
    depends_on: tuple[Address, ...] = ()
    lifecycle: Lifecycle = Lifecycle()
    position: Position | None = None

    @property
    def kind(self) -> str:
        return self.address.kind


@dataclass(frozen=True, slots=True)
class Record:
    """What we believe we own at an address: the state's row.

    `inputs` is what was applied, redacted (see `Json`); `attributes` is what the server made of it and what tasks
    and outputs may refer to. Neither holds a secret.
    """

    address: Address
    id: str | None
    status: str
    inputs: Mapping[str, Json] = field(default_factory=dict)
    attributes: Mapping[str, Json] = field(default_factory=dict)
    depends_on: tuple[Address, ...] = ()
    protected: bool = False
    deposed: bool = False
    """Replaced by a newer record at the same address, not deleted yet."""

    @property
    def kind(self) -> str:
        return self.address.kind

    @property
    def key(self) -> str:
        """Unique in a state: the address, with the remote id when deposed."""
        return f"{self.address}#{self.id}" if self.deposed else str(self.address)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the API shows of one record."""

    presence: Presence
    status: str | None = None
    """The server's word for its state, e.g. `RUNNING`."""
    attributes: Mapping[str, Json] = field(default_factory=dict)
    """Fresh values of the record's attributes, as far as the server shows them."""
    reason: str = ""
    """Why it counts as absent or unreachable, for people."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A remote object that carries our mark (or none) and that no record holds."""

    kind: str
    id: str
    name: str
    scope_mark: str | None
    """6 hex digits of project/stack; None where there is no mark of ours."""
    lineage_mark: str | None
    """The first 6 hex digits of the lineage that made it."""
    price_per_hour_usd: Decimal | None = None
    since: datetime | None = None
    attributes: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Survey:
    """One kind's answer to "what is there": an observation per record key, and what no record holds."""

    observations: Mapping[str, Observation]
    others: tuple[Marked, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldChange:
    """`before` and `after` are display-safe JSON values; `unknown`: known after apply."""

    path: str
    before: Json
    after: Json
    unknown: bool = False
    sensitive: bool = False
    forces: str | None = None
    """`replace` or `reboot` when this very change makes it necessary."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a kind wants done about one address; `verb` None: nothing."""

    verb: Verb | None
    reason: str = ""
    fields: tuple[FieldChange, ...] = ()
    drift: str | None = None
    """A drift status worth showing (`gone`, `broken`, `ttl-lost`, …), apart from what is done about it."""
    counted: bool = True
    """False for a run or renewal that happens every time and is no change."""
    diagnostics: tuple[Diagnostic, ...] = ()


NOTHING = Change(None)


@dataclass(frozen=True, slots=True)
class OpenEffect:
    """A begin without its end: an effect whose outcome was not recorded."""

    number: int
    """The journal number of the begin."""
    address: Address
    op: str
    """The kind's own word for the effect: `rent`, `create`, `delete`, `update`, `switch`, `run`, …"""
    at: datetime
    run: str
    data: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `Kind.compare` may look at besides the record itself."""

    now: datetime
    salt: bytes
    resolve: Callable[[Reference], Json | None]
    """A deferred reference's value as state knows it, None when it is known only after apply."""
    verbs: Mapping[Address, Verb]
    """What this plan does to the resources that this one depends on."""
    records: Mapping[str, Record]


class Kind(Protocol):
    """The pure half. One frozen instance per kind, listed in `kinds/registry.py`."""

    name: str
    hosted: bool
    """Lives on a pod and goes with it without a call (bootstrap, task)."""
    create_first: bool
    """A replacement is created before the old one is deleted."""
    incidental: bool
    """Of no use by itself: it goes with the last thing that uses it, also when only that is targeted."""
    links: tuple[tuple[str, ...], ...]
    """Where in the inputs the address of another resource stands: it changes with a `moved` entry."""

    def inputs(self, spec: Any, comparison: Comparison) -> Mapping[str, Json]:
        """What would be applied, redacted: the tree that is stored in the record and compared."""
        ...

    def compare(
        self, resource: Resource, record: Record, observation: Observation | None, comparison: Comparison
    ) -> Change:
        """What to do about a desired resource that state holds. `observation` is None with `--no-refresh`."""
        ...

    def title(self, resource: Resource | None, record: Record | None) -> str:
        """The plan line's middle: `pytorch/pytorch:2.4.0`, `2 commands, 1 file`."""
        ...

    def will(self, effect: OpenEffect, *, destroying: bool) -> str:
        """What apply will do about an open effect, for the plan's `!` line."""
        ...

    def requirement(self, spec: Any) -> Requirement | None:
        """What a create needs from the market; None for kinds that rent nothing."""
        ...

    def takes_s(self, spec: Any) -> float:
        """About how many seconds making or running it takes: for who goes first where not everybody can, no more."""
        ...

    def price_per_hour_usd(self, record: Record) -> Decimal:
        """What this record costs while it exists."""
        ...

    def exported(self, record: Record, path: Sequence[str]) -> Json | None:
        """The value of `${{ <address>.<path> }}`; None when not known yet. Raises KeyError for a name it never has."""
        ...


# --- the half that touches the world -------------------------------------------------------------------------


class Ledger(Protocol):
    """State and journal as a driver sees them. Every method returns only once the entry is on disk."""

    def record(self, address: Address) -> Record | None: ...

    def begin(self, address: Address, op: str, data: Mapping[str, Json]) -> OpenEffect:
        """Write the intent. Raises `Failure` when the journal can't be written: then nothing may be sent."""
        ...

    def done(self, effect: OpenEffect, *records: Record, removed: Sequence[str] = ()) -> None:
        """The effect happened: these records are now what we own, the records with `removed` keys are gone."""
        ...

    def failed(self, effect: OpenEffect, reason: str) -> None:
        """The effect certainly did not happen."""
        ...

    def put(self, record: Record) -> None:
        """Facts learnt without an effect of ours (status, host, port)."""
        ...

    def remove(self, key: str, why: str) -> None:
        """A record whose resource is gone, as a re-read showed."""
        ...

    def reinstate(self, key: str) -> None:
        """What was deposed stands at its address again, where there is nothing else."""
        ...

    def tell(self, key: str, action: str, result: str) -> None:
        """For the audit log: a change of ours that needs no settling, or one of somebody else's that we took over."""
        ...

    def holders(self, kind: str, id: str) -> Sequence[Record]:
        """The records of one remote thing: none while nobody owns it."""
        ...

    def records(self) -> Mapping[str, Record]:
        """All that is owned now, by key."""
        ...

    @property
    def open(self) -> Mapping[int, OpenEffect]:
        """What has begun and not ended, by number."""
        ...

    def watch(self, name: str, address: Address, until: datetime) -> None:
        """Remember a pod name that may still appear; what appears under it is ours."""
        ...


class Begin(Protocol):
    """Writes an effect's begin down when it is called: right before its request leaves, after any wait for a limit.

    What was only waiting then needs no settling after a crash.
    """

    @property
    def effect(self) -> OpenEffect | None:
        """None until it is called."""
        ...

    @property
    def under_way(self) -> bool:
        """Its request may have left, and no limit has refused it since."""
        ...

    def __call__(self) -> OpenEffect:
        """The same effect each time. Raises `Cancelled` once the run is interrupted, and what `Ledger.begin` raises."""
        ...

    def limited(self) -> None:
        """A rate limit refused the request: it is not under way until it is begun again."""
        ...


class Cancelled(Exception):
    """The run is being interrupted: nothing new may start."""


class ActionFailed(Exception):
    """This action failed for a reason that is shown to the user once; what it left behind is in the ledger."""

    def __init__(self, diagnostic: Diagnostic, *, unknown: bool = False) -> None:
        self.diagnostic = diagnostic
        self.unknown = unknown
        """The outcome could not be established: a human must look (exit 8)."""
        super().__init__(diagnostic.message)


class Interrupted(ActionFailed):
    """The pod under the work was taken away (reclaimed, broken, lost with its node): the work itself did not fail.

    Where the fleet says `retry.on_events: [interruption]` the run rents another pod and does the work there.
    """

    def __init__(self, diagnostic: Diagnostic, *, pod: Address, pod_id: str) -> None:
        super().__init__(diagnostic)
        self.pod = pod
        self.pod_id = pod_id
        """The id of the pod that was lost: another one may stand at its address by now."""


INTERRUPTION = "interruption"
"""The code of an `Interrupted`'s diagnostic."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Claim:
    """An offer kept for one rent, and the price above which that rent is not sent and its pod not kept."""

    address: Address
    offer: Offer
    ceiling_per_hour_usd: Decimal


class Market(Protocol):
    """Offers for rents in this run. Never hands one offer's GPUs out twice, nor one above a ceiling."""

    async def claim(
        self,
        address: Address,
        requirement: Requirement,
        *,
        planned: Offer | None,
        ceiling_per_hour_usd: Decimal | None,
        refused: frozenset[str],
    ) -> Claim:
        """The planned offer if it still stands, else the best one now, read at most 60 s ago.

        Its ceiling is reserved against every limit until `rented` or `release`. `refused` are node ids that said
        no. Raises `ActionFailed` saying which constraint excludes how many, which limit is in the way, or why the
        market can't be read.
        """
        ...

    async def still_allowed(self, claim: Claim) -> bool:
        """Whether a price read at most 60 s ago still lets this rent be sent (again).

        Not when it is off the market, nor when that can't be read.
        """
        ...

    def allows_now(self, claim: Claim) -> bool:
        """As `still_allowed`, by what is known already; False also when that is older than 60 s, or being renewed."""
        ...

    async def reading(self) -> Feed:
        """The market as the rents of this run see it, read at most 60 s ago: nobody decides by a newer one.

        Raises `ActionFailed` when it can't be read.
        """
        ...

    def rented(self, address: Address, price_per_hour_usd: Decimal) -> None:
        """The claim became a pod at this price."""
        ...

    def release(self, address: Address) -> None:
        """The claim came to nothing (or the pod is gone again)."""
        ...


class Run(Protocol):
    """One apply or destroy, as a driver sees it."""

    id: str
    destroying: bool
    wait_timeout_s: float
    """How long to wait for things to go."""
    force_replace: bool
    """Destroy what is to be replaced even when the market has nothing for its replacement."""

    @property
    def ledger(self) -> Ledger: ...

    @property
    def market(self) -> Market: ...

    @property
    def interrupted(self) -> bool:
        """Long waits inside an effect end when this turns true."""
        ...

    def desired(self, address: Address) -> Resource | None:
        """What is wanted at an address in this run; None when nothing is (any more)."""
        ...

    def phase(self, address: Address, phase: str, **details: Json) -> None:
        """Tell people where this action is: `renting`, `pulling image ~40 s`, `ssh`, `bootstrap 1/2`."""
        ...

    def substituted(self, address: Address, planned: Offer, taken: Offer) -> None:
        """Tell people that another node than the planned one was taken."""
        ...

    def proved(self, record: Record, *, removed_at: datetime | None, total_usd: Decimal | None) -> None:
        """Tell people that a billed resource is gone, with the server's own figures where it has them."""
        ...

    def resolve(self, text: Text) -> str:
        """The text with every deferred reference filled in from what exists now. Raises `ActionFailed`."""
        ...

    async def effect(
        self,
        address: Address,
        op: str,
        data: Mapping[str, Json],
        send: Callable[[Begin], Awaitable[T]],
        *,
        abandon: bool = False,
    ) -> T:
        """Send; while under way it is shielded from the first interrupt, so that an answer on its way is recorded.

        `send` must itself begin the effect and end it in the ledger, or leave it open when the outcome is not known.
        With `abandon` an interrupt cancels it at once (work over SSH).
        """
        ...

    def completed(self, address: Address, exit_code: int) -> None:
        """Remember a task's completion beyond its pod (`on_completion: destroy-fleet`)."""
        ...

    async def destroy(self, address: Address) -> None:
        """Give another resource of this run back (a pod whose bootstrap failed and that is not to be kept)."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """What the engine asks of a driver: one verb on one address."""

    verb: Verb
    address: Address
    resource: Resource | None
    """What is desired; None when destroying or forgetting."""
    record: Record | None
    """What state holds when the step starts."""
    inputs: Mapping[str, Json] = field(default_factory=dict)
    offer: Offer | None = None
    """The offer that the plan chose, for a kind that rents."""
    ceiling_per_hour_usd: Decimal | None = None
    urgency: float = 0.0
    """Seconds of work that can't begin before this step has ended, about. Who has more goes first through a limit."""

    def wanted(self) -> Resource:
        """The resource of a step that makes or changes something."""
        if self.resource is None:
            raise ValueError(f"{self.verb} {self.address} without a resource")
        return self.resource

    def owned(self) -> tuple[Record, str]:
        """The record and remote id of a step that works on something that exists."""
        if self.record is None or self.record.id is None:
            raise ValueError(f"{self.verb} {self.address} without a remote object")
        return self.record, self.record.id


class Outcome(StrEnum):
    """How an open effect was settled."""

    DONE = "done"
    NOT_DONE = "not-done"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Settlement:
    """`UNKNOWN` leaves the begin open and carries exactly what to look at."""

    outcome: Outcome
    message: str


class Driver(Protocol):
    """The half that does I/O. Ends every effect that it began, unless the outcome is unknown."""

    async def survey(self, records: Sequence[Record], *, scope_mark: str, lineage_mark: str | None) -> Survey:
        """Look at everything of this kind with a constant number of list calls. Raises when a list fails."""
        ...

    async def perform(self, step: Step, run: Run) -> None:
        """Do it. Returns when a re-read shows it done. Raises `ActionFailed`, `Cancelled`."""
        ...

    async def settle(self, effect: OpenEffect, run: Run) -> Settlement:
        """Find out what became of an effect of an earlier run, and end it in the ledger."""
        ...


# --- from block to resources ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """A file named in a manifest, read once."""

    path: Path
    sha256: str
    size: int


class Scope(Protocol):
    """What a kind's `expand` may ask of the manifest that it is part of."""

    project: str
    stack: str
    root: Path

    def position(self, *path: str | int) -> Position | None:
        """Where the value at this path of the manifest tree was written: `position("fleets", "x", "ttl")`."""
        ...

    def report(self, diagnostic: Diagnostic) -> None: ...

    def block(self, section: str, name: str) -> Any | None:
        """Another section's block, e.g. `block("templates", "torch")`; None when it doesn't exist."""
        ...

    def members(self, fleet: str) -> tuple[str, ...]:
        """The fleet's member names, in member order."""
        ...

    def load_file(self, path: str, *, at: Position | None) -> LoadedFile | None:
        """Read a file relative to the manifest that names it; None (and a diagnostic) when that fails."""
        ...

    def load_directory(self, path: str, *, at: Position | None) -> tuple[tuple[str, LoadedFile], ...] | None:
        """Every file below a directory with its path inside it (`sub/name`), in that order; None when it is none.

        What can't be read is reported and left out.
        """
        ...

    def text_of(self, file: LoadedFile, *, at: Position | None) -> Text:
        """The file's content with `${{ }}` in it parsed."""
        ...
