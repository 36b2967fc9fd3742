"""Looking for what the manifest's `imports` name, and at late pods: a list call for each kind of it, and none when
there is nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lium_plan.addresses import Address
from lium_plan.kinds.desired import Desired, Import
from lium_plan.kinds.holdings import Held, Holdings, load_holdings
from lium_plan.kinds.protocol import Comparison, Observation, Presence, Record
from lium_plan.kinds.registry import KINDS
from lium_plan.lium.client import LiumClient
from lium_plan.marks import lineage_mark
from lium_plan.operations.known import Known
from lium_plan.planning.importing import pending_imports
from lium_plan.planning.moving import relocate
from lium_plan.planning.observed import Found, Late, Observed
from lium_plan.state.model import State
from lium_plan.together import together

NOTHING = Found(None, Observation(Presence.ABSENT))


async def with_found(
    client: LiumClient, desired: Desired, state: State, observed: Observed, others: Callable[[], Known]
) -> Observed:
    """What was observed, with what the imports that are not done yet name, and all that rows tell of late pods.

    `others` reads the other stacks' states. Raises `LiumError`, and `Failure` when one of them can't be read.
    """
    if observed.late:
        observed = await _with_rows(client, desired, state, observed)
    if not desired.imports:
        return observed
    records = dict((relocate(desired.moved, state, observed).state or state).records)
    waiting = pending_imports(desired.imports, records)
    if not waiting:
        return observed
    kinds = [name for name in KINDS if any(entry.address.kind == name for entry in waiting)]
    holdings = {name: load_holdings(name, client, str(observed.account_id)) for name in kinds}
    lists = await together(*(holdings[name].everything() for name in kinds))
    listed = {(held.kind, held.id): held for held in (held for found in lists for held in found)}
    found: dict[Address, Found] = {}
    known = others()
    # In the order in which they depend on each other: a pod's inputs name the template that is taken over with it.
    for entry in sorted(waiting, key=lambda entry: kinds.index(entry.address.kind)):
        held = listed.get((entry.address.kind, entry.id))
        made = None if held is None else _found(entry, held, holdings, desired, state, observed, records)
        found[entry.address] = NOTHING if made is None or held is None else _with_owner(made, held, state, known)
        if made is not None and made.record is not None:
            records[made.record.key] = made.record
    return replace(observed, imports=found)


async def _with_rows(client: LiumClient, desired: Desired, state: State, observed: Observed) -> Observed:
    """A late pod at an address that is wanted is compared like any other."""
    holdings = load_holdings("pod", client, str(observed.account_id))
    listed = {held.id: held for held in await holdings.everything()}
    late: list[Late] = []
    for item in observed.late:
        resource, held = desired.resources.get(item.record.address), listed.get(str(item.record.id))
        if resource is None or held is None or item.record.deposed or item.record.inputs:
            late.append(item)
            continue
        comparison = _comparison(state, observed, state.records)
        record = holdings.record(held, resource, comparison)
        if record.status == "ready":
            record = replace(record, status="pending")  # its price, its GPUs and its SSH were never looked at
        late.append(replace(item, record=record, observation=held.observation))
    return replace(observed, late=tuple(late))


def _found(
    entry: Import,
    held: Held,
    holdings: Mapping[str, Holdings],
    desired: Desired,
    state: State,
    observed: Observed,
    records: Mapping[str, Record],
) -> Found | None:
    resource = desired.resources.get(entry.address)
    if resource is None:
        return None
    record = holdings[held.kind].record(held, resource, _comparison(state, observed, records))
    return Found(record, held.observation)


def _with_owner(found: Found, held: Held, state: State, others: Known) -> Found:
    mark = held.lineage_mark
    ours = mark is None or mark == lineage_mark(state.lineage) or others.by_mark(mark) is not None
    return replace(found, lineage_mark=None if ours else mark, holder=others.holder(held))


def _comparison(state: State, observed: Observed, records: Mapping[str, Record]) -> Comparison:
    return Comparison(now=observed.at, salt=state.salt, resolve=lambda _reference: None, verbs={}, records=records)
