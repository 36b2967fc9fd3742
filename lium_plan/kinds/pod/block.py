"""What is written for a fleet: how many pods, what they need, what they run, how long they live."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated

from pydantic import Field, WithJsonSchema

from lium_plan.kinds.bootstrap.block import BootstrapBlock
from lium_plan.kinds.fields import (
    SIZE_RANGE,
    Block,
    CountRange,
    Duration,
    Filled,
    Flag,
    Money,
    Name,
    NodeId,
    NodesField,
    PlacementField,
    Positive,
    Reading,
    Region,
    RetryEventField,
    ScaleDownField,
    Shorthand,
    SizeRange,
    Speed,
    SpotPolicyField,
    Ttl,
    Version,
)
from lium_plan.kinds.pod.gpus import KNOWN, normalise
from lium_plan.kinds.template.block import Image
from lium_plan.kinds.values import (
    Fault,
    Nodes,
    Placement,
    ScaleDown,
    SpotPolicy,
    read_string,
    refuse_text,
    shown,
)
from lium_plan.kinds.volume.block import VolumeLifecycle

_COUNT = re.compile(r"[0-9]{1,6}")
_MEMORY = re.compile(r"(?:\.\.)?\s*[0-9].*[A-Za-z].*")
"""With a unit: `1..4` may be meant as GPUs."""
_NO_UNIT = re.compile(r"[0-9.\s]*\.[0-9.\s]*")
_NAMES, _AMOUNT, _PODS = (
    r"\s*[A-Za-z][^:]*",
    rf"(?=[^:]*[A-Za-z])(?:{SIZE_RANGE})",
    r"\s*0*[1-9][0-9]{0,5}\s*",
)
_GPU_SCHEMA = {
    "anyOf": [
        {
            "type": "string",
            "pattern": rf"^(?:{_NAMES}(?::{_AMOUNT})?(?::{_PODS})?|{_NAMES}:{_PODS}:{_AMOUNT}"
            rf"|{_AMOUNT}(?::{_PODS})?|{_PODS}(?::{_AMOUNT})?)$",
        },
        {"type": "integer", "minimum": 1, "maximum": 10**6},
    ],
    "description": "NAME[,NAME…][:MEMORY][:COUNT], e.g. H100:80GB:1",
}


def _gpu_from(value: object) -> dict[str, object]:
    """`NAME[,NAME…][:MEMORY][:COUNT]`, each part optional: the parts tell themselves apart."""
    if value is None or isinstance(value, list):
        raise Fault(f"expected a GPU such as H100:80GB:1, found {shown(value)}")
    spec: dict[str, object] = {}
    for part in (part.strip() for part in read_string(value).split(":")):
        key: str
        meaning: object
        if _COUNT.fullmatch(part):
            key, meaning = "count", int(part)
        elif _MEMORY.fullmatch(part):
            key, meaning = "memory", part
        elif _NO_UNIT.fullmatch(part):
            raise Fault(
                f"{shown(part)}: COUNT is one number, of GPUs in each pod (`nodes` counts pods); MEMORY needs its unit"
            )
        elif part and not spec:
            key, meaning = "name", [name.strip() for name in part.split(",")]
        else:
            raise Fault(f"expected NAME[,NAME…][:MEMORY][:COUNT] such as H100:80GB:1, found {shown(value)}")
        if key in spec:
            raise Fault(f"two values for the GPU's {key} in {shown(value)}")
        spec[key] = meaning
    return spec


def _gpu_names(value: object) -> tuple[str, ...]:
    """Known models only: an unknown one could never be found on offer."""
    refuse_text(value)
    written = value if isinstance(value, list | tuple) else [value]
    names = []
    for item in written:
        name = read_string(item)
        known = normalise(name)
        if known is None:
            raise Fault(f"unknown GPU {shown(name)}{_nearest_gpu(name)}")
        names.append(known)
    return tuple(dict.fromkeys(names))


def _nearest_gpu(name: str) -> str:
    known = {model.lower(): model for model in sorted(KNOWN)}
    found = get_close_matches(re.sub(r"[\s-]+", "", name).lower(), known, 1, 0.5)
    return f"; did you mean {known[found[0]]}?" if found else ""


class GpuBlock(Block):
    """Which GPUs, how much memory on each, how many in a pod. Without a name: any."""

    names: Annotated[
        tuple[str, ...],
        Reading(_gpu_names),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "number"]}}]}),
    ] = Field((), alias="name", description="One model, or several that will do")
    memory: SizeRange | None = Field(None, description="Of each GPU")
    count: Positive = Field(1, description="GPUs in each pod; default 1")


class ResourcesBlock(Block):
    """What a pod must at least have. No constraint where nothing is written."""

    gpu: Annotated[GpuBlock, Shorthand(_gpu_from, _GPU_SCHEMA)] = Field(
        description="NAME[,NAME…][:MEMORY][:COUNT] such as H100:80GB:1, or name, memory and count apart"
    )
    cpu: CountRange | None = Field(None, description="Cores: 8.., ..32 or 8..32; 8 means exactly 8")
    memory: SizeRange | None = Field(None, description="Of the machine, not of the GPUs: 64GB, 64GB..128GB")
    disk: SizeRange | None = Field(None, description="The container filesystem; the local volume is apart")


class UpdateBlock(Block):
    parallel: Positive = Field(1, description="Members that a template switch takes down at a time")


class RetryBlock(Block):
    on_events: tuple[RetryEventField, ...] = Field(
        description="After what to look for a node again: no-capacity, interruption"
    )
    duration: Duration = Field(3600, description="How long to go on trying; default 1h")


class FleetLifecycle(VolumeLifecycle):
    create_before_destroy: Flag = Field(False, description="Rent the replacement before deleting the old pod")


class FleetBlock(Block):
    """Pods with one specification: `fleet.NAME[MEMBER]`."""

    nodes: NodesField = Nodes(1, 1)
    resources: ResourcesBlock = Field(description="What each pod must at least have")
    regions: tuple[Region, ...] = Field((), description="Country or country-subdivision, any case")
    spot_policy: SpotPolicyField = Field(
        SpotPolicy.ON_DEMAND, description="on-demand (default): secure tier; spot; auto: whichever is cheaper"
    )
    max_price: Money | None = Field(None, description="USD per pod and hour")
    node_ids: tuple[NodeId, ...] = Field((), description="Only these nodes")
    exclude_nodes: tuple[NodeId, ...] = Field((), description="Never these nodes")
    min_download: Speed | None = Field(None, description="500Mbps, 1Gbps")
    nvlink: Flag = Field(False, description="Only nodes whose GPUs are joined by NVLink")
    reliable: Flag = Field(False, description="Not the nodes known for failed rents")
    min_cuda: Version | None = Field(None, description="Lowest CUDA version of the node's driver, such as 12.4")
    template: Name | None = Field(None, description="A name under templates; either this or image")
    image: Image | None = Field(None, description="A one-line template")
    volume: Name | None = Field(None, description="Attached at /mnt; a fleet of one only")
    ssh_key: Filled | None = Field(None, description="Path of the private key; default: as the official client")
    ttl: Ttl | None = Field(None, description="Time to live, given to the server with the rent")
    ttl_renew: Flag = Field(False, description="Every apply re-arms the deadline")
    placement: PlacementField = Field(Placement.ANY, description="any (default); spread: never two on a node; pack")
    backups: Flag = Field(False, description="The server's own backups; stored ones are billed")
    bootstrap: BootstrapBlock | None = Field(None, description="What makes a fresh pod ready: files, commands")
    update: UpdateBlock | None = Field(None, description="How a template switch goes through the fleet")
    retry: RetryBlock | None = Field(None, description="When to go on looking for nodes")
    scale_down: ScaleDownField = Field(
        ScaleDown.UNHEALTHY_FIRST, description="Which pods go first; default: what is broken, then the newest"
    )
    lifecycle: FleetLifecycle | None = Field(None, description="What plans may do to the pods")
