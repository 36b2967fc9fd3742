"""What people write that can't be had: not with Lium, or not yet. A reason each instead of "unknown key".

Keys are those of the section and of the path inside an entry, without list indices; a word that no field takes is the
last step of its path.
"""

from __future__ import annotations

from collections.abc import Sequence

_CLUSTERS = (
    "multi-node clusters on one fabric are not in version 1 of the manifest yet; "
    "a fleet's pods find each other by address"
)
_BACKUPS = "backup schedules are not in version 1 of the manifest yet; `backups: true` turns the server's own on"
_BUILDS = "Dockerfile builds are not in version 1 of the manifest yet; push an image and name it in `image`"
_ONE_VOLUME = "a pod takes one volume at most: write `volume: NAME`; it is mounted at /mnt"
_SIZE = "volumes have no size: they grow as they are filled, and what is stored is billed"
_REGION = "volumes have no region: they are reached from every node"
_GPU = "GPUs are written under `resources.gpu`, e.g. `gpu: H100:80GB:1`"

_TOP = {
    "clusters": _CLUSTERS,
    "cluster": _CLUSTERS,
    "backups": _BACKUPS,
    "backup": _BACKUPS,
    "schedules": _BACKUPS,
    "backup_schedules": _BACKUPS,
    "builds": _BUILDS,
    "dockerfiles": _BUILDS,
}
_INSIDE: dict[tuple[str, ...], str] = {
    ("volumes", "size"): _SIZE,
    ("volumes", "size_gb"): _SIZE,
    ("volumes", "capacity"): _SIZE,
    ("volumes", "region"): _REGION,
    ("volumes", "regions"): _REGION,
    ("volumes", "location"): _REGION,
    ("fleets", "volumes"): _ONE_VOLUME,
    ("fleets", "volume"): _ONE_VOLUME,
    ("fleets", "cluster"): _CLUSTERS,
    ("fleets", "clusters"): _CLUSTERS,
    ("fleets", "interconnect"): _CLUSTERS,
    ("fleets", "fabric"): _CLUSTERS,
    ("fleets", "infiniband"): _CLUSTERS,
    ("fleets", "rdma"): _CLUSTERS,
    ("fleets", "placement", "cluster"): _CLUSTERS,
    ("fleets", "resources", "infiniband"): _CLUSTERS,
    ("fleets", "resources", "interconnect"): _CLUSTERS,
    ("fleets", "backups"): _BACKUPS,
    ("fleets", "backup"): _BACKUPS,
    ("fleets", "backup_schedule"): _BACKUPS,
    ("fleets", "backup_frequency"): _BACKUPS,
    ("fleets", "backup_frequency_hours"): _BACKUPS,
    ("fleets", "schedule"): _BACKUPS,
    ("fleets", "dockerfile"): _BUILDS,
    ("fleets", "dockerfile_content"): _BUILDS,
    ("fleets", "build"): _BUILDS,
    ("templates", "dockerfile"): _BUILDS,
    ("templates", "dockerfile_content"): _BUILDS,
    ("templates", "build"): _BUILDS,
    ("templates", "context"): _BUILDS,
    ("fleets", "gpus"): _GPU,
    ("fleets", "gpu_count"): _GPU,
}


def refusal(section: str | int, inside: Sequence[str | int] = ()) -> str | None:
    """Why this key, or a value of this type at it, or this word in it, can't be had."""
    steps = tuple(step for step in inside if isinstance(step, str))
    return _INSIDE.get((str(section), *steps)) if steps else _TOP.get(str(section))
