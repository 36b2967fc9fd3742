"""Logging in to pods, for every kind that works on one."""

from __future__ import annotations

from collections.abc import Callable

from lium_plan.kinds.protocol import Record
from lium_plan.kinds.services import Services
from lium_plan.lium.errors import LiumError, NotFoundError
from lium_plan.ssh.coordinates import parse_connect_command
from lium_plan.ssh.errors import BadConnectCommand
from lium_plan.ssh.protocol import Session

CONNECT_S = 90.0
READY_EVERY_S = 2.0
DEAD = ("DELETING", "BROKEN", "FAILED", "CREATION_FAILED", "REBOOT_FAILED", "STOPPED")


async def open_session(
    services: Services, pod: Record, *, ssh_key: str | None, deadline_s: float, say: Callable[[str], None]
) -> Session:
    """Log in with the pod's pinned host key. Raises `SshError`; `OSError` for a missing key file."""
    written = pod.attributes.get("connect_command")
    if not isinstance(written, str):
        raise BadConnectCommand("", "the server gave none for this pod")
    return await services.connector.open(
        parse_connect_command(written),
        pin=services.pins.pin(str(pod.id)),
        key_path=services.keys.private_key(ssh_key),
        deadline_s=deadline_s,
        on_stage=lambda stage: say(str(stage)),
    )


async def why_gone(services: Services, pod: Record) -> str | None:
    """Asked at once when a connection breaks: None while the pod lives, else what the server says of it."""
    try:
        row = await services.client.pod(str(pod.id))
    except NotFoundError:
        return "the pod is gone: it was deleted or reclaimed"
    except LiumError:
        return None
    return f"the pod is {row.status}" if row.status in DEAD else None


def listening(port: int) -> str:
    """A command that succeeds once something listens on a port of the pod.

    Connecting from outside would say nothing: the node's port forward accepts before the pod does (contract §7.5).
    """
    return f"cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qi ':{port:04X} [0-9A-F]*:[0-9A-F]* 0A '"
