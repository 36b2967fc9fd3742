"""Checks of fleets: names they use, volumes, lifetimes, and what the policy demands of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lium_plan.manifest.checks import Findings
from lium_plan.manifest.checks_ignored import check_ignored
from lium_plan.manifest.tree import Path

if TYPE_CHECKING:
    from lium_plan.kinds.bootstrap.block import BootstrapBlock
    from lium_plan.kinds.pod.block import FleetBlock


def check_fleets(findings: Findings) -> None:
    users: dict[str, tuple[str, str]] = {}
    for name, fleet in findings.blocks("fleets"):
        path: Path = ("fleets", name)
        _check_image(findings, path, fleet)
        _check_volume(findings, path, fleet, users)
        _check_lifetime(findings, path, fleet)
        if fleet.bootstrap is not None:
            _check_bootstrap(findings, path, fleet.bootstrap)
        check_ignored(findings, path, fleet)
        both = sorted(set(fleet.node_ids) & set(fleet.exclude_nodes))
        if both:
            message = f"{both[0]} is in node_ids and in exclude_nodes"
            findings.error((*path, "exclude_nodes"), "bad-combination", message)
        if fleet.retry is not None and not fleet.retry.on_events:
            message = "on_events: name at least one of no-capacity, interruption"
            findings.error((*path, "retry", "on_events"), "bad-value", message)


def _check_image(findings: Findings, path: Path, fleet: FleetBlock) -> None:
    if fleet.template is not None and fleet.image is not None:
        message = "either `template` or `image`, not both"
        findings.error((*path, "image"), "bad-combination", message, hint="put the image into the template")
    elif fleet.template is None and fleet.image is None:
        message = "a fleet needs a `template`, or an `image` for a one-line template"
        findings.error(path, "missing-key", message, key=True)


def _check_volume(findings: Findings, path: Path, fleet: FleetBlock, users: dict[str, tuple[str, str]]) -> None:
    """`users`: which fleet has a volume, and what it calls it."""
    if fleet.volume is None:
        return
    at = (*path, "volume")
    if fleet.volume not in findings.declared("volumes"):
        return  # reported where names are checked
    name = str(path[1])
    disk = _disk(findings, fleet.volume)
    if fleet.nodes.maximum > 1:
        message = f"volume.{fleet.volume} can be on one pod at a time, and this fleet has {fleet.nodes.maximum}"
        findings.error(at, "volume-shared", message, hint="give each pod a fleet and a volume of its own")
    elif disk in users:
        user, called = users[disk]
        other = "" if called == fleet.volume else f", as volume.{called}"
        message = f"volume.{fleet.volume} can be on one pod at a time, and fleet.{user} has it{other}"
        findings.error(at, "volume-shared", message)
    users.setdefault(disk, (name, fleet.volume))
    if fleet.lifecycle is not None and fleet.lifecycle.create_before_destroy:
        message = "create_before_destroy can't be had with a volume: both pods would need it at once"
        findings.error((*path, "lifecycle", "create_before_destroy"), "bad-combination", message)


def _disk(findings: Findings, volume: str) -> str:
    """What tells volumes apart: the id of one that is somebody else's, which may be declared twice, else the name."""
    block = findings.manifest.block("volumes", volume)
    return volume if block is None or block.id is None else block.id.lower()


def _check_lifetime(findings: Findings, path: Path, fleet: FleetBlock) -> None:
    policy = findings.manifest.policy
    if fleet.ttl is None:
        if fleet.ttl_renew:
            findings.error((*path, "ttl_renew"), "bad-combination", "ttl_renew needs a `ttl` to renew")
        if policy.require_ttl:
            message = "no `ttl`, which policy.require_ttl demands"
            findings.error(path, "missing-ttl", message, key=True, hint="write `ttl: 6h`")
        elif policy.max_total_cost is not None:
            message = "no `ttl`: with policy.max_total_cost every fleet needs one, or its cost has no bound"
            findings.error(path, "missing-ttl", message, key=True, hint="write `ttl: 6h`")
        else:
            message = "no `ttl`: these pods run, and cost, until somebody destroys them"
            findings.warn(path, "no-ttl", message, key=True, hint="write `ttl: 6h`: the server keeps it")
    elif fleet.bootstrap is not None and fleet.ttl < fleet.bootstrap.timeout:
        message = "the ttl is shorter than the bootstrap's timeout: the pod could go before it is ready"
        findings.error((*path, "ttl"), "ttl-short", message)


def _check_bootstrap(findings: Findings, path: Path, bootstrap: BootstrapBlock) -> None:
    ready = bootstrap.ready
    if ready is not None and (ready.port is None) == (ready.command is None):
        message = "ready: exactly one of `port` and `command`"
        findings.error((*path, "bootstrap", "ready"), "bad-combination", message)
