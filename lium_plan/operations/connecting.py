"""Opening what touches the world: the client, the poller, SSH, and the drivers on top of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error
from lium_plan.kinds.protocol import Driver
from lium_plan.kinds.registry import KINDS, load_driver
from lium_plan.kinds.services import Identity, Services, SshKeys
from lium_plan.lium.client import LiumClient
from lium_plan.lium.errors import (
    AuthError,
    LiumConfigError,
    LiumError,
    PermissionError_,
    ServerError,
    TransportError,
)
from lium_plan.lium.poller import PodPoller
from lium_plan.operations.outside import REAL, Outside
from lium_plan.settings import Settings
from lium_plan.ssh.pins import PinStore
from lium_plan.state.model import State


@dataclass(frozen=True, slots=True)
class Connection:
    """A client with its poller, for the length of one command."""

    client: LiumClient
    poller: PodPoller
    outside: Outside


@asynccontextmanager
async def connect(settings: Settings, *, key_needed: bool = True, outside: Outside = REAL) -> AsyncIterator[Connection]:
    """Raises `Failure` without a key (unless it is not needed) or for an address that can't be used."""
    key = settings.require_key() if key_needed else settings.api_key
    try:
        client = outside.open_client(settings, key)
    except LiumConfigError as wrong:
        raise Failure(ExitCode.ERROR, (error("bad-address", str(wrong)),)) from wrong
    async with client, PodPoller(client) as poller:
        yield Connection(client, poller, outside)


def open_drivers(settings: Settings, connection: Connection, state: State) -> Mapping[str, Driver]:
    """A driver for every kind. The state gives the lineage and salt that names and hashes are made with."""
    services = Services(
        client=connection.client,
        poller=connection.poller,
        connector=connection.outside.open_connector(),
        pins=PinStore(settings.state_dir / "known_hosts"),
        keys=SshKeys(settings.ssh_key_path),
        identity=Identity(state.project, state.stack, state.lineage, state.salt),
        now=connection.client.server_time,
        random_bytes=connection.outside.random_bytes,
        new_uuid=connection.outside.new_uuid,
        logs=settings.state_dir / "logs" / state.stack,
    )
    return {name: load_driver(name, services) for name in KINDS}


@contextmanager
def api_failures(doing: str) -> Iterator[None]:
    """What the API answers while nothing is being changed: exit 1, and nothing is forgotten over it."""
    try:
        yield
    except LiumError as failure:
        raise Failure(ExitCode.ERROR, (api_diagnostic(failure, doing),)) from failure


def api_diagnostic(failure: LiumError, doing: str) -> Diagnostic:
    hint = failure.hint
    if hint is None and isinstance(failure, AuthError):
        hint = "check the key with `lium-plan doctor`"
    if hint is None and isinstance(failure, TransportError):
        hint = "check the network, and LIUM_BASE_URL where it is set: `lium-plan doctor` shows both"
    if hint is None and isinstance(failure, ServerError):
        hint = "the server has a problem of its own: try again in a while"
    if hint is None and isinstance(failure, PermissionError_):
        hint = "the key needs the scopes read, rent and manage"
    return error((failure.code or "api-error").lower().replace("_", "-"), f"{doing}: {failure}", hint=hint)
