"""A stack of N pods as an apply leaves it: the manifest, the state, and the answers that the account then gives.

Two shapes: one fleet of N members, and N fleets of one, which is what a flat list of resources is elsewhere.
`python -m bench.growing.stacks FOLDER SHAPE SIZE fresh|applied` writes one, in a process of its own: what the kernel
tells of a command's memory begins with that of the process that started it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from lium_plan.kinds.pod.facts import offer_facts
from lium_plan.kinds.pod.offers import Offer, Tier
from lium_plan.kinds.protocol import Comparison, Record, Resource
from lium_plan.kinds.registry import kind
from lium_plan.manifest.expand import expand
from lium_plan.manifest.load import load
from lium_plan.marks import pod_name, template_name
from lium_plan.state.codec import encode_snapshot
from lium_plan.state.model import new_state
from lium_plan.state.values import freeze_record

LINEAGE = "8d3cf2a1-6f5e-4c1d-9a3b-2d5e6f708192"
SALT = bytes(range(32))
ACCOUNT, WORKSPACE = "0b6f2a7e-4c1d-4e0f-9a3b-2d5e6f708190", "0b6f2a7e-4c1d-4e0f-9a3b-2d5e6f708191"
TEMPLATE_ID = "7c1d2a7e-4c1d-4e0f-9a3b-2d5e6f708192"
FLEET = """\
    nodes: {nodes}
    resources: {{gpu: "H100:80GB:1", cpu: 8.., memory: 64GB.., disk: 30GB..}}
    max_price: 2.50
    template: torch
    ttl: 48h
"""


def manifest(shape: str, size: int) -> str:
    head = (
        "version: 1\nproject: growth\ntemplates:\n  torch: {image: 'pytorch/pytorch:2.4.0', env: {HF_HOME: /root/hf}}\n"
    )
    names = {"trainers": size} if shape == "one fleet" else {f"box-{number}": 1 for number in range(size)}
    return head + "fleets:\n" + "".join(f"  {name}:\n{FLEET.format(nodes=nodes)}" for name, nodes in names.items())


def write_stack(place: Path, shape: str, size: int, *, applied: bool) -> None:
    """Manifest, and with `applied` the state that an apply left; the answers fit either."""
    folder = place / "stack"
    folder.mkdir(parents=True)
    (folder / "lium.yaml").write_text(manifest(shape, size))
    now = datetime.now(UTC).replace(microsecond=0)
    pods: list[dict[str, object]] = []
    templates: list[dict[str, object]] = []
    if applied:
        records = _records(folder, now)
        state = replace(
            new_state("growth", "default", lineage=LINEAGE, salt=SALT),
            records=dict(sorted(records.items())),
            account_id=ACCOUNT,
            workspace_id=WORKSPACE,
            serial=size,
            sequence=size,
        )
        (folder / "state").mkdir()
        (folder / "state" / "default.json").write_bytes(encode_snapshot(state))
        pods = [_pod_row(record) for record in records.values() if record.kind == "pod"]
        templates = [_template_row(record) for record in records.values() if record.kind == "template"]
    answers = _answers(pods, templates, 100 if applied else max(size // 4, 100))
    (place / "answers").mkdir()
    names = {path: f"{index}.json" for index, path in enumerate(answers)}
    for path, body in answers.items():
        (place / "answers" / names[path]).write_text(json.dumps(body))
    (place / "answers" / "paths.json").write_text(json.dumps(names))


def _records(folder: Path, now: datetime) -> dict[str, Record]:
    records: dict[str, Record] = {}
    for number, resource in enumerate(expand(load([folder], stack="default", environ={})).resources.values()):
        comparison = Comparison(now=now, salt=SALT, resolve=lambda _: None, verbs={}, records=records)
        inputs = kind(resource.kind).inputs(resource.spec, comparison)
        made = _pod(resource, number, now) if resource.kind == "pod" else _template(inputs)
        records[str(resource.address)] = freeze_record(
            Record(resource.address, made[0], "ready", inputs, made[1], resource.depends_on)
        )
    return records


def _template(inputs: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    return TEMPLATE_ID, {"remote_name": template_name(LINEAGE, SALT, {**inputs, "credential_id": None})}


def _pod(resource: Resource, number: int, now: datetime) -> tuple[str, dict[str, object]]:
    """What a rent and the wait for it leave in a record."""
    member = str(resource.address.member)
    node = f"aa11bb22-cc33-4d44-8e55-{number:012x}"
    offer = Offer(node, "H100", 1, 80, 24, 249, 61, 122, Decimal("1.99"), Decimal("1.99"), "us-ms", Tier.SECURE)
    created = now - timedelta(hours=2)
    facts = {
        **offer_facts(offer),
        "pod_name": pod_name(
            "growth", "default", LINEAGE, f"{number:08d}".translate(NONCE), resource.address.name, member
        ),
        "ceiling_per_hour_usd": "2.50",
        "rented_at": created.isoformat(),
        "host": f"pod-{number}.example.net",
        "ip": "203.0.113.10",
        "ssh_port": 31022,
        "ports": {"22": 31022},
        "connect_command": f"ssh root@pod-{number}.example.net -p 31022",
        "template_id": TEMPLATE_ID,
        "created_at": created.isoformat(),
        "removal_at": (created + timedelta(hours=48)).isoformat(),
        "ssh_key": "/home/user/.ssh/id_ed25519",
    }
    return f"0b6f2a7e-4c1d-4e0f-9a3b-{number:012x}", facts


NONCE = str.maketrans("0189", "abcd")
"""Digits that base32 lacks."""


def _answers(pods: list[dict[str, object]], templates: list[dict[str, object]], nodes: int) -> dict[str, object]:
    now = datetime.now(UTC).isoformat()
    return {
        "/users/me": {"id": ACCOUNT, "name": "bench", "balance": 1e6, "workspace": {"id": WORKSPACE, "name": "bench"}},
        "/version": {"features": ["rent_idempotency"]},
        "/pods": pods,
        "/templates": templates,
        "/volumes": [],
        "/docker-credentials/": [],
        "/public/v1/nodes": {"generated_at": now, "nodes": [_node(number) for number in range(nodes)]},
        "/executors": [],
    }


def _naive(facts: Mapping[str, object], name: str) -> str:
    return str(facts[name]).removesuffix("+00:00")


def _pod_row(record: Record) -> dict[str, object]:
    """As the server sends it (contract §3.2), with all of its fields."""
    facts = record.attributes
    return {
        "id": record.id,
        "executor_id": facts["node_id"],
        "ports_mapping": {"22": 31022},
        "pod_name": facts["pod_name"],
        "ssh_connect_cmd": facts["connect_command"],
        "gpu_name": "H100",
        "gpu_count": "1",
        "cpu_name": "EPYC",
        "cpu_count": 24,
        "ram_total": 128000,
        "status": "RUNNING",
        "is_favorite": False,
        "updated_at": _naive(facts, "created_at"),
        "created_at": _naive(facts, "created_at"),
        "removal_scheduled_at": _naive(facts, "removal_at"),
        "termination_hours": 48,
        "jupyter_installation_status": None,
        "jupyter_url": None,
        "enable_jupyter": False,
        "enable_volume_encryption": False,
        "volume_encryption_status": None,
        "price": 1.99,
        "cluster_id": None,
        "cluster_node_index": None,
        "cluster_overlay_ip": None,
        "created_by_api_key_id": None,
        "workspace_id": WORKSPACE,
        "template": {
            "id": TEMPLATE_ID,
            "name": "torch",
            "docker_image": "pytorch/pytorch",
            "docker_image_tag": "2.4.0",
        },
        "executor": {
            "id": facts["node_id"],
            "machine_name": "NVIDIA H100 80GB HBM3",
            "price_per_gpu": 1.99,
            "executor_ip_address": "203.0.113.10",
            "gpu_count": 8,
            "specs": {"gpu": {"count": 8, "details": [{"name": "NVIDIA H100 80GB HBM3", "capacity": 81920}]}},
            "active": True,
            "location": {"country": "United States", "country_code": "US"},
        },
        "volume": None,
        "ssh_keys": [],
        "notice_period": None,
    }


def _template_row(record: Record) -> dict[str, object]:
    return {
        "id": record.id,
        "user_id": ACCOUNT,
        "name": record.attributes["remote_name"],
        "docker_image": "pytorch/pytorch",
        "docker_image_tag": "2.4.0",
        "status": "CREATED",
    }


def _node(number: int) -> dict[str, object]:
    """A whole machine of eight. A market has a hundred of them; a first plan needs a quarter as many as pods."""
    return {
        "id": f"aa11bb22-cc33-4d44-8e55-{number + 2**32:012x}",
        "gpu_model": "NVIDIA H100 80GB HBM3",
        "gpu_count": 8,
        "available_gpu_count": 8,
        "min_rentable_gpu_count": 1,
        "price_per_gpu_hour": 1.80 + number % 50 / 100,
        "gpu_memory_gb": 80,
        "cpu_count": 192,
        "ram_gb": 2015,
        "disk_free_gb": 1480,
        "country_code": "US",
        "region": "MS",
        "tier": "secure",
        "network_download_mbps": 4000.0,
    }


if __name__ == "__main__":
    write_stack(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), applied=sys.argv[4] == "applied")
