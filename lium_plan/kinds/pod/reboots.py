"""Pods that somebody has rebooted: the container is new, its files and what ran in it are gone (contract §2.7.4).

A published port that leads elsewhere tells, since that of a container never changes; so does a pod that reboots just
now. Where neither does, the pod's history is asked, but only for rows that were changed after we had last to do with
them: what nobody touched costs no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from lium_plan.kinds.pod.lifetimes import moment
from lium_plan.kinds.pod.spec import READY_AT, REBOOTED_AT, TOUCHED_AT
from lium_plan.kinds.protocol import Record
from lium_plan.lium.client import LiumClient
from lium_plan.lium.errors import LiumError
from lium_plan.lium.models import AccountEvent, Pod

REBOOTING = "REBOOT_PENDING"
CLOCKS_APART = timedelta(seconds=5)
"""The time that an answer gives is in whole seconds, and what we did took a moment."""
MOST_EVENTS = 1000


async def rebooted(client: LiumClient, pods: Iterable[tuple[Record, Pod]], now: datetime) -> Mapping[str, datetime]:
    """By key, when each was rebooted that was since it had become ready; at most one request for all."""
    found: dict[str, datetime] = {}
    known: dict[str, datetime | None] = {}
    unsure: list[tuple[Record, Pod, datetime]] = []
    for record, pod in pods:
        ready_at = moment(record.attributes.get(READY_AT))
        known[record.key] = moment(record.attributes.get(REBOOTED_AT))
        if record.status != "ready" or record.deposed:
            continue
        if pod.status == REBOOTING or (pod.status == "RUNNING" and _leads_elsewhere(record, pod)):
            found[record.key] = pod.updated_at or now
        elif pod.status == "RUNNING" and ready_at is not None and _was_touched(record, pod, ready_at):
            unsure.append((record, pod, ready_at))
    if unsure:
        events = await _events(client, unsure)
        for record, pod, ready_at in unsure:
            times = [at for event in events if event.pod_id == pod.id and (at := _reboots(event)) and at > ready_at]
            if times:
                found[record.key] = max(times)
    return {key: _as_known(known[key], at) for key, at in found.items()}


def _as_known(known_at: datetime | None, at: datetime) -> datetime:
    """One reboot has several times, by its row and by the history: what the state has of it already stays."""
    return at if known_at is None or at > known_at + CLOCKS_APART else known_at


def _leads_elsewhere(record: Record, pod: Pod) -> bool:
    known = record.attributes.get("ports")
    if not isinstance(known, Mapping):
        return False
    return any(str(known.get(str(inside), outside)) != str(outside) for inside, outside in pod.ports.items())


def _was_touched(record: Record, pod: Pod, ready_at: datetime) -> bool:
    last = max(ready_at, moment(record.attributes.get(TOUCHED_AT)) or ready_at)
    return pod.updated_at is not None and pod.updated_at > last + CLOCKS_APART


async def _events(client: LiumClient, pods: list[tuple[Record, Pod, datetime]]) -> tuple[AccountEvent, ...]:
    """None where the history can't be read: then it tells nothing."""
    one = pods[0][1].id if len(pods) == 1 else None
    try:
        return await client.events(since=min(ready_at for _, _, ready_at in pods), limit=MOST_EVENTS, pod_id=one)
    except LiumError:
        return ()


def _reboots(event: AccountEvent) -> datetime | None:
    """When it was; None for an event of another kind."""
    began = event.to_status == REBOOTING or "restart" in f"{event.sub_event_type} {event.reason or ''}".lower()
    return event.created_at if began else None
