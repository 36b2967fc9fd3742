"""Logging in to pods, and telling why one can't be talked to any more, for every kind that works on one.

The API is asked while a login takes long and at once when a connection breaks: a pod that was taken away is not waited
for, and one that moved is followed. A changed host key is accepted only where the pod's own history explains it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from lium_plan.addresses import Address
from lium_plan.diagnostics import error
from lium_plan.kinds.pod.rows import own_row
from lium_plan.kinds.protocol import INTERRUPTION, ActionFailed, Interrupted, Json, Record
from lium_plan.kinds.services import Services, SshKeys
from lium_plan.lium.client import LiumClient
from lium_plan.lium.errors import LiumError, NotFoundError
from lium_plan.lium.models import AccountEvent, Pod
from lium_plan.lium.poller import Listing
from lium_plan.ssh.coordinates import parse_connect_command
from lium_plan.ssh.errors import BadConnectCommand, HostKeyChanged, SshError
from lium_plan.ssh.pins import PinFile
from lium_plan.ssh.protocol import Coordinates, Session

CONNECT_S = 90.0
READY_EVERY_S = 2.0
ASK_AFTER_S = 10.0
"""How long a login may take before the API is asked about its pod, and again after each answer."""
DEAD = ("DELETING", "BROKEN", "FAILED", "CREATION_FAILED", "REBOOT_FAILED", "STOPPED")
OUR_DOING = ("user_initiated", "scheduled_termination")
"""Reasons of an end that somebody asked for: such a pod was not taken away (contract §2.8.1)."""
CLOCKS_APART = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Gone:
    """Why a pod is no more, in words, and whether it was taken away rather than given up."""

    why: str
    interruption: bool


class PodGone(Exception):
    """The API says that the pod is no more."""

    def __init__(self, gone: Gone) -> None:
        self.gone = gone
        super().__init__(gone.why)


async def open_session(
    services: Services, pod: Record, *, ssh_key: str | None, deadline_s: float, say: Callable[[str], None]
) -> Session:
    """Log in with the pod's pinned host key and the key of `key_of`.

    Raises `SshError`, `PodGone`; `OSError` for a missing key file.
    """
    written = pod.attributes.get("connect_command")
    if not isinstance(written, str):
        raise BadConnectCommand("", "the server gave none for this pod")
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + deadline_s
    pin = services.pins.pin(str(pod.id))
    key_path = key_of(services.keys, pod, ssh_key)
    where = parse_connect_command(written)
    repinned = False
    while True:
        opening = asyncio.ensure_future(
            services.connector.open(
                where,
                pin=pin,
                key_path=key_path,
                deadline_s=max(ends_at - loop.time(), 1.0),
                on_stage=lambda stage: say(str(stage)),
            )
        )
        try:
            moved = await _watched(services, pod, opening, where)
        except HostKeyChanged:
            if repinned or not await _restarted_since(services, pod, pin):
                raise
            repinned = True
            services.pins.forget_pin(str(pod.id))
            say("new host key: the pod was restarted")
            continue
        except SshError:
            await raise_if_gone(services, pod)
            raise
        finally:
            if not opening.done():
                opening.cancel()
                with contextlib.suppress(asyncio.CancelledError, SshError):
                    await (await opening).close()
        if moved is None:
            return opening.result()
        where = moved


def key_of(keys: SshKeys, pod: Record, written: str | None = None) -> Path:
    """The private key that a pod accepts: the one it was checked with, whatever the manifest says meanwhile.

    `written`: the manifest's, which counts until the pod was checked, and when the recorded file is there no more (a
    key that was moved); without it the user's. Raises `FileNotFoundError` when there is no key at all.
    """
    known = pod.attributes.get("ssh_key")
    if isinstance(known, str) and Path(known).is_file():
        return Path(known)
    return keys.private_key(written)


async def _watched(
    services: Services, pod: Record, opening: asyncio.Future[Session], where: Coordinates
) -> Coordinates | None:
    """None once the login is done; the pod's new place when it has moved. Raises what the login raises, `PodGone`."""
    while True:
        looking = asyncio.ensure_future(_look(services))
        try:
            await asyncio.wait((opening, looking), return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
                return None
            listing = looking.result()
        finally:
            looking.cancel()
        row = None if listing is None else own_row(pod, listing.pods)
        if row is None:
            await raise_if_gone(services, pod)
            continue
        if row.status in DEAD:
            raise PodGone(await _gone(services, pod, row))
        with contextlib.suppress(BadConnectCommand):
            now = parse_connect_command(row.ssh_connect_cmd or "")
            if now != where:
                return now


async def _look(services: Services) -> Listing | None:
    """One listing for all who wait (the poller's), after a while; None when none can be had."""
    await asyncio.sleep(ASK_AFTER_S)
    try:
        return await services.poller.next_listing()
    except LiumError:
        return None


async def raise_if_gone(services: Services, pod: Record) -> None:
    """Raises `PodGone` when the API says so; an API that can't be asked says nothing."""
    gone = await why_gone(services, pod)
    if gone is not None:
        raise PodGone(gone)


async def why_gone(services: Services, pod: Record) -> Gone | None:
    """Asked at once when a connection breaks: None while the pod lives, else what the server says of it."""
    try:
        row = await services.client.pod(str(pod.id))
    except NotFoundError:
        return await _gone(services, pod, None)
    except LiumError:
        return None
    return await _gone(services, pod, row) if row.status in DEAD else None


async def _gone(services: Services, pod: Record, row: Pod | None) -> Gone:
    status = "gone" if row is None else row.status
    due = pod.attributes.get("removal_at")
    if isinstance(due, str) and datetime.fromisoformat(due) <= services.now():
        return Gone(f"the pod is {status}: its time to live has ended", interruption=False)
    event = next((event for event in reversed(await _events(services.client, str(pod.id))) if _ends(event)), None)
    if event is None:
        return Gone(f"the pod is {status}: it was deleted or reclaimed", interruption=True)
    told = event.reason or event.error or event.detail
    asked_for = event.reason in OUR_DOING
    what = "it was deleted" if asked_for else "it was taken away"
    return Gone(f"the pod is {status}: {what}" + (f" ({told})" if told else ""), interruption=not asked_for)


def _ends(event: AccountEvent) -> bool:
    return bool(event.reason or event.error) and event.to_status in (*DEAD, "DELETED")


async def _events(client: LiumClient, pod_id: str) -> tuple[AccountEvent, ...]:
    """The pod's history, oldest first; empty where it may not be read (contract §2.8.2)."""
    try:
        return tuple(await client.pod_events(pod_id))
    except LiumError:
        return ()


async def _restarted_since(services: Services, pod: Record, pin: PinFile) -> bool:
    try:
        row = await services.client.pod(str(pod.id))
    except LiumError:
        return False
    return await restarted_since(services.client, row, pin, services.now())


async def restarted_since(client: LiumClient, row: Pod, pin: PinFile, now: datetime) -> bool:
    """Whether the pod runs and was rebooted or restarted since its key was pinned (contract §7.4, hazard 47).

    A row that nobody has touched since costs no request.
    """
    try:
        age = timedelta(seconds=time.time() - pin.path.stat().st_mtime)
    except OSError:
        return False
    pinned_at = now - age - CLOCKS_APART
    if row.status != "RUNNING" or (row.updated_at is not None and row.updated_at < pinned_at):
        return False
    return any(
        _restarts(event) and event.created_at is not None and event.created_at >= pinned_at
        for event in await _events(client, row.id)
    )


def _restarts(event: AccountEvent) -> bool:
    words = " ".join((event.sub_event_type, event.from_status or "", event.to_status or "", event.reason or "")).lower()
    return "reboot" in words or "restart" in words


def taken_away(gone: Gone, pod: Record, doing: str, address: Address, log: Json = None) -> ActionFailed:
    """What an action ends with whose pod is no more."""
    hint = None if log is None else f"log: {log}"
    if not gone.interruption or pod.id is None:
        return ActionFailed(error("pod-gone", f"{doing}: {gone.why}", address=str(address), hint=hint))
    found = error(INTERRUPTION, f"{doing}: {gone.why}", address=str(address), hint=hint)
    return Interrupted(found, pod=pod.address, pod_id=pod.id)


def listening(port: int) -> str:
    """A command that succeeds once something listens on a port of the pod.

    Connecting from outside would say nothing: the node's port forward accepts before the pod does (contract §7.5).
    """
    return f"cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qi ':{port:04X} [0-9A-F]*:[0-9A-F]* 0A '"
