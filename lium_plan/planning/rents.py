"""What planning must know of a pod beyond the protocol of kinds: its time to live, its health, where it is.

The only module of planning that knows the pods' spec, so that planner and guards need not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from lium_plan.addresses import Address
from lium_plan.kinds.bootstrap.spec import BootstrapSpec
from lium_plan.kinds.pod.deposing import was_set_up
from lium_plan.kinds.pod.facts import offer_of
from lium_plan.kinds.pod.lifetimes import EXTEND, TTL_CHANGED, deadline
from lium_plan.kinds.pod.offers import Offer
from lium_plan.kinds.pod.spec import DEAD_STATUSES, PodSpec, is_as_asked, offer_title, status_after
from lium_plan.kinds.protocol import Json, Observation, OpenEffect, Presence, Record, Resource
from lium_plan.kinds.task.spec import TaskSpec

DEAD_RECORDS = ("failed", "broken", "deleting", "expired")
"""Statuses of a record from which no pod comes back."""
LEAVING = "DELETING"
CLOSED = ("BROKEN", "FAILED", "CREATION_FAILED", "DELETING")
"""Statuses in which the server no longer bills, though the row is still there (contract §4.1)."""
HOST_ID = "pod_id"
"""The attribute in which what runs on a pod says which one."""
EXCLUSIVE = ("volume",)
"""Kinds that one pod at a time can have attached (contract §2.10)."""


class Health(StrEnum):
    """The dead ones come first when a fleet shrinks, and don't count as members."""

    GONE = "gone"
    EXPIRED = "expired"
    DEAD = "dead"
    UNREACHABLE = "unreachable"
    UNFINISHED = "unfinished"
    """Alive, and its bootstrap has failed."""
    WELL = "well"

    @property
    def living(self) -> bool:
        return self in (Health.UNREACHABLE, Health.UNFINISHED, Health.WELL)


def health(record: Record, observation: Observation | None, now: datetime, *, setup: Record | None = None) -> Health:
    """How a pod is, by what was seen, else by what was recorded. `setup`: the record of its bootstrap.

    Unseen, a passed time to live proves nothing: renting its successor could make two.
    """
    if observation is not None:
        if observation.presence is Presence.ABSENT:
            return Health.GONE if expired_since(record, now) is None else Health.EXPIRED
        if observation.presence is Presence.UNREACHABLE:
            return Health.UNREACHABLE
        if observation.status in DEAD_STATUSES or observation.status == LEAVING:
            return Health.DEAD
    if record.status in DEAD_RECORDS:
        return Health.DEAD
    failed = setup is not None and setup.status == "failed" and setup.attributes.get(HOST_ID) == record.id
    return Health.UNFINISHED if failed else Health.WELL


def ordered(effect: OpenEffect) -> tuple[Decimal, Decimal] | None:
    """USD per hour of the pod that an open rent may have made, and its ceiling; None for other effects."""
    offer, ceiling = offer_of(effect.data.get("offer")), effect.data.get("ceiling_per_hour_usd")
    if effect.op != "rent" or offer is None or ceiling is None:
        return None
    return offer.price_per_hour_usd, Decimal(str(ceiling))


def still_does(record: Record, observation: Observation | None, now: datetime) -> bool:
    """Whether a pod that was to be replaced still does its work, as far as can be told."""
    well = health(record, observation, now).living and expired_since(record, now) is None
    return record.status == "ready" and well


def fits(record: Record, observation: Observation | None, resource: Resource) -> bool:
    """Whether a pod is what is wanted at an address, or can be made so without another one."""
    return isinstance(resource.spec, PodSpec) and is_as_asked(resource, record, observation)


def status_seen(record: Record, observation: Observation) -> str:
    """What the record says once it takes over what was seen: a pod that is dead there is dead here."""
    return status_after(observation.status or "") or record.status


def bills(record: Record, observation: Observation | None, now: datetime) -> bool:
    """Whether it costs money now, as far as can be told: in doubt it does (contract §4.1)."""
    if health(record, observation, now) in (Health.GONE, Health.EXPIRED):
        return False
    return observation is None or observation.status not in CLOSED


def most_per_hour_usd(record: Record, observation: Observation | None) -> Decimal:
    """What it may cost: the price that a listing shows or showed; until one has, its ceiling. 0 for what is free."""
    shown = observation.attributes.get("price_per_hour_usd") if observation is not None else None
    if shown is None and record.attributes.get("created_at") is None:
        shown = record.attributes.get("ceiling_per_hour_usd")
    return Decimal(str(shown if shown is not None else record.attributes.get("price_per_hour_usd") or 0))


def expired_since(record: Record, now: datetime) -> timedelta | None:
    """How long ago the time to live of anything that has one ended; None while it lives on."""
    removal = removal_at(record, None)
    return now - removal if removal is not None and removal <= now else None


def is_being_extended(record: Record, drift: str | None, open_effects: Iterable[OpenEffect]) -> bool:
    """Whether its other end is what an effect without an outcome was about: settling that tells, and keeps it."""
    return drift == TTL_CHANGED and any(
        effect.op == EXTEND and effect.address == record.address for effect in open_effects
    )


def without_setup(pod: Record, ended: Address) -> Record:
    """A pod once something on it is no longer declared: where that was its bootstrap, it is ready without one."""
    if ended.kind != "bootstrap" or not pod.inputs.get("bootstrapped"):
        return pod
    return replace(pod, inputs={**pod.inputs, "bootstrapped": False})


def removal_at(record: Record, observation: Observation | None) -> datetime | None:
    """When the server will take it away by itself; None: it won't."""
    shown = observation.attributes.get("removal_at") if observation is not None else None
    return moment(shown if shown is not None else record.attributes.get("removal_at"))


def precedence(record: Record) -> tuple[bool, str]:
    """Of several old pods at one address, the greatest is the one that does the work: what came later and was never set
    up has not taken its place."""
    return was_set_up(record), str(record.attributes.get("rented_at"))


def created_at(record: Record) -> datetime | None:
    return moment(record.attributes.get("created_at"))


def ttl_s(resource: Resource) -> int | None:
    """The time to live that is wanted; None: none, or a thing that has no such notion."""
    return resource.spec.ttl_s if isinstance(resource.spec, PodSpec) else None


def due_at(record: Record, resource: Resource, now: datetime) -> datetime | None:
    """When the manifest wants it to end; None: never, or that can't be told yet."""
    return deadline(record, resource.spec, now) if isinstance(resource.spec, PodSpec) else None


def placement_of(resource: Resource) -> str:
    """any | spread | pack."""
    return resource.spec.placement if isinstance(resource.spec, PodSpec) else "any"


def host_of(resource: Resource) -> Address | None:
    """The pod that a hosted resource runs on; None for all others."""
    return resource.spec.pod if isinstance(resource.spec, BootstrapSpec | TaskSpec) else None


def fleet_it_ends(resource: Resource) -> str | None:
    """The fleet that goes when this task has completed (`on_completion: destroy-fleet`)."""
    spec = resource.spec
    return spec.pod.name if isinstance(spec, TaskSpec) and spec.destroys_fleet else None


def node_of(record: Record) -> str | None:
    node = record.attributes.get("node_id")
    return node if isinstance(node, str) else None


def describe(offer: Offer) -> str:
    return offer_title(offer)


def moment(value: Json) -> datetime | None:
    """An RFC 3339 time; one without a zone is UTC, as everything that the server says is."""
    if not isinstance(value, str) or not value:
        return None
    read = datetime.fromisoformat(value)
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)
