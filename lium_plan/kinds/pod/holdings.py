"""The pods of an account, whoever rented them, and what can be told of them from their rows alone (contract §3.2).

A row shows the whole host: the pod's share of it is reckoned as at a rent (contract §5.1), but for the disk, whose
quota no row shows: there its share of the whole disk stands, the most it can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.kinds.holdings import Held, Stanza
from lium_plan.kinds.pod.feed import usable_memory_gib
from lium_plan.kinds.pod.gpus import memory_gib, normalise
from lium_plan.kinds.pod.lifetimes import TTL_TOLERANCE
from lium_plan.kinds.pod.spec import Pods, PodSpec, status_after
from lium_plan.kinds.pod.waiting import pod_facts
from lium_plan.kinds.protocol import Comparison, Json, Observation, Presence, Record, Resource
from lium_plan.lium.client import LiumClient
from lium_plan.lium.models import Pod
from lium_plan.marks import parse_pod_name

HOUR_S = 3600
LONGEST_TTL_H = 720
KIB_PER_GIB = 2**20


def open_holdings(client: LiumClient, account_id: str) -> PodHoldings:
    return PodHoldings(client)


class PodHoldings:
    def __init__(self, client: LiumClient) -> None:
        self._client = client

    async def everything(self) -> tuple[Held, ...]:
        return tuple(_held(pod) for pod in await self._client.pods())

    def record(self, held: Held, resource: Resource, comparison: Comparison) -> Record:
        spec: PodSpec = resource.spec
        pod: Pod = held.row
        inputs = {
            **Pods().inputs(spec, comparison),
            "template": _used(pod.template_id, spec.template, comparison),
            "volume": _used(pod.volume_id, spec.volume, comparison),
            "ttl_s": _ttl_s(pod, spec.ttl_s),
        }
        facts: dict[str, Json] = {
            **slice_facts(pod),
            **pod_facts(pod),
            "pod_name": pod.name,
            "ceiling_per_hour_usd": _ceiling(pod, spec),
            "rented_at": pod.created_at.isoformat() if pod.created_at else None,
        }
        needs = tuple(
            address for address in resource.depends_on if str(address) in (inputs["template"], inputs["volume"])
        )
        return Record(resource.address, held.id, _status(pod), inputs, facts, needs, resource.lifecycle.prevent_destroy)

    def stanza(self, held: Held, address: Address, records: Mapping[str, Record]) -> Stanza:
        pod: Pod = held.row
        facts = slice_facts(pod)
        gpu = f"{facts['gpu']}:{facts['gpu_count']}" if "gpu" in facts else {"count": facts["gpu_count"]}
        members = {
            record.address.member
            for record in records.values()
            if record.kind == "pod" and record.address.name == address.name and not record.deposed
        } | {address.member}
        named = sorted(str(member) for member in members)
        block: dict[str, Json] = {
            "nodes": len(named) if all(name.isdigit() for name in named) else named,
            "resources": {"gpu": gpu},
        }
        if facts.get("tier") == "spot":
            block["spot_policy"] = "spot"
        ttl_s = _ttl_s(pod, None)
        if ttl_s is not None:
            block["ttl"] = f"{ttl_s // HOUR_S}h"
        sections: dict[str, dict[str, Mapping[str, Json]]] = {"fleets": {address.name: block}}
        for section, field, id in (("templates", "template", pod.template_id), ("volumes", "volume", pod.volume_id)):
            if id is not None:
                block[field] = _named(field, id, address, records)
                if _holder(field, id, records) is None:
                    sections[section] = {address.name: {"id": id}}
        return sections

    async def delete(self, id: str) -> None:
        await self._client.delete_pod(id)


def _holder(kind: str, id: str, records: Mapping[str, Record]) -> Record | None:
    return next((record for record in records.values() if (record.kind, record.id) == (kind, id)), None)


def _named(kind: str, id: str, address: Address, records: Mapping[str, Record]) -> str:
    """The name of the one in state; somebody else's is called like the fleet."""
    record = _holder(kind, id, records)
    return address.name if record is None else record.address.name


def slice_facts(pod: Pod) -> dict[str, Json]:
    """What the pod was rented as, as far as its row tells; what it does not tell is left out, never guessed."""
    host = pod.executor
    total, count = _whole(host.get("gpu_count")), pod.gpu_count or 1
    facts: dict[str, Json] = {"node_id": pod.executor_id, "gpu_count": count}
    name = host.get("machine_name") or pod.gpu_name
    gpu = normalise(name) if isinstance(name, str) else None
    specs = _object(host.get("specs"))
    memory = _capacity_gib(specs)
    if gpu is not None:
        facts["gpu"] = gpu
    if gpu is not None and memory is not None:
        facts["gpu_memory_gib"] = memory_gib(gpu, memory)
    if pod.price_per_hour_usd is not None:
        facts["price_per_hour_usd"] = str(pod.price_per_hour_usd)
    place = _place(_object(host.get("location")))
    if place is not None:
        facts["location"] = place
    tier = host.get("tier")
    if tier in ("secure", "spot"):
        facts["tier"] = str(tier)
    if total and count <= total:
        facts.update(_shares(specs, count, total))
    return facts


def _shares(specs: Mapping[str, object], count: int, total: int) -> dict[str, Json]:
    facts: dict[str, Json] = {}
    cpus = _whole(_object(specs.get("cpu")).get("count"))
    ram, disk = _whole(_object(specs.get("ram")).get("total")), _whole(_object(specs.get("hard_disk")).get("total"))
    if cpus:
        facts["cpu"] = cpus * count // total
    if ram:
        facts["memory_gib"] = usable_memory_gib(Decimal(ram) / KIB_PER_GIB, count, total)
    if disk:
        facts["disk_gb"] = disk * count // (KIB_PER_GIB * total * 3)
        facts["local_disk_gb"] = disk * count * 2 // (KIB_PER_GIB * total * 3)
    return facts


def _capacity_gib(specs: Mapping[str, object]) -> int | None:
    details = _object(specs.get("gpu")).get("details")
    first = _object(details[0]) if isinstance(details, list) and details else {}
    mib = first.get("capacity")
    return round(mib / 1024) if isinstance(mib, int | float) and not isinstance(mib, bool) and mib > 0 else None


def _place(location: Mapping[str, object]) -> str | None:
    country, region = location.get("country_code"), location.get("region")
    if not isinstance(country, str) or not country:
        return None
    return f"{country}-{region}".lower() if isinstance(region, str) and region else country.lower()


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: object) -> int:
    """A count, also as text; 0 for what is none."""
    try:
        return max(int(str(value)), 0)
    except ValueError:
        return 0


def _used(id: str | None, wanted: Address | None, comparison: Comparison) -> str | None:
    """The address of what the pod uses, where state holds it there; else its id."""
    record = comparison.records.get(str(wanted)) if wanted is not None else None
    return str(wanted) if record is not None and record.id == id else id


def _ttl_s(pod: Pod, wanted_s: int | None) -> int | None:
    """The time to live in force, in whole hours as a manifest has it; the wanted one where it is within tolerance."""
    if pod.removal_at is None or pod.created_at is None:
        return None
    lives_s = (pod.removal_at - pod.created_at).total_seconds()
    if wanted_s is not None and abs(lives_s - wanted_s) <= TTL_TOLERANCE.total_seconds():
        return wanted_s
    hours = -(-int(lives_s - TTL_TOLERANCE.total_seconds()) // HOUR_S)
    return min(max(hours, 1), LONGEST_TTL_H) * HOUR_S


def _ceiling(pod: Pod, spec: PodSpec) -> str | None:
    ceiling = spec.requirement.max_price_usd or pod.price_per_hour_usd
    return None if ceiling is None else str(ceiling)


def _status(pod: Pod) -> str:
    dead = status_after(pod.status)
    if dead is not None:
        return dead
    return "ready" if pod.status == "RUNNING" and pod.ssh_connect_cmd else "pending"


def _held(pod: Pod) -> Held:
    marks = parse_pod_name(pod.name)
    return Held(
        "pod",
        pod.id,
        pod.name,
        marks.scope if marks else None,
        marks.lineage if marks else None,
        Observation(Presence.PRESENT, pod.status, pod_facts(pod)),
        pod,
        tail=marks.tail if marks else None,
        price_per_hour_usd=pod.price_per_hour_usd,
        since=pod.created_at,
        leaving=pod.status == "DELETING",
    )
