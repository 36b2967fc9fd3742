"""What drivers are given to work with: the client, the poller, SSH, a clock, chance, and who we are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lium_plan.lium.client import LiumClient
    from lium_plan.lium.poller import PodPoller
    from lium_plan.ssh.pins import PinStore
    from lium_plan.ssh.protocol import Connector


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose resources these are; goes into every remote name."""

    project: str
    stack: str
    lineage: str
    salt: bytes


@dataclass(frozen=True, slots=True)
class SshKeys:
    """Finds the key pair of a fleet: a path as written in the manifest, or the user's default."""

    default: Path | None

    def private_key(self, written: str | None) -> Path:
        """Raises `FileNotFoundError` when there is neither."""
        if written is not None:
            return Path(written).expanduser()
        if self.default is None:
            raise FileNotFoundError("no SSH key: set LIUM_SSH_KEY_PATH, or make one with `ssh-keygen -t ed25519`")
        return self.default


@dataclass(frozen=True, slots=True)
class Services:
    client: LiumClient
    poller: PodPoller
    connector: Connector
    pins: PinStore
    keys: SshKeys
    identity: Identity
    now: Callable[[], datetime]
    """The server's now, as far as its `Date` headers tell."""
    random_bytes: Callable[[int], bytes]
    new_uuid: Callable[[], str]
    logs: Path
    """Directory of the pods' log files."""
