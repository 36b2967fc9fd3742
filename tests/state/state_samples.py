"""Values that the state's tests share: a clock that stands, a lineage, records, and a store in a scratch directory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lium_plan.addresses import Address, parse
from lium_plan.kinds.protocol import Json, Record
from lium_plan.state.entries import Completion, Entry, Fact, Released
from lium_plan.state.journal import JournaledLedger, RunIdentity
from lium_plan.state.local import LocalStore
from lium_plan.state.lock import Owner, this_process
from lium_plan.state.model import State, new_state

NOW = datetime(2026, 10, 5, 12, 0, tzinfo=UTC)
LINEAGE = "a1b2c3d4-0000-4000-8000-000000000001"
SALT = bytes(range(32))
RUN = RunIdentity("run-1", "ann@box", "lium-plan apply")


def now() -> datetime:
    return NOW


def owner(run: str = "run-1") -> Owner:
    return this_process(who="ann@box", command="lium-plan apply", run=run, since=NOW)


def blank() -> State:
    return new_state("demo", "default", lineage=LINEAGE, salt=SALT)


def address(text: str) -> Address:
    return parse(text)


def record(where: str, id: str | None = "id-1", *needs: str, **attributes: Json) -> Record:
    return Record(
        parse(where),
        id,
        "ready",
        {"gpu": "H100", "ports": (22, 80)},
        attributes,
        tuple(parse(need) for need in needs),
    )


def entries(*facts: Fact, start: int = 1) -> tuple[Entry, ...]:
    return tuple(Entry(start + index, NOW, "run-1", fact) for index, fact in enumerate(facts))


def local(directory: Path) -> LocalStore:
    return LocalStore(directory, "default", now=now, poll_s=0.01)


@contextmanager
def writing(store: LocalStore) -> Iterator[JournaledLedger]:
    """A ledger under the lock; the lock is released at the end, nothing is compacted."""
    with asyncio.run(store.lock(owner(), timeout_s=0)):
        state = store.load().state
        yield JournaledLedger(store, state or blank(), run=RUN, now=now, wall=now, born=state is not None)


def fill(ledger: JournaledLedger) -> None:
    """Every kind of entry once, with one effect left open."""
    ledger.bind("acc-1", None)
    template = ledger.begin(parse("template.torch"), "create", {"name": "lp-a1b2c3-0123456789ab"})
    ledger.done(template, record("template.torch", "tpl-1"))
    for member in range(3):
        pod = ledger.begin(parse(f"fleet.x[{member}]"), "rent", {"key": f"k{member}", "body": {"gpu_count": 1}})
        row = record(f"fleet.x[{member}]", f"pod-{member}", "template.torch", price_per_hour_usd="1.99")
        ledger.done(pod, row)
    refused = ledger.begin(parse("fleet.x[3]"), "rent", {"key": "k3"})
    ledger.failed(refused, "node_unavailable")
    ledger.watch("lp-000000-a1b2c3-aaaaaaaa-x-3", parse("fleet.x[3]"), NOW + timedelta(hours=24))
    ledger.put(record("fleet.x[0].bootstrap", None, "fleet.x[0]"))
    gone = ledger.begin(parse("fleet.x[2]"), "delete", {})
    ledger.done(gone, removed=["fleet.x[2]"])
    ledger.put(record("volume.data", "vol-1"))
    ledger.release(Released("volume", "vol-1", "data", NOW), key="volume.data")
    ledger.complete(parse("task.train[0]"), Completion("cafe", 0, NOW))
    ledger.set_outputs({"hosts": ["a", "b"]})
    ledger.begin(parse("fleet.x[4]"), "rent", {"key": "k4"})
