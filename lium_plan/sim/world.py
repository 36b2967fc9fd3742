"""The world: tables, timers, chance and settings, without I/O, a clock or asyncio.

Whoever calls it says what time it is (`advance`), which runs what has become due, in order; effects on machines pile
up in `effects` for a driver to carry out. The rules live in the modules beside this one (`market`, `renting`,
`lifecycle`, `money`, `objects`, …), as functions of a world.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

from lium_plan.sim.dice import Dice
from lium_plan.sim.effects import Effect
from lium_plan.sim.limits import Limits
from lium_plan.sim.records import (
    AuditItem,
    BackupConfig,
    BudgetRefusal,
    FaultRow,
    Idempotency,
    Meta,
    RequestSeen,
    Timer,
    TimerKind,
    Transfer,
)
from lium_plan.sim.rows import Account, ApiKey, Charge, Credential, Event, Node, Pod, SshKey, Template, Volume
from lium_plan.sim.settings import Settings
from lium_plan.sim.table import Row, Table

FORMAT = 1

R = TypeVar("R", bound=Row)

Handler = Callable[["World", Timer], None]


class World:
    """`handlers` says what happens when a timer of each kind is due; see `history.HANDLERS`."""

    def __init__(self, *, seed: int, now: datetime, settings: Settings, handlers: Mapping[TimerKind, Handler]) -> None:
        self.seed = seed
        self.started_at = now
        self.now = now
        self.settings = settings
        self.dice = Dice(seed)
        self.serial = 0
        self.clock_shift_s = 0.0
        self.limits = Limits()
        self.effects: list[Effect] = []
        self._handlers = handlers
        self._heap: list[tuple[datetime, int, str]] = []
        self.accounts = Table("accounts", Account, {"name": lambda row: row.name})
        self.keys = Table("keys", ApiKey, {"secret": lambda row: row.secret, "account": lambda row: row.account_id})
        self.budget_refusals = Table("budget_refusals", BudgetRefusal, {"key": lambda row: row.api_key_id})
        self.nodes = Table("nodes", Node)
        self.templates = Table("templates", Template)
        self.volumes = Table("volumes", Volume, {"account": lambda row: row.account_id})
        self.credentials = Table("credentials", Credential, {"account": lambda row: row.user_id})
        self.ssh_keys = Table("ssh_keys", SshKey, {"account": lambda row: row.account_id})
        self.pods = Table(
            "pods",
            Pod,
            {
                "alive": lambda row: None if row.deleted_at else True,
                "account": lambda row: None if row.deleted_at else row.account_id,
                "node": lambda row: None if row.deleted_at else row.node_id,
                "template": lambda row: None if row.deleted_at else row.template_id,
                "volume": lambda row: None if row.deleted_at else row.volume_id,
                "cluster": lambda row: None if row.deleted_at else row.cluster_id,
                "ghost": lambda row: row.account_id if row.deleted_at and row.listed_until else None,
            },
        )
        self.charges = Table(
            "charges",
            Charge,
            {
                "object": lambda row: row.object_id,
                "open": lambda row: None if row.until else row.account_id,
                "account": lambda row: row.account_id,
            },
        )
        self.events = Table("events", Event, {"account": lambda row: row.account_id, "pod": lambda row: row.pod_id})
        self.idempotency = Table("idempotency", Idempotency)
        self.audit = Table("audit", AuditItem, {"account": lambda row: row.account_id})
        self.requests = Table("requests", RequestSeen)
        self.backup_configs = Table("backup_configs", BackupConfig, {"pod": lambda row: row.pod_id})
        self.transfers = Table(
            "transfers", Transfer, {"pod": lambda row: row.pod_id, "account": lambda row: row.account_id}
        )
        self.timers = Table("timers", Timer, {"subject": lambda row: (row.kind, row.ref)})
        self.faults = Table("faults", FaultRow)
        self.feed_built_at: datetime | None = None
        self.feed_body: bytes = b""

    @property
    def tables(self) -> tuple[Table[Any], ...]:
        return tuple(value for value in vars(self).values() if isinstance(value, Table))

    # -- time ---------------------------------------------------------------------------------------------------

    def advance(self, now: datetime) -> None:
        """Run every timer due by `now`, each at its own time, then be at `now`. Time never goes back."""
        while self._heap and self._heap[0][0] <= now:
            due, _, timer_id = heapq.heappop(self._heap)
            timer = self.timers.get(timer_id)
            if timer is None:
                continue
            self.timers.drop(timer_id)
            self.now = max(self.now, due)
            self._handlers[timer.kind](self, timer)
        self.now = max(self.now, now)

    def next_due(self) -> datetime | None:
        while self._heap and self._heap[0][2] not in self.timers:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def schedule(self, due: datetime, kind: TimerKind, ref: str, *, note: str = "") -> Timer:
        serial = self.next_serial()
        timer = self.timers.put(Timer(f"t{serial}", due, serial, kind, ref, note))
        heapq.heappush(self._heap, (timer.due, timer.serial, timer.id))
        return timer

    def took(self, seconds: float) -> timedelta:
        """How long something that takes the server `seconds` lasts at this speed."""
        return timedelta(seconds=seconds / self.settings.speed)

    # -- identity -----------------------------------------------------------------------------------------------

    def next_serial(self) -> int:
        self.serial += 1
        return self.serial

    def new_id(self) -> str:
        return self.dice.uuid()

    # -- reload -------------------------------------------------------------------------------------------------

    def meta(self) -> Meta:
        return Meta(
            id="meta",
            format=FORMAT,
            seed=self.seed,
            started_at=self.started_at,
            now=self.now,
            clock_shift_s=self.clock_shift_s,
            drawn=self.dice.drawn,
            serial=self.serial,
        )

    def resume(self, meta: Meta) -> None:
        """Take over a stored world's counters after its tables were filled."""
        self.seed = meta.seed
        self.started_at = meta.started_at
        self.now = meta.now
        self.clock_shift_s = meta.clock_shift_s
        self.dice = Dice(meta.seed, meta.drawn)
        self.serial = meta.serial
        self._heap = [(timer.due, timer.serial, timer.id) for timer in self.timers]
        heapq.heapify(self._heap)

    def wipe(self) -> None:
        """Empty every table; counters of chance and serials start again."""
        for table in self.tables:
            table.clear()
        self._heap.clear()
        self.dice = Dice(self.seed)
        self.serial = 0
        self.limits = Limits()
        self.feed_built_at = None
