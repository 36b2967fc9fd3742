"""Whether a living pod still is what is asked for: what was recorded at its rent against the constraints of now.

Owns which constraints a pod must go on satisfying, which bind new rents only, and how each is told as a field of the
manifest. A figure that was never recorded (of an imported pod) satisfies everything. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lium_plan.kinds.lifecycles import ignores
from lium_plan.kinds.pod.facts import offer_of
from lium_plan.kinds.pod.offers import Bounds, Offer, Requirement
from lium_plan.kinds.protocol import FieldChange, Json, Lifecycle, Record

LASTING = ("gpu", "gpu memory", "gpu count", "cpu", "memory", "disk", "regions", "spot_policy")
"""The constraints that a living pod must go on satisfying; the others bind new rents only."""


Violations = tuple[tuple[str, FieldChange], ...]
"""The names of constraints, each with the field that tells it."""


def as_offer(record: Record) -> Offer | None:
    """The slice that a pod was rented as, from what was recorded then; None when it was never recorded."""
    return offer_of(record.attributes)


def violations(record: Record, want: Requirement, lifecycle: Lifecycle) -> Violations:
    """The constraints that the slice, as it was rented, does not meet and that are not ignored, as fields."""
    facts = record.attributes
    rented = as_offer(record) or as_offer(replace(record, attributes={**_UNKNOWN_FACTS, **facts}))
    if rented is None:
        return ()
    found = []
    for name in want.violations(rented):
        told = _TOLD.get(name)
        if told is None or told.fact not in facts or any(ignores(lifecycle, path) for path in told.paths):
            continue
        before, after = told.shown(rented, want)
        forces = "replace" if name in LASTING else None
        found.append((name, FieldChange(told.paths[0], before, after, forces=forces)))
    return tuple(found)


def _sized(amount: Bounds) -> str:
    """A range of GiB as it is written: `80GB`, `5000GB..`, `..64GB`, `20GB..40GB`."""
    return "..".join(f"{end}GB" if end else "" for end in str(amount).split(".."))


@dataclass(frozen=True, slots=True)
class _Told:
    paths: tuple[str, ...]
    """The field of the manifest; further ones are other names for it in `ignore_changes`."""
    fact: str
    """The attribute of a record that it is judged by."""
    shown: Callable[[Offer, Requirement], tuple[Json, Json]]


_TOLD: Mapping[str, _Told] = {
    "gpu": _Told(
        ("resources.gpu", "resources.gpu.name"),
        "gpu",
        lambda rented, want: (rented.gpu, ",".join(name.upper() for name in want.gpus)),
    ),
    "gpu memory": _Told(
        ("resources.gpu.memory",),
        "gpu_memory_gib",
        lambda rented, want: (f"{rented.gpu_memory_gib}GB", _sized(want.gpu_memory)),
    ),
    "gpu count": _Told(("resources.gpu.count",), "gpu_count", lambda rented, want: (rented.gpu_count, want.gpu_count)),
    "cpu": _Told(("resources.cpu",), "cpu", lambda rented, want: (rented.cpu, str(want.cpu))),
    "memory": _Told(
        ("resources.memory",), "memory_gib", lambda rented, want: (f"{rented.memory_gib}GB", _sized(want.memory))
    ),
    "disk": _Told(("resources.disk",), "disk_gb", lambda rented, want: (f"{rented.disk_gb}GB", _sized(want.disk))),
    "regions": _Told(("regions",), "location", lambda rented, want: (rented.location, list(want.regions))),
    "spot_policy": _Told(("spot_policy",), "tier", lambda rented, want: (str(rented.tier), ",".join(want.tiers))),
    "max_price": _Told(
        ("max_price",),
        "price_per_hour_usd",
        lambda rented, want: (str(rented.price_per_hour_usd), str(want.max_price_usd)),
    ),
    "node_ids": _Told(("node_ids",), "node_id", lambda rented, want: (rented.node_id, list(want.node_ids))),
    "exclude_nodes": _Told(
        ("exclude_nodes",), "node_id", lambda rented, want: (rented.node_id, list(want.exclude_nodes))
    ),
    "min_download": _Told(
        ("min_download",),
        "download_mbps",
        lambda rented, want: (f"{rented.download_mbps}Mbps", f"{want.min_download_mbps}Mbps"),
    ),
    "nvlink": _Told(("nvlink",), "nvlink", lambda rented, want: (rented.nvlink, want.nvlink)),
    "reliable": _Told(("reliable",), "reliable", lambda rented, want: (rented.reliable, want.reliable)),
    "min_cuda": _Told(("min_cuda",), "cuda", lambda rented, want: (str(rented.cuda), str(want.min_cuda))),
}

_UNKNOWN_FACTS: Mapping[str, Json] = {
    "node_id": "?",
    "gpu": "?",
    "gpu_count": 1,
    "gpu_memory_gib": 1,
    "cpu": 1,
    "memory_gib": 1,
    "disk_gb": 1,
    "price_per_hour_usd": "0",
    "location": "?",
    "tier": "secure",
}
"""In place of what an imported pod's row does not tell; never judged."""
