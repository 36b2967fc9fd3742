"""What lists show, and the book that is kept of objects without an hourly price."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from lium_plan.sim import money
from lium_plan.sim.accounts import Caller
from lium_plan.sim.events import record
from lium_plan.sim.world import World


class Listable(Protocol):
    @property
    def hidden_until(self) -> datetime | None: ...
    @property
    def deleted_at(self) -> datetime | None: ...
    @property
    def listed_until(self) -> datetime | None: ...


L = TypeVar("L", bound=Listable)


def shown(world: World, rows: Iterable[L]) -> list[L]:
    """The rows that a list shows now."""
    return [row for row in rows if _is_shown(world, row)]


def _is_shown(world: World, row: Listable) -> bool:
    if row.deleted_at is not None:
        return row.listed_until is not None and row.listed_until > world.now
    return row.hidden_until is None or row.hidden_until <= world.now


def until(world: World, seconds: float | None) -> datetime | None:
    return None if not seconds else world.now + timedelta(seconds=seconds)


def note_created(world: World, caller: Caller, kind: str, object_id: str, name: str) -> None:
    key_id = caller.key.id
    money.open_charge(world, kind=kind, object_id=object_id, name=name, account_id=caller.account.id, key_id=key_id)
    record(world, caller.account.id, kind, f"{kind}-create.success", key_id=key_id, detail=object_id)


def note_deleted(world: World, caller: Caller, kind: str, object_id: str, name: str) -> None:
    money.close(world, object_id)
    record(
        world,
        caller.account.id,
        kind,
        f"{kind}-delete.success",
        key_id=caller.key.id,
        detail=f"{object_id} {name}",
    )
