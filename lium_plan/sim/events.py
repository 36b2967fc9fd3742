"""The account's history (contract §2.8). An event without `key_id` is the platform's own doing."""

from __future__ import annotations

from lium_plan.sim.rows import Event, Pod, PodStatus
from lium_plan.sim.world import World


def record_pod(
    world: World,
    pod: Pod,
    sub_event_type: str,
    *,
    key_id: str | None = None,
    from_status: PodStatus | None = None,
    to_status: str | None = None,
    reason: str | None = None,
    detail: str | None = None,
    error: str | None = None,
) -> None:
    world.events.put(
        Event(
            id=world.new_id(),
            serial=world.next_serial(),
            account_id=pod.account_id,
            created_at=world.now,
            event_type="pod",
            sub_event_type=sub_event_type,
            pod_id=pod.id,
            pod_name=pod.name,
            key_id=key_id,
            from_status=None if from_status is None else from_status.value,
            to_status=to_status,
            reason=reason,
            detail=detail,
            error=error,
        )
    )


def record(
    world: World, account_id: str, event_type: str, sub_event_type: str, *, key_id: str | None, detail: str
) -> None:
    """Something that happened to an object other than a pod."""
    world.events.put(
        Event(
            id=world.new_id(),
            serial=world.next_serial(),
            account_id=account_id,
            created_at=world.now,
            event_type=event_type,
            sub_event_type=sub_event_type,
            key_id=key_id,
            reason="user_initiated",
            detail=detail,
        )
    )
