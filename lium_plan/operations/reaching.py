"""Where pods are reached over SSH, for `ssh` and for the rest of the toolbox."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from lium_plan.addresses import AddressError, parse_pattern, suggestion
from lium_plan.answers import Place
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error, warning
from lium_plan.kinds.protocol import Record
from lium_plan.kinds.services import SshKeys
from lium_plan.kinds.sessions import key_of, restarted_since
from lium_plan.lium.errors import LiumError, NotFoundError
from lium_plan.operations.connecting import connect
from lium_plan.operations.outside import REAL, Outside
from lium_plan.operations.states import load_state
from lium_plan.settings import Settings
from lium_plan.ssh.coordinates import parse_connect_command
from lium_plan.ssh.errors import BadConnectCommand
from lium_plan.ssh.pins import PinStore
from lium_plan.state.files import make_directory
from lium_plan.state.model import State


def places(settings: Settings, pattern: str | None = None) -> tuple[Place, ...]:
    """Every pod that could be logged in to when it was last looked at, in order; offline.

    Raises `Failure` without a state, or for a pattern that matches none.
    """
    state = load_state(settings)
    records = [record for record in _pods(state) if pattern is None or _matches(pattern, record)]
    if pattern is not None and not records:
        raise _not_found(state, pattern, ("pod",))
    return tuple(_place(settings, record, _written(record)) for record in records if _written(record))


async def place_now(
    settings: Settings, address: str, *, outside: Outside = REAL
) -> tuple[Place, tuple[Diagnostic, ...]]:
    """Where the pod at an address (or under a bootstrap or task) is now: a reboot may have moved it (contract §4.4).

    A pinned host key is forgotten where the pod's own history shows a reboot or restart since, and only there. Raises
    `Failure` for an address that isn't one pod, and for a pod that is gone or not running.
    """
    state = load_state(settings)
    record = pod_under(state, one_record(state, address, ("pod", "bootstrap", "task")))
    written, diagnostics = _written(record), ()
    found: tuple[Diagnostic, ...] = diagnostics
    try:
        async with connect(settings, outside=outside) as connection:
            client = connection.client
            row = await client.pod(str(record.id))
            pins = PinStore(settings.state_dir / "known_hosts")
            if await restarted_since(client, row, pins.pin(str(record.id)), client.server_time()):
                pins.forget_pin(str(record.id))
    except NotFoundError:
        raise _failure("pod-gone", record, "the server doesn't know this pod any more", "lium-plan apply") from None
    except LiumError as failure:
        found = (
            warning(
                "api-error",
                f"its place is as last seen: {failure}",
                address=str(record.address),
            ),
        )
    else:
        if row.status != "RUNNING" or not row.ssh_connect_cmd:
            raise _failure("not-running", record, f"the server says {row.status}", "lium-plan status")
        written = row.ssh_connect_cmd
    if not written:
        raise _failure("not-running", record, "it has not been running yet", "lium-plan apply")
    return _place(settings, record, written), found


# --- finding records -----------------------------------------------------------------------------------------


def one_record(state: State, address: str, kinds: tuple[str, ...]) -> Record:
    """The one record that an address means; `fleet.x` and `task.x` will do when they have one member."""
    exact = [record for record in state.records.values() if str(record.address) == address and not record.deposed]
    if exact and exact[0].kind in kinds:
        return exact[0]
    candidates = [record for record in state.records.values() if record.kind in kinds and not record.deposed]
    found = [record for record in candidates if _matches(address, record)]
    # `fleet.x` matches a pod and its bootstrap: the pod is meant.
    first = [record for record in found if record.kind == kinds[0]] or found
    if len(first) == 1:
        return first[0]
    if not first:
        raise _not_found(state, address, kinds)
    names = ", ".join(str(record.address) for record in sorted(first, key=lambda record: record.address))
    message = f"{address} means {len(first)} of them: {names}"
    raise Failure(ExitCode.ERROR, (error("ambiguous-address", message, hint="name one of them"),))


def pod_under(state: State, record: Record) -> Record:
    """The pod itself, or the one that a bootstrap or task is recorded on. Raises `Failure` when it is no more."""
    if record.kind == "pod":
        return record
    pod_id = record.attributes.get("pod_id")
    pod = next((item for item in state.records.values() if item.kind == "pod" and item.id == pod_id), None)
    if pod is None:
        raise _failure("pod-gone", record, "the pod that it ran on is gone", "lium-plan apply")
    return pod


def _not_found(state: State, address: str, kinds: tuple[str, ...]) -> Failure:
    living = [record for record in state.records.values() if not record.deposed]
    others = sorted({record.kind for record in living if record.kind not in kinds and _matches(address, record)})
    message = f"{address} is not in the state"
    if others:
        message = f"the state has a {' and a '.join(others)} at {address}, but no {' or '.join(kinds)}"
    close = suggestion(address, (record.address for record in living if record.kind in kinds))
    hint = close or (None if others else "nothing is there")
    return Failure(ExitCode.ERROR, (error("not-in-state", message, hint=hint),))


def _matches(pattern: str, record: Record) -> bool:
    try:
        return parse_pattern(pattern).matches(record.address)
    except AddressError as fault:
        raise Failure(ExitCode.USAGE, (error("bad-address", str(fault)),)) from fault


def _pods(state: State) -> list[Record]:
    pods = [record for record in state.records.values() if record.kind == "pod" and not record.deposed]
    return sorted(pods, key=lambda record: record.address)


# --- places --------------------------------------------------------------------------------------------------


def _written(record: Record) -> str | None:
    written = record.attributes.get("connect_command")
    return written if isinstance(written, str) else None


def _place(settings: Settings, record: Record, written: str | None) -> Place:
    try:
        where = parse_connect_command(written or "")
    except BadConnectCommand as fault:
        raise _failure("bad-connect-command", record, str(fault), None) from fault
    pin = PinStore(settings.state_dir / "known_hosts").pin(str(record.id)).path.absolute()
    with suppress(OSError):
        # `ssh` pins a first host key there itself, and makes no directory for it but its own.
        make_directory(pin.parent)
    facts = record.attributes
    return Place(
        address=str(record.address),
        fleet=record.address.name,
        member=record.address.member or "",
        pod_id=str(record.id),
        user=where.user,
        host=where.host,
        port=where.port,
        key_path=key_path(settings, record),
        known_hosts=pin,
        pinned=pin.exists(),
        gpu=str(facts.get("gpu") or ""),
        gpu_count=int(str(facts.get("gpu_count") or 0)),
    )


def key_path(settings: Settings, record: Record) -> Path:
    """The key that the pod was checked with when it was rented; the user's default where that is there no more."""
    try:
        return key_of(SshKeys(settings.ssh_key_path), record).absolute()
    except FileNotFoundError:
        return settings.require_ssh_key()  # says what is missing


def _failure(code: str, record: Record, message: str, hint: str | None) -> Failure:
    return Failure(ExitCode.ERROR, (error(code, message, address=str(record.address), hint=hint),))
