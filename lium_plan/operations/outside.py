"""Everything of the world that a run touches, in one value, so that a whole run can be put into another world.

Owns the list of what there is: the API's transport, SSH, wall time, chance and where the state lies. The real one is
`REAL`; a simulation gives its own, with a virtual clock and seeded chance.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lium_plan.settings import Settings
from lium_plan.state.local import LocalStore

if TYPE_CHECKING:
    from lium_plan.lium.client import LiumClient
    from lium_plan.ssh.protocol import Connector
    from lium_plan.state.store import Store


@dataclass(frozen=True, slots=True)
class Outside:
    """`open_client` raises `LiumConfigError` for an address or key that can't be used."""

    open_client: Callable[[Settings, str | None], LiumClient]
    open_connector: Callable[[], Connector]
    open_store: Callable[[Settings], Store]
    now: Callable[[], datetime]
    """Wall time, aware; the server's own is taken from its answers."""
    random_bytes: Callable[[int], bytes]
    new_uuid: Callable[[], str]


def _open_client(settings: Settings, key: str | None) -> LiumClient:
    from lium_plan.lium.client import LiumClient

    hint = f"the key comes from {settings.provenance.get('api_key', 'the settings')}: `lium-plan doctor` checks it"
    return LiumClient(settings.base_url, key, environ=settings.environ, random=random.random, key_hint=hint)


def _open_connector() -> Connector:
    from lium_plan.ssh.connector import SshConnector

    return SshConnector()


def wall_time() -> datetime:
    return datetime.now(UTC)


def open_local_store(settings: Settings) -> LocalStore:
    return LocalStore(settings.state_dir, settings.stack, now=wall_time)


REAL = Outside(
    open_client=_open_client,
    open_connector=_open_connector,
    open_store=open_local_store,
    now=wall_time,
    random_bytes=os.urandom,
    new_uuid=lambda: str(uuid.uuid4()),
)
