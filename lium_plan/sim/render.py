"""Rows as the wire shows them (contract §3)."""

from __future__ import annotations

import hashlib
import math
from functools import cache

from lium_plan.sim import containers, lifecycle, market
from lium_plan.sim.catalogue import MACHINES_BY_NAME
from lium_plan.sim.rows import Account, ApiKey, Credential, Event, Json, Node, Pod, SshKey, Template, Volume
from lium_plan.sim.stamps import exact, naive
from lium_plan.sim.world import World


def executor_row(world: World, node: Node, *, summary: bool = False) -> dict[str, Json]:
    """A node in the catalogue, and the catalogue's part of a pod's nested one."""
    free = market.available(world, node)
    row: dict[str, Json] = {
        "id": node.id,
        "machine_name": node.machine_name,
        "price_per_gpu": float(node.price_per_gpu),
        "price_per_hour": float(market.price_for(node, node.gpu_count)),
        "gpu_count": node.gpu_count,
        "available_gpu_count": free,
        "min_gpu_count_for_rental": None if 1 < node.gpu_count == node.min_rentable else node.min_rentable,
        "tier": node.tier,
        "reliability_score": node.reliability,
        "max_cuda_version": node.cuda,
        "executor_ip_address": node.ip,
        "location": _location(node),
        "effective_upload_speed_mbps": node.upload_mbps,
        "effective_download_speed_mbps": node.download_mbps,
        "nvlink": node.nvlink if node.gpu_count > 1 else None,
        "gpu_power_limited": False,
        "gpu_power_limit_w": None,
        "gpu_power_limit_default_w": None,
        "frequent_rent_failures": node.frequent_rent_failures,
        "last_verified_at": naive(node.verified_at, 0),
        "status": "available" if market.is_listed(world, node) else "rented",
        "is_whole_host_free": free == node.gpu_count,
        "has_no_pending_rental": True,
        "pending_price_per_hour": None if node.pending_price is None else float(node.pending_price * node.gpu_count),
        "price_change_effective_date": naive(node.pending_price_at, 0),
        "uptime_in_minutes": node.uptime_minutes + int((world.now - world.started_at).total_seconds() // 60),
        "validator_hotkey": _hotkey("validator"),
        "miner_hotkey": _hotkey(node.ip),
        "specs": _specs(world, node, details=1 if summary else node.gpu_count),
    }
    if not summary:
        row["interconnect"] = _interconnect(node)
    return row


def _location(node: Node) -> dict[str, Json]:
    place = node.place
    return {
        "country": place.country,
        "country_code": place.country_code,
        "region": place.region,
        "region_name": place.region_name,
        "city": place.city,
        "zip": None,
        "lat": place.lat,
        "lon": place.lon,
        "timezone": place.timezone,
    }


def _specs(world: World, node: Node, *, details: int) -> dict[str, Json]:
    cards: list[Json] = [
        {
            "name": node.machine_name,
            "capacity": node.gpu_memory_mib,
            "cuda": str(node.cuda),
            "power_limit": 700.0,
            "graphics_speed": 1980,
            "memory_speed": 2619,
            "pcie": 5,
            "pcie_speed": 32,
            "uuid": f"GPU-{_digest(node.id, str(index))}",
        }
        for index in range(details)
    ]
    return {
        "gpu": {
            "count": node.gpu_count,
            "driver": node.driver,
            "cuda_driver": int(node.cuda * 1000),
            "details": cards,
        },
        "cpu": {"count": node.cpu_count, "model": node.cpu_model},
        "ram": {
            "total": node.ram_kib,
            "free": int(node.ram_kib * 0.9),
            "available": int(node.ram_kib * 0.94),
        },
        "hard_disk": {
            "total": node.disk_kib,
            "used": node.disk_kib - node.disk_free_kib,
            "free": node.disk_free_kib,
        },
        "network": {"upload_speed": node.upload_mbps, "download_speed": node.download_mbps},
        "available_port_count": market.free_ports(world, node),
        "sysbox_runtime": node.sysbox,
        "is_spot": node.tier == "spot",
    }


def _interconnect(node: Node) -> dict[str, Json] | None:
    if node.gpu_count == 1:
        return None
    pairs = node.gpu_count * (node.gpu_count - 1) // 2
    linked = pairs if node.nvlink else 0
    return {
        "gpu_count": node.gpu_count,
        "gpu_pairs": pairs,
        "nvlink": node.nvlink,
        "nvlink_links": 18 if node.nvlink else 0,
        "nvlink_pairs": linked,
        "nvlink_active_links": 18 if node.nvlink else 0,
        "pcie_class": "5.0 x16",
        "p2p": node.nvlink,
        "p2p_pairs": pairs,
        "p2p_ok_pairs": linked,
        "matrix": None,
    }


@cache
def _digest(*parts: str) -> str:
    text = hashlib.sha256("/".join(parts).encode()).hexdigest()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


@cache
def _hotkey(text: str) -> str:
    return "5" + hashlib.sha256(text.encode()).hexdigest()[:47]


def pod_row(world: World, pod: Pod, *, detail: bool = False) -> dict[str, Json]:
    row = {**settled_row(world, pod), **progress(world, pod)}
    if detail:
        events = world.events.where("pod", pod.id)
        row["last_event"] = dict(event_row(world, events[-1])) if events else None
        row["executor_status"] = {"logs": []}
        nested = row["executor"]
        if isinstance(nested, dict):
            nested["disk_health_ok"] = True
    return row


def progress(world: World, pod: Pod) -> dict[str, Json]:
    """The part of a pod's row that moves with time alone."""
    phase = lifecycle.phase(world, pod)
    left = None
    if phase is not None and pod.ready_at is not None:
        left = max(0, math.ceil((pod.ready_at - world.now).total_seconds()))
    return {
        "estimated_ready_seconds": left,
        "eta_basis": None if phase is None else "executor_history",
        "phase": phase,
    }


def settled_row(world: World, pod: Pod) -> dict[str, Json]:
    """The rest of it: what it is made of is named in `podrows.PodRows`, which keeps it."""
    node = world.nodes[pod.node_id]
    template = world.templates[pod.template_id]
    ready = pod.host is not None and 22 in pod.ports
    return {
        "id": pod.id,
        "executor_id": pod.node_id,
        "ports_mapping": {str(inner): outer for inner, outer in pod.ports.items()},
        "pod_name": pod.name,
        "ssh_connect_cmd": f"ssh {pod.ssh_user}@{pod.host} -p {pod.ports[22]}" if ready else None,
        "gpu_name": short_gpu_name(node),
        "gpu_count": str(pod.gpu_count),
        "cpu_name": node.cpu_model,
        "cpu_count": node.cpu_count,
        "ram_total": node.ram_kib,
        "status": pod.status.value,
        "is_favorite": False,
        "updated_at": naive(pod.updated_at, pod.serial),
        "created_at": naive(pod.created_at, pod.serial),
        "removal_scheduled_at": exact(pod.removal_scheduled_at),
        "termination_hours": pod.termination_hours,
        "jupyter_installation_status": pod.jupyter_status,
        "jupyter_url": pod.jupyter_url,
        "enable_jupyter": pod.enable_jupyter,
        "enable_volume_encryption": pod.enable_volume_encryption,
        "volume_encryption_status": _encryption(pod, template),
        "price": float(pod.price_per_hour),
        "cluster_id": pod.cluster_id,
        "cluster_node_index": pod.cluster_node_index,
        "cluster_overlay_ip": None if pod.cluster_node_index is None else f"10.42.0.{pod.cluster_node_index + 1}",
        "api_key_id": pod.key_id,
        "api_key_name": world.keys[pod.key_id].name,
        "created_by_api_key_id": pod.key_id,
        "workspace_id": world.accounts[pod.account_id].workspace_id,
        "local_volume_path": containers.local_volume(template),
        "template": pod_template(template),
        "executor": _pod_executor(world, node, pod.host),
        "volume": _pod_volume(world, pod),
        "ssh_keys": [],
        "notice_period": exact(pod.notice_at),
        "skip_add_agent_ssh_key": pod.skip_add_agent_ssh_key,
    }


def short_gpu_name(node: Node) -> str:
    return (
        MACHINES_BY_NAME[node.machine_name].feed_name.split(" 80GB")[0]
        if node.machine_name in MACHINES_BY_NAME
        else node.gpu_model
    )


def _encryption(pod: Pod, template: Template) -> str | None:
    if not pod.enable_volume_encryption:
        return "DISABLED" if pod.host is not None else None
    if pod.host is None:
        return None
    return "ENABLED" if template.supports_volume_encryption else "UNSUPPORTED_IMAGE"


def _pod_executor(world: World, node: Node, host: str | None) -> dict[str, Json]:
    """The whole host as a pod's row nests it: fewer fields than the catalogue's, and the address that answers."""
    return {
        "id": node.id,
        "machine_name": node.machine_name,
        "price_per_gpu": float(node.price_per_gpu),
        "executor_ip_address": host or node.ip,
        "validator_hotkey": _hotkey("validator"),
        "miner_hotkey": _hotkey(node.ip),
        "gpu_count": node.gpu_count,
        "tier": node.tier,
        "pending_price_per_hour": None if node.pending_price is None else float(node.pending_price * node.gpu_count),
        "price_change_effective_date": naive(node.pending_price_at, 0),
        "specs": _specs(world, node, details=1),
        "active": True,
        "location": _location(node),
    }


def _pod_volume(world: World, pod: Pod) -> Json:
    volume = None if pod.volume_id is None else world.volumes.get(pod.volume_id)
    return None if volume is None else volume_row(volume)


def pod_template(template: Template) -> dict[str, Json]:
    """The template as a pod's row nests it (contract §3.2)."""
    whole = template_row(template)
    names = (
        "id name description docker_image docker_image_tag category docker_image_digest volumes environment "
        "entrypoint internal_ports is_private startup_commands"
    )
    return {name: whole[name] for name in names.split()}


def template_row(template: Template) -> dict[str, Json]:
    return {
        "id": template.id,
        "user_id": template.user_id,
        "name": template.name,
        "description": template.description,
        "docker_image": template.docker_image,
        "docker_image_tag": template.docker_image_tag,
        "docker_image_digest": template.docker_image_digest,
        "docker_image_size": template.docker_image_size,
        "category": template.category,
        "volumes": None if template.volumes is None else list(template.volumes),
        "environment": None if template.environment is None else dict(template.environment),
        "entrypoint": template.entrypoint,
        "internal_ports": list(template.internal_ports),
        "is_private": template.is_private,
        "one_time_template": template.one_time_template,
        "is_temporary": template.is_temporary,
        "container_start_immediately": template.container_start_immediately,
        "startup_commands": template.startup_commands,
        "readme": template.readme,
        "docker_credential_id": template.docker_credential_id,
        "status": template.status,
        "verification_logs": None,
        "supports_volume_encryption": template.supports_volume_encryption,
        "supports_docker": template.supports_docker,
        "created_at": naive(template.created_at, template.serial),
        "updated_at": naive(template.updated_at, template.serial),
    }


def volume_row(volume: Volume) -> dict[str, Json]:
    return {
        "id": volume.id,
        "name": volume.name,
        "description": volume.description,
        "created_at": naive(volume.created_at, volume.serial),
        "updated_at": naive(volume.updated_at, volume.serial),
        "current_size_bytes": volume.size_bytes,
        "current_file_count": volume.file_count,
        "current_size_gb": round(volume.size_bytes / 1e9, 3),
        "current_size_mb": round(volume.size_bytes / 1e6, 3),
        "last_metrics_update": naive(volume.updated_at, volume.serial) if volume.size_bytes else None,
    }


def credential_row(credential: Credential) -> dict[str, Json]:
    """With the password in clear, as the server does."""
    return {
        "id": credential.id,
        "user_id": credential.user_id,
        "username": credential.username,
        "password": credential.password,
        "created_at": naive(credential.created_at, credential.serial),
        "updated_at": naive(credential.updated_at, credential.serial),
    }


def ssh_key_row(key: SshKey) -> dict[str, Json]:
    return {
        "id": key.id,
        "name": key.name,
        "public_key": key.public_key,
        "created_at": naive(key.created_at, key.serial),
    }


def event_row(world: World, event: Event) -> dict[str, Json]:
    actor: Json = None
    if event.key_id is not None:
        key = world.keys[event.key_id]
        actor = {"auth": "api_key", "api_key_id": key.id, "api_key_name": key.name}
    return {
        "id": event.id,
        "created_at": naive(event.created_at, event.serial),
        "event_type": event.event_type,
        "sub_event_type": event.sub_event_type,
        "pod_id": event.pod_id,
        "pod_name": event.pod_name,
        "actor": actor,
        "from_status": event.from_status,
        "to_status": event.to_status,
        "reason": event.reason,
        "detail": event.detail,
        "error": event.error,
    }


def user_row(account: Account, balance_usd: float) -> dict[str, Json]:
    return {
        "id": account.id,
        "name": account.name,
        "email": f"{account.name}@lium.invalid",
        "balance": balance_usd,
        "stripe_customer_id": None,
        "email_verified": account.verified,
        "admin": False,
        "created_at": naive(account.opened_at, 0),
        "workspace": {
            "id": account.workspace_id,
            "name": account.workspace_name,
            "role": "owner",
            "billing_owner_user_id": account.id,
            "is_personal": True,
        },
    }


def key_row(world: World, key: ApiKey, *, spent_today: float, spent_total: float) -> dict[str, Json]:
    account = world.accounts[key.account_id]
    return {
        "id": key.id,
        "user_id": account.id,
        "name": key.name,
        "is_active": key.is_active and key.deleted_at is None,
        "created_at": naive(key.created_at, 0),
        "expires_at": exact(key.expires_at),
        "last_used": None,
        "scopes": [scope.value for scope in key.scopes],
        "workspace_id": account.workspace_id,
        "created_by_user_id": account.id,
        "daily_budget_usd": _usd(key.daily_budget_usd),
        "monthly_budget_usd": _usd(key.monthly_budget_usd),
        "max_budget_usd": _usd(key.max_budget_usd),
        "spent_today_usd": spent_today,
        "spent_total_usd": spent_total,
        "pod_visibility": "own" if key.own_pods_only else "account",
    }


def _usd(amount: object) -> float | None:
    return None if amount is None else float(str(amount))
